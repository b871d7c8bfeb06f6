"""What a worker says about itself in its heartbeats, and when it says it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeVar

from tests.engine.kit import PATIENCE, Barrier, MakeApp, MakeBackend, until_status
from treadle import Client, Treadle, __version__, work
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.doers import balanced, concurrency
from treadle.engine.run.attempt import Declines
from treadle.item import Heartbeat
from treadle.testing import ManualClock
from treadle.testing.wrap import WrappedBackend
from treadle.worker_info import WorkerInfo, decode_worker_info

T = TypeVar("T")


class Calls(WrappedBackend):
    """Keeps the heartbeats, and counts the other calls."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.beats: list[Heartbeat] = []
        self.verbs: list[str] = []

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        self.verbs.append(verb)
        if verb == "beat":
            self.beats.append(args[0])
        return await call()

    def infos(self) -> list[WorkerInfo]:
        return [info for beat in self.beats if (info := decode_worker_info(beat.info)) is not None]


@work(name="slow", run_in="thread")
def slow() -> None: ...


@work(name="own", doer=balanced(3))
async def own() -> None: ...


@work(name="shared", aliases=["old.shared"])
async def shared() -> None: ...


async def info_of(app: Client, id: str = "w1") -> WorkerInfo:
    (worker,) = [worker for worker in await app.workers() if worker.id == id]
    assert isinstance(worker.info, WorkerInfo)
    return worker.info


async def until_info(app: Client, is_so: Callable[[WorkerInfo], bool]) -> None:
    """Return when the worker says this."""
    async with asyncio.timeout(PATIENCE):
        while True:
            infos = [worker.info for worker in await app.workers()]
            if any(isinstance(info, WorkerInfo) and is_so(info) for info in infos):
                return
            await asyncio.sleep(0.01)


async def test_a_worker_says_who_it_is_and_what_it_serves(make_app: MakeApp) -> None:
    app = make_app(
        slow,
        own,
        shared,
        worker_id="w1",
        queues=["mail", "mail"],
        tenants=["acme"],
        threads=7,
        unknown_type_grace=9,
    )
    async with app:
        info, now = await info_of(app), await app.backend.now()
    assert (info.host, info.pid, info.version) == (socket.gethostname(), os.getpid(), __version__)
    assert now - PATIENCE < info.started_at <= now
    assert (info.lease, info.heartbeat) == (5.0, 1.0)
    assert (info.queues, info.tenants) == (("mail",), ("acme",))
    assert info.room == 200
    assert info.rooms == {"slow": 7, "own": 3}
    assert info.unknown_type_grace == 9
    assert not info.draining


async def test_a_manual_lease_says_that_it_is_one(make_app: MakeApp) -> None:
    app = make_app(shared)
    await app.enqueue(shared())
    lease = await app.claim_one()
    assert lease is not None
    (worker,) = await app.workers()
    assert isinstance(worker.info, WorkerInfo)
    assert (worker.info.manual, worker.info.pid) == (True, os.getpid())
    await lease.complete()


async def test_a_worker_that_was_removed_says_it_again(make_app: MakeApp, store: MakeBackend) -> None:
    app = make_app(shared, worker_id="w1", heartbeat=0.05)
    backend = store()
    await backend.open()
    async with app:
        await info_of(app)
        await backend.remove_worker("w1")
        await until_info(app, lambda info: True)
    await backend.close()


async def test_a_second_worker_of_one_name_replaces_what_the_first_said(make_app: MakeApp) -> None:
    """Its process died: nobody removed the worker."""
    app, next_app = make_app(shared, queues=["a"]), make_app(shared, worker_id="w1", queues=["b"])
    await app.connect()
    await app.backend.beat(Heartbeat(worker="w1", lease=60, info=b'{"queues": ["a"]}'))
    async with next_app:
        assert (await info_of(next_app)).queues == ("b",)


async def test_a_worker_that_is_full_says_so(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work(name="wait")
    async def wait() -> None:
        await barrier.wait()

    @work(name="limited", doer=concurrency(1, inner=balanced(2)))
    async def limited() -> None:
        await barrier.wait()

    app = make_app(wait, limited, worker_id="w1", doer=balanced(1), heartbeat=0.05)
    async with app:
        await app.enqueue(wait())
        await barrier.reached()
        await until_info(app, lambda info: info.full_types == ("wait",))
        barrier.go.set()


def timed_app(*types: Any, **settings: Any) -> tuple[Treadle, Calls, ManualClock]:
    """An app on a clock that the test moves. Its lease is 20 s, so changes are sent every 5 s."""
    clock = ManualClock()
    calls = Calls(MemoryBackend(clock=clock))
    app = Treadle(calls, work=types, clock=clock, lease=20, heartbeat=1, poll_interval=1, **settings)
    return app, calls, clock


async def beats(calls: Calls, clock: ManualClock, count: int) -> None:
    """Let this number of heartbeats pass."""
    wanted = len(calls.beats) + count
    async with asyncio.timeout(PATIENCE):
        while len(calls.beats) < wanted:
            await clock.advance(0.25)


async def test_it_is_sent_first_and_when_it_has_changed_but_not_often() -> None:
    declining = True
    app, calls, clock = timed_app(shared, accept=lambda info: not declining)
    async with app:
        assert len(calls.infos()) == 1
        await beats(calls, clock, 10)
        assert len(calls.infos()) == 1
        await app.enqueue(shared())
        await beats(calls, clock, 12)
        sent = [index for index, beat in enumerate(calls.beats) if beat.info is not None]
        assert calls.infos()[-1].declined["shared"] > 1
        assert len(sent) <= 5
        assert all(later - earlier >= 4 for earlier, later in pairwise(sent[1:]))
        declining = False


async def test_it_is_repeated_each_minute() -> None:
    app, calls, clock = timed_app(shared)
    async with app:
        await beats(calls, clock, 65)
    assert len({beat.info for beat in calls.beats if beat.info is not None}) <= 2
    assert len(calls.infos()) >= 2


async def test_back_pressure_is_said_in_the_time_of_the_store() -> None:
    app, calls, clock = timed_app(shared, backpressure=lambda info: 30)
    async with app:
        await beats(calls, clock, 2)
        until_then = calls.infos()[-1].pressed_until
    assert until_then is not None
    assert clock.now() + 20 < until_then <= clock.now() + 30


async def test_it_takes_no_call_of_its_own() -> None:
    """Apart from one at the start: the time of the store."""
    app, calls, clock = timed_app(shared, accept=lambda info: False)
    async with app:
        assert calls.verbs.count("now") <= 1
        await app.enqueue(shared())
        calls.verbs.clear()
        await beats(calls, clock, 10)
        assert calls.verbs.count("now") == 0


async def test_a_stopping_worker_says_so_with_its_next_heartbeat() -> None:
    barrier = Barrier()

    @work(name="wait")
    async def wait() -> None:
        await barrier.wait()

    app, calls, clock = timed_app(wait)
    await app.start()
    handle = await app.enqueue(wait())
    await until_status(app, handle.id, "running")
    await barrier.reached()
    stopping = asyncio.ensure_future(app.stop(drain=PATIENCE))
    await asyncio.sleep(0)
    await beats(calls, clock, 1)
    assert calls.infos()[-1].draining
    barrier.go.set()
    await stopping


def test_declines_are_counted_for_a_minute() -> None:
    declines = Declines()
    declines.add("a", 0.0)
    for second in range(10, 20):
        declines.add("b", float(second))
    assert declines.last_minute(30.0) == {"a": 1, "b": 10}
    assert declines.last_minute(65.0) == {"b": 10}
    assert declines.last_minute(72.0) == {"b": 5}
    assert declines.last_minute(200.0) == {}
