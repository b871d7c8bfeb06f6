"""Handlers that misbehave. The worker goes on and reports what happened."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.kit import (
    PATIENCE,
    Barrier,
    MakeApp,
    MakeBackend,
    Seen,
    class_path,
    failure,
    until,
    until_status,
)
from treadle import Client, Context, Result, Retry, Treadle, work
from treadle.backends.memory import MemoryBackend
from treadle.doers import Task, balanced, concurrency, priority, unlimited
from treadle.engine.run import attempt, loops
from treadle.engine.run.heartbeat import Watchdog
from treadle.events import Succeeded
from treadle.operate.operator import core_of


class Rude(BaseException):
    """A BaseException that is not an Exception."""


class Mute(Exception):
    """An exception without a text."""

    def __init__(self, own: BaseException) -> None:
        self.own = own

    def __str__(self) -> str:
        raise self.own

    __repr__ = __str__


RUDE = [
    SystemExit(3),
    KeyboardInterrupt(),
    RecursionError("deep"),
    MemoryError(),
    GeneratorExit(),
    StopIteration(1),
    StopAsyncIteration(),
    asyncio.CancelledError(),
    TimeoutError(),
    Rude("rude"),
    ExceptionGroup("many", [ValueError(1), KeyError(2)]),
]


@work(name="echo")
async def echo(n: int) -> int:
    return n


@pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved
@pytest.mark.parametrize("error", RUDE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["loop", "thread", "middleware"])
async def test_any_exception_of_a_handler_is_a_failed_attempt(
    make_app: MakeApp, sound: None, error: BaseException, where: str
) -> None:
    @work(name="rude", retry=Retry(attempts=2, base=0))
    async def rude() -> None:
        raise error

    @work(name="sync", retry=Retry(attempts=2, base=0))
    def sync() -> None:
        raise error

    async def onion(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        if where == "middleware" and ctx.type == "rude":
            raise error
        return await call_next()

    async with make_app(rude, sync, echo, middleware=[onion]) as app:
        died = await failure(app.enqueue(sync() if where == "thread" else rude()).result(PATIENCE))
        # A coroutine cannot raise StopIteration: Python makes it a RuntimeError. So do futures.
        shown = "RuntimeError" if isinstance(error, StopIteration) else class_path(error)
        assert (died.reason, died.attempts) == ("exhausted", 2)
        assert died.error_type in (shown, "RuntimeError" if where != "loop" else shown)
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1


@pytest.mark.parametrize("own", [RuntimeError("no words"), SystemExit(3)], ids=["error", "exit"])
async def test_an_exception_without_a_text_is_a_failed_attempt(
    make_app: MakeApp, sound: None, own: BaseException
) -> None:
    @work(name="mute", retry=Retry(attempts=1))
    async def mute() -> None:
        raise Mute(own)

    async with make_app(mute, echo) as app:
        assert (await failure(app.enqueue(mute()).result(PATIENCE))).error_type == class_path(Mute(own))
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


class Broken:
    """An object that cannot be compared, hashed, tested or shown."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equal")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("make", [_endless, _deep, Broken, lambda: echo, lambda: asyncio.sleep, object])
async def test_a_value_that_cannot_be_stored_makes_the_item_dead(
    make_app: MakeApp, sound: None, make: Callable[[], Any]
) -> None:
    """At once. The other items of the settle call succeed."""

    @work(name="strange")
    async def strange() -> Any:
        return make()

    async with make_app(strange, echo) as app:
        others = await app.enqueue_many([echo(n) for n in range(5)])
        died = await failure(app.enqueue(strange()).result(PATIENCE))
        assert (died.reason in ("undecodable", "bad_result"), died.attempts) == (True, 1)
        assert [await each.result(PATIENCE) for each in others] == list(range(5))


async def test_a_result_of_the_wrong_type_does_not_stop_the_worker(make_app: MakeApp, sound: None) -> None:
    """The group's value cannot be decoded. Events and other items go on."""
    seen = Seen()

    @work(name="liar")
    async def liar() -> int:
        return "not a number"  # type: ignore[return-value]

    async with make_app(liar, echo, on_event=seen) as app:
        handle = await app.enqueue(liar())
        outcome = (await asyncio.gather(handle.group(PATIENCE), return_exceptions=True))[0]
        assert isinstance(outcome, Exception)
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
        assert not app.active()


# ----------------------------------------------------------------------------------- handlers that do not end


async def test_a_handler_that_swallows_its_cancellation_is_given_up(
    make_app: MakeApp, sound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a moment the item is free. The handler counts as running until it ends, and a stop does not
    wait for it."""
    for module in (attempt, loops):
        monkeypatch.setattr(module, "CANCEL_GRACE", 0.05)
    barrier, go = Barrier(), asyncio.Event()

    @work(name="deaf")
    async def deaf() -> str:
        barrier.started.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    app = make_app(deaf, echo, doer=balanced(2))
    async with app:
        handle = await app.enqueue(deaf())
        await barrier.reached()
        await handle.cancel()
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
        await until(lambda: not app.active())
        again = await app.enqueue(deaf())
        await until(app.active)
        async with asyncio.timeout(PATIENCE):
            await app.worker.stop(drain=0)
        state = await again.state()
        assert (state.status, state.attempt) == ("ready", 0)
        assert (await handle.state()).status == "cancelled"
        go.set()
        await asyncio.sleep(0)


async def test_an_attempt_ends_with_its_handler_not_with_its_tasks(make_app: MakeApp, sound: None) -> None:
    """The engine does not cancel a task that the handler started."""
    left: list[asyncio.Task[None]] = []

    async def linger() -> None:
        await asyncio.Event().wait()

    @work(name="untidy")
    async def untidy() -> str:
        left.append(asyncio.create_task(linger()))
        return "done"

    async with make_app(untidy) as app:
        assert await app.enqueue(untidy()).result(PATIENCE) == "done"
        assert not app.active()
    assert not left[0].done()
    left[0].cancel()


async def test_a_handler_can_stop_its_own_worker(make_app: MakeApp, sound: None) -> None:
    """The stop does not hang, and the item is not lost."""
    app: Treadle
    barrier = Barrier()

    @work(name="last")
    async def last() -> str:
        barrier.started.set()
        await app.worker.stop(drain=0.1)
        return "stopped"

    app = make_app(last)
    await app.start()
    handle = await app.enqueue(last())
    await barrier.reached()
    await until_status(app, handle.id, "ready", "success")
    assert not app.worker.running


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(
    store: MakeBackend, make_app: MakeApp, sound: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It blocks for two leases while another worker waits. It runs once, and the log names the blocking
    line."""
    if isinstance(store(), MemoryBackend):
        pytest.skip("the memory backend has no second process")
    attempts: list[int] = []

    @work(name="blocking")
    async def blocking(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            other.start()
        time.sleep(2.0)  # noqa: ASYNC251
        return ctx.attempt

    caplog.set_level(logging.WARNING, "treadle")
    over = threading.Event()
    other = threading.Thread(target=asyncio.run, args=(_work_elsewhere(store(), blocking, over),))
    async with make_app(blocking, lease=1.0) as app:
        handle = await app.enqueue(blocking())
        assert await handle.result(PATIENCE) == 1
        over.set()
        await asyncio.to_thread(other.join)
    assert attempts == [1]
    warned = [record for record in caplog.records if "blocked" in record.getMessage()]
    assert any("time.sleep(2.0)" in (record.exc_text or "") for record in warned)


async def test_a_watchdog_that_sends_heartbeats_ends_at_once(make_app: MakeApp) -> None:
    """It does not wait for its next heartbeat: `stop` waits for it."""
    async with make_app(lease=60) as app:
        loop_heartbeat: Any = SimpleNamespace(last_watchdog_beat=0.0)
        watchdog = Watchdog(core_of(app), "w1", loop_heartbeat)
        watchdog.keep_lease = lambda: True  # as if the loop were blocked
        sending = threading.Thread(target=asyncio.run, args=(watchdog._beat_here(),))  # pyright: ignore[reportPrivateUsage]
        sending.start()
        await until(lambda: loop_heartbeat.last_watchdog_beat > 0)
        watchdog.over.set()
        await asyncio.to_thread(sending.join, 3)
        assert not sending.is_alive()


async def test_the_item_that_blocks_the_event_loop_is_published(
    store: MakeBackend, make_app: MakeApp
) -> None:
    """While it does, as seen from another process. For a while after it: that it did."""
    if isinstance(store(), MemoryBackend):
        pytest.skip("the memory backend has no second process")
    seen: list[str] = []

    @work(name="innocent")
    async def innocent() -> None:
        begun.set()
        await over.wait()

    @work(name="guilty")
    async def guilty() -> None:
        watcher = threading.Thread(target=asyncio.run, args=(_see_blocked(store(), seen),))
        watcher.start()
        watcher.join()

    begun, over = asyncio.Event(), asyncio.Event()
    async with make_app(innocent, guilty, lease=0.35) as app:
        await app.enqueue(innocent(), id="beside")
        await begun.wait()
        await app.enqueue(guilty(), id="culprit").result(PATIENCE)
        assert seen == ["culprit (guilty) blocks it"]
        while True:
            (worker,) = await app.workers()
            if worker.info is not None and worker.info.blockages:
                break
            await asyncio.sleep(0.02)
        assert worker.info.blocked_by == ()
        (blockage,) = worker.info.blockages
        assert [(item.id, item.type) for item in blockage.items] == [("culprit", "guilty")]
        assert blockage.until > blockage.since
        over.set()


async def _see_blocked(backend: Any, seen: list[str]) -> None:
    """Wait until a problem says what blocks a worker."""
    async with asyncio.timeout(PATIENCE), Client(backend) as client:
        while not seen:
            texts = [each.text for each in await client.problems() if each.kind == "blocked"]
            seen += [text.rpartition("; ")[2] for text in texts if "blocks it" in text]
            await asyncio.sleep(0.02)


async def _work_elsewhere(backend: Any, type: Any, over: threading.Event) -> None:
    async with Treadle(backend, work=[type], poll_interval=0.02, lease=0.35):
        await asyncio.to_thread(over.wait, PATIENCE)


# ------------------------------------------------------------------------------------------------ contextvars

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="clean")


class OneByOne:
    """A doer of a user. The end of one item starts the next in the same task."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._running: asyncio.Task[None] | None = None

    def available(self) -> int:
        return 20 - len(self._waiting)

    def submit(self, task: Task, *, lane: str, priority: int, queued_at: float) -> None:
        self._waiting.append(task)
        if self._running is None:
            self._next()

    def _next(self) -> None:
        self._running = asyncio.create_task(self._run(self._waiting.popleft())) if self._waiting else None

    async def _run(self, task: Task) -> None:
        await task()
        self._next()

    async def idle(self) -> None:
        while self._running is not None:
            await asyncio.wait({self._running})


DOERS: dict[str, Callable[[], Any]] = {
    "unlimited": unlimited,
    "balanced": lambda: balanced(1, buffer=10),
    "priority": lambda: priority(2, buffer=10),
    "concurrency": lambda: concurrency(2),
    "own": OneByOne,
}


@pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved
@pytest.mark.parametrize("doer", DOERS.values(), ids=DOERS)
async def test_context_variables_of_a_handler_do_not_leak(
    make_app: MakeApp, sound: None, doer: Callable[[], Any]
) -> None:
    """The next handler in the same task, and hooks called after the settlement, do not see them."""
    found: Counter[str] = Counter()
    in_hooks: Counter[str] = Counter()

    @work(name="tainted", retry=Retry(attempts=2, base=0))
    async def tainted(ctx: Context, n: int) -> Result[None, None]:
        found[VAR.get()] += 1
        VAR.set(f"tainted {n}")
        if n % 3 == 0 and ctx.attempt == 1:
            raise ValueError
        return ctx.queue(echo(n)) if n % 3 == 1 else ctx.void()

    @work(name="threaded")
    def threaded(n: int) -> None:
        found[VAR.get()] += 1
        VAR.set(f"threaded {n}")

    def on_event(event: object) -> None:
        if isinstance(event, Succeeded):
            in_hooks[VAR.get()] += 1

    async with make_app(tainted, threaded, echo, doer=doer(), on_event=on_event) as app:
        works = [tainted(n) if n % 2 else threaded(n) for n in range(30)]
        handles = await app.enqueue_many(works)
        await asyncio.gather(*(each.group(PATIENCE) for each in handles))
    assert set(found) == {"clean"}
    assert set(in_hooks) == {"clean"}


async def test_context_variables_of_the_caller_do_not_reach_the_handler(
    make_app: MakeApp, sound: None
) -> None:
    """Also with `skip_queue`, so that an item runs in the same way in every process."""
    found: list[str] = []

    @work(name="local", skip_queue=True)
    async def local() -> None:
        found.append(VAR.get())

    async with make_app(local) as app:
        VAR.set("the caller's")
        await app.enqueue(local()).result(PATIENCE)
    assert found == ["clean"]
