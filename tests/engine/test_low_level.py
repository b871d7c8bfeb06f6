"""`claim_one`, retention, and ids of the user (SPEC §17)."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp, Seen, failure
from treadle import Abort, Context, Defer, LeaseLost, NotFound, Result, Retry, Worker, dependency, work
from treadle.item import Item, Submission
from treadle.testing import Faults, ManualClock, drain, run_inline


@work
async def value(n: int) -> int:
    return n


# ------------------------------------------------------------------------------------------------ claim_one


UNREADABLE = {
    "garbage": b"\xff\x00",
    "wrong type": b'{"retry":5}',
    "no object": b"[]",
    "wrong number": b'{"retry":{"base":-1,"factor":2,"max":3,"jitter":0,"max_losses":5}}',
    "no timeout": b'{"timeout":-5}',
}


@pytest.mark.parametrize("options", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store does not read them
async def test_an_item_whose_options_cannot_be_read_is_dead(make_app: MakeApp, options: bytes) -> None:
    """`claim_one` and a worker do the same."""
    app = make_app(value, poll_interval=0.01, undecodable_grace=0)
    await app.connect()
    for n in range(3):
        item = Item(id=f"bad{n}", type=value.name, input=b'{"n":1}', options=options)
        await app.backend.submit([Submission((item,))])
    good = await app.enqueue(value(4))
    lease = await app.claim_one() or await app.claim_one() or await app.claim_one() or await app.claim_one()
    assert lease is not None
    assert lease.id == good.id
    await lease.complete(4)
    assert await app.backend.workers() == []
    await app.backend.submit([Submission((Item("bad3", value.name, b'{"n":1}', options=options),))])
    await app.start()
    for n in range(4):
        died = await failure(app.handle(f"bad{n}").result(PATIENCE))
        assert died.reason == "undecodable"
    assert await app.enqueue(value(5)).result(PATIENCE) == 5


class Cheat:
    """A codec that does not raise a PayloadError."""

    def encode(self, value: object) -> bytes:
        return b"{}"

    def decode(self, data: bytes) -> object:
        raise ZeroDivisionError


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_claim_one_ends_an_item_that_a_codec_cannot_read(make_app: MakeApp) -> None:
    @work(name="cheated", codec=Cheat())
    async def cheated(n: object) -> None: ...

    app = make_app(cheated, undecodable_grace=0)
    handle = await app.enqueue(cheated(1))
    assert await app.claim_one() is None
    assert (await handle.state()).reason == "undecodable"


async def test_claim_one_and_complete_give_the_guarantees_of_a_worker(make_app: MakeApp) -> None:
    """§17: `lease.complete(value)`."""
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


async def test_complete_needs_no_answer_to_the_removal_of_its_worker(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """The item is settled. The worker that was made for the lease lapses."""
    app = make_faulty(value)
    handle = await app.enqueue(value(4))
    failing = faults.fail("remove_worker", times=2)
    lease = await app.claim_one()
    assert lease is not None
    await lease.complete(8)
    with pytest.raises(LeaseLost):
        await lease.complete(9)
    assert await handle.result(PATIENCE) == 8
    assert await app.claim_one() is None
    assert failing.hits == 2


async def test_claim_one_and_fail_follow_the_retry_policy(make_app: MakeApp) -> None:
    """§17: The item is dead when its attempts are spent. `Abort` and `Defer` work as in handlers."""
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


async def test_claim_one_uses_the_delays_of_the_type(make_app: MakeApp) -> None:
    """§17: They are merged field by field with the given policy."""

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
    assert await app.claim_one(queues=["mail"], types=["unknown"]) is None


async def test_claim_one_serves_a_queue_that_is_named_twice_once(make_app: MakeApp) -> None:
    """§17: Each item ends once, also one whose deadline has passed."""
    seen = Seen()
    app = make_app(value, on_event=seen)
    late = await app.enqueue(value(1), queue="mail", deadline=datetime(2001, 1, 1, tzinfo=UTC))
    mail = await app.enqueue(value(2), queue="mail")
    lease = await app.claim_one(queues=["mail", "mail"])
    assert lease is not None
    assert lease.id == mail.id
    await lease.complete(2)
    assert await app.claim_one(queues=["mail", "mail"]) is None
    assert seen.names(late.id) == ["Queued", "Expired", "Dead", "GroupDone"]
    assert seen.names(mail.id) == ["Queued", "Succeeded", "GroupDone"]


@pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved
@pytest.mark.parametrize("queues", ["mail", b"mail", 5])
async def test_claim_one_takes_a_list_of_queues(make_app: MakeApp, queues: Any) -> None:
    """§17: The letters of a queue alone are no queues."""
    with pytest.raises(TypeError, match=r"queues takes a list, as in queues=\['mail'\]"):
        await make_app(value).claim_one(queues=queues)


async def test_claim_one_of_a_bound_client_claims_only_for_its_tenant(make_app: MakeApp) -> None:
    """§12, §17: Also if items of other tenants come first."""
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


async def test_renewing_a_lost_lease_raises(make_app: MakeApp) -> None:
    """§17: `lease.renew()`."""
    app = make_app(value)
    handle = await app.enqueue(value(1))
    lease = await app.claim_one(lease=30)
    assert lease is not None
    await lease.renew()
    await handle.cancel()
    with pytest.raises(LeaseLost) as caught:
        await lease.renew()
    assert caught.value.reason == "cancelled"


async def test_a_lease_that_is_not_renewed_lapses(make_timed: MakeApp, clock: ManualClock) -> None:
    """§17: The item is ready again, and the attempt is spent."""
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


async def test_claim_one_carries_out_dependencies_itself(make_app: MakeApp) -> None:
    """§7: A dependency is never handed out."""
    app = make_app(value)
    first, last = value(1), value(2)
    handle = await app.enqueue(dependency(on=first, queue=last))
    await app.enqueue(first)
    lease = await app.claim_one()
    assert lease is not None
    await lease.complete(1)
    lease = await app.claim_one()
    assert (await handle.state()).status == "success"
    assert lease is not None
    assert lease.id == last.id
    await lease.complete(2)
    assert await app.claim_one() is None
    assert await app.backend.workers() == []


@pytest.mark.parametrize("typed", [False, True])
async def test_claim_one_closes_nested_groups_itself(make_app: MakeApp, typed: bool) -> None:
    """§18: Also if it asks for some types only. It goes on to the item that waits behind."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.group(value(4)).next(value(5))

    app = make_app(root, value)
    async with Worker(app, types=[root]):
        handle = await app.enqueue(root())
        await handle.result(PATIENCE)
    types = [value] if typed else None
    for n in (4, 5):
        lease = await app.claim_one(types=types)
        assert lease is not None
        assert lease.input == {"n": n}
        await lease.complete(n)
    assert await app.claim_one(types=types) is None
    assert await handle.group(PATIENCE) == 5


@pytest.mark.parametrize("given", ["type", "name", "alias"])
async def test_claim_one_finds_items_under_an_earlier_name(make_app: MakeApp, given: str) -> None:
    """§18."""

    @work(name="new", aliases=["old"])
    async def new(n: int) -> int: ...  # type: ignore[empty-body]

    @work(name="old")
    async def old(n: int) -> int: ...  # type: ignore[empty-body]

    earlier = await make_app(old).enqueue(old(1))
    app = make_app(new)
    later = await app.enqueue(new(2))
    asked = {"type": new, "name": "new", "alias": "old"}[given]
    claimed = [await app.claim_one(types=[asked]) for _ in range(2)]
    assert {lease.id for lease in claimed if lease is not None} == {earlier.id, later.id}
    if given == "type":
        again = await make_app(old).enqueue(old(3))
        lease = await make_app().claim_one(types=[new])
        assert lease is not None
        assert lease.id == again.id


# ------------------------------------------------------------------------------------------------ retention


async def test_keep_counts_from_the_end_of_the_group(make_timed: MakeApp, clock: ManualClock) -> None:
    """§17: For success and cancelled. Dead items stay."""

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


async def test_keep_of_a_type_wins_and_keep_dead_removes_dead_items(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """§1, §17."""

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


async def test_generate_id_makes_the_ids_of_the_engine(make_app: MakeApp) -> None:
    """§17: `Treadle(generate_id=)` is used for compensations and workers."""
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
