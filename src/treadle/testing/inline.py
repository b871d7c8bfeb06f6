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
from treadle.backend import Backend
from treadle.base.timing import Duration, seconds
from treadle.errors import InputError
from treadle.item import NEVER, Filter
from treadle.operate.operator import core_of
from treadle.store.rules.listing import LARGEST_PAGE

from .clock import ManualClock


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


async def travel(app: Treadle, by: Duration) -> None:
    """Run everything that is due within this time, each at its instant, and move the clock there: items that
    are delayed, tried again or suspended, and schedules. The app needs a `ManualClock`.

        await travel(app, timedelta(days=30))
    """
    core = core_of(app)
    clock, backend = core.settings.clock, core.backend
    if not isinstance(clock, ManualClock):
        problem = "travel needs an app with a ManualClock: Treadle(clock=ManualClock())"
        raise InputError(problem, parameters=("app",))
    end = clock.now() + seconds(by, field="by")
    await drain(app)
    while (due := await _next_due(backend, clock.now())) is not None and due <= end:
        await clock.advance(due - clock.now())
        await drain(app)
    await clock.advance(max(end - clock.now(), 0.0))
    await drain(app)


async def _next_due(backend: Backend, now: float) -> float | None:
    """When the next item, or the next schedule, is due, after now: what is due already could not run."""
    dues = [each.next_at for each in await backend.schedules() if not each.paused]
    cursor: str | None = None
    while True:
        page = await backend.list(Filter(status=("scheduled",)), limit=LARGEST_PAGE, cursor=cursor)
        dues += [item.due_at for item in page.items if item.due_at < NEVER]
        cursor = page.cursor
        if cursor is None:
            return min((due for due in dues if due is not None and due > now), default=None)


async def drain(app: Treadle) -> None:
    """Return when every item that is due has run and is settled, including the items that these queued. Items
    that are due later are left alone: move the clock, and drain again."""
    await app.worker.drain()
