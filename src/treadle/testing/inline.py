"""Run everything that is due, and return when it is done. For the tests of programs that use treadle.

clock = ManualClock()
app = Treadle(work=[send], clock=clock)
async with run_inline(app):
    handle = await app.enqueue(send("a@example.org"), delay=3600)
    await drain(app)            # nothing is due yet
    await clock.advance(3600)
    await drain(app)            # it has run
    assert (await handle.state()).status == "success"
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from treadle.app import Treadle


@asynccontextmanager
async def run_inline(app: Treadle) -> AsyncGenerator[Treadle]:
    """Start the app. At the end of the block, run everything that is due and stop the app. It neither sleeps
    nor polls: items start because they were submitted, and `drain` returns because none is left."""
    await app.start()
    try:
        yield app
        await drain(app)
    finally:
        await app.stop(drain=0)


async def drain(app: Treadle) -> None:
    """Return when every item that is due has run and is settled, including the items that these queued. Items
    that are due later are left alone: move the clock, and drain again."""
    await app.worker.drain()
