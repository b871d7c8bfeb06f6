"""The invariants that are visible through the contract, checked for everything in the store.

Call these while no other call is running: they read in several steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from treadle.backend import Backend
from treadle.item import OPEN, TERMINAL, Filter, GroupState, ItemState, Ref

from .build import group

PAGE_SIZE = 500


async def everything(backend: Backend, **where: Any) -> list[ItemState]:
    """All items that match a filter, oldest first."""
    found: list[ItemState] = []
    cursor: str | None = None
    while True:
        page = await backend.list(Filter(**where), limit=PAGE_SIZE, cursor=cursor, oldest_first=True)
        assert len(page.items) <= PAGE_SIZE
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


async def open_members(backend: Backend, id: str, tenant: str = "default") -> int:
    """The number of open members that the group shows. It must equal a count of the listed members."""
    shown = (await group(backend, id, tenant)).open
    if "listing" in backend.capabilities:
        members = await everything(backend, group_id=id, tenant=tenant)
        assert sum(member.status in OPEN for member in members) == shown
    return shown


async def consistent(backend: Backend) -> None:
    """Assert that every item is in a valid state, and that every counter equals its recount."""
    if "listing" not in backend.capabilities:
        return
    found = await everything(backend)
    assert len({(one.tenant, one.id) for one in found}) == len(found), "an item is listed twice"
    for one in found:
        _assert_valid(one)
    await _assert_groups_match(backend, found)
    await _assert_counts_match(backend, found)
    await _assert_workers_match(backend, found)


def _assert_valid(one: ItemState) -> None:
    assert one.status in OPEN | TERMINAL, one
    assert (one.reason is not None) == (one.status == "dead"), one
    assert (one.ended_at is not None) == (one.status in TERMINAL), one
    assert one.attempt >= 0, one
    assert one.failures <= one.attempt, one
    assert one.history == (), one
    if one.status == "running":
        assert one.worker is not None, one
        assert one.started_at is not None, one
        assert one.attempt >= 1, one


async def _assert_groups_match(backend: Backend, found: list[ItemState]) -> None:
    members: dict[Ref, list[ItemState]] = defaultdict(list)
    for one in found:
        members[one.tenant, one.group_id].append(one)
    for tenant in {tenant for tenant, _ in members}:
        wanted = [root for owner, root in members if owner == tenant]
        for begin in range(0, len(wanted), PAGE_SIZE):
            page = wanted[begin : begin + PAGE_SIZE]
            answers = await backend.group(page, tenant=tenant)
            for root, answer in zip(page, answers, strict=True):
                _assert_group_matches(answer, tenant, root, members[tenant, root])


def _assert_group_matches(answer: GroupState | None, tenant: str, id: str, members: list[ItemState]) -> None:
    root = next((one for one in members if one.id == id), None)
    if answer is None:
        # The root may have been pruned before the other members.
        assert root is None, id
        return
    assert (answer.tenant, answer.id) == (tenant, id)
    assert answer.open == sum(one.status in OPEN for one in members), answer
    assert (answer.ended_at is None) == (answer.open > 0), answer
    assert answer.contributed or answer.value is None, answer
    if root is not None:
        assert answer.type == root.type, answer
    _assert_failure_matches(answer, members)


def _assert_failure_matches(answer: GroupState, members: list[ItemState]) -> None:
    dead = {one.id for one in members if one.status == "dead"}
    assert dead >= {one.id for one in answer.deaths}, answer
    assert len(answer.deaths) <= min(10, answer.failed), answer
    ended = [one.ended_at or 0.0 for one in answer.deaths]
    assert ended == sorted(ended), answer
    cancelled = not answer.open and any(one.status == "cancelled" for one in members)
    assert (answer.cancelled is not None) == cancelled, answer


async def _assert_counts_match(backend: Backend, found: list[ItemState]) -> None:
    shown = {
        (count.tenant, count.queue, count.type, count.status): count.count
        for count in await backend.counts(ended=True)
        if count.count
    }
    assert shown == Counter((one.tenant, one.queue, one.type, one.status) for one in found)
    if "watching" in backend.capabilities:
        overview = (await backend.overview()).counts
        if not any(count.estimated for count in overview):
            counted = {(one.tenant, one.queue, one.type, one.status): one.count for one in overview}
            assert counted == {key: count for key, count in shown.items() if key[3] in OPEN | {"dead"}}


async def _assert_workers_match(backend: Backend, found: list[ItemState]) -> None:
    running = Counter(one.worker for one in found if one.status == "running")
    workers = await backend.workers()
    for worker in workers:
        # An item that is leased with a verdict does not run.
        assert worker.running == running.pop(worker.id, 0), worker
    assert not running, "items run on unknown workers"
