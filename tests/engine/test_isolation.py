"""Items whose workers died run beside ever fewer others, and what has not begun counts no loss (SPEC §5)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.engine.kit import (
    PATIENCE,
    Barrier,
    MakeApp,
    MakeBackend,
    advance_alive,
    failure,
    until,
    until_status,
)
from treadle import Handle, Retry, Treadle, WorkType, work
from treadle.backend import Backend
from treadle.define.work_type import AnyWorkType
from treadle.doers import balanced, rate_limited, unlimited
from treadle.item import Demand, Heartbeat, Lease, Loss
from treadle.testing import ManualClock
from treadle.testing.wrap import WrappedBackend
from treadle.worker import DEFAULT_CONCURRENCY


def held_by(barrier: Barrier) -> WorkType[[], None, None]:
    """A work type whose handler waits until the barrier opens."""

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    return held


async def lose(app: Treadle, losses: int, *types: str) -> None:
    """Let workers claim all items of these types, begin them and die, this number of times."""
    for n in range(losses):
        worker = f"mortal-{n}"
        await app.backend.beat(Heartbeat(worker=worker, lease=60))
        room = dict.fromkeys(types, 100)
        leases: tuple[Lease, ...] = ()
        async with asyncio.timeout(PATIENCE):
            while not leases:
                leases = (await app.backend.claim(Demand(worker=worker, limit=100, types=room))).leases
        assert await app.backend.begin(leases) == {}
        await app.backend.remove_worker(worker)
        scheduled = [lease.id for lease in leases] if n else []
        if scheduled:
            await app.trigger(scheduled)


@work(name="suspect")
async def no_op() -> None: ...


@work(name="late")
async def late() -> int:
    return 1


async def start_busy(
    make: MakeApp, barrier: Barrier, count: int, *types: AnyWorkType, most: int = 8
) -> Treadle:
    """Start a worker that may run this number of items, and let it run `count` that wait for the barrier."""

    @work(name="long")
    async def long() -> None:
        await barrier.wait()

    app = make(long, *types, doer=balanced(most), lease=10)
    await app.start()
    await app.enqueue_many([long() for _ in range(count)])
    await until(lambda: barrier.count == count)
    return app


async def lose_suspects(app: Treadle, suspect: AnyWorkType, count: int = 1) -> list[Handle[Any, Any]]:
    """Enqueue items that were lost three times, and let the worker claim the first of them."""
    handles = await app.enqueue_many([suspect() for _ in range(count)])
    await lose(app, 3, "suspect")
    app.register(suspect)
    await until_status(app, handles[0].id, "running")
    return handles


@pytest.mark.parametrize(("losses", "running"), [(1, 6), (2, 4), (3, 2), (4, 1), (6, 1)])
async def test_lost_items_run_beside_ever_fewer_others(make_app: MakeApp, losses: int, running: int) -> None:
    """Of 8 that the doer would run: all after the first loss, half of them after each further one, at last
    one alone. All of them succeed."""
    barrier = Barrier()

    held = held_by(barrier)
    app = make_app(held, doer=balanced(8))
    handles = await app.enqueue_many([held() for _ in range(6)])
    await lose(app, losses, "held")
    await app.start()
    await until(lambda: barrier.count >= running)
    await asyncio.sleep(0.2)  # nothing more must start, and there is no event to wait for
    assert barrier.count == running
    barrier.go.set()
    for handle in handles:
        await handle.result(PATIENCE)
        assert ((await handle.state()).attempt, (await handle.state()).losses) == (losses + 1, losses)


async def test_others_that_do_not_fit_beside_a_lost_item_are_given_back(make_app: MakeApp) -> None:
    """Another worker runs them meanwhile."""
    barrier, others = Barrier(), Barrier()

    @work(name="suspect")
    async def suspect() -> None:
        await barrier.wait()

    @work(name="other")
    async def other() -> None:
        await others.wait()

    app = make_app(suspect, other, doer=balanced(8), worker_id="first")
    await app.enqueue(suspect())
    await lose(app, 3, "suspect")
    handles = await app.enqueue_many([other() for _ in range(5)])
    await app.start()
    await barrier.reached()
    await others.reached()
    await asyncio.sleep(0.2)  # nothing more must start here
    assert (barrier.count, others.count) == (1, 1)
    async with make_app(other, worker_id="second"):
        await until(lambda: others.count == 5)
        others.go.set()
        for handle in handles:
            await handle.result(PATIENCE)
            assert (await handle.state()).attempt == 1
        barrier.go.set()


async def test_a_lost_item_waits_until_enough_others_have_ended(make_app: MakeApp) -> None:
    """Meanwhile nothing new is claimed, so that it does not wait for ever."""
    suspects, busy = Barrier(), [Barrier() for _ in range(3)]

    @work(name="suspect")
    async def suspect() -> None:
        await suspects.wait()

    @work(name="busy")
    async def keep_busy(n: int) -> None:
        await busy[n].wait()

    app = make_app(keep_busy, late, doer=balanced(8))
    await app.start()
    await app.enqueue_many([keep_busy(n) for n in range(3)])
    for barrier in busy:
        await barrier.reached()
    handle = await app.enqueue(suspect())
    await lose(app, 3, "suspect")
    app.register(suspect)
    await until_status(app, handle.id, "running")
    waiting = await app.enqueue(late())
    await asyncio.sleep(0.2)  # neither must start
    state = await handle.state()
    assert (suspects.count, state.attempt, (await waiting.state()).attempt) == (0, 3, 0)
    busy[0].go.set()
    await asyncio.sleep(0.1)
    assert suspects.count == 0
    busy[1].go.set()
    await suspects.reached()
    assert (await handle.state()).attempt == 4
    busy[2].go.set()
    assert await waiting.result(PATIENCE) == 1
    suspects.go.set()
    await handle.result(PATIENCE)


async def test_of_two_lost_items_in_one_claim_one_runs_and_one_waits(make_app: MakeApp) -> None:
    """The first may run beside one other item, and the second alone."""
    barrier, suspects = Barrier(), Barrier()

    @work(name="suspect")
    async def suspect() -> None:
        await suspects.wait()

    @work(name="worse")
    async def worse() -> None: ...

    app = await start_busy(make_app, barrier, 1)
    first, second = await app.enqueue_many([suspect(), worse()], priority=1)
    await lose(app, 3, "suspect")
    await lose(app, 4, "worse")
    app.register(suspect, worse)
    await suspects.reached()
    assert [(await one.state()).attempt for one in (first, second)] == [4, 4]
    suspects.go.set()
    await first.result(PATIENCE)
    barrier.go.set()
    await second.result(PATIENCE)


async def test_a_lost_item_does_not_stop_a_worker_with_long_handlers(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """After one lease duration without room it is given back, and the worker claims again."""
    barrier = Barrier()
    app = await start_busy(make_timed, barrier, 3, late)
    (handle,) = await lose_suspects(app, no_op)
    waiting = await app.enqueue(late())
    await advance_alive(app, clock, 11)
    assert await waiting.result(PATIENCE) == 1
    state = await until_status(app, handle.id, "scheduled")
    assert (state.attempt, state.losses) == (3, 3)
    barrier.go.set()
    await advance_alive(app, clock, 11)
    await handle.result(PATIENCE)


async def test_several_lost_items_do_not_stop_a_worker_with_long_handlers(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """After one has waited in vain, none waits for a while: the worker claims what it can run."""
    barrier = Barrier()
    app = await start_busy(make_timed, barrier, 5, late)
    suspects = await lose_suspects(app, no_op, 3)
    await advance_alive(app, clock, 11)
    await until_status(app, suspects[0].id, "scheduled")
    for _ in range(3):
        assert await app.enqueue(late()).result(PATIENCE) == 1
        await advance_alive(app, clock, 11)
    barrier.go.set()
    await advance_alive(app, clock, 60)
    for handle in suspects:
        await handle.result(PATIENCE)


async def test_a_lost_item_that_finds_no_room_settles_for_less(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """Each time that it waits in vain it may run beside twice as many, so that it runs at last."""
    barrier = Barrier()

    @work(name="suspect")
    async def suspect() -> int:
        return barrier.count

    app = await start_busy(make_timed, barrier, 3)
    (handle,) = await lose_suspects(app, suspect)  # it may run beside one other
    await advance_alive(app, clock, 11)
    await until_status(app, handle.id, "scheduled")
    await advance_alive(app, clock, 11)
    await advance_alive(app, clock, 2)  # a claim under way at the first may have waited for the next poll
    assert await handle.result(PATIENCE) == 3
    barrier.go.set()


async def test_a_trial_ends_when_the_item_has_run_for_long(make_timed: MakeApp, clock: ManualClock) -> None:
    """It may wait for another item, which would not be claimed beside it."""

    @work(name="child")
    async def child() -> int:
        return 1

    queued = asyncio.Event()

    @work(name="parent")
    async def parent() -> int:
        waited_for = await app.enqueue(child())
        queued.set()
        return await waited_for.result(PATIENCE)

    app = make_timed(child, parent, doer=balanced(2), lease=10)
    handle = await app.enqueue(parent())
    await lose(app, 3, "parent")  # it runs alone, for two lease durations
    await app.start()
    await asyncio.wait_for(queued.wait(), PATIENCE)
    await advance_alive(app, clock, 15)
    (waiting,) = (await app.list(type="child")).items
    assert waiting.status == "ready"
    for _ in range(30):  # a claim that is under way during a step answers after it
        await advance_alive(app, clock, 4)
        if (await handle.state()).status == "success":
            break
    assert await handle.result(PATIENCE) == 1


async def test_an_isolated_item_that_waits_is_given_back_at_a_stop(make_app: MakeApp) -> None:
    """At once, before the drain, with its losses and its attempts as they were."""
    barrier = Barrier()
    app = await start_busy(make_app, barrier, 2, most=4)
    (handle,) = await lose_suspects(app, no_op)
    stopping = asyncio.create_task(app.stop(drain=PATIENCE))
    state = await until_status(make_app(no_op), handle.id, "ready")
    assert (state.attempt, state.losses) == (3, 3)
    barrier.go.set()
    await stopping


async def test_an_item_that_is_lost_too_often_is_judged_without_running(make_app: MakeApp) -> None:
    """The policy of the item wins over that of its type."""

    @work(name="suspect", retry=Retry(max_losses=None))
    async def suspect() -> None: ...

    app = make_app(suspect)
    handle = await app.enqueue(suspect(), retry=Retry(max_losses=1))
    await lose(app, 2, "suspect")
    await app.start()
    error = await failure(handle.result(PATIENCE))
    assert (error.reason, error.attempts) == ("lease_lost", 2)
    assert "2 workers in a row died" in error.error


async def test_losses_are_not_failures(make_app: MakeApp) -> None:
    """An item with one attempt succeeds after losses; a failure still ends it, and counts from 1."""

    @work(name="once", retry=Retry(attempts=1))
    async def once(fails: bool) -> int:
        if fails:
            raise ValueError("no")
        return 1

    app = make_app(once)
    good, bad = await app.enqueue_many([once(False), once(True)])
    await lose(app, 3, "once")
    await app.start()
    assert await good.result(PATIENCE) == 1
    error = await failure(bad.result(PATIENCE))
    assert (error.reason, error.attempts) == ("exhausted", 4)


# ------------------------------------------------------------------------------------- what has not begun


async def lose_worker(app: Treadle) -> None:
    """Let the store take the leases of the app's worker away. The worker does not hear of it."""
    await app.worker._runtime.loops.end("renew", "claim")  # type: ignore[union-attr]
    await app.backend.remove_worker(app.worker.id)


async def losses_of(*handles: Handle[Any, Any]) -> list[tuple[int, int]]:
    """The attempts and the losses of these."""
    states = [await handle.state() for handle in handles]
    return [(state.attempt, state.losses) for state in states]


async def test_an_item_that_a_batch_collects_counts_no_loss(make_app: MakeApp) -> None:
    """Its handler had not begun when its worker died."""

    @work.batch(name="task", size=2, max_wait=60)
    async def task(numbers: list[int]) -> list[int]:
        return numbers

    app = make_app(task)
    await app.start()
    handle = await app.enqueue(task(1))
    await until_status(app, handle.id, "running")
    await lose_worker(app)
    assert await losses_of(handle) == [(0, 0)]


async def test_an_item_that_waits_for_room_counts_no_loss(make_app: MakeApp) -> None:
    """Only the one whose handler had begun does."""
    barrier = Barrier()

    @work(name="task", doer=balanced(1, buffer=5))
    async def task() -> None:
        await barrier.wait()

    app = make_app(task)
    await app.start()
    first = await app.enqueue(task())
    await barrier.reached()
    second = await app.enqueue(task())
    await until_status(app, second.id, "running")
    await lose_worker(app)
    assert await losses_of(first, second) == [(1, 1), (0, 0)]
    barrier.go.set()


async def test_an_item_that_waits_for_a_permit_counts_no_loss(make_timed: MakeApp) -> None:
    """The next permit is near, so it is leased. The clock stands still."""
    barrier = Barrier()

    @work(name="task", doer=rate_limited(1, 0.2))
    async def task() -> None:
        await barrier.wait()

    app = make_timed(task)
    await app.start()
    first = await app.enqueue(task())
    await barrier.reached()
    second = await app.enqueue(task())
    await until_status(app, second.id, "running")
    await lose_worker(app)
    assert await losses_of(first, second) == [(1, 1), (0, 0)]
    barrier.go.set()


class BeginCalls(WrappedBackend):
    """Counts the items that each call of `begin` begins."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.counts: list[int] = []

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        self.counts.append(len(leases))
        return await super().begin(leases)


async def test_a_batch_begins_with_one_call(make_app: MakeApp, store: MakeBackend) -> None:
    """The attempts of its items are counted together."""

    @work.batch(name="double", size=10, max_wait=60)
    async def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    backend = BeginCalls(store())
    async with make_app(double, backend=backend) as app:
        handles = await app.enqueue_many([double(n) for n in range(10)])
        assert [await handle.result(PATIENCE) for handle in handles] == [2 * n for n in range(10)]
        assert {(await handle.state()).attempt for handle in handles} == {1}
    assert backend.counts == [10]


# --------------------------------------------------------------------------------------------- the default


async def test_a_worker_runs_a_bounded_number_of_items_by_default(make_app: MakeApp) -> None:
    barrier = Barrier()

    held = held_by(barrier)
    async with make_app(held) as app:
        handles = await app.enqueue_many([held() for _ in range(DEFAULT_CONCURRENCY + 50)])
        await until(lambda: barrier.count == DEFAULT_CONCURRENCY)
        await asyncio.sleep(0.1)  # no more must start
        assert barrier.count == DEFAULT_CONCURRENCY
        barrier.go.set()
        for handle in handles:
            await handle.result(PATIENCE)


async def test_without_a_limit_items_are_isolated_as_with_the_default_one(make_app: MakeApp) -> None:
    barrier = Barrier()

    held = held_by(barrier)
    app = make_app(held, doer=unlimited())
    handles = await app.enqueue_many([held() for _ in range(60)])
    await lose(app, 3, "held")
    await app.start()
    await until(lambda: barrier.count == DEFAULT_CONCURRENCY >> 2)
    await asyncio.sleep(0.1)  # no more must start
    assert barrier.count == DEFAULT_CONCURRENCY >> 2
    barrier.go.set()
    for handle in handles:
        await handle.result(PATIENCE)
