"""Bugs of moves of tenants, planted in the memory backend, in the mover and in what follows a tenant. Seeds
with two stores find them, but for what takes many of them: that names its test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from tests.mutants.store import plant
from treadle.backends.many import mover, submit
from treadle.backends.many.mover import TenantMover
from treadle.backends.many.places import TenantPlaces
from treadle.backends.memory import tenant_moves
from treadle.backends.memory.claimed_keys import ClaimedKeys
from treadle.backends.memory.moving import MemoryPartImport
from treadle.backends.memory.tenant_moves import MemoryGiving, MemoryTaking, MemoryTenantMoves
from treadle.store.portable import Head, PortableItem, PortableKey, lost_lease
from treadle.store.rules.tenant_moves import started

moving = partial(mutant, two_stores=True)

# ------------------------------------------------------------------------------------------- in the old store


@moving("the decision does not look whether the freeze is still that of its copy")
def decides_under_any_freeze(patch: Patch) -> None:
    real = MemoryGiving.commit

    async def commit(self: Any, mark: Any) -> None:
        self._mark = tenant_moves._read_mark(self._store, self._tenant)
        await real(self, mark)

    patch(MemoryGiving, "commit", commit)


@moving("the decision does not look whether the tenant was used since it was read")
def decides_on_an_old_copy(patch: Patch) -> None:
    real = MemoryGiving.commit

    async def commit(self: Any, mark: Any) -> None:
        self._whole = self._what_it_has()
        await real(self, mark)

    patch(MemoryGiving, "commit", commit)


@moving("a store takes items of a tenant that has left it")
def takes_what_is_elsewhere(patch: Patch) -> None:
    patch(ClaimedKeys, "check_here", lambda self, tenants: None)


@moving("a move has the number of the one before")
def number_not_raised(patch: Patch) -> None:
    def start(mark: Any, seen: int, to: str) -> Any:
        began = started(mark, seen, to)
        return None if began is None or not seen else replace(began, number=seen, move=seen)

    plant(patch, mover, started, lambda mark, seen, to: start(mark, seen, to) or started(mark, seen, to))


# ------------------------------------------------------------------------------------------------- what goes


def _leave_behind(patch: Patch, change: Callable[[Any], Any]) -> None:
    """Change the records of a tenant that leaves. None: the record stays behind."""
    real = tenant_moves.records_of

    def records_of(store: Any, tenant: Any = None, *, leases: bool = False) -> Iterator[Any]:
        for record in real(store, tenant, leases=leases):
            if (changed := change(record)) is not None:
                yield changed

    plant(patch, tenant_moves, real, records_of)


def _of_items(**wrong: Any) -> Callable[[Any], Any]:
    return lambda record: replace(record, **wrong) if isinstance(record, PortableItem) else record


@moving("leases do not go along")
def leases_left_behind(patch: Patch) -> None:
    real = MemoryTaking._fitting

    def fitting(self: Any, record: Any) -> Any:
        if isinstance(record, PortableItem) and record.lease is not None:
            return lost_lease(record, "", self._tables().now())
        return real(self, record)

    patch(MemoryTaking, "_fitting", fitting)


@moving("claimed keys do not go along")
def claimed_keys_left_behind(patch: Patch) -> None:
    _leave_behind(patch, lambda record: None if isinstance(record, PortableKey) else record)


@moving("the keys of items do not go along")
def keys_left_behind(patch: Patch) -> None:
    _leave_behind(patch, _of_items(holds_key=False))


@moving("signals that no one has read do not go along")
def signals_left_behind(patch: Patch) -> None:
    _leave_behind(patch, _of_items(unread=()))


# ------------------------------------------------------------------------------------------- in the new store


@moving("the new store owns a tenant before it has its items")
def owns_too_early(patch: Patch) -> None:
    async def receive(self: Any, tenant: str, mark: Any, owned: Any) -> bool:
        staged = self._tables().arriving.get(tenant, [])
        if not await self.put_mark(tenant, mark, owned):
            return False
        await asyncio.sleep(1)
        taking = MemoryTaking(self._clock, self._tables, tenant)
        await taking.write(staged)
        await taking.finish()
        return True

    patch(MemoryTenantMoves, "receive", receive)


@moving("tokens of the new store do not go on above those of the old one")
def tokens_stay_below(patch: Patch) -> None:
    real = MemoryPartImport._write

    def write(self: Any, record: Any) -> None:
        if not isinstance(record, Head):
            real(self, record)

    patch(MemoryPartImport, "_write", write)


# ------------------------------------------------------------------------------------------------ who follows


@moving("a process does not follow a tenant")
def does_not_follow(patch: Patch) -> None:
    async def moved_from(self: Any, tenant: str, member: Any) -> None:
        return None

    patch(TenantPlaces, "moved_from", moved_from)


@moving("a lease is lost if its tenant has left and come back")
def come_back_without_leases(patch: Patch) -> None:
    real = TenantPlaces.last_move

    async def last_move(self: Any, tenant: str, member: Any) -> Any:
        mark = await real(self, tenant, member)
        return None if mark is None or mark.state == "owned" else mark

    patch(TenantPlaces, "last_move", last_move)


@mutant(
    "a copy of a schedule that was left behind fires once more",
    tests="tests/moving/test_tenant_moves.py::"
    "test_a_copy_of_a_schedule_that_was_left_behind_fires_nothing_again[memory-memory]",
)
def schedule_fires_again(patch: Patch) -> None:
    patch(submit, "_is_ahead", lambda schedule, other: False)


@mutant(
    "who gives up drops a copy that a mover decides on",
    tests="tests/moving/test_tenant_moves.py::"
    "test_who_gives_up_and_is_late_does_not_drop_what_a_mover_decides_on",
)
def gives_up_what_is_decided(patch: Patch) -> None:
    real = TenantMover._old_state

    async def old_state(self: Any, tenant: str, move: int) -> Any:
        there = await real(self, tenant, move)
        return there if there == "away" else None

    patch(TenantMover, "_old_state", old_state)
