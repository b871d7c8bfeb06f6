"""The processes of a storm: `python -m tests.chaos.actors submit|work URL LEDGER`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.chaos.ledger import Ledger
from treadle import Context, Result, Retry, StoreUnavailable, Treadle, work

SETTINGS: dict[str, Any] = {"lease": 3.0, "poll_interval": 0.2}


@work(name="effect", retry=Retry(attempts=None, base=0.05, max=0.5))
async def effect(ctx: Context, n: int) -> int:
    """Its effect is a row in the user's own table, written in the transaction that settles it."""
    async with ctx.transaction() as tx:
        await asyncio.sleep(0.002)
        await execute(tx, ctx.id)
    return n


@work(name="pair", retry=Retry(attempts=None, base=0.05, max=0.5))
async def pair(ctx: Context, n: int) -> Result[None, int]:
    """Two effects, and a third when both are there."""
    return ctx.queue(effect(n), effect(n + 1)).next(effect(n + 2))


async def execute(tx: Any, id: str) -> None:
    if hasattr(tx, "executemany") and not asyncio.iscoroutinefunction(tx.execute):
        tx.execute("INSERT INTO effects (id) VALUES (?)", (id,))
    else:
        await tx.execute("insert into effects (id) values ($1)", id)


async def submit(url: str, ledger: Ledger) -> None:
    """Submit for as long as this process lives, and write down what was acknowledged."""
    app = Treadle(url, work=[effect, pair], **SETTINGS)
    number = 0
    while True:
        number += 1
        try:
            if number % 5 == 0:
                handle = await app.enqueue(pair(number))
                ledger.write(f"pair {handle.id}")
            else:
                handles = await app.enqueue_many([effect(number) for _ in range(3)])
                ledger.write("\n".join(f"effect {handle.id}" for handle in handles))
        except StoreUnavailable:
            continue
        if number == 5:
            ledger.write(f"ready {os.getpid()}")
        await asyncio.sleep(0.005)


async def run(url: str, ledger: Ledger) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app = Treadle(url, work=[effect, pair], **SETTINGS)
    await app.start()
    ledger.write(f"ready {os.getpid()}")
    await stop.wait()
    await app.stop()


def main() -> None:
    role, url, path = sys.argv[1:4]
    asyncio.run({"submit": submit, "work": run}[role](url, Ledger(Path(path))))


if __name__ == "__main__":
    main()
