"""Compensation: what is submitted in the step that makes an item dead (SPEC §5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Gate, MakeApp, Seen, failure, until
from treadle import Abort, Context, Failure, GroupFailed, InputError, Result, Retry, WorkFailed, work
from treadle.errors import DefinitionError
from treadle.testing import Faults


@work
async def value(n: int) -> int:
    return n


class Told:
    """What compensations were told, and by whom they were queued."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.parents: list[str | None] = []


@pytest.fixture
def told() -> Told:
    return Told()


def refund_of(told: Told, **options: Any) -> Any:
    @work(name="refund", **options)
    async def refund(ctx: Context, failure: Failure) -> str:
        told.failures.append(failure)
        told.parents.append(ctx.parent)
        return "refunded"

    return refund


async def test_a_work_is_submitted_when_the_item_dies(make_app: MakeApp) -> None:
    """§5: `on_dead=refund(order)`; it inherits tenant, workflow and group, its parent is the dead item."""
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


async def test_a_type_is_told_of_the_failure(make_app: MakeApp, told: Told) -> None:
    """§5: called with `Failure(id, type, input, error, reason)`."""
    refund = refund_of(told)

    @work(name="charge", on_dead=refund)
    async def charge(order: str, amount: int) -> None:
        raise Abort(ValueError("declined"))

    async with make_app(charge, refund) as app:
        handle = await app.enqueue(charge("o-1", 5))
        await failure(handle.group(PATIENCE))
    given = {"order": "o-1", "amount": 5}
    assert told.failures == [Failure(handle.id, "charge", given, "ValueError: declined", "aborted")]
    assert told.parents == [handle.id]


async def test_it_holds_the_group_open_and_gives_it_no_value(make_app: MakeApp) -> None:
    """§5, §17: compensating members contribute nothing."""
    gate = Gate()

    @work(name="undo")
    async def undo() -> str:
        await gate.passing()
        return "undone"

    @work(name="bad", on_dead=undo())
    async def bad() -> None:
        raise Abort("bad")

    async with make_app(bad, undo) as app:
        handle = await app.enqueue(bad())
        assert (await failure(handle.result(PATIENCE))).error == "bad"
        await gate.reached()
        group = await app.group(handle.id)
        assert group is not None
        assert group.open == 1
        waiting = asyncio.ensure_future(failure(handle.group(PATIENCE)))
        gate.go.set()
        assert isinstance(await waiting, GroupFailed)


def dying(name: str, how: str, on_dead: Any) -> Any:
    """A type whose items die in that way."""

    @work(name=name, on_dead=on_dead, retry=Retry(attempts=1))
    async def dies(ctx: Context, n: int) -> Any:
        match how:
            case "exhausted":
                raise OSError("failed")
            case "aborted":
                raise Abort("no")
            case "bad_result":
                return value(1)
            case "undecodable":
                return object()
            case "expired":
                return await asyncio.Event().wait()
            case _:
                raise AssertionError(f"{how} never runs")

    return dies


@pytest.mark.parametrize("how", ["exhausted", "aborted", "bad_result", "undecodable", "expired"])
async def test_by_any_route_into_death(make_app: MakeApp, told: Told, how: str) -> None:
    """§5: with an attempt."""
    refund = refund_of(told)
    dies = dying("dies", how, refund)
    async with make_app(dies, refund) as app:
        handle = await app.enqueue(dies(1), expires_in=0.3 if how == "expired" else 60)
        error = await failure(handle.group(PATIENCE))
        assert error.reason == how
    assert [each.reason for each in told.failures] == [how]


async def test_by_a_route_without_an_attempt(make_app: MakeApp, told: Told) -> None:
    """§5: expired before it ran, unsatisfiable, an unreadable body."""
    refund = refund_of(told)
    dies = dying("dies", "never", refund)

    @work(name="bad")
    async def bad() -> None:
        raise Abort("bad")

    @work(name="dies", on_dead=refund)
    async def older(n: str) -> None: ...

    # A producer whose code is older stores a body that the worker cannot read.
    unreadable = await make_app(older).enqueue(older("one"))
    async with make_app(dies, refund, bad) as app:
        late = await app.enqueue(dies(1), deadline=datetime(2001, 1, 1, tzinfo=UTC))
        doomed = await app.enqueue(dies(2), after=await app.enqueue(bad()))
        for handle, reason in ((late, "expired"), (doomed, "unsatisfiable"), (unreadable, "undecodable")):
            assert (await failure(app.handle(handle.id).group(PATIENCE))).reason == reason
    assert {(each.id, each.reason) for each in told.failures} == {
        (late.id, "expired"),
        (doomed.id, "unsatisfiable"),
        (unreadable.id, "undecodable"),
    }


async def test_by_lost_leases(make_app: MakeApp, told: Told) -> None:
    """§5: by whoever finds that the budget is spent, even without the type."""
    gate = Gate()
    refund = refund_of(told)

    @work(name="poison", on_dead=refund, retry=Retry(attempts=1))
    async def poison() -> None:
        await gate.passing()

    first = make_app(poison, worker_id="first")
    await first.start()
    handle = await first.enqueue(poison())
    await gate.reached()
    await first.worker._runtime.loops.end("renew", "claim")  # type: ignore[union-attr]
    await first.backend.remove_worker("first")
    async with make_app(refund) as second:
        assert (await failure(second.handle(handle.id).group(PATIENCE))).reason == "lease_lost"
    assert [(each.id, each.reason) for each in told.failures] == [(handle.id, "lease_lost")]
    gate.go.set()


async def test_by_a_type_that_nobody_has(make_app: MakeApp, told: Told) -> None:
    """§5: what it was to run is stored with the item, so no worker needs its code for it."""
    refund = refund_of(told)

    @work(name="foreign", on_dead=refund)
    async def foreign(n: int) -> None: ...

    handle = await make_app(foreign).enqueue(foreign(1))
    async with make_app(refund, unknown_type_grace=0.1) as app:
        assert (await failure(app.handle(handle.id).group(PATIENCE))).reason == "unknown_type"
    assert [(each.id, each.reason) for each in told.failures] == [(handle.id, "unknown_type")]


async def test_without_a_worker(make_app: MakeApp, told: Told) -> None:
    """§5, §17: by leases that were claimed alone: one that fails, and one found to be too late."""
    refund = refund_of(told)

    @work(name="charge", on_dead=refund, retry=Retry(attempts=1))
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
    assert {(each.id, each.reason) for each in told.failures} == {
        (failed.id, "exhausted"),
        (late.id, "expired"),
    }


@pytest.mark.parametrize("when", ["before", "after", "later"])
async def test_in_the_step_that_makes_it_dead(
    make_faulty: MakeApp, faults: Faults, told: Told, when: str
) -> None:
    """§5: whatever the store answers, or does not: there is one compensation if and only if it is dead."""
    refund = refund_of(told)

    @work(name="charge", on_dead=refund)
    async def charge() -> None:
        raise Abort("declined")

    fault = faults.fail("settle", when=when, match=lambda given: any(s.kind == "dead" for s in given))
    async with make_faulty(charge, refund) as app:
        handle = await app.enqueue(charge())
        async with asyncio.timeout(PATIENCE):
            while not told.failures:
                items = {item.type: item.status for item in (await app.list()).items}
                assert ("refund" in items) == (items["charge"] == "dead")
                await asyncio.sleep(0)
        await failure(handle.group(PATIENCE))
        fault.release()
        await fault.landed()
        assert len((await app.list(type="refund")).items) == 1
    assert (len(told.failures), fault.hits) == (1, 1)


async def test_not_on_cancel(make_app: MakeApp, told: Told) -> None:
    """§5."""
    refund = refund_of(told)

    @work(name="charge", on_dead=refund)
    async def charge() -> None: ...

    async with make_app(charge, refund) as app:
        handle = await app.enqueue(charge(), delay=60)
        await handle.cancel()
        with pytest.raises(WorkFailed):
            await handle.group(PATIENCE)
        assert not (await app.list(type="refund")).items


async def test_once_for_each_death(make_app: MakeApp, told: Told) -> None:
    """§5: submitted anew if a requeued item dies again; not for each failed attempt."""
    refund = refund_of(told)

    @work(name="charge", on_dead=refund, retry=Retry(attempts=3, base=0))
    async def charge() -> None:
        raise OSError("declined")

    async with make_app(charge, refund) as app:
        handle = await app.enqueue(charge())
        await failure(handle.group(PATIENCE))
        assert len(told.failures) == 1
        await app.dead.requeue(handle.id)
        await until(lambda: len(told.failures) == 2)
        await failure(handle.group(PATIENCE))
        assert len((await app.list(type="refund")).items) == 2


async def test_the_item_decides_before_its_type(make_app: MakeApp, told: Told) -> None:
    """§4: `on_dead` at enqueue wins; None takes the type's away."""
    refund = refund_of(told)
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
    assert (others, told.failures) == ([7], [])


async def test_a_child_can_have_one_too(make_app: MakeApp, told: Told) -> None:
    """§5: in `ctx.queue`, and a compensation may have its own."""
    last: list[str] = []

    @work(name="alarm")
    async def alarm(failure: Failure) -> None:
        last.append(failure.type)

    @work(name="refund", on_dead=alarm)
    async def refund(failure: Failure) -> None:
        told.failures.append(failure)
        raise Abort("cannot refund")

    @work(name="child")
    async def child() -> None:
        raise Abort("child")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(child(), on_dead=refund)

    async with make_app(root, child, refund, alarm) as app:
        await failure(app.enqueue(root()).group(PATIENCE))
    assert [each.type for each in told.failures] == ["child"]
    assert last == ["refund"]


@dataclass
class Order:
    id: str
    total: float


async def test_a_failure_shows_the_input(make_app: MakeApp, told: Told) -> None:
    """§5: by name, as plain values."""
    refund = refund_of(told)

    @work(name="charge", on_dead=refund)
    async def charge(order: Order, tags: list[str]) -> None:
        raise Abort("declined")

    async with make_app(charge, refund) as app:
        await failure(app.enqueue(charge(Order("o-1", 9.5), ["a"])).group(PATIENCE))
    assert told.failures[0].input == {"order": {"id": "o-1", "total": 9.5}, "tags": ["a"]}


async def test_events_of_a_death_with_compensation(make_app: MakeApp, told: Told) -> None:
    """§13: `Failed`, `Dead`, then what was queued; the group is done after the compensation."""
    seen = Seen()
    refund = refund_of(told)

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


def test_what_cannot_be_a_compensation() -> None:
    """§5: refused where it is written."""
    with pytest.raises(InputError, match="on_dead"):
        work(name="x", on_dead="refund")  # type: ignore[call-overload]

    @work(name="two")
    async def two(a: int, b: int) -> None: ...

    with pytest.raises(DefinitionError, match="Failure"):
        work(name="y", on_dead=two)
