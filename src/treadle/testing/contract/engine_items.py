"""The life of one item, end to end: values, retries, deaths, compensation, deadlines, keys, tenants."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.define.decorators import work
from treadle.errors import Abort, AttemptTimeout, Defer, DuplicateIdError, GroupFailed, NotFound, WorkFailed
from treadle.flow_control import Failure
from treadle.handler.context import Context
from treadle.retry import Retry

from .fleet import PATIENCE, Apps, failure, until_status
from .subject import needs


class EngineItemCases:
    async def test_result_and_group_return_the_value(self, fleet: Apps) -> None:
        """Items are submitted, run and settled. Waiters for an item and for its group get the value."""

        @work(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        app = await fleet.app(add)
        assert await app.enqueue(add(1, 2)).result(PATIENCE) == 3
        assert await app.enqueue(add(3, b=4)).group(PATIENCE) == 7
        handles = await app.enqueue_many([add(n, n) for n in range(50)])
        assert [await handle.result(PATIENCE) for handle in handles] == [n + n for n in range(50)]

    async def test_a_sync_handler_runs_in_a_thread(self, fleet: Apps) -> None:
        """Its value is returned like any other."""

        @work(name="shout")
        def shout(text: str) -> str:
            return text.upper()

        app = await fleet.app(shout)
        assert await app.enqueue(shout("hey")).result(PATIENCE) == "HEY"

    async def test_an_item_submitted_without_a_worker_runs_later(self, fleet: Apps) -> None:
        """The app that submits it never runs a worker."""

        @work(name="later")
        async def later(n: int) -> int:
            return n

        producer = await fleet.idle(later)
        handle = await producer.enqueue(later(5))
        assert (await handle.state()).status == "ready"
        await fleet.app(later)
        assert await handle.result(PATIENCE) == 5

    async def test_a_failing_item_is_retried_until_it_succeeds(self, fleet: Apps) -> None:
        """The store counts the attempts and keeps each failure."""

        @work(name="flaky", retry=Retry(attempts=3, base=0, jitter=0))
        async def flaky(ctx: Context) -> int:
            if ctx.attempt < 3:
                raise OSError(f"attempt {ctx.attempt}")
            return ctx.attempt

        handle = await (await fleet.app(flaky)).enqueue(flaky())
        assert await handle.result(PATIENCE) == 3
        assert [each.message for each in (await handle.state()).history] == ["attempt 1", "attempt 2"]

    async def test_a_retry_waits_for_its_delay(self, fleet: Apps) -> None:
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

    async def test_a_failure_at_the_last_attempt_ends_the_item(self, fleet: Apps) -> None:
        """`dead: exhausted`. Waiters get the error."""

        @work(name="bad", retry=Retry(attempts=2, base=0))
        async def bad() -> None:
            raise ValueError("no")

        handle = await (await fleet.app(bad)).enqueue(bad())
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts, error.error_type) == ("exhausted", 2, "ValueError")

    async def test_abort_ends_the_item_at_once(self, fleet: Apps) -> None:
        """Remaining attempts are not used."""

        @work(name="bad")
        async def bad() -> None:
            raise Abort("pointless")

        handle = await (await fleet.app(bad)).enqueue(bad())
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts) == ("aborted", 1)

    async def test_a_deferred_attempt_is_not_counted(self, fleet: Apps) -> None:
        """It may be deferred any number of times."""
        calls: list[int] = []

        @work(name="busy", retry=Retry(attempts=1))
        async def busy(ctx: Context) -> int:
            calls.append(ctx.attempt)
            if len(calls) < 4:
                raise Defer(delay=0)
            return ctx.attempt

        assert await (await fleet.app(busy)).enqueue(busy()).result(PATIENCE) == 1
        assert calls == [1, 1, 1, 1]

    async def test_a_timeout_fails_the_attempt(self, fleet: Apps) -> None:
        """The handler is cancelled."""

        @work(name="slow", timeout=0.05, retry=Retry(attempts=1))
        async def slow() -> None:
            await asyncio.Event().wait()

        error = await failure((await fleet.app(slow)).enqueue(slow()).result(PATIENCE))
        assert (error.reason, error.error_type) == ("exhausted", AttemptTimeout.__name__)

    async def test_an_item_that_does_not_start_in_time_expires(self, fleet: Apps) -> None:
        """`dead: expired`, by the store's clock. It is never run, and its compensation is."""
        failures: list[Failure] = []

        @work(name="sorry")
        async def sorry(failure: Failure) -> None:
            failures.append(failure)

        @work(name="perishable", expires_in=60, on_dead=sorry, on_dead_unstarted=True)
        async def perishable() -> None:
            raise AssertionError("too late")

        handle = await (await fleet.idle(perishable)).enqueue(perishable())
        await fleet.subject.advance(61)
        await fleet.app(perishable, sorry)
        assert (await failure(handle.group(PATIENCE))).reason == "expired"
        assert [(each.id, each.reason) for each in failures] == [(handle.id, "expired")]

    async def test_a_delayed_item_runs_when_it_is_due(self, fleet: Apps) -> None:
        """By the store's clock."""

        @work(name="later")
        async def later() -> str:
            return "now"

        app = await fleet.app(later)
        handle = await app.enqueue(later(), delay=3600)
        assert (await handle.state()).status == "scheduled"
        await fleet.subject.advance(3601)
        assert await handle.result(PATIENCE) == "now"

    async def test_on_dead_submits_compensation(self, fleet: Apps) -> None:
        """In the step that ends the item. It keeps the group open and adds nothing to its value."""
        failures: list[Failure] = []

        @work(name="refund")
        async def refund(failure: Failure) -> str:
            failures.append(failure)
            return "refunded"

        @work(name="charge", on_dead=refund)
        async def charge(order: str) -> None:
            raise Abort("declined")

        app = await fleet.app(charge, refund)
        handle = await app.enqueue(charge("o-1"))
        assert isinstance(await failure(handle.group(PATIENCE)), GroupFailed)
        assert [(each.id, each.reason, each.input) for each in failures] == [
            (handle.id, "aborted", {"order": "o-1"})
        ]

    async def test_an_undecodable_input_ends_the_item(self, fleet: Apps) -> None:
        """`dead: undecodable`, at once without `undecodable_grace`. No attempts are spent, and the item is
        kept."""

        @work(name="typed")
        async def older(n: str) -> None: ...

        @work(name="typed")
        async def newer(n: int) -> None: ...

        handle = await (await fleet.idle(older)).enqueue(older("one"))
        await fleet.app(newer, undecodable_grace=0)
        assert (await failure(handle.result(PATIENCE))).reason == "undecodable"

    async def test_a_worker_leaves_other_types_alone(self, fleet: Apps) -> None:
        """The item waits for a worker that has its type."""

        @work(name="mine")
        async def mine() -> int:
            return 1

        @work(name="theirs")
        async def theirs() -> int:
            return 2

        app = await fleet.app(mine)
        left_alone = await (await fleet.idle(theirs)).enqueue(theirs())
        assert await app.enqueue(mine()).result(PATIENCE) == 1
        assert (await left_alone.state()).attempt == 0
        await fleet.app(theirs)
        assert await left_alone.result(PATIENCE) == 2

    async def test_enqueuing_the_same_work_twice_is_refused(self, fleet: Apps) -> None:
        """Its id is taken."""

        @work(name="once")
        async def once() -> None: ...

        app = await fleet.idle(once)
        new = once()
        await app.enqueue(new)
        with pytest.raises(DuplicateIdError):
            await app.enqueue(new)

    async def test_concurrent_enqueues_of_a_key_share_one_item(self, fleet: Apps) -> None:
        """One item is stored, and all handles wait for its value."""

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

    async def test_a_key_is_free_when_the_group_has_ended(self, fleet: Apps) -> None:
        """This is scope `open`, the default."""

        @work(name="keyed")
        async def keyed(n: int) -> int:
            return n

        app = await fleet.app(keyed)
        first = await app.enqueue(keyed(1), key="order-42")
        assert await first.group(PATIENCE) == 1
        second = await app.enqueue(keyed(2), key="order-42")
        assert (second.existing, await second.result(PATIENCE)) == (False, 2)

    async def test_a_worker_of_one_tenant_runs_no_other_tenants_items(self, fleet: Apps) -> None:
        """They wait for a worker that serves their tenant."""

        @work(name="whose")
        async def whose(ctx: Context) -> str:
            return f"{ctx.tenant} by {ctx.worker_id}"

        app = await fleet.app(whose, tenants=["acme"], worker_id="bound")
        other = await app.tenant("zoo").enqueue(whose())
        assert await app.tenant("acme").enqueue(whose()).result(PATIENCE) == "acme by bound"
        assert (await other.state()).attempt == 0
        await fleet.app(whose, worker_id="free")
        assert await other.result(PATIENCE) == "zoo by free"

    async def test_another_tenants_item_is_not_found(self, fleet: Apps) -> None:
        """`NotFound`, as for a missing item."""

        @work(name="whose")
        async def whose(ctx: Context) -> str:
            return ctx.tenant

        app = await fleet.app(whose)
        handle = await app.tenant("acme").enqueue(whose())
        assert await handle.result(PATIENCE) == "acme"
        other_tenant = app.tenant("zoo")
        assert await other_tenant.get([handle.id]) == [None]
        with pytest.raises(NotFound):
            await other_tenant.handle(handle.id).result(PATIENCE)

    @needs("operating")
    async def test_a_requeued_item_runs_again(self, fleet: Apps) -> None:
        """With all its attempts, and its group open again."""
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
