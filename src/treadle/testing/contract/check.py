"""The invariants that can be seen through the contract, checked for everything in the store.

Call these when nothing else is going on: they read in several steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from treadle.backend import Backend
from treadle.item import OPEN, TERMINAL, Filter, GroupState, ItemState, Ref

from .build import group

PORTION = 500


async def everything(backend: Backend, **where: Any) -> list[ItemState]:
    """All items that a filter finds, oldest first, page by page."""
    found: list[ItemState] = []
    cursor: str | None = None
    while True:
        page = await backend.list(Filter(**where), limit=PORTION, cursor=cursor, oldest_first=True)
        assert len(page.items) <= PORTION
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


async def recount(backend: Backend, id: str, tenant: str = "default") -> int:
    """How many members of a group are open. Where they can be listed, it must be what is counted."""
    shown = (await group(backend, id, tenant)).open
    if "listing" in backend.capabilities:
        members = await everything(backend, group_id=id, tenant=tenant)
        assert sum(member.status in OPEN for member in members) == shown
    return shown


async def consistent(backend: Backend) -> None:
    """Every item is in one sane state, and every counter equals its recount."""
    if "listing" not in backend.capabilities:
        return
    found = await everything(backend)
    assert len({(one.tenant, one.id) for one in found}) == len(found), "an item is listed twice"
    for one in found:
        _sane(one)
    await _groups_agree(backend, found)
    await _counts_agree(backend, found)
    await _workers_agree(backend, found)


def _sane(one: ItemState) -> None:
    assert one.status in OPEN | TERMINAL, one
    assert (one.reason is not None) == (one.status == "dead"), one
    assert (one.ended_at is not None) == (one.status in TERMINAL), one
    assert one.attempt >= 0, one
    assert one.attempts is None or one.attempt <= one.attempts, one
    assert one.history == (), one
    if one.status == "running":
        assert one.worker is not None, one
        assert one.started_at is not None, one
        assert one.attempt >= 1, one


async def _groups_agree(backend: Backend, found: list[ItemState]) -> None:
    members: dict[Ref, list[ItemState]] = defaultdict(list)
    for one in found:
        members[one.tenant, one.group_id].append(one)
    for tenant in {tenant for tenant, _ in members}:
        wanted = [root for owner, root in members if owner == tenant]
        for begin in range(0, len(wanted), PORTION):
            portion = wanted[begin : begin + PORTION]
            answers = await backend.group(portion, tenant=tenant)
            for root, answer in zip(portion, answers, strict=True):
                _group_agrees(answer, tenant, root, members[tenant, root])


def _group_agrees(answer: GroupState | None, tenant: str, id: str, members: list[ItemState]) -> None:
    root = next((one for one in members if one.id == id), None)
    if answer is None:
        # Pruning may have taken the root before the rest.
        assert root is None, id
        return
    assert (answer.tenant, answer.id) == (tenant, id)
    assert answer.open == sum(one.status in OPEN for one in members), answer
    assert (answer.ended_at is None) == (answer.open > 0), answer
    assert answer.contributed or answer.value is None, answer
    if root is not None:
        assert answer.type == root.type, answer
    _failure_agrees(answer, members)


def _failure_agrees(answer: GroupState, members: list[ItemState]) -> None:
    by_status = {one.status for one in members}
    worst = next((status for status in ("dead", "cancelled") if status in by_status), None)
    shown = answer.failed and answer.failed.status
    assert shown == (None if answer.open else worst), answer


async def _counts_agree(backend: Backend, found: list[ItemState]) -> None:
    shown = {
        (count.tenant, count.queue, count.type, count.status): count.count
        for count in await backend.counts(ended=True)
        if count.count
    }
    assert shown == Counter((one.tenant, one.queue, one.type, one.status) for one in found)


async def _workers_agree(backend: Backend, found: list[ItemState]) -> None:
    running = Counter(one.worker for one in found if one.status == "running")
    workers = await backend.workers()
    for worker in workers:
        # What is leased with a verdict does not run.
        assert worker.running == running.pop(worker.id, 0), worker
    assert not running, "items run on workers that hold no lease"
