"""Leases without a worker, retention, ids and time of one's own (SPEC §17)."""

from __future__ import annotations

import itertools

import pytest

from tests.engine.kit import PATIENCE, MakeApp, failure
from treadle import Abort, Context, Defer, LeaseLost, NotFound, Result, Retry, dependency, work
from treadle.testing import ManualClock, drain, run_inline


@work
async def value(n: int) -> int:
    return n


# ------------------------------------------------------------------------------------------------ claim_one


async def test_claim_one_and_complete(make_app: MakeApp) -> None:
    """§17: `lease.complete(value)`: the guarantees are those of a worker."""
    app = make_app(value)
    handle = await app.enqueue(value(4))
    lease = await app.claim_one()
    assert lease is not None
    assert (lease.id, lease.type, lease.input, lease.attempt) == (handle.id, value.name, {"n": 4}, 1)
    assert (await handle.state()).status == "running"
    assert await app.claim_one() is None
    await lease.complete(lease.input["n"] * 2)
    assert await handle.result(PATIENCE) == 8
    assert await handle.group(PATIENCE) == 8
    with pytest.raises(LeaseLost):
        await lease.complete(9)
    with pytest.raises(LeaseLost):
        await lease.renew()
    assert (await handle.state()).result == 8
    assert await app.backend.workers() == []


async def test_claim_one_and_fail(make_app: MakeApp) -> None:
    """§17: retried as the policy says, dead when the budget is spent; `Abort` and `Defer` as in handlers."""
    app = make_app(value)
    handle = await app.enqueue(value(1), retry=Retry(attempts=2, base=0))
    for error in (OSError("first"), "second"):
        lease = await app.claim_one()
        assert lease is not None
        await lease.fail(error)
    assert (await failure(handle.result(PATIENCE))).error == "second"
    deferred = await app.enqueue(value(2))
    lease = await app.claim_one()
    assert lease is not None
    await lease.fail(Defer(delay=60))
    state = await deferred.state()
    assert (state.status, state.attempt) == ("scheduled", 0)
    aborted = await app.enqueue(value(3), retry=Retry(attempts=9))
    lease = await app.claim_one()
    assert lease is not None
    await lease.fail(Abort("no"))
    assert (await failure(aborted.result(PATIENCE))).reason == "aborted"


async def test_claim_one_fails_by_the_policy_of_the_type(make_app: MakeApp) -> None:
    """§17: the waits too, merged field by field with what is given."""

    @work(name="patient", retry=Retry(attempts=3, base=600, factor=3, max=6000, jitter=0))
    async def patient() -> None: ...

    app = make_app(patient)
    for retry, wait in ((None, 600), (Retry(base=60), 60)):
        handle = await app.enqueue(patient())
        lease = await app.claim_one()
        assert lease is not None
        await lease.fail("not now", retry=retry)
        assert (await handle.state()).due_at - await app.backend.now() == pytest.approx(wait, abs=10)


async def test_claim_one_by_type_and_queue(make_app: MakeApp) -> None:
    """§17."""

    @work(name="other")
    async def other() -> None: ...

    app = make_app(value, other)
    await app.enqueue(value(1))
    mail = await app.enqueue(other(), queue="mail")
    lease = await app.claim_one(queues=["mail"], types=[other])
    assert lease is not None
    assert lease.id == mail.id
    await lease.release()
    state = await mail.state()
    assert (state.status, state.attempt) == ("ready", 0)
    assert await app.claim_one(queues=["mail"], types=["nobody"]) is None


async def test_claim_one_of_a_tenant(make_app: MakeApp) -> None:
    """§12, §17: a bound client claims of its tenant only, whatever of others stands before it."""
    app = make_app(value)
    acme, zoo = app.tenant("acme"), app.tenant("zoo")
    for queue in ("a", "b", "z"):
        await zoo.enqueue_many([value(1), value(2)], queue=queue)
    handle = await acme.enqueue(value(3), queue="m")
    lease = await acme.claim_one()
    assert lease is not None
    assert (lease.id, lease.tenant) == (handle.id, "acme")
    assert await acme.claim_one() is None
    await lease.complete(3)
    assert await handle.result(PATIENCE) == 3
    assert {item.status for item in (await zoo.list()).items} == {"ready"}


async def test_claim_one_renews(make_app: MakeApp) -> None:
    """§17: `lease.renew()` says when it is lost."""
    app = make_app(value)
    handle = await app.enqueue(value(1))
    lease = await app.claim_one(lease=30)
    assert lease is not None
    await lease.renew()
    await handle.cancel()
    with pytest.raises(LeaseLost) as caught:
        await lease.renew()
    assert caught.value.reason == "cancelled"


async def test_claim_one_lapses(make_timed: MakeApp, clock: ManualClock) -> None:
    """§17: what nobody renews is free again, the attempt spent."""
    app = make_timed(value)
    handle = await app.enqueue(value(1))
    lease = await app.claim_one(lease=30)
    assert lease is not None
    await clock.advance(31)
    again = await app.claim_one()
    assert again is not None
    assert (again.id, again.attempt) == (handle.id, 2)
    with pytest.raises(LeaseLost):
        await lease.complete(1)


async def test_claim_one_opens_gates(make_app: MakeApp) -> None:
    """§7: a dependency is nobody's to carry out."""
    app = make_app(value)
    first, last = value(1), value(2)
    gate = await app.enqueue(dependency(on=first, queue=last))
    await app.enqueue(first)
    lease = await app.claim_one()
    assert lease is not None
    await lease.complete(1)
    assert await app.claim_one() is None
    assert (await gate.state()).status == "success"
    lease = await app.claim_one()
    assert lease is not None
    assert lease.id == last.id


# ------------------------------------------------------------------------------------------------ retention


async def test_keep_counts_from_the_end_of_the_group(make_timed: MakeApp, clock: ManualClock) -> None:
    """§17: for success and cancelled; dead ones stay until someone decides."""

    @work(name="bad")
    async def bad() -> None:
        raise Abort("bad")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(1), delay=1000)

    async with run_inline(make_timed(root, value, bad, keep=500)) as app:
        handle, dead = await app.enqueue(root()), await app.enqueue(bad())
        await drain(app)
        await clock.advance(1000)
        await drain(app)
        assert await handle.group() == 1
        await clock.advance(499)
        assert await app.worker._runtime.loops.pruner.run_once() == 0  # type: ignore[union-attr]
        await clock.advance(2)
        await app.worker._runtime.loops.pruner.run_once()  # type: ignore[union-attr]
        with pytest.raises(NotFound):
            await handle.state()
        assert (await dead.state()).status == "dead"


async def test_keep_per_type_and_for_the_dead(make_timed: MakeApp, clock: ManualClock) -> None:
    """§1, §17: `keep` of a type wins; `keep_dead` lets go of dead ones too."""

    @work(name="brief", keep=10)
    async def brief() -> None: ...

    @work(name="bad")
    async def bad() -> None:
        raise Abort("bad")

    async with run_inline(make_timed(brief, value, bad, keep_dead=100)) as app:
        handles = [await app.enqueue(each) for each in (brief(), value(1), bad())]
        await drain(app)
        found: list[list[bool]] = []
        for seconds in (11, 100, 86400):
            await clock.advance(seconds)
            await app.worker._runtime.loops.pruner.run_once()  # type: ignore[union-attr]
            found.append([state is not None for state in await app.get(handles)])
        assert found == [[False, True, True], [False, True, False], [False, False, False]]


# ---------------------------------------------------------------------------------------------- ids and time


async def test_ids_of_ones_own(make_app: MakeApp) -> None:
    """§17: `Treadle(generate_id=)` for what the engine names itself."""
    numbers = itertools.count()

    @work(name="undo")
    async def undo() -> None: ...

    @work(name="bad", on_dead=undo())
    async def bad() -> None:
        raise Abort("bad")

    async with make_app(bad, undo, generate_id=lambda: f"own-{next(numbers)}") as app:
        await failure(app.enqueue(bad()).group(PATIENCE))
        (compensation,) = (await app.list(type="undo")).items
        assert compensation.id.startswith("own-")
        assert app.worker.id.startswith("own-")
