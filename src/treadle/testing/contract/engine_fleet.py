"""Several workers on one store: sharing, dying, stopping, operators, schedules, transactions."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from treadle.app import Treadle
from treadle.define.decorators import work
from treadle.errors import LeaseLost, WorkCancelled
from treadle.flow_control import AcceptInfo
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.manual_lease import ClaimedLease
from treadle.operate.webhook import EVERY, ProblemChange
from treadle.retry import Retry

from .fleet import PATIENCE, Apps, Checkpoint, failure, until, until_status
from .subject import needs


class EngineSharingCases:
    async def test_each_item_runs_once_among_three_workers(self, fleet: Apps) -> None:
        """100 items, three workers that claim at the same time."""
        ran: Counter[int] = Counter()

        @work(name="count")
        async def count(n: int) -> None:
            ran[n] += 1
            await asyncio.sleep(0)

        apps = [await fleet.app(count) for _ in range(3)]
        handles = await apps[0].enqueue_many([count(n) for n in range(100)])
        await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert ran == Counter(range(100))

    async def test_a_waiter_in_another_app_gets_the_result(self, fleet: Apps) -> None:
        """That app neither submitted nor runs the item."""
        checkpoint = Checkpoint()

        @work(name="slow")
        async def slow() -> str:
            await checkpoint.arrive()
            return "done"

        app, other = await fleet.app(slow), await fleet.idle(slow)
        handle = await app.enqueue(slow())
        await checkpoint.reached()
        waiting = asyncio.ensure_future(other.handle(handle.id).result(PATIENCE))
        checkpoint.open()
        assert await waiting == "done"

    async def test_ctx_claim_is_true_for_one_item_in_the_fleet(self, fleet: Apps) -> None:
        """Also for later attempts of that item."""

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

    @needs("schedules", "watching")
    async def test_a_message_about_a_problem_comes_once_in_the_fleet(self, fleet: Apps) -> None:
        """Whichever app looks. A message that was not taken is told later, and only that one."""
        heard: list[tuple[str, str, str]] = []
        away = [True]

        def tell(change: ProblemChange) -> None:
            if away.pop() if away else False:
                raise OSError("away")
            heard.append((change.change, change.kind, change.id))

        apps = [await fleet.idle() for _ in range(3)]

        async def look() -> None:
            await asyncio.gather(*(app.watch_problems(tell, once=True) for app in apps))
            await fleet.subject.advance(EVERY + 1)

        await look()
        assert heard == []
        await apps[0].pause("mail")
        await look()
        assert (heard, away) == ([], [])
        await look()
        assert [each[:2] for each in heard] == [("appeared", "paused")]
        await look()
        await apps[1].resume("mail")
        await look()
        await look()
        assert [each[:2] for each in heard] == [("appeared", "paused"), ("ended", "paused")]
        assert len({each[2] for each in heard}) == 2

    @needs("schedules")
    async def test_an_occurrence_fires_once_in_the_fleet(self, fleet: Apps) -> None:
        """Every app has the schedule."""
        ran: list[float] = []

        @work(name="report")
        async def report(at: float) -> None:
            ran.append(at)

        async def scheduled() -> Treadle:
            app = await fleet.idle(report)
            app.schedule("hourly", every=3600, run=lambda: report(0.0), catch_up="one")
            await app.start()
            return app

        first = await scheduled()
        await until(lambda: _has_schedules(first))
        await first.stop()
        await fleet.subject.advance(3601)
        apps = [await scheduled() for _ in range(3)]
        await until(lambda: _holds(len(ran) >= 1))
        for app in apps:
            await app.worker.drain()
        assert len(ran) == 1


async def _has_schedules(app: Treadle) -> bool:
    return bool(await app.backend.schedules())


async def _holds(value: bool) -> bool:
    return value


class EngineDeadWorkerCases:
    async def test_the_item_of_a_dead_worker_runs_elsewhere(self, fleet: Apps) -> None:
        """The attempt is spent, and the history shows the loss."""
        checkpoint = Checkpoint()

        @work(name="slow")
        async def slow(ctx: Context) -> int:
            if ctx.attempt == 1:
                await checkpoint.arrive()
            return ctx.attempt

        first = await fleet.app(slow, worker_id="first")
        handle = await first.enqueue(slow())
        await checkpoint.reached()
        second = await fleet.app(slow, worker_id="second")
        await second.backend.remove_worker("first")
        assert await second.handle(handle.id).result(PATIENCE) == 2
        assert [each.error_type for each in (await handle.state()).history] == ["LeaseLost"]

    @needs("fencing")
    async def test_a_late_settlement_of_a_lost_worker_is_refused(self, fleet: Apps) -> None:
        """Two runs overlap, and the one that lost its lease ends first. Only the other one counts, with its
        value and its children."""
        checkpoints = {1: Checkpoint(), 2: Checkpoint()}
        ran: list[int] = []

        @work(name="child")
        async def child(of: int) -> None:
            ran.append(of)

        @work(name="slow")
        async def slow(ctx: Context) -> Result[int, int | None]:
            await asyncio.shield(checkpoints[ctx.attempt].arrive())
            return ctx.result(ctx.attempt).next(child(ctx.attempt))

        def first_attempt_only(info: AcceptInfo) -> bool:
            return info.attempt == 1

        first = await fleet.app(
            slow, child, worker_id="first", accept=first_attempt_only, interrupt_grace=PATIENCE
        )
        handle = await first.enqueue(slow())
        await checkpoints[1].reached()
        second = await fleet.app(slow, child, worker_id="second")
        await second.backend.remove_worker("first")

        async def taken() -> bool:
            await fleet.subject.advance(0.02)  # the first one may decline it, which puts it off
            return checkpoints[2].arrivals == 1

        await until(taken)
        checkpoints[1].open()
        await first.stop()
        state = await second.handle(handle.id).state()
        assert (state.status, state.attempt, state.worker) == ("running", 2, "second")
        checkpoints[2].open()
        assert await second.handle(handle.id).result(PATIENCE) == 2
        await second.handle(handle.id).group(PATIENCE)
        assert ran == [2]

    async def test_an_item_whose_workers_keep_dying_ends_dead(self, fleet: Apps) -> None:
        """More often in a row than `max_losses`: `dead: lease_lost`."""
        checkpoint = Checkpoint()

        @work(name="poison", retry=Retry(max_losses=0))
        async def poison() -> None:
            await checkpoint.arrive()

        first = await fleet.app(poison, worker_id="first")
        handle = await first.enqueue(poison())
        await checkpoint.reached()
        second = await fleet.app(poison, worker_id="second")
        await second.backend.remove_worker("first")
        assert (await failure(second.handle(handle.id).result(PATIENCE))).reason == "lease_lost"
        assert checkpoint.arrivals == 1

    async def test_a_lapsed_lease_frees_the_item(self, fleet: Apps) -> None:
        """No call of `remove_worker` is needed."""

        @work(name="step", retry=Retry(attempts=3))
        async def step(ctx: Context) -> int:
            return ctx.attempt

        app = await fleet.idle(step)
        handle = await app.enqueue(step())
        lease = await app.claim_one(lease=10)
        assert isinstance(lease, ClaimedLease)
        assert lease.id == handle.id
        await fleet.subject.advance(11)
        await fleet.app(step)
        assert await handle.result(PATIENCE) == 2
        with pytest.raises(LeaseLost):
            await lease.complete(0)


class EngineStopCases:
    async def test_stop_lets_handlers_finish(self, fleet: Apps) -> None:
        """Within the drain. They see the interrupt reason `stopping`."""
        checkpoint = Checkpoint()
        reasons: list[object] = []

        @work(name="slow")
        async def slow(ctx: Context) -> str:
            checkpoint.open()
            await checkpoint.arrive()
            reasons.append(await ctx.interrupt)
            return "in time"

        app = await fleet.app(slow)
        handle = await app.enqueue(slow())
        await checkpoint.reached()
        await app.stop(drain=PATIENCE)
        assert reasons == ["stopping"]
        assert await (await fleet.idle(slow)).handle(handle.id).result(PATIENCE) == "in time"

    async def test_stop_releases_items_that_do_not_finish(self, fleet: Apps) -> None:
        """Another worker starts them at once, and the attempt is not spent."""
        checkpoint = Checkpoint()

        @work(name="slow", retry=Retry(attempts=1))
        async def slow(ctx: Context) -> str:
            if ctx.worker_id == "first":
                await checkpoint.arrive()
            return f"{ctx.worker_id} {ctx.attempt}"

        first = await fleet.app(slow, worker_id="first")
        handle = await first.enqueue(slow())
        await checkpoint.reached()
        await first.stop(drain=0)
        second = await fleet.app(slow, worker_id="second")
        assert await second.handle(handle.id).result(PATIENCE) == "second 1"

    async def test_drain_runs_everything_that_is_due(self, fleet: Apps) -> None:
        """Including queued children. Items that are due later are left alone."""
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
    async def test_cancel_stops_a_running_handler(self, fleet: Apps) -> None:
        """From another process. Waiters get `WorkCancelled`."""
        checkpoint = Checkpoint()
        ended: list[str] = []

        @work(name="slow")
        async def slow() -> None:
            try:
                await checkpoint.arrive()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        app, operator = await fleet.app(slow, heartbeat=0.1), await fleet.idle(slow)
        handle = await app.enqueue(slow())
        await checkpoint.reached()
        assert await operator.cancel(handle.id) == 1
        assert isinstance(await failure(handle.result(PATIENCE)), WorkCancelled)
        await until(lambda: _holds(ended == ["cancelled"]))

    @needs("operating")
    async def test_complete_ends_an_item_without_a_worker(self, fleet: Apps) -> None:
        """It has the operator's value and releases its dependents."""

        @work(name="step")
        async def step(n: int) -> int:
            return n

        app = await fleet.idle(step)
        handle = await app.enqueue(step(1))
        after = await app.enqueue(step(2), after=handle)
        await app.complete(handle, 42)
        assert await handle.result(PATIENCE) == 42
        await app.start()
        assert await after.result(PATIENCE) == 2

    @needs("operating")
    async def test_items_of_a_paused_queue_wait(self, fleet: Apps) -> None:
        """Until it is resumed. Other queues go on."""

        @work(name="step")
        async def step(n: int) -> int:
            return n

        app = await fleet.app(step)
        await app.pause("bulk")
        paused = await app.enqueue(step(1), queue="bulk")
        assert await app.enqueue(step(2)).result(PATIENCE) == 2
        assert (await paused.state()).status == "ready"
        await app.resume("bulk")
        assert await paused.result(PATIENCE) == 1

    @needs("listing")
    async def test_workflow_lists_items_by_creation(self, fleet: Apps) -> None:
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
    async def test_ctx_transaction_settles_the_handlers_result(self, fleet: Apps) -> None:
        """With its value and its children. An exception after the block undoes all of it."""
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
