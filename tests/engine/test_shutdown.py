"""Starting and stopping workers (SPEC §10, §17)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, MakeBackend, Seen, until
from treadle import Client, Context, MemoryBackend, Retry, Worker, work
from treadle.doers import concurrency, unlimited
from treadle.engine import store_retry
from treadle.engine.tasks import Combiner
from treadle.events import WorkerStarted, WorkerStopped, WorkerStopping
from treadle.item import Claim, Demand
from treadle.testing import Faults
from treadle.testing.wrap import WrappedBackend

T = TypeVar("T")


async def test_stop_waits_for_handlers(make_app: MakeApp) -> None:
    """§10: Their interrupt says `stopping`. The worker claims nothing new, and handlers may end within the
    drain."""
    barrier, seen = Barrier(), Seen()
    reasons: list[object] = []

    @work(name="held")
    async def held(ctx: Context) -> str:
        barrier.started.set()
        reasons.append(await ctx.interrupt)
        return "in time"

    app = make_app(held, worker_id="w-1", on_event=seen)
    await app.start()
    handle = await app.enqueue(held())
    await barrier.reached()
    await app.stop(drain=PATIENCE)
    assert reasons == ["stopping"]
    other = make_app(held)
    assert await other.handle(handle.id).result(PATIENCE) == "in time"
    names = [type(event) for event in seen.events if not hasattr(event, "id")]
    assert names == [WorkerStarted, WorkerStopping, WorkerStopped]


class ClaimBroken(BaseException):
    """No loop expects it."""


async def test_drain_raises_when_a_loop_has_died() -> None:
    """Without the loop that claims, nothing would come to an end."""

    class Broken(MemoryBackend):
        async def claim(self, demand: Demand) -> Claim:
            raise ClaimBroken

    async with Worker(Client(Broken())) as worker, asyncio.timeout(PATIENCE):
        with pytest.raises(ClaimBroken):
            await worker.drain()


async def test_stop_releases_items_that_do_not_end_in_time(make_app: MakeApp) -> None:
    """§10: Another worker starts them at once. The attempt is not counted."""
    barrier = Barrier()
    attempts: list[tuple[str, int]] = []

    @work(name="held")
    async def held(ctx: Context) -> str:
        attempts.append((ctx.worker_id, ctx.attempt))
        if ctx.worker_id == "first":
            await barrier.wait()
        return ctx.worker_id

    first = make_app(held, worker_id="first", lease=60)
    await first.start()
    handle = await first.enqueue(held())
    await barrier.reached()
    await first.stop(drain=0.05)
    async with make_app(held, worker_id="second") as second:
        assert await second.handle(handle.id).result(PATIENCE) == "second"
        assert (await second.handle(handle.id).state()).history == ()
    assert attempts == [("first", 1), ("second", 1)]


async def test_a_handler_that_raises_its_interrupt_is_released(make_app: MakeApp) -> None:
    """§10: `raise_if_set` with `stopping` is not a failure. The attempt is not counted."""
    barrier = Barrier()

    @work(name="polite")
    async def polite(ctx: Context) -> str:
        if ctx.worker_id == "first":
            barrier.started.set()
            await ctx.interrupt
            ctx.interrupt.raise_if_set()
        return ctx.worker_id

    first = make_app(polite, worker_id="first")
    await first.start()
    handle = await first.enqueue(polite())
    await barrier.reached()
    await first.stop(drain=PATIENCE)
    async with make_app(polite, worker_id="second") as second:
        assert await second.handle(handle.id).result(PATIENCE) == "second"
        state = await second.handle(handle.id).state()
        assert (state.attempt, state.history) == (1, ())


async def test_stop_gives_back_items_that_have_not_started(make_app: MakeApp) -> None:
    """§10, §17: Items that wait in a doer."""
    from treadle.doers import priority

    barrier = Barrier()

    @work(name="held")
    async def held(n: int) -> int:
        await barrier.wait()
        return n

    app = make_app(held, doer=priority(1, buffer=5), lease=60)
    await app.start()
    handles = await app.enqueue_many([held(n) for n in range(4)])
    await barrier.reached()
    await until(lambda: len(app.active()) == 4)
    await app.stop(drain=0)
    barrier.go.set()
    async with make_app(held) as other:
        assert [await other.handle(handle.id).result(PATIENCE) for handle in handles] == [0, 1, 2, 3]
        assert [(await other.handle(handle.id).state()).attempt for handle in handles] == [1] * 4


async def test_an_item_stays_leased_while_its_thread_runs(make_app: MakeApp) -> None:
    """§5, §10: Stop does not wait for the thread. No other worker starts the item beside it, however many
    leases pass. What the thread returns is settled, and the item runs once."""
    release, started = threading.Event(), threading.Event()

    @work(name="stuck", retry=Retry(max_losses=0))
    def stuck(ctx: Context) -> str:
        started.set()
        release.wait(PATIENCE)
        return ctx.worker_id

    first = make_app(stuck, worker_id="first", lease=0.25, heartbeat=0.03)
    await first.start()
    handle = await first.enqueue(stuck())
    await asyncio.to_thread(started.wait, PATIENCE)
    try:
        async with asyncio.timeout(PATIENCE):
            await first.stop(drain=0)
        async with make_app(stuck, worker_id="second") as second:
            with pytest.raises(TimeoutError):
                await second.handle(handle.id).result(timeout=0.5)
            assert (await second.handle(handle.id).state()).worker == "first"
            release.set()
            assert await second.handle(handle.id).result(PATIENCE) == "first"
            state = await second.handle(handle.id).state()
            assert (state.attempt, state.losses) == (1, 0)
    finally:
        release.set()


async def test_a_permit_is_kept_while_its_thread_runs(make_app: MakeApp) -> None:
    """A fleet-wide limit of one: no other item starts while the thread of the stopped worker runs."""
    release, started = threading.Event(), threading.Event()

    @work(name="alone", doer=concurrency(1))
    def alone(ctx: Context, n: int) -> str:
        started.set()
        if ctx.worker_id == "first":
            release.wait(PATIENCE)
        return ctx.worker_id

    first = make_app(alone, worker_id="first", lease=0.25, heartbeat=0.03)
    await first.start()
    await first.enqueue(alone(1))
    await asyncio.to_thread(started.wait, PATIENCE)
    try:
        await first.stop(drain=0)
        async with make_app(alone, worker_id="second", poll_interval=0.02) as second:
            other = await second.enqueue(alone(2))
            with pytest.raises(TimeoutError):
                await other.result(timeout=0.5)
            release.set()
            assert await other.result(PATIENCE) == "second"
    finally:
        release.set()


async def test_a_worker_that_starts_again_leaves_its_old_threads_their_leases(make_app: MakeApp) -> None:
    """It gets another id: a worker that starts under a known id would free the items of that id."""
    release, started = threading.Event(), threading.Event()
    runs: list[str] = []

    @work(name="stuck", retry=AT_ONCE)
    def stuck(ctx: Context) -> None:
        runs.append(ctx.worker_id)
        started.set()
        if ctx.worker_id == "first":
            release.wait(PATIENCE)

    app = make_app(stuck, worker_id="first")
    await app.start()
    handle = await app.enqueue(stuck())
    await asyncio.to_thread(started.wait, PATIENCE)
    try:
        await app.stop(drain=0)
        async with app:
            await app.enqueue(stuck()).result(PATIENCE)
            assert (await app.handle(handle.id).state()).worker == "first"
            release.set()
            await app.handle(handle.id).result(PATIENCE)
            assert runs == ["first", app.worker.id]
    finally:
        release.set()


async def test_start_and_stop_are_idempotent(make_app: MakeApp) -> None:
    """§17: An app can be started again."""

    @work(name="value")
    async def value(n: int) -> int:
        return n

    app = make_app(value)
    await app.stop()
    await app.start()
    await app.start()
    assert await app.enqueue(value(1)).result(PATIENCE) == 1
    await app.stop()
    await app.stop()
    assert not app.worker.running
    async with app:
        assert await app.enqueue(value(2)).result(PATIENCE) == 2


async def test_a_stop_waits_for_a_start_under_way(make_app: MakeApp) -> None:
    """It leaves nothing behind."""
    entered, go = asyncio.Event(), asyncio.Event()

    @work(name="idle")
    async def idle() -> None: ...

    @asynccontextmanager
    async def slowly() -> AsyncGenerator[None]:
        entered.set()
        await go.wait()
        yield

    app = make_app(idle, lifespan=slowly)
    before = asyncio.all_tasks()
    starting = asyncio.create_task(app.start())
    await entered.wait()
    stopping = asyncio.create_task(app.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    go.set()
    await asyncio.gather(starting, stopping)
    assert not app.worker.running
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


async def test_stop_leaves_no_task(make_app: MakeApp) -> None:
    """DESIGN §5.10."""

    @work(name="value", timeout=30, expires_in=60)
    async def value(n: int) -> int:
        return n

    before = asyncio.all_tasks()
    app = make_app(value)
    async with app:
        await app.enqueue_many([value(n) for n in range(5)])
        with pytest.raises(TimeoutError):
            await app.enqueue(value(9), delay=60).result(timeout=0.01)
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


async def test_run_ends_when_its_until_event_is_set(store: MakeBackend) -> None:
    """§17: `await worker.run(until=event)`."""

    @work(name="value")
    async def value(n: int) -> int:
        return n

    client = Client(store(), work=[value], poll_interval=0.05, lease=5)
    over = asyncio.Event()
    worker = Worker(client)
    running = asyncio.ensure_future(worker.run(until=over))
    assert await client.enqueue(value(3)).result(PATIENCE) == 3
    assert worker.running
    over.set()
    async with asyncio.timeout(PATIENCE):
        await running
    assert not worker.running
    await client.close()


class SlowSettles(WrappedBackend):
    """Each settle takes a while, as over a slow link."""

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb == "settle":
            await asyncio.sleep(0.1)
        return await call()


async def test_stop_gives_everything_back_over_a_slow_link(
    make_app: MakeApp, store: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than the store has for a single step, but the store answers. No attempt is lost."""
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.3)  # enough for one settle, not for all four
    monkeypatch.setitem(Combiner.__init__.__kwdefaults__, "limit", 50)

    @work(name="long")
    async def long() -> None:
        await asyncio.Event().wait()

    app = make_app(long, backend=SlowSettles(store()), lease=60, doer=unlimited())
    async with app:
        await app.enqueue_many([long() for _ in range(200)])
        await until(lambda: len(app.active()) == 200)
        await app.stop(drain=0)
    async with make_app() as other:
        items = (await other.list(limit=200)).items
        assert {(item.status, item.attempt, item.history) for item in items} == {("ready", 0, ())}


async def test_stop_does_not_wait_for_a_store_that_does_not_answer(
    make_faulty: MakeApp, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.05)
    barrier = Barrier()

    @work(name="long")
    async def long() -> None:
        await barrier.wait()

    app = make_faulty(long)
    await app.start()
    await app.enqueue(long())
    await barrier.reached()
    held = faults.hold("settle", times=None)
    began = time.monotonic()
    await app.stop(drain=0)
    assert time.monotonic() - began < store_retry.LONGEST_STOP / 2
    held.release()
