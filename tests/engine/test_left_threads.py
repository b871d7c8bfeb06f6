"""Sync handlers that still run in threads when their worker has stopped."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend, Seen, until, until_status
from treadle import Client, Context, Retry, Treadle, work
from treadle.engine.run.step_calls import ThreadCalls
from treadle.errors import Stopped
from treadle.events import Dead, LeaseLost, Succeeded
from treadle.operate.operator import core_of
from treadle.testing import Faults


class LeftBehind:
    """A worker that has stopped while a sync handler of it runs. What the handler does when it is released:
    return "done", or raise, or end because it was told to."""

    def __init__(self, make_app: MakeApp, **settings: Any) -> None:
        self.release, self.started = threading.Event(), threading.Event()
        self.seen = Seen()

        @work(name="stuck", retry=Retry(attempts=1, max_losses=0))
        def stuck(ctx: Context, how: str) -> str:
            self.started.set()
            self.release.wait(PATIENCE)
            if how == "obey":
                ctx.interrupt.raise_if_set()
            if how == "raise":
                raise ValueError(how)
            return "done"

        self.work = stuck
        self.app = make_app(stuck, on_event=self.seen, **settings)

    async def run(self, how: str = "return") -> str:
        await self.app.start()
        handle = await self.app.enqueue(self.work(how))
        await asyncio.to_thread(self.started.wait, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            await self.app.stop(drain=0)
        return handle.id


@pytest.fixture
def left(make_app: MakeApp) -> Iterator[LeftBehind]:
    left = LeftBehind(make_app, lease=1)
    yield left
    left.release.set()


@pytest.mark.parametrize(
    ("how", "status", "attempt"), [("return", "success", 1), ("raise", "dead", 1), ("obey", "ready", 0)]
)
async def test_the_outcome_of_a_thread_that_was_left_behind_is_settled(
    left: LeftBehind, make_app: MakeApp, how: str, status: str, attempt: int
) -> None:
    """A failure is a failure, and no loss. A handler that obeys its interrupt gives its item back."""
    id = await left.run(how)
    left.release.set()
    other = make_app()
    state = await until_status(other, id, status)
    assert (state.attempt, state.losses) == (attempt, 0)
    if how != "obey":
        await left.seen.until(Succeeded if how == "return" else Dead, id)


async def test_a_batch_that_was_left_behind_is_settled(make_app: MakeApp) -> None:
    release, started = threading.Event(), threading.Event()

    @work.batch(name="together", size=3, max_wait=0.05)
    def together(numbers: list[int]) -> list[int]:
        started.set()
        release.wait(PATIENCE)
        return [number * 2 for number in numbers]

    app = make_app(together)
    await app.start()
    handles = await app.enqueue_many([together(n) for n in range(3)])
    await asyncio.to_thread(started.wait, PATIENCE)
    await app.stop(drain=0)
    release.set()
    other = make_app(together)
    assert [await other.handle(handle.id).result(PATIENCE) for handle in handles] == [0, 2, 4]


async def test_an_item_that_was_cancelled_after_the_stop_stays_cancelled(
    left: LeftBehind, make_app: MakeApp
) -> None:
    """What its thread returns is refused. The worker is gone then."""
    id = await left.run()
    other = make_app()
    await other.handle(id).cancel()
    left.release.set()
    await left.seen.until(LeaseLost, id)
    assert (await other.handle(id).state()).status == "cancelled"
    await until(lambda: not core_of(left.app).lingering)


async def test_a_close_leaves_the_settlements_of_threads_alone(
    make_faulty: MakeApp, faults: Faults, make_app: MakeApp
) -> None:
    """The app is closed while the outcome of a thread is being settled."""
    left = LeftBehind(make_faulty)
    id = await left.run()
    failing = faults.fail("settle", times=2)
    async with left.app:
        left.release.set()
        await failing.reached()
    assert await make_app().handle(id).result(PATIENCE) == "done"
    await until(lambda: not core_of(left.app).lingering)


def test_the_lease_decides_if_the_event_loop_ends_before_the_thread(store: MakeBackend) -> None:
    """The thread goes on, so the item must not be given back."""
    left = LeftBehind(lambda *types, **settings: Treadle(store(), work=types, **settings))
    id = asyncio.run(left.run())

    async def look() -> str:
        async with Client(store()) as client:
            return (await client.handle(id).state()).status

    try:
        assert asyncio.run(look()) == "running"
    finally:
        left.release.set()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_request_of_a_thread_is_closed_if_the_event_loop_ends_before_it_begins(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the loop ends before or after the thread asks. Else Python warns that nobody has awaited it."""
    monkeypatch.setattr("treadle.engine.run.step_calls.LOOP_CHECK", 0.05)

    async def asked() -> None: ...

    request, loop = asked(), asyncio.new_event_loop()
    if when == "before":
        loop.close()
    serving = asyncio.ensure_future(asyncio.to_thread(ThreadCalls(loop).serve, request))
    if when == "after":
        await until(lambda: bool(cast("Any", loop)._ready))
        loop.close()
    with pytest.raises(Stopped):
        await serving
    assert inspect.getcoroutinestate(request) == inspect.CORO_CLOSED


def test_no_heartbeats_are_sent_after_the_loop_and_its_threads_have_ended(store: MakeBackend) -> None:
    """The thread ends just before the event loop does: nothing is left that could end the heartbeats."""
    release, started = threading.Event(), threading.Event()
    watchdogs: list[threading.Thread] = []
    others = set(threading.enumerate())

    @work(name="stuck")
    def stuck() -> None:
        started.set()
        release.wait(PATIENCE)

    async def main() -> None:
        app = Treadle(store(), work=[stuck], lease=1, heartbeat=0.2)
        await app.start()
        await app.enqueue(stuck())
        await asyncio.to_thread(started.wait, PATIENCE)
        await app.stop(drain=0)
        new = set(threading.enumerate()) - others
        watchdogs.extend(each for each in new if each.name == "treadle watchdog")
        release.set()
        lingering: Any = core_of(app).lingering
        (runtime,) = lingering
        while runtime.runner.pools.threads.busy:
            time.sleep(0.01)  # noqa: ASYNC251  the loop must not notice it before it ends

    asyncio.run(main())
    assert watchdogs
    for watchdog in watchdogs:
        watchdog.join(PATIENCE)
        assert not watchdog.is_alive()


class Cancelled(asyncio.Future[None]):
    """A future that calls a function when the task that waits for it is cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def cancel(self, msg: Any = None) -> bool:
        self._call()
        return super().cancel(msg)


@pytest.mark.parametrize("tasks", ["cancelled", "ending"])
def test_a_thread_that_ends_while_the_loop_does_leaves_no_task(
    tasks: str, store: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks of the loop are cancelled, or some have ended too. One that began now would never end."""

    async def release_last(release: Callable[[], None]) -> None:
        if tasks == "cancelled":
            await Cancelled(release)
        try:
            await asyncio.Event().wait()
        finally:
            release()

    async def main(left: LeftBehind) -> tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]:
        await left.run()
        (runtime,) = core_of(left.app).lingering
        threads: Any = cast("Any", runtime).runner.pools.threads

        def release() -> None:
            left.release.set()
            while threads.busy:
                time.sleep(0.01)  # the loop must not notice it before it ends

        last = asyncio.create_task(release_last(release))
        await asyncio.sleep(0)
        return asyncio.get_running_loop(), last

    def run() -> None:
        left = LeftBehind(lambda *types, **settings: Treadle(store(), work=types, **settings))
        loop, _ = asyncio.run(main(left))
        assert not asyncio.all_tasks(loop)
        assert not core_of(left.app).lingering

    run()
    gc.collect()
    assert "_end_lingering" not in caplog.text


async def test_a_thread_that_has_ended_unnoticed_is_settled_at_a_stop(make_app: MakeApp) -> None:
    """The event loop is busy when the drain ends: it has not seen yet that the thread has ended."""
    started = threading.Event()

    @work(name="short", retry=Retry(attempts=1))
    def short() -> str:
        started.set()
        time.sleep(0.3)
        return "done"

    app = make_app(short)
    await app.start()
    handle = await app.enqueue(short())
    await asyncio.to_thread(started.wait, PATIENCE)
    asyncio.get_running_loop().call_later(0.05, time.sleep, 0.5)
    await app.stop(drain=0.06)
    state = await until_status(make_app(short), handle.id, "success")
    assert (state.attempt, state.losses) == (1, 0)
