"""Compensation: the work that is submitted when an item becomes dead (SPEC §5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, Seen, expire_running, failure, until
from treadle import Abort, Context, Failure, GroupFailed, Result, Retry, WorkFailed, group, work
from treadle.errors import CycleError
from treadle.events import Dead
from treadle.testing import Faults


@work
async def value(n: int) -> int:
    return n


class Compensated:
    """The failures that compensations got, and their parents."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.parents: list[str | None] = []


@pytest.fixture
def compensated() -> Compensated:
    return Compensated()


def refund_of(compensated: Compensated, **options: Any) -> Any:
    @work(name="refund", **options)
    async def refund(ctx: Context, failure: Failure) -> str:
        compensated.failures.append(failure)
        compensated.parents.append(ctx.parent)
        return "refunded"

    return refund


async def test_a_function_as_on_dead_runs_as_a_type_of_its_own(
    make_app: MakeApp, compensated: Compensated
) -> None:
    """Its name follows from the type, which registers it: every worker that runs the one runs the other."""

    def undo(ctx: Context, failure: Failure) -> str:
        compensated.failures.append(failure)
        compensated.parents.append(ctx.parent)
        return "undone"

    @work(name="pay", retry=Retry(attempts=1), on_dead=undo)
    async def pay(card: str) -> None:
        raise OSError("declined")

    async with make_app(pay) as app:
        handle = await app.enqueue(pay("4711"))
        with pytest.raises(WorkFailed):
            await asyncio.wait_for(handle.group(), PATIENCE)
        (undone,) = (await app.list(type="pay.on_dead")).items
    assert (undone.status, compensated.parents) == ("success", [handle.id])
    assert [(each.type, each.input) for each in compensated.failures] == [("pay", {"card": "4711"})]


async def test_on_dead_submits_a_work_when_the_item_dies(make_app: MakeApp) -> None:
    """§5: `on_dead=refund(order)`. It inherits tenant, workflow and group. Its parent is the dead item."""
    seen: list[object] = []

    @work(name="refund")
    async def refund(ctx: Context, order: str) -> str:
        seen.extend((order, ctx.parent, ctx.group_id, ctx.tenant, ctx.workflow))
        return "refunded"

    @work(name="charge", retry=Retry(attempts=2, base=0))
    async def charge(order: str) -> str:
        raise OSError("card declined")

    async with make_app(charge, refund) as app:
        acme = app.tenant("acme")
        handle = await acme.enqueue(charge("o-1"), on_dead=refund("o-1"), workflow="w")
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert (error.id, error.error) == (handle.id, "card declined")
        assert len((await app.list(type="refund")).items) == 1
    assert seen == ["o-1", handle.id, handle.id, "acme", "w"]


async def test_on_dead_calls_a_type_with_the_failure(make_app: MakeApp, compensated: Compensated) -> None:
    """§5: The argument is `Failure(id, type, input, error, reason, attempts)`."""
    refund = refund_of(compensated)

    @work(name="charge", on_dead=refund)
    async def charge(order: str, amount: int) -> None:
        raise Abort(ValueError("declined"))

    async with make_app(charge, refund) as app:
        handle = await app.enqueue(charge("o-1", 5))
        await failure(handle.group(PATIENCE))
    given = {"order": "o-1", "amount": 5}
    assert compensated.failures == [Failure(handle.id, "charge", given, "ValueError: declined", "aborted", 1)]
    assert compensated.parents == [handle.id]


async def test_a_compensation_keeps_the_group_open_and_adds_no_value(make_app: MakeApp) -> None:
    """§5, §17."""
    barrier = Barrier()

    @work(name="undo")
    async def undo() -> str:
        await barrier.wait()
        return "undone"

    @work(name="bad", on_dead=undo())
    async def bad() -> None:
        raise Abort("bad")

    async with make_app(bad, undo) as app:
        handle = await app.enqueue(bad())
        assert (await failure(handle.result(PATIENCE))).error == "bad"
        await barrier.reached()
        group = await app.group(handle.id)
        assert group is not None
        assert group.open == 1
        waiting = asyncio.ensure_future(failure(handle.group(PATIENCE)))
        barrier.go.set()
        assert isinstance(await waiting, GroupFailed)


def dying(name: str, how: str, on_dead: Any, began: asyncio.Event | None = None) -> Any:
    """A type whose items die for this reason."""

    @work(name=name, on_dead=on_dead, retry=Retry(attempts=1))
    async def dies(ctx: Context, n: int) -> Any:
        match how:
            case "exhausted":
                raise OSError("failed")
            case "aborted":
                raise Abort("no")
            case "bad_result":
                return value(1)
            case "expired":
                assert began is not None
                began.set()
                return await asyncio.Event().wait()
            case _:
                raise AssertionError(f"{how} never runs")

    return dies


@pytest.mark.parametrize("how", ["exhausted", "aborted", "bad_result", "expired"])
async def test_an_item_that_dies_in_an_attempt_is_compensated(
    make_app: MakeApp, compensated: Compensated, how: str
) -> None:
    """§5: For every reason that needs an attempt."""
    refund = refund_of(compensated)
    began = asyncio.Event()
    dies = dying("dies", how, refund, began)
    async with make_app(dies, refund) as app:
        if how == "expired":
            handle, _ = await expire_running(app, lambda: dies(1), began.is_set)
        else:
            handle = await app.enqueue(dies(1), expires_in=60)
        error = await failure(handle.group(PATIENCE))
        assert error.reason == how
    assert [each.reason for each in compensated.failures] == [how]


@pytest.mark.parametrize("level", ["app", "type", "enqueue", None])
async def test_an_item_that_dies_without_an_attempt_is_compensated_if_asked(
    make_app: MakeApp, compensated: Compensated, level: str | None
) -> None:
    """§18: It has nothing to undo, unless `on_dead_unstarted` says so. It expired before it ran, or its
    dependency cannot be met."""
    refund, asked = refund_of(compensated), {"on_dead_unstarted": True}

    @work(name="dies", on_dead=refund, **(asked if level == "type" else {}))  # type: ignore[call-overload,untyped-decorator]
    async def dies(n: int) -> None: ...

    @work(name="bad")
    async def bad() -> None:
        raise Abort("bad")

    own: dict[str, Any] = asked if level == "enqueue" else {}
    async with make_app(dies, refund, bad, **(asked if level == "app" else {})) as app:
        late = await app.enqueue(dies(1), deadline=datetime(2001, 1, 1, tzinfo=UTC), **own)
        doomed = await app.enqueue(dies(2), after=await app.enqueue(bad()), **own)
        for handle, reason in ((late, "expired"), (doomed, "unsatisfiable")):
            assert (await failure(handle.group(PATIENCE))).reason == reason
    found = {(each.id, each.reason, each.attempts) for each in compensated.failures}
    expected = {(late.id, "expired", 0), (doomed.id, "unsatisfiable", 0)}
    assert found == (expected if level else set())


async def test_an_item_that_dies_without_an_attempt_is_compensated(
    make_app: MakeApp, compensated: Compensated
) -> None:
    """§5, §18: It expired before it ran, its dependency cannot be met, or its body cannot be read."""
    refund = refund_of(compensated)
    dies = dying("dies", "never", refund)

    @work(name="bad")
    async def bad() -> None:
        raise Abort("bad")

    @work(name="dies", on_dead=refund)
    async def older(n: str) -> None: ...

    # A producer with older code stores a body that the worker cannot read.
    unreadable = await make_app(older).enqueue(older("one"), on_dead_unstarted=True)
    async with make_app(dies, refund, bad, on_dead_unstarted=True, undecodable_grace=0) as app:
        late = await app.enqueue(dies(1), deadline=datetime(2001, 1, 1, tzinfo=UTC))
        doomed = await app.enqueue(dies(2), after=await app.enqueue(bad()))
        for handle, reason in ((late, "expired"), (doomed, "unsatisfiable"), (unreadable, "undecodable")):
            assert (await failure(app.handle(handle.id).group(PATIENCE))).reason == reason
    assert {(each.id, each.reason) for each in compensated.failures} == {
        (late.id, "expired"),
        (doomed.id, "unsatisfiable"),
        (unreadable.id, "undecodable"),
    }


async def test_an_item_whose_leases_were_lost_is_compensated(
    make_app: MakeApp, compensated: Compensated
) -> None:
    """§5: By the worker that finds that it was lost too often."""
    barrier = Barrier()
    refund = refund_of(compensated)

    @work(name="poison", on_dead=refund, retry=Retry(max_losses=0))
    async def poison() -> None:
        await barrier.wait()

    first = make_app(poison, worker_id="first")
    await first.start()
    handle = await first.enqueue(poison())
    await barrier.reached()
    await first.worker._runtime.loops.end("renew", "claim")  # type: ignore[union-attr]
    await first.backend.remove_worker("first")
    async with make_app(poison, refund) as second:
        assert (await failure(second.handle(handle.id).group(PATIENCE))).reason == "lease_lost"
    assert [(each.id, each.reason) for each in compensated.failures] == [(handle.id, "lease_lost")]
    barrier.go.set()


async def test_an_item_of_an_unknown_type_is_compensated(make_app: MakeApp, compensated: Compensated) -> None:
    """§5: The compensation is stored with the item, so the worker does not need the code of the type."""
    refund = refund_of(compensated)

    @work(name="unknown", on_dead=refund)
    async def unknown(n: int) -> None: ...

    handle = await make_app(unknown).enqueue(unknown(1), on_dead_unstarted=True)
    async with make_app(refund, unknown_type_grace=0.1) as app:
        assert (await failure(app.handle(handle.id).group(PATIENCE))).reason == "unknown_type"
    assert [(each.id, each.reason) for each in compensated.failures] == [(handle.id, "unknown_type")]


async def test_items_of_claim_one_are_compensated(make_app: MakeApp, compensated: Compensated) -> None:
    """§5, §17: One item fails, and one item's deadline has passed when it is claimed."""
    refund = refund_of(compensated)

    @work(name="charge", on_dead=refund, on_dead_unstarted=True, retry=Retry(attempts=1))
    async def charge(n: int) -> None: ...

    app = make_app(charge, refund)
    failed = await app.enqueue(charge(1))
    lease = await app.claim_one(types=[charge])
    assert lease is not None
    await lease.fail("declined")
    late = await app.enqueue(charge(2), deadline=datetime(2001, 1, 1, tzinfo=UTC))
    assert await app.claim_one(types=[charge]) is None
    async with app:
        for handle in (failed, late):
            await failure(handle.group(PATIENCE))
    assert {(each.id, each.reason) for each in compensated.failures} == {
        (failed.id, "exhausted"),
        (late.id, "expired"),
    }


@pytest.mark.parametrize("when", ["before", "after", "later"])
async def test_the_compensation_is_stored_in_the_same_step_as_the_death(
    make_faulty: MakeApp, faults: Faults, compensated: Compensated, when: str
) -> None:
    """§5: Also if the settlement fails or its answer is lost. There is a compensation if and only if the
    item is dead."""
    refund = refund_of(compensated)

    @work(name="charge", on_dead=refund)
    async def charge() -> None:
        raise Abort("declined")

    fault = faults.fail("settle", when=when, match=lambda given: any(s.kind == "dead" for s in given))
    async with make_faulty(charge, refund) as app:
        handle = await app.enqueue(charge())
        async with asyncio.timeout(PATIENCE):
            while not compensated.failures:
                items = {item.type: item.status for item in (await app.list()).items}
                assert ("refund" in items) == (items["charge"] == "dead")
                await asyncio.sleep(0)
        await failure(handle.group(PATIENCE))
        fault.release()
        await fault.landed()
        assert len((await app.list(type="refund")).items) == 1
    assert (len(compensated.failures), fault.hits) == (1, 1)


async def test_a_cancelled_item_is_not_compensated(make_app: MakeApp, compensated: Compensated) -> None:
    """§5."""
    refund = refund_of(compensated)

    @work(name="charge", on_dead=refund)
    async def charge() -> None: ...

    async with make_app(charge, refund) as app:
        handle = await app.enqueue(charge(), delay=60)
        await handle.cancel()
        with pytest.raises(WorkFailed):
            await handle.group(PATIENCE)
        assert not (await app.list(type="refund")).items


async def test_each_death_is_compensated_once(make_app: MakeApp, compensated: Compensated) -> None:
    """§5: A requeued item that dies again is compensated again. A failed attempt is not."""
    refund = refund_of(compensated)

    @work(name="charge", on_dead=refund, retry=Retry(attempts=3, base=0))
    async def charge() -> None:
        raise OSError("declined")

    async with make_app(charge, refund) as app:
        handle = await app.enqueue(charge())
        await failure(handle.group(PATIENCE))
        assert len(compensated.failures) == 1
        await app.dead.requeue(handle.id)
        await until(lambda: len(compensated.failures) == 2)
        await failure(handle.group(PATIENCE))
        assert len((await app.list(type="refund")).items) == 2


async def test_on_dead_at_enqueue_wins_over_the_type(make_app: MakeApp, compensated: Compensated) -> None:
    """§4: None removes the compensation of the type."""
    refund = refund_of(compensated)
    others: list[int] = []

    @work(name="other")
    async def other(n: int) -> None:
        others.append(n)

    @work(name="charge", on_dead=refund)
    async def charge() -> None:
        raise Abort("declined")

    async with make_app(charge, refund, other) as app:
        await failure(app.enqueue(charge(), on_dead=other(7)).group(PATIENCE))
        await failure(app.enqueue(charge(), on_dead=None).group(PATIENCE))
    assert (others, compensated.failures) == ([7], [])


async def test_children_and_compensations_can_have_a_compensation(
    make_app: MakeApp, compensated: Compensated
) -> None:
    """§5: `on_dead` in `ctx.queue`, and on the type of a compensation."""
    last: list[str] = []

    @work(name="escalate")
    async def escalate(failure: Failure) -> None:
        last.append(failure.type)

    @work(name="refund", on_dead=escalate)
    async def refund(failure: Failure) -> None:
        compensated.failures.append(failure)
        raise Abort("cannot refund")

    @work(name="child")
    async def child() -> None:
        raise Abort("child")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(child(), on_dead=refund)

    async with make_app(root, child, refund, escalate) as app:
        await failure(app.enqueue(root()).group(PATIENCE))
    assert [each.type for each in compensated.failures] == ["child"]
    assert last == ["refund"]


@dataclass
class Order:
    id: str
    total: float


async def test_a_failure_has_the_input_as_plain_values(make_app: MakeApp, compensated: Compensated) -> None:
    """§5: By parameter name."""
    refund = refund_of(compensated)

    @work(name="charge", on_dead=refund)
    async def charge(order: Order, tags: list[str]) -> None:
        raise Abort("declined")

    async with make_app(charge, refund) as app:
        await failure(app.enqueue(charge(Order("o-1", 9.5), ["a"])).group(PATIENCE))
    assert compensated.failures[0].input == {"order": {"id": "o-1", "total": 9.5}, "tags": ["a"]}


async def test_events_of_a_compensated_death_are_in_order(
    make_app: MakeApp, compensated: Compensated
) -> None:
    """§13: `Failed`, `Dead`, then the events of the compensation. The group is done after the
    compensation."""
    seen = Seen()
    refund = refund_of(compensated)

    @work(name="charge", on_dead=refund, retry=Retry(attempts=1))
    async def charge() -> None:
        raise OSError("declined")

    async with make_app(charge, refund, on_event=seen) as app:
        handle = await app.enqueue(charge())
        await failure(handle.group(PATIENCE))
    assert seen.names() == [
        *("Queued", "Started", "Failed", "Dead"),
        *("Queued", "Started", "Succeeded", "GroupDone"),
    ]


def test_a_bad_on_dead_is_refused_at_definition() -> None:
    """§5."""
    with pytest.raises(TypeError, match="on_dead"):
        work(name="x", on_dead="refund")  # type: ignore[call-overload]

    @work(name="two")
    async def two(a: int, b: int) -> None: ...

    with pytest.raises(TypeError, match="Failure"):
        work(name="y", on_dead=two)  # type: ignore[call-overload]


async def test_the_options_of_a_compensation_are_applied(make_app: MakeApp, compensated: Compensated) -> None:
    """§18: Those of its type, and those that its `options(input)` computes from the Failure."""

    def computed(input: dict[str, Any]) -> Any:
        failure: Failure = input["failure"]
        return {
            "key": f"refund:{failure.input['order']}",
            "lane": failure.reason,
            "priority": failure.attempts,
        }

    refund = refund_of(compensated, options=computed, queue="refunds")

    @work(name="charge", on_dead=refund)
    async def charge(order: str) -> None:
        raise Abort("declined")

    async with make_app(charge, refund) as app:
        await failure(app.enqueue(charge("o-1")).group(PATIENCE))
        (item,) = (await app.list(type="refund")).items
        assert (item.queue, item.key, item.lane, item.priority) == ("refunds", "refund:o-1", "aborted", 1)


@pytest.mark.parametrize("known", [True, False])
async def test_a_compensation_keeps_its_options_where_its_type_is_not_known(
    make_app: MakeApp, known: bool
) -> None:
    """§18: They are stored with the item that may die."""

    @work(name="undo", queue="undo", options=lambda given: {"key": given["order"], "delay": 0.01})
    async def undo(order: str) -> str:
        return order

    @work(name="charge")
    async def charge(order: str) -> None:
        raise Abort("declined")

    handle = await make_app(charge, undo).enqueue(charge("o-1"), on_dead=undo("o-1"))
    async with make_app(charge, *([undo] if known else [])) as app:
        await failure(app.handle(handle.id).result(PATIENCE))
        (item,) = (await app.list(type="undo")).items
        assert (item.queue, item.key, item.due_at > item.queued_at) == ("undo", "o-1", True)


async def test_a_compensation_whose_options_cannot_be_computed_runs_without_them(
    make_app: MakeApp, compensated: Compensated
) -> None:
    """§18: The error is reported."""
    errors = Errors()

    def broken(input: dict[str, Any]) -> Any:
        raise ValueError("no options")

    refund = refund_of(compensated, options=broken, queue="refunds")

    @work(name="charge", on_dead=refund)
    async def charge() -> None:
        raise Abort("declined")

    async with make_app(charge, refund, on_error=errors) as app:
        await failure(app.enqueue(charge()).group(PATIENCE))
        assert [item.queue for item in (await app.list(type="refund")).items] == ["refunds"]
    assert [str(error) for error in errors.of("settle")] == ["no options"]
    assert len(compensated.failures) == 1


@pytest.mark.parametrize("how", ["worker", "complete", "claim_one"])
async def test_what_a_compensation_queues_adds_no_value(make_app: MakeApp, how: str) -> None:
    """§17: By whichever verb it ends."""

    @work(name="audit", queue="audits")
    async def audit() -> str:
        return "audited"

    @work(name="undo")
    async def undo(ctx: Context) -> Result[str, str]:
        return ctx.result("undone").next(audit())

    @work(name="charge", on_dead=undo())
    async def charge() -> str:
        raise Abort("declined")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(ctx.result("started"), charge())

    queues = None if how == "worker" else ["default"]
    async with make_app(root, charge, undo, audit, queues=queues) as app:
        handle = await app.enqueue(root())
        if how != "worker":
            await failure(app.handle((await until_type(app, "charge", "dead")).id).result(PATIENCE))
            item = await until_type(app, "audit", "ready")
            if how == "complete":
                await app.complete(item.id, "completed")
            else:
                lease = await app.claim_one(types=[audit])
                assert lease is not None
                await lease.complete("claimed")
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert error.value == "started"
        assert await handle.group(PATIENCE, partial=True) == "started"


async def until_type(app: Any, type: str, status: str) -> Any:
    """Return the item of this type when it has this status."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if items := (await app.list(status, type=type)).items:
                return items[0]
            await asyncio.sleep(0.01)


async def test_the_event_and_the_failure_say_the_same(make_app: MakeApp, compensated: Compensated) -> None:
    """§18: `Failure.error`, the `Dead` event, and the item's state."""
    seen = Seen()
    refund = refund_of(compensated)

    @work(name="charge", on_dead=refund, on_dead_unstarted=True)
    async def charge() -> None:
        raise Abort(ValueError("declined"))

    async with make_app(charge, refund, on_event=seen) as app:
        first = await app.enqueue(charge())
        await failure(first.group(PATIENCE))
        second = await app.enqueue(charge(), after=first)
        await failure(second.group(PATIENCE))
        texts = {handle.id: (await handle.state()).error for handle in (first, second)}
    assert texts[first.id] == "ValueError: declined"
    assert {event.id: event.text for event in seen.of(Dead)} == texts
    assert {each.id: each.error for each in compensated.failures} == texts


@pytest.mark.parametrize("policy", ["error", "replace", "debounce"])
async def test_a_compensation_leaves_the_earlier_item_with_its_key_as_it_is(
    make_app: MakeApp, policy: str
) -> None:
    """§18: The earlier item answers for it, whatever the key policy of its type is."""
    errors = Errors()

    @work(name="refund", options=lambda _: {"key": "refund"}, key_policy=policy)  # type: ignore[call-overload,untyped-decorator]
    async def refund(order: str) -> str:
        return order

    @work(name="charge", on_dead=refund("compensated"), retry=Retry(attempts=1))
    async def charge() -> None:
        raise OSError("declined")

    async with make_app(charge, refund, on_error=errors) as app:
        own = await app.enqueue(refund("own"), delay=60)
        error = await failure(app.enqueue(charge()).group(PATIENCE))
        assert (error.reason, error.error) == ("exhausted", "declined")
        await app.trigger(own.id)
        assert await own.group(PATIENCE) == "own"
        assert len((await app.list(type="refund")).items) == 1
    assert errors.of("settle") == []


def waits_for_itself(given: Any) -> Any:
    """Options of a compensation that waits for the group that it joins."""
    return {"after": group(given["failure"].id)}


@pytest.mark.every_store
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("how", ["exhausted", "bad_result"])
async def test_an_item_whose_compensation_is_refused_dies_without_it(
    make_app: MakeApp, compensated: Compensated, how: str, within: bool
) -> None:
    """§18: The error is reported, and the reason is that of the item."""
    errors = Errors()
    refund = refund_of(compensated, options=waits_for_itself)

    @work(name="charge", on_dead=refund, retry=Retry(attempts=1))
    async def charge(ctx: Context) -> Any:
        if within:
            async with ctx.transaction():
                pass
        if how == "exhausted":
            raise OSError("declined")
        return ctx.queue(value(1), after=group(ctx.id))

    async with make_app(charge, refund, value, on_error=errors) as app:
        if within and "transactions" not in app.backend.capabilities:
            pytest.skip("the store has no transactions")
        error = await failure(app.enqueue(charge()).group(PATIENCE))
        assert error.reason == how
        assert not (await app.list(type="refund")).items
    assert [type(each) for each in errors.of("settle")] == [CycleError]
    assert compensated.failures == []


async def test_a_nested_group_in_a_compensation_has_its_own_value(make_app: MakeApp) -> None:
    """§17, §18: What follows the group gets its value. The group of the dead item gets nothing."""
    seen: list[object] = []

    @work(name="last")
    async def last(ctx: Context) -> str:
        seen.extend(await ctx.results(ctx.dependencies))
        return "last"

    @work(name="undo")
    async def undo(ctx: Context) -> Any:
        return ctx.queue(ctx.group(value(1), ctx.group(value(2))).next(last()), ctx.group(value(3)))

    @work(name="charge", on_dead=undo())
    async def charge() -> str:
        raise Abort("declined")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(ctx.result("started"), charge())

    async with make_app(root, charge, undo, last, value) as app:
        error = await failure(app.enqueue(root()).group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert error.value == "started"
    assert len(seen) == 1
    assert seen[0] in (1, 2)
