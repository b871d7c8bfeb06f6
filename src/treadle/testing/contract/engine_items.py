"""What becomes of one item: values, retries, deaths, compensation, deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.context import Context
from treadle.decorators import work
from treadle.errors import Abort, AttemptTimeout, Defer, DuplicateIdError, GroupFailed, NotFound, WorkFailed
from treadle.flow_control import Failure
from treadle.retry import Retry

from .fleet import PATIENCE, Fleet, failure, until_status
from .subject import needs


class EngineItemCases:
    async def test_a_value_comes_back(self, fleet: Fleet) -> None:
        """Submitted, run, settled, and told to whoever waits: for the item and for its group."""

        @work(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        app = await fleet.app(add)
        assert await app.enqueue(add(1, 2)).result(PATIENCE) == 3
        assert await app.enqueue(add(3, b=4)).group(PATIENCE) == 7
        handles = await app.enqueue_many([add(n, n) for n in range(50)])
        assert [await handle.result(PATIENCE) for handle in handles] == [n + n for n in range(50)]

    async def test_a_sync_handler_runs_in_a_thread(self, fleet: Fleet) -> None:
        """Its value comes back as any other."""

        @work(name="shout")
        def shout(text: str) -> str:
            return text.upper()

        app = await fleet.app(shout)
        assert await app.enqueue(shout("hey")).result(PATIENCE) == "HEY"

    async def test_what_was_submitted_before_runs_later(self, fleet: Fleet) -> None:
        """By an app that had no worker then, waited for by one that never has any."""

        @work(name="later")
        async def later(n: int) -> int:
            return n

        producer = await fleet.idle(later)
        handle = await producer.enqueue(later(5))
        assert (await handle.state()).status == "ready"
        await fleet.app(later)
        assert await handle.result(PATIENCE) == 5

    async def test_it_is_tried_again_until_it_succeeds(self, fleet: Fleet) -> None:
        """Attempts are counted by the store; each failure is kept."""

        @work(name="flaky", retry=Retry(attempts=3, base=0, jitter=0))
        async def flaky(ctx: Context) -> int:
            if ctx.attempt < 3:
                raise OSError(f"attempt {ctx.attempt}")
            return ctx.attempt

        handle = await (await fleet.app(flaky)).enqueue(flaky())
        assert await handle.result(PATIENCE) == 3
        assert [each.message for each in (await handle.state()).history] == ["attempt 1", "attempt 2"]

    async def test_a_retry_waits_for_its_time(self, fleet: Fleet) -> None:
        """By the store's clock."""
        attempts: list[int] = []

        @work(name="flaky", retry=Retry(attempts=3, base=3600, max=3600, jitter=0))
        async def flaky(ctx: Context) -> int:
            attempts.append(ctx.attempt)
            if ctx.attempt == 1:
                raise OSError("not now")
            return ctx.attempt

        app = await fleet.app(flaky)
        handle = await app.enqueue(flaky())
        state = await until_status(app, handle.id, "scheduled")
        assert state.due_at - await app.backend.now() == pytest.approx(3600, abs=5)
        assert attempts == [1]
        await fleet.subject.advance(3601)
        assert await handle.result(PATIENCE) == 2

    async def test_the_last_attempt_ends_it(self, fleet: Fleet) -> None:
        """`dead: exhausted`, and whoever waits is told why."""

        @work(name="bad", retry=Retry(attempts=2, base=0))
        async def bad() -> None:
            raise ValueError("no")

        handle = await (await fleet.app(bad)).enqueue(bad())
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts, error.error_type) == ("exhausted", 2, "ValueError")

    async def test_abort_ends_it_at_once(self, fleet: Fleet) -> None:
        """Whatever attempts are left."""

        @work(name="bad")
        async def bad() -> None:
            raise Abort("pointless")

        handle = await (await fleet.app(bad)).enqueue(bad())
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts) == ("aborted", 1)

    async def test_defer_gives_the_attempt_back(self, fleet: Fleet) -> None:
        """As often as it is raised."""
        calls: list[int] = []

        @work(name="busy", retry=Retry(attempts=1))
        async def busy(ctx: Context) -> int:
            calls.append(ctx.attempt)
            if len(calls) < 4:
                raise Defer(delay=0)
            return ctx.attempt

        assert await (await fleet.app(busy)).enqueue(busy()).result(PATIENCE) == 1
        assert calls == [1, 1, 1, 1]

    async def test_an_attempt_has_its_time(self, fleet: Fleet) -> None:
        """`timeout`: the handler is cancelled, the attempt has failed."""

        @work(name="slow", timeout=0.05, retry=Retry(attempts=1))
        async def slow() -> None:
            await asyncio.Event().wait()

        error = await failure((await fleet.app(slow)).enqueue(slow()).result(PATIENCE))
        assert (error.reason, error.error_type) == ("exhausted", AttemptTimeout.__name__)

    async def test_what_is_not_begun_in_time_expires(self, fleet: Fleet) -> None:
        """`dead: expired`, by the store's clock, never run; and compensated for."""
        told: list[Failure] = []

        @work(name="sorry")
        async def sorry(failure: Failure) -> None:
            told.append(failure)

        @work(name="perishable", expires_in=60, on_dead=sorry)
        async def perishable() -> None:
            raise AssertionError("too late")

        handle = await (await fleet.idle(perishable)).enqueue(perishable())
        await fleet.subject.advance(61)
        await fleet.app(perishable, sorry)
        assert (await failure(handle.group(PATIENCE))).reason == "expired"
        assert [(each.id, each.reason) for each in told] == [(handle.id, "expired")]

    async def test_what_is_due_later_runs_later(self, fleet: Fleet) -> None:
        """`delay`, by the store's clock."""

        @work(name="later")
        async def later() -> str:
            return "now"

        app = await fleet.app(later)
        handle = await app.enqueue(later(), delay=3600)
        assert (await handle.state()).status == "scheduled"
        await fleet.subject.advance(3601)
        assert await handle.result(PATIENCE) == "now"

    async def test_compensation_comes_with_the_death(self, fleet: Fleet) -> None:
        """`on_dead` is submitted in the same step, holds the group open, and adds nothing to its value."""
        told: list[Failure] = []

        @work(name="refund")
        async def refund(failure: Failure) -> str:
            told.append(failure)
            return "refunded"

        @work(name="charge", on_dead=refund)
        async def charge(order: str) -> None:
            raise Abort("declined")

        app = await fleet.app(charge, refund)
        handle = await app.enqueue(charge("o-1"))
        assert isinstance(await failure(handle.group(PATIENCE)), GroupFailed)
        assert [(each.id, each.reason, each.input) for each in told] == [
            (handle.id, "aborted", {"order": "o-1"})
        ]

    async def test_an_unreadable_body_is_dead_and_kept(self, fleet: Fleet) -> None:
        """`dead: undecodable`: no attempts are burnt, nothing is dropped."""

        @work(name="typed")
        async def older(n: str) -> None: ...

        @work(name="typed")
        async def newer(n: int) -> None: ...

        handle = await (await fleet.idle(older)).enqueue(older("one"))
        await fleet.app(newer)
        assert (await failure(handle.result(PATIENCE))).reason == "undecodable"

    async def test_a_type_that_it_does_not_have_is_left_alone(self, fleet: Fleet) -> None:
        """It waits for a worker that has it, and is not failed by one that has not."""

        @work(name="mine")
        async def mine() -> int:
            return 1

        @work(name="theirs")
        async def theirs() -> int:
            return 2

        app = await fleet.app(mine)
        foreign = await (await fleet.idle(theirs)).enqueue(theirs())
        assert await app.enqueue(mine()).result(PATIENCE) == 1
        assert (await foreign.state()).attempt == 0
        await fleet.app(theirs)
        assert await foreign.result(PATIENCE) == 2

    async def test_the_same_work_twice_is_refused(self, fleet: Fleet) -> None:
        """An id is used once."""

        @work(name="once")
        async def once() -> None: ...

        app = await fleet.idle(once)
        minted = once()
        await app.enqueue(minted)
        with pytest.raises(DuplicateIdError):
            await app.enqueue(minted)

    async def test_a_key_answers_with_the_earlier_item(self, fleet: Fleet) -> None:
        """However many submit it at once, one is stored; all wait for the same value."""

        @work(name="keyed")
        async def keyed(n: int) -> int:
            return n

        apps = [await fleet.idle(keyed), await fleet.idle(keyed)]

        async def submit(n: int) -> Any:
            return await apps[n % 2].enqueue(keyed(n), key="order-42", key_scope="any")

        handles = await asyncio.gather(*(submit(n) for n in range(10)))
        assert sum(not handle.existing for handle in handles) == 1
        assert len({handle.id for handle in handles}) == 1
        await fleet.app(keyed)
        assert len({await handle.result(PATIENCE) for handle in handles}) == 1

    async def test_a_key_is_free_when_the_group_has_ended(self, fleet: Fleet) -> None:
        """Scope `open`, the default: "do not do it twice at once"."""

        @work(name="keyed")
        async def keyed(n: int) -> int:
            return n

        app = await fleet.app(keyed)
        first = await app.enqueue(keyed(1), key="order-42")
        assert await first.group(PATIENCE) == 1
        second = await app.enqueue(keyed(2), key="order-42")
        assert (second.existing, await second.result(PATIENCE)) == (False, 2)

    async def test_a_worker_of_one_tenant_runs_no_other(self, fleet: Fleet) -> None:
        """They wait for a worker that serves them."""

        @work(name="whose")
        async def whose(ctx: Context) -> str:
            return f"{ctx.tenant} by {ctx.worker_id}"

        app = await fleet.app(whose, tenants=["acme"], worker_id="bound")
        other = await app.tenant("zoo").enqueue(whose())
        assert await app.tenant("acme").enqueue(whose()).result(PATIENCE) == "acme by bound"
        assert (await other.state()).attempt == 0
        await fleet.app(whose, worker_id="free")
        assert await other.result(PATIENCE) == "zoo by free"

    async def test_another_tenants_item_is_not_there(self, fleet: Fleet) -> None:
        """Wrong tenant: `NotFound`, never a hint that it exists."""

        @work(name="whose")
        async def whose(ctx: Context) -> str:
            return ctx.tenant

        app = await fleet.app(whose)
        handle = await app.tenant("acme").enqueue(whose())
        assert await handle.result(PATIENCE) == "acme"
        stranger = app.tenant("zoo")
        assert await stranger.get([handle.id]) == [None]
        with pytest.raises(NotFound):
            await stranger.handle(handle.id).result(PATIENCE)

    @needs("operating")
    async def test_a_dead_one_runs_again(self, fleet: Fleet) -> None:
        """Requeued: with all its attempts, its group open again."""
        mended: list[bool] = []

        @work(name="broken")
        async def broken(ctx: Context) -> int:
            if not mended:
                raise Abort("broken")
            return ctx.attempt

        app = await fleet.app(broken)
        handle = await app.enqueue(broken())
        with pytest.raises(WorkFailed):
            await handle.result(PATIENCE)
        mended.append(True)
        assert await app.dead.requeue(handle) == 1
        assert await handle.group(PATIENCE) == 1
