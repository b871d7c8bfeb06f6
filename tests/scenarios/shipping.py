"""A process that is killed right before its commit: `python -m tests.scenarios.shipping URL`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from treadle import Context, Result, Retry, Treadle, work


async def shipping(url: str, *, die: bool) -> int:
    """One worker ships an order: a row of the user, a result, and an invoice to run next."""

    @work(name="invoice")
    async def invoice(ctx: Context, order: int) -> str:
        return f"invoice {order}"

    @work(name="ship", retry=Retry(attempts=None))
    async def ship(ctx: Context, order: int) -> Result[None, str]:
        async with ctx.transaction() as tx:
            await tx.execute("insert into orders values ($1)", order)
        if die:
            os.kill(os.getpid(), signal.SIGKILL)  # everything is written, nothing is committed
        return ctx.queue(invoice(order))

    async with Treadle(url, work=[ship, invoice], lease=1.0) as app:
        handle = await app.enqueue(ship(7), key="order 7")
        assert await handle.group(30) == "invoice 7"
        (state,) = await app.get(handle)
        assert state is not None
        return state.attempt


if __name__ == "__main__":
    asyncio.run(shipping(sys.argv[1], die=True))
