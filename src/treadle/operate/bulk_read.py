"""Bulk read: how a bulk action stands, from its root, its group and its open portions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.bulk_action import (
    BULK_TYPE,
    OPERATORS,
    BulkOrder,
    BulkProgress,
    BulkStanding,
    BulkState,
    read_bulk_input,
    read_bulk_progress,
)
from treadle.engine.core import Core
from treadle.engine.read_refs import get_refs, group_refs
from treadle.item import OPEN, GroupState, ItemState, Ref

from .why import why_item

_NOT_BINDING: Final = ("next", "turn", "running", "due_at", "overdue")
"""Reasons of a portion that will run by itself."""


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
        return group_progress(group).next
    except msgspec.MsgspecError:
        return ""


def group_progress(group: GroupState | None) -> BulkProgress:
    """How far a bulk action is, as the value of its group says."""
    value = None if group is None else group.value
    if not isinstance(value, bytes):
        return BulkProgress()
    return read_bulk_progress(value.partition(b"\x00")[2])


async def read_states(core: Core, roots: Sequence[ItemState], *, explain: bool = False) -> list[BulkState]:
    """Bulk actions as they are now: in two calls, however many they are. explain: say why each waits, if no
    process runs it."""
    refs = [(root.tenant, root.id) for root in roots]
    groups = await group_refs(core.backend, refs)
    portions = await open_portions(core.backend, groups)
    states = [_state(root, groups.get(ref), portions.get(ref)) for root, ref in zip(roots, refs, strict=True)]
    if explain:
        return [
            replace(state, waits=await _why(core, portions.get(ref)))
            for state, ref in zip(states, refs, strict=True)
        ]
    return states


def _state(root: ItemState, group: GroupState | None, portion: ItemState | None) -> BulkState:
    try:
        order = read_bulk_input(root.input).order
        progress = group_progress(group)
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


async def _why(core: Core, portion: ItemState | None) -> str:
    """Why the next portion does not run."""
    if portion is None or portion.status == "running" or "watching" not in core.backend.capabilities:
        return ""
    why = await why_item(core, portion.id, portion.tenant)
    binding = [reason for reason in why.reasons if reason.kind not in _NOT_BINDING]
    return binding[0].text if binding else ""
