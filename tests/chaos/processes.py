"""The processes of a chaos run: `python -m tests.chaos.processes submit|work URL LEDGER [ITEMS]`."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.chaos.ledger import Ledger
from treadle import Context, Result, Retry, StoreUnavailable, Treadle, work
from treadle.doers import balanced
from treadle.events import Event, GroupDone, Succeeded

SETTINGS: dict[str, Any] = {"lease": 3.0, "poll_interval": 0.2}
ENDLESS = Retry(attempts=None, base=0.05, max=0.5)

ledger: Ledger
url: str


@work(name="effect", retry=ENDLESS)
async def effect(ctx: Context, n: int) -> int:
    """Writes a row to the user's own table in the transaction that settles the item, where there is one."""
    record_start(ctx)
    if url.startswith("redis"):
        await asyncio.sleep(0.002)
        return n
    async with ctx.transaction() as tx:
        await asyncio.sleep(0.002)
        await execute(tx, ctx.id)
    return n


@work(name="pair", retry=ENDLESS)
async def pair(ctx: Context, n: int) -> Result[None, int]:
    """Queues two effects, and a third that runs after both."""
    record_start(ctx)
    return ctx.queue(effect(n), effect(n + 1)).next(effect(n + 2))


def record_start(ctx: Context) -> None:
    ledger.write(f"run {ctx.id} {os.getpid()} {time.monotonic()} {ctx.attempt}")


async def execute(tx: Any, id: str) -> None:
    if hasattr(tx, "executemany") and not inspect.iscoroutinefunction(tx.execute):
        tx.execute("INSERT INTO effects (id) VALUES (?)", (id,))
    else:
        await tx.execute("insert into effects (id) values ($1)", id)


async def submit(url: str, items: int) -> None:
    """Submit until there are that many items, and record each acknowledged submission."""
    app = Treadle(url, work=[effect, pair], **SETTINGS)
    number, stored = 0, ledger.items()
    while True:
        number += 1
        if number == 5:
            ledger.write(f"ready {os.getpid()}")
        try:
            stored += await submit_some(app, number) if stored < items else 0
        except StoreUnavailable:
            continue
        await asyncio.sleep(0.005)


async def submit_some(app: Treadle, number: int) -> int:
    """Submit one pair or three effects. Return the number of items."""
    if number % 5 == 0:
        handle = await app.enqueue(pair(number))
        ledger.write(f"pair {handle.id}")
        return 4
    handles = await app.enqueue_many([effect(number) for _ in range(3)])
    ledger.write("\n".join(f"effect {handle.id}" for handle in handles))
    return 3


async def run(url: str, _: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app = await started(url)
    ledger.write(f"ready {os.getpid()}")
    await stop.wait()
    await app.stop()


async def started(url: str) -> Treadle:
    """A worker that runs. It is started again, as a supervisor does, if the store was away for longer than a
    start waits for it."""
    while True:
        app = Treadle(url, work=[effect, pair], on_event=on_event, doer=balanced(8), **SETTINGS)
        try:
            await app.start()
        except StoreUnavailable:
            await app.close()
        else:
            return app


def on_event(event: Event) -> None:
    if isinstance(event, Succeeded):
        ledger.write(f"done {event.id}")
    elif isinstance(event, GroupDone):
        ledger.write(f"closed {event.id}")


def main() -> None:
    global ledger, url  # noqa: PLW0603  handlers are functions of this module
    role, url, path, items = sys.argv[1:5]
    ledger = Ledger(Path(path))
    asyncio.run({"submit": submit, "work": run}[role](url, int(items)))


if __name__ == "__main__":
    main()
