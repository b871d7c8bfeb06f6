"""Tenants that move: one leaves a store and comes into one, while both are in use."""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise
from typing import cast

import pytest
from msgspec.structs import replace

from treadle.backend import Backend, EndedRecords, GivesAhead, MovesAhead, MovesTenants, TenantMoves
from treadle.errors import StoreNotEmpty, StoreUnavailable, TenantElsewhere
from treadle.item import Fire, Heartbeat, Schedule, Settlement
from treadle.records import TenantMark
from treadle.store import portable
from treadle.store.rules.tenant_moves import (
    MARKS,
    PREFIX,
    activated,
    committed,
    copying,
    decode_mark,
    discarded,
    frozen,
    given_up,
    prepared,
    started,
)

from .build import (
    LEASE,
    apply,
    claim_answer,
    dependent,
    end,
    group,
    item,
    only,
    settle_one,
    start_one,
    state,
    submit,
    succeed,
)
from .check import consistent
from .moving import items_of, records, tally, use
from .subject import Subject, needs

MINE = "default"
KINDS = (portable.PortableItem, portable.PortableGroup)


def moves(backend: Backend) -> TenantMoves:
    return cast(MovesTenants, backend).tenant_moves


async def mark_of(backend: Backend, tenant: str = MINE) -> TenantMark | None:
    return decode_mark(await backend.key_owner(PREFIX + tenant, tenant=MARKS))


async def put(backend: Backend, mark: TenantMark | None, *, empty: bool = False) -> TenantMark:
    assert mark is not None
    assert await moves(backend).put_mark(MINE, await mark_of(backend), mark, empty=empty)
    return mark


async def freeze(backend: Backend) -> TenantMark:
    """Begin a move to `us`, as far as its freeze."""
    before = await mark_of(backend) or TenantMark()
    mark = started(before, before.number, "us")
    assert mark is not None
    mark = await put(backend, mark)
    now = await backend.now()
    return await put(backend, frozen(mark, mark.move, now, now + 100))


async def give(backend: Backend, mark: TenantMark) -> list[bytes]:
    """Let it leave. Returns its records."""
    found: list[bytes] = []
    async with moves(backend).give(MINE, mark) as giving:
        while portion := await giving.read(7):
            found += portion
        away = committed(mark, mark.move, mark.freeze, await backend.now())
        assert away is not None
        await giving.commit(away)
    return found


async def ready_to_take(backend: Backend, gone: TenantMark) -> TenantMark:
    """Begin an import of what left with this mark."""
    before = await mark_of(backend)
    move = gone.number + 1
    mark = prepared(before, move, is_empty=True)
    assert mark is not None
    mark = await put(backend, mark, empty=True)
    return await put(backend, copying(mark, move, move + 1))


async def take(backend: Backend, mark: TenantMark, found: list[bytes]) -> None:
    for first in range(0, len(found), 7):
        assert await moves(backend).stage(MINE, mark, found[first : first + 7])
    checksum = portable.RecordsChecksum()
    checksum.add(found)
    assert await moves(backend).staged(MINE) == checksum.total
    owned = activated(mark, mark.move, mark.freeze)
    assert owned is not None
    assert await moves(backend).receive(MINE, mark, owned)
    assert not await moves(backend).receive(MINE, mark, owned)
    assert await mark_of(backend) == owned
    assert (await moves(backend).staged(MINE))[0] == 0


async def last_number(backend: Backend) -> int:
    found = await records(backend, tenant=MINE)
    return max(one.number for one in found if isinstance(one, portable.Head))


async def begin(backend: Backend) -> TenantMark:
    """Begin a move to `us`."""
    before = await mark_of(backend) or TenantMark()
    return await put(backend, cast(TenantMark, started(before, before.number, "us")))


async def read_ahead(backend: Backend, mark: TenantMark) -> list[EndedRecords]:
    ahead = moves(backend)
    if not isinstance(ahead, MovesAhead):
        pytest.skip("it copies all under the freeze")
    found: list[EndedRecords] = []
    while portion := await ahead.read_ahead(MINE, mark, found[-1].number if found else -1, 3):
        found += portion
    return found


async def change_what_has_ended(subject: Subject, backend: Backend) -> None:
    """In each way in which it can change."""
    await backend.requeue(["dead"])
    await backend.requeue(["cancelled"], cancelled=True)
    await backend.delete(["gone"])
    await submit(backend, item("taken", key="done", key_scope=0.001))
    await end(backend, item("late"))
    await subject.advance(120)
    await backend.prune()


async def use_and_end(backend: Backend) -> None:
    await use(backend)
    await end(backend, item("holder", key="done"), item("short", keep=60))
    await end(backend, *(item(f"other-{n}", tenant="neighbour") for n in range(5)))


class TenantMoveCases:
    @needs("tenant_moves")
    async def test_what_has_ended_is_read_ahead_and_again_if_it_changes(
        self, subject: Subject, backend: Backend
    ) -> None:
        """What was read ahead and has not changed, and what is read under the freeze, are all of it, each
        record once, as it is then."""
        await use_and_end(backend)
        mark = await begin(backend)
        ended = await read_ahead(backend, mark)
        assert len(ended) > 5
        await change_what_has_ended(subject, backend)
        now = await backend.now()
        mark = await put(backend, frozen(mark, mark.move, now, now + 100))
        wanted = tally([one for one in await records(backend, tenant=MINE) if isinstance(one, KINDS)])
        async with moves(backend).give(MINE, mark) as giving:
            assert isinstance(giving, GivesAhead)
            ahead = await giving.ahead()
            kept = [one for one in ended if one.number not in ahead.changed]
            found = [data for one in kept for data in one.records]
            checksum = portable.RecordsChecksum()
            checksum.add(found)
            assert checksum.total == (ahead.records, ahead.checksum)
            assert sum([one.items for one in kept]) == ahead.items > 1
            while portion := await giving.read(7):
                found += portion
        decoded = map(portable.decode, found)
        got = tally([one for one in decoded if isinstance(one, KINDS)])
        assert got.counts == wanted.counts
        assert got.checksum == wanted.checksum

    @needs("tenant_moves")
    async def test_what_was_read_ahead_is_forgotten_with_its_move(
        self, subject: Subject, backend: Backend
    ) -> None:
        """A later move reads all anew, also what has changed since without being noted."""
        await use_and_end(backend)
        mark = await begin(backend)
        ended = await read_ahead(backend, mark)
        await put(backend, given_up(mark, mark.move))
        await change_what_has_ended(subject, backend)
        mark = await freeze(backend)
        async with moves(backend).give(MINE, mark) as giving:
            assert isinstance(giving, GivesAhead)
            assert await giving.ahead() == (0, 0, 0, [])
        assert len(ended) > 5

    @needs("tenant_moves")
    async def test_what_is_staged_ahead_stays_until_the_freeze_and_takes_no_more_then(
        self, subject: Subject, backend: Backend
    ) -> None:
        """It is replaced by its number, and dropped by it."""
        ahead = moves(backend)
        if not isinstance(ahead, MovesAhead):
            pytest.skip("it copies all under the freeze")
        mark = await put(backend, prepared(None, 4, is_empty=True))
        assert await ahead.staged_ahead(MINE) == -1
        assert await ahead.stage_ahead(MINE, mark, [EndedRecords(n, 1, [b"%d" % n]) for n in (1, 2, 3)])
        assert await ahead.stage_ahead(MINE, mark, [EndedRecords(2, 2, [b"20", b"21"])])
        assert await ahead.staged_ahead(MINE) == 3
        later = await put(backend, copying(mark, 4, 5))
        assert not await ahead.stage_ahead(MINE, mark, [EndedRecords(9, 1, [b"9"])])
        assert not await ahead.drop_ahead(MINE, mark, [1])
        assert await moves(backend).stage(MINE, later, [b"rest"])
        assert await ahead.drop_ahead(MINE, later, [1])
        checksum = portable.RecordsChecksum()
        checksum.add([b"20", b"21", b"3", b"rest"])
        assert await moves(backend).staged(MINE) == checksum.total
        await put(backend, discarded(later, 4))
        assert (await moves(backend).staged(MINE))[0] == 0

    @needs("tenant_moves")
    async def test_a_tenant_leaves_and_comes_with_all_that_it_has(
        self, subject: Subject, backend: Backend
    ) -> None:
        """Nothing of it stays, nothing of others goes. What comes is what left, with its order."""
        await use(backend)
        await submit(backend, item("theirs", tenant="neighbour"), item("keyed", key="k", tenant="neighbour"))
        before = items_of(await records(backend, tenant=MINE))
        theirs = tally(await records(backend, tenant="neighbour"))
        found = await give(backend, await freeze(backend))
        gone = await mark_of(backend)
        assert gone is not None
        assert gone.state == "away"
        assert items_of(await records(backend, tenant=MINE)) == {}
        assert await backend.get([*before], tenant=MINE) == [None] * len(before)
        assert tally(await records(backend, tenant="neighbour")).checksum == theirs.checksum
        await consistent(backend)
        await take(backend, await ready_to_take(backend, gone), found)
        there = items_of(await records(backend, tenant=MINE))
        assert {*there} == {*before}
        for id, one in there.items():
            one.number, one.group, one.place = before[id].number, before[id].group, before[id].place
            assert one == before[id]
        assert tally(await records(backend, tenant="neighbour")).checksum == theirs.checksum
        assert await backend.key_owner("lock", tenant=MINE) == "me"
        await consistent(backend)

    @needs("tenant_moves")
    async def test_a_settlement_is_answered_the_same_again_under_an_old_number(
        self, subject: Subject, backend: Backend
    ) -> None:
        """When a tenant has come back its items have other numbers. Who holds a lease may not know that."""
        running = await start_one(backend, item("runs"))
        await submit(backend, item("theirs", tenant="neighbour"))
        found = await give(backend, await freeze(backend))
        await take(backend, await ready_to_take(backend, cast(TenantMark, await mark_of(backend))), found)
        first, again = [await settle_one(backend, succeed(running)) for _ in range(2)]
        assert (again.verb, again.loss) == (first.verb, first.loss)
        await consistent(backend)

    @needs("tenant_moves")
    async def test_moves_to_and_fro_do_not_use_up_the_numbers(
        self, subject: Subject, backend: Backend
    ) -> None:
        """A number has an end. If those of both stores were added up, forty moves would be enough."""
        await use(backend)
        numbers = [await last_number(backend)]
        for _ in range(5):
            found = await give(backend, await freeze(backend))
            await take(backend, await ready_to_take(backend, cast(TenantMark, await mark_of(backend))), found)
            numbers.append(await last_number(backend))
        first, *_, last = (after - before for before, after in pairwise(numbers))
        assert last <= 2 * first, numbers
        await consistent(backend)

    @needs("tenant_moves", "batches")
    async def test_a_lease_goes_along(self, subject: Subject, backend: Backend) -> None:
        """The worker that runs the item settles it by the token that it has, once. Its group closes once."""
        root = await start_one(backend, item("root", tenant=MINE))
        await apply(
            backend,
            Settlement(lease=root, kind="success", children=(item("child"), dependent("child", id="last"))),
        )
        (child,) = (await claim_answer(backend, 5)).leases
        found = await give(backend, await freeze(backend))
        assert (await settle_one(backend, succeed(child))).loss == "not_found"
        gone = await mark_of(backend)
        assert gone is not None
        await take(backend, await ready_to_take(backend, gone), found)
        await consistent(backend)
        assert (await state(backend, "child")).status == "running"
        (known,) = await backend.unknown_leases("w", [])
        assert (known.token, known.id, known.attempt) == (child.token, "child", 1)
        reply = await backend.beat(Heartbeat(worker="w", lease=15.0, held=(known,)))
        assert (reply.fresh, {**reply.lost}) == (False, {})
        settled = replace(child, ref=known.ref)
        assert (await settle_one(backend, succeed(settled))).verb == "applied"
        assert (await settle_one(backend, succeed(settled))).verb != "applied" or (
            (await group(backend, "root")).open == 1
        )
        (last,) = (await claim_answer(backend, 5)).leases
        assert last.token > child.token
        await apply(backend, succeed(last))
        ended = await group(backend, "root")
        assert (ended.open, ended.ended_at is not None) == (0, True)
        await consistent(backend)

    @needs("tenant_moves")
    async def test_a_lease_whose_worker_dies_is_free_where_it_went(
        self, subject: Subject, backend: Backend
    ) -> None:
        """The lease goes along, and ends there as it would have ended here."""
        await start_one(backend, item("mine", attempts=3))
        found = await give(backend, await freeze(backend))
        gone = await mark_of(backend)
        assert gone is not None
        await backend.remove_worker("w")
        await take(backend, await ready_to_take(backend, gone), found)
        await subject.advance(2 * LEASE)
        (again,) = (await claim_answer(backend, 5, "other")).leases
        assert (again.id, again.losses) == ("mine", 1)
        await consistent(backend)

    @needs("tenant_moves")
    async def test_nothing_is_stored_of_a_tenant_that_is_elsewhere(
        self, subject: Subject, backend: Backend
    ) -> None:
        """Neither after it has left, nor while it comes. Others are not concerned."""
        await submit(backend, item("mine"))
        now = await backend.now()
        await backend.put_schedule(Schedule(name="often", next_at=now - 5, spec=b"often"))
        found = await give(backend, await freeze(backend))
        gone = await mark_of(backend)
        assert gone is not None

        async def refused() -> None:
            with pytest.raises(TenantElsewhere):
                await submit(backend, item("more"))
            with pytest.raises(TenantElsewhere):
                await submit(backend, item("theirs", tenant="neighbour"), item("more"))
            with pytest.raises(TenantElsewhere):
                await backend.fire(Fire(name="often", at=now - 5, next_at=now + 300, items=(item("fired"),)))
            with pytest.raises(TenantElsewhere):
                await backend.claim_key("lock", "me", 50, tenant=MINE)
            assert await backend.get(["theirs"], tenant="neighbour") == [None]

        await refused()
        await submit(backend, item("others", tenant="neighbour"))
        assert await backend.claim_key("lock", "they", 50, tenant="neighbour")
        mark = await ready_to_take(backend, gone)
        await refused()
        await take(backend, mark, found)
        await submit(backend, item("more"))
        fired = await backend.fire(Fire(name="often", at=now - 5, next_at=now + 300, items=(item("fired"),)))
        assert fired is not None
        gc.collect()  # an error of a driver may hold a cursor, and that a file

    @needs("tenant_moves", "transactions")
    async def test_nothing_is_stored_in_a_transaction_either(
        self, subject: Subject, backend: Backend
    ) -> None:
        """One that began before the tenant left, and had written nothing, is refused too."""
        await submit(backend, item("mine"))
        await give(backend, await freeze(backend))
        async with backend.transaction() as tx:
            assert await tx.get(["mine"], tenant=MINE) == [None]
            with pytest.raises(TenantElsewhere):
                await tx.claim_key("lock", "me", 50, tenant=MINE)
        assert await backend.key_owner("lock", tenant=MINE) is None
        gc.collect()

    @needs("tenant_moves")
    async def test_each_step_is_refused_to_a_mover_that_is_late(
        self, subject: Subject, backend: Backend
    ) -> None:
        """Its mark is another one by now."""
        await submit(backend, item("mine"))
        mine = await freeze(backend)
        now = await backend.now()
        later = frozen(replace(mine, state="owned"), mine.move, now, now + 200)
        assert later is not None
        assert later.freeze == mine.freeze + 1
        await put(backend, later)
        assert not await moves(backend).put_mark(MINE, mine, replace(mine, number=9))
        with pytest.raises(StoreUnavailable):
            async with moves(backend).give(MINE, mine):
                pytest.fail("it began")
        with pytest.raises(StoreNotEmpty):
            await moves(backend).put_mark(MINE, later, replace(later, number=9), empty=True)
        found = await give(backend, later)
        gone = await mark_of(backend)
        assert gone is not None
        mark = await ready_to_take(backend, gone)
        assert await moves(backend).stage(MINE, mark, found)
        assert not await moves(backend).stage(MINE, replace(mark, freeze=mark.freeze - 1), found)
        newer = copying(mark, mark.move, mark.freeze + 1)
        assert newer is not None
        await put(backend, newer)
        assert await moves(backend).staged(MINE) == portable.RecordsChecksum().total
        assert not await moves(backend).stage(MINE, mark, found)
        await take(backend, newer, found)

    @needs("tenant_moves")
    async def test_writes_wait_while_a_tenant_is_read_and_are_not_lost(
        self, subject: Subject, backend: Backend
    ) -> None:
        """A block that ends without its decision changes nothing."""
        await submit(backend, item("mine"))
        mark = await freeze(backend)
        async with moves(backend).give(MINE, mark) as giving:
            writing = asyncio.ensure_future(submit(backend, item("later")))
            assert len(await giving.read()) == 2
            assert not writing.done()
        assert only(await writing).id == "later"
        assert (await state(backend, "mine")).status == "ready"
        assert await mark_of(backend) == mark
