"""Several workers on one store: who runs what, dying, stopping, operators, schedules, transactions."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from treadle.app import Treadle
from treadle.context import Context
from treadle.decorators import work
from treadle.errors import LeaseLost, WorkCancelled
from treadle.flow_control import AcceptInfo
from treadle.manual_lease import ClaimedLease
from treadle.result import Result
from treadle.retry import Retry

from .fleet import PATIENCE, Checkpoint, Fleet, failure, until, until_status
from .subject import needs


class EngineSharingCases:
    async def test_each_item_runs_once(self, fleet: Fleet) -> None:
        """However many workers look for it."""
        ran: Counter[int] = Counter()

        @work(name="count")
        async def count(n: int) -> None:
            ran[n] += 1
            await asyncio.sleep(0)

        apps = [await fleet.app(count) for _ in range(3)]
        handles = await apps[0].enqueue_many([count(n) for n in range(100)])
        await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert ran == Counter(range(100))

    async def test_whoever_waits_elsewhere_is_told(self, fleet: Fleet) -> None:
        """By an app that submitted nothing and runs nothing."""
        gate = Checkpoint()

        @work(name="held")
        async def held() -> str:
            await gate.passing()
            return "done"

        app, other = await fleet.app(held), await fleet.idle(held)
        handle = await app.enqueue(held())
        await gate.reached()
        waiting = asyncio.ensure_future(other.handle(handle.id).result(PATIENCE))
        gate.open()
        assert await waiting == "done"

    async def test_a_claim_is_held_once_in_the_fleet(self, fleet: Fleet) -> None:
        """`ctx.claim`: True for one item, and for later attempts of it."""

        @work(name="welcome", retry=Retry(attempts=2, base=0))
        async def welcome(ctx: Context) -> bool:
            first = await ctx.claim("ada")
            if first and ctx.attempt == 1:
                raise OSError("again")
            return first

        apps = [await fleet.app(welcome) for _ in range(2)]
        handles = [await apps[n % 2].enqueue(welcome()) for n in range(4)]
        values = [await handle.result(PATIENCE) for handle in handles]
        assert sorted(values) == [False, False, False, True]

    @needs("schedules")
    async def test_an_occurrence_fires_once(self, fleet: Fleet) -> None:
        """Though every app has the schedule."""
        ran: list[float] = []

        @work(name="tick")
        async def tick(at: float) -> None:
            ran.append(at)

        async def scheduled() -> Treadle:
            app = await fleet.idle(tick)
            app.schedule("hourly", every=3600, run=lambda: tick(0.0), catch_up="one")
            await app.start()
            return app

        first = await scheduled()
        await until(lambda: _stored(first))
        await first.stop()
        await fleet.subject.advance(3601)
        apps = [await scheduled() for _ in range(3)]
        await until(lambda: _true(len(ran) >= 1))
        for app in apps:
            await app.worker.drain()
        assert len(ran) == 1


async def _stored(app: Treadle) -> bool:
    return bool(await app.backend.schedules())


async def _true(value: bool) -> bool:
    return value


class EngineDeadWorkerCases:
    async def test_a_dead_workers_item_runs_again(self, fleet: Fleet) -> None:
        """Elsewhere; the attempt is spent, and the history says so."""
        gate = Checkpoint()

        @work(name="held")
        async def held(ctx: Context) -> int:
            if ctx.attempt == 1:
                await gate.passing()
            return ctx.attempt

        first = await fleet.app(held, worker_id="first")
        handle = await first.enqueue(held())
        await gate.reached()
        second = await fleet.app(held, worker_id="second")
        await second.backend.remove_worker("first")
        assert await second.handle(handle.id).result(PATIENCE) == 2
        assert [each.error_type for each in (await handle.state()).history] == ["LeaseLost"]

    @needs("fencing")
    async def test_what_a_lost_worker_says_later_is_refused(self, fleet: Fleet) -> None:
        """Two runs overlap, and the one that lost its lease ends first: the other one counts, whole, its
        value and its children."""
        gates = {1: Checkpoint(), 2: Checkpoint()}
        ran: list[int] = []

        @work(name="child")
        async def child(of: int) -> None:
            ran.append(of)

        @work(name="held")
        async def held(ctx: Context) -> Result[int, int | None]:
            await asyncio.shield(gates[ctx.attempt].passing())
            return ctx.result(ctx.attempt).next(child(ctx.attempt))

        def the_first_only(info: AcceptInfo) -> bool:
            return info.attempt == 1

        first = await fleet.app(
            held, child, worker_id="first", accept=the_first_only, interrupt_grace=PATIENCE
        )
        handle = await first.enqueue(held())
        await gates[1].reached()
        second = await fleet.app(held, child, worker_id="second")
        await second.backend.remove_worker("first")
        await gates[2].reached()
        gates[1].open()
        await first.stop()
        state = await second.handle(handle.id).state()
        assert (state.status, state.attempt, state.worker) == ("running", 2, "second")
        gates[2].open()
        assert await second.handle(handle.id).result(PATIENCE) == 2
        await second.handle(handle.id).group(PATIENCE)
        assert ran == [2]

    async def test_a_poisonous_item_ends_dead(self, fleet: Fleet) -> None:
        """Whose workers die until its budget is spent: `dead: lease_lost`."""
        gate = Checkpoint()

        @work(name="poison", retry=Retry(attempts=1))
        async def poison() -> None:
            await gate.passing()

        first = await fleet.app(poison, worker_id="first")
        handle = await first.enqueue(poison())
        await gate.reached()
        second = await fleet.app(poison, worker_id="second")
        await second.backend.remove_worker("first")
        assert (await failure(second.handle(handle.id).result(PATIENCE))).reason == "lease_lost"
        assert gate.passed == 1

    async def test_a_lapsed_lease_frees_the_item(self, fleet: Fleet) -> None:
        """Nobody has to remove_worker a worker that gives no sign of life."""

        @work(name="job", retry=Retry(attempts=3))
        async def job(ctx: Context) -> int:
            return ctx.attempt

        app = await fleet.idle(job)
        handle = await app.enqueue(job())
        lease = await app.claim_one(lease=10)
        assert isinstance(lease, ClaimedLease)
        assert lease.id == handle.id
        await fleet.subject.advance(11)
        await fleet.app(job)
        assert await handle.result(PATIENCE) == 2
        with pytest.raises(LeaseLost):
            await lease.complete(0)


class EngineStopCases:
    async def test_stop_lets_handlers_finish(self, fleet: Fleet) -> None:
        """Within the drain; they are told."""
        gate = Checkpoint()
        reasons: list[object] = []

        @work(name="held")
        async def held(ctx: Context) -> str:
            gate.open()
            await gate.passing()
            reasons.append(await ctx.interrupt)
            return "in time"

        app = await fleet.app(held)
        handle = await app.enqueue(held())
        await gate.reached()
        await app.stop(drain=PATIENCE)
        assert reasons == ["stopping"]
        assert await (await fleet.idle(held)).handle(handle.id).result(PATIENCE) == "in time"

    async def test_stop_gives_back_what_does_not_end(self, fleet: Fleet) -> None:
        """So that another worker starts at once; the attempt is not spent."""
        gate = Checkpoint()

        @work(name="held", retry=Retry(attempts=1))
        async def held(ctx: Context) -> str:
            if ctx.worker_id == "first":
                await gate.passing()
            return f"{ctx.worker_id} {ctx.attempt}"

        first = await fleet.app(held, worker_id="first")
        handle = await first.enqueue(held())
        await gate.reached()
        await first.stop(drain=0)
        second = await fleet.app(held, worker_id="second")
        assert await second.handle(handle.id).result(PATIENCE) == "second 1"

    async def test_drain_runs_everything_that_is_due(self, fleet: Fleet) -> None:
        """And what it queued; what is due later is left alone."""
        ran: list[str] = []

        @work(name="leaf")
        async def leaf(name: str) -> None:
            ran.append(name)

        @work(name="root")
        async def root(ctx: Context) -> Result[None, None]:
            return ctx.queue(leaf("a"), leaf("b")).next(leaf("last"))

        app = await fleet.app(root, leaf)
        await app.enqueue(leaf("later"), delay=3600)
        await app.enqueue(root())
        async with asyncio.timeout(PATIENCE):
            await app.worker.drain()
        assert (sorted(ran[:2]), ran[2:]) == (["a", "b"], ["last"])


class EngineOperatorCases:
    async def test_cancel_stops_a_running_handler(self, fleet: Fleet) -> None:
        """From another process; whoever waits is told."""
        gate = Checkpoint()
        ended: list[str] = []

        @work(name="held")
        async def held() -> None:
            try:
                await gate.passing()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        app, operator = await fleet.app(held, heartbeat=0.1), await fleet.idle(held)
        handle = await app.enqueue(held())
        await gate.reached()
        assert await operator.cancel(handle.id) == 1
        assert isinstance(await failure(handle.result(PATIENCE)), WorkCancelled)
        await until(lambda: _true(ended == ["cancelled"]))

    @needs("operating")
    async def test_complete_ends_it_without_a_worker(self, fleet: Fleet) -> None:
        """Its value is the operator's, and releases whoever waited for it."""

        @work(name="job")
        async def job(n: int) -> int:
            return n

        app = await fleet.idle(job)
        handle = await app.enqueue(job(1))
        after = await app.enqueue(job(2), after=handle)
        await app.complete(handle, 42)
        assert await handle.result(PATIENCE) == 42
        await app.start()
        assert await after.result(PATIENCE) == 2

    @needs("operating")
    async def test_a_paused_queue_waits(self, fleet: Fleet) -> None:
        """Until it is resumed; other queues go on."""

        @work(name="job")
        async def job(n: int) -> int:
            return n

        app = await fleet.app(job)
        await app.pause("bulk")
        held = await app.enqueue(job(1), queue="bulk")
        assert await app.enqueue(job(2)).result(PATIENCE) == 2
        assert (await held.state()).status == "ready"
        await app.resume("bulk")
        assert await held.result(PATIENCE) == 1

    @needs("listing")
    async def test_a_workflow_is_listed_by_creation(self, fleet: Fleet) -> None:
        """Across groups, children included."""

        @work(name="leaf")
        async def leaf(n: int) -> int:
            return n

        @work(name="root")
        async def root(ctx: Context) -> Result[None, int]:
            return ctx.queue(leaf(1))

        app = await fleet.app(root, leaf)
        await app.enqueue(root(), workflow="order-1").group(PATIENCE)
        await app.enqueue(leaf(2), workflow="order-1").group(PATIENCE)
        await app.enqueue(leaf(3), workflow="order-2").group(PATIENCE)
        assert [item.type for item in await app.workflow("order-1")] == ["root", "leaf", "leaf"]

    @needs("transactions")
    async def test_a_transaction_settles_what_the_handler_returns(self, fleet: Fleet) -> None:
        """`ctx.transaction()`: with the value and the children; a raise afterwards undoes all of it."""
        ran: list[int] = []

        @work(name="child")
        async def child(n: int) -> None:
            ran.append(n)

        @work(name="careful", retry=Retry(attempts=2, base=0))
        async def careful(ctx: Context) -> Result[int, int | None]:
            async with ctx.transaction():
                pass
            if ctx.attempt == 1:
                raise OSError("afterwards")
            return ctx.result(ctx.attempt).next(child(ctx.attempt))

        app = await fleet.app(careful, child)
        handle = await app.enqueue(careful())
        assert await handle.result(PATIENCE) == 2
        await handle.group(PATIENCE)
        assert ran == [2]
        assert (await until_status(app, handle.id, "success")).attempt == 2
