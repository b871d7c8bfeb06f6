"""For the tests of those who use treadle: run everything that is due, and know when it is done.

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
    """Start the app; when the block ends, run what is due to its end and stop. No sleeps, no polling: work
    starts because it was submitted, and `drain` returns because there is nothing left."""
    await app.start()
    try:
        yield app
        await drain(app)
    finally:
        await app.stop(drain=0)


async def drain(app: Treadle) -> None:
    """Return when everything that is due has run, what it queued included, and is settled. What is due
    later is left alone: move the clock, and drain again."""
    await app.worker.drain()
