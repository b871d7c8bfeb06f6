"""Bulk states: bulk actions as they are now, from what the store has of their groups and portions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from treadle.backend import Backend
from treadle.base.wording import capped, plain
from treadle.bulk_action import (
    BULK_TYPE,
    BULK_WORKFLOW,
    OPERATORS,
    BulkOrder,
    BulkProgress,
    BulkStanding,
    BulkState,
    read_bulk_input,
    read_bulk_progress,
)
from treadle.item import OPEN, Filter, GroupState, ItemState, Ref
from treadle.item_facts import DeadMark
from treadle.store.audit_note import about
from treadle.store.reads import get_refs, group_refs

UNDER_WAY: Final[tuple[BulkStanding, ...]] = ("waiting", "running", "canary")
NEWEST: Final = 20
"""Bulk actions that are looked at for those that are under way, or have just ended."""


async def newest_actions(backend: Backend, tenant: str | None = None) -> list[BulkState]:
    """The newest bulk actions, newest first, by three reads."""
    where = Filter(tenant=tenant, workflow=BULK_WORKFLOW, type=BULK_TYPE)
    return await read_states(backend, (await backend.list(where, limit=NEWEST)).items)


async def open_requeues(backend: Backend, tenant: str | None = None) -> list[BulkState]:
    """The bulk actions among the newest that run dead items again, and have not ended."""
    return [
        each
        for each in await newest_actions(backend, tenant)
        if each.verb == "requeue" and each.state in UNDER_WAY
    ]


def may_have(action: BulkState, mark: DeadMark) -> bool:
    """Whether a bulk action may change items of a mark, as far as its filter names marks and types."""
    return all(
        f"{name}:" not in action.where or value in action.where
        for name, value in (("mark", mark.mark), ("type", mark.type))
    )


def requeue_text(action: BulkState) -> str:
    """Who runs dead items again, and how far: `ann runs some of them again now: 120 of 186 looked at`."""
    who = action.actor or "a bulk action"
    return (
        f"{plain(who)} runs some of them again now: {action.matched:,} of "
        f"{capped(action.total, action.more)} looked at"
    )


async def read_states(backend: Backend, roots: Sequence[ItemState]) -> list[BulkState]:
    """Bulk actions as they are now: in two calls, however many they are, and in a third one if some wait for
    their canaries."""
    refs = [(root.tenant, root.id) for root in roots]
    groups = await group_refs(backend, refs)
    portions = await open_portions(backend, groups)
    tried = await read_canaries(backend, groups)
    return [
        state_of(root, groups.get(ref), portions.get(ref), tried.get(ref, ()))
        for root, ref in zip(roots, refs, strict=True)
    ]


async def read_canaries(
    backend: Backend, groups: Mapping[Ref, GroupState]
) -> dict[Ref, tuple[ItemState, ...]]:
    """For each bulk action that waits for its canary the items of that, by the ref of the action."""
    waiting: dict[Ref, list[Ref]] = {}
    for ref, group in groups.items():
        with suppress(msgspec.MsgspecError):
            progress = _group_progress(group)
            if group.open and progress.phase == "canary":
                waiting[ref] = [(each.tenant or ref[0], each.id) for each in progress.tried]
    found = await get_refs(backend, {each for refs in waiting.values() for each in refs}) if waiting else {}
    return {ref: tuple(found[each] for each in refs if each in found) for ref, refs in waiting.items()}


async def open_portions(backend: Backend, groups: Mapping[Ref, GroupState]) -> dict[Ref, ItemState]:
    """For each bulk action its portion that has not ended, by the ref of the action: in one call."""
    wanted: dict[Ref, Ref] = {}
    for (tenant, id), group in groups.items():
        if group.open:
            wanted[tenant, _next_of(group) or id] = (tenant, id)
    found = await get_refs(backend, wanted)
    return {
        wanted[ref]: state
        for ref, state in found.items()
        if state.type == BULK_TYPE and state.status in OPEN and state.group_id == wanted[ref][1]
    }


def _next_of(group: GroupState) -> str:
    try:
        return _group_progress(group).next
    except msgspec.MsgspecError:
        return ""


def _group_progress(group: GroupState | None) -> BulkProgress:
    """How far a bulk action is, as the value of its group says."""
    value = None if group is None else group.value
    if not isinstance(value, bytes):
        return BulkProgress()
    return read_bulk_progress(value.partition(b"\x00")[2])


def state_of(
    root: ItemState,
    group: GroupState | None,
    portion: ItemState | None,
    tried: Sequence[ItemState] = (),
) -> BulkState:
    """tried: the items of the canary, while they are waited for."""
    try:
        order = read_bulk_input(root.input).order
        progress = _group_progress(group)
    except msgspec.MsgspecError as error:
        order, progress = BulkOrder(verb="cancel", about=f"cannot be read: {error}"), BulkProgress()
    if order is None:
        order = BulkOrder(verb="cancel", about="cannot be read")
    dead = None if group is None or not group.deaths else group.deaths[0]
    failing = dead or portion
    return BulkState(
        id=root.id,
        verb=order.verb,
        state=_standing(progress, group, portion),
        where=order.about,
        changes=about(order.changes),
        tenant=None if root.tenant == OPERATORS else root.tenant,
        actor=order.actor,
        reason=order.reason,
        total=order.total,
        more=order.more,
        matched=progress.matched,
        changed=progress.changed,
        skipped=progress.skipped,
        refused=progress.refused,
        rate=order.rate,
        canary=order.canary,
        canary_wait=order.canary_wait,
        canary_tried=len(tried),
        canary_succeeded=sum(each.status == "success" for each in tried),
        held_back_by=progress.held_back_by,
        started_at=root.queued_at,
        ended_at=None if group is None else group.ended_at,
        error=None if failing is None else failing.error,
    )


def _standing(progress: BulkProgress, group: GroupState | None, portion: ItemState | None) -> BulkStanding:
    if group is not None and group.open:
        if progress.phase == "canary":
            return "canary"
        has_begun = group.contributed or (portion is not None and portion.status == "running")
        return "running" if has_begun else "waiting"
    if progress.phase in ("held_back", "done", "stopped"):
        return progress.phase
    return "failed" if group is not None and group.failed else "stopped"
