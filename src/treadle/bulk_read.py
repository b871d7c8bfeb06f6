"""Bulk read: how a bulk action stands, from its root, its group and its open portions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

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
from treadle.engine.why import why_item
from treadle.filter_words import OPEN_STATUSES
from treadle.item import Filter, GroupState, ItemState, Ref

MOST_OPEN: Final = 10
_NOT_BINDING: Final = ("next", "turn", "running", "due_at")
"""Reasons of a portion that will run by itself."""


async def open_portions(backend: Backend, tenant: str, id: str) -> Sequence[ItemState]:
    """The portions of a bulk action that have not ended."""
    page = await backend.list(Filter(tenant=tenant, group_id=id, status=OPEN_STATUSES), limit=MOST_OPEN)
    return [item for item in page.items if item.type == BULK_TYPE]


async def read_actions(backend: Backend, roots: Sequence[ItemState]) -> dict[Ref, GroupState]:
    """The groups of bulk actions: one read for each tenant."""
    groups: dict[Ref, GroupState] = {}
    for tenant in dict.fromkeys(root.tenant for root in roots):
        ids = [root.id for root in roots if root.tenant == tenant]
        for group in await backend.group(ids, tenant=tenant):
            if group is not None:
                groups[tenant, group.id] = group
    return groups


def group_progress(group: GroupState | None) -> BulkProgress:
    """How far a bulk action is, as the value of its group says."""
    value = None if group is None else group.value
    if not isinstance(value, bytes):
        return BulkProgress()
    return read_bulk_progress(value.partition(b"\x00")[2])


async def action_state(
    core: Core, root: ItemState, group: GroupState | None, *, explain: bool = False
) -> BulkState:
    """A bulk action as it is now. explain: say why it waits, if no process runs it."""
    try:
        order = read_bulk_input(root.input).order
        progress = group_progress(group)
    except msgspec.MsgspecError as error:
        order, progress = BulkOrder(verb="cancel", about=f"cannot be read: {error}"), BulkProgress()
    if order is None:
        order = BulkOrder(verb="cancel", about="cannot be read")
    is_open = group is not None and group.open > 0
    portions = await open_portions(core.backend, root.tenant, root.id) if is_open else ()
    dead = None if group is None or not group.deaths else group.deaths[0]
    failing = dead or next(iter(portions), None)
    return BulkState(
        id=root.id,
        verb=order.verb,
        state=_standing(progress, group, portions),
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
        waits=await _why(core, portions) if explain else "",
    )


def _standing(
    progress: BulkProgress, group: GroupState | None, portions: Sequence[ItemState]
) -> BulkStanding:
    if group is not None and group.open:
        if progress.phase == "canary":
            return "canary"
        has_begun = group.contributed or any(each.status == "running" for each in portions)
        return "running" if has_begun else "waiting"
    if progress.phase in ("held_back", "done", "stopped"):
        return progress.phase
    return "failed" if group is not None and group.failed else "stopped"


async def _why(core: Core, portions: Sequence[ItemState]) -> str:
    """Why the next portion does not run."""
    waiting = [each for each in portions if each.status != "running"]
    if not waiting or "watching" not in core.backend.capabilities:
        return ""
    why = await why_item(core, waiting[0].id, waiting[0].tenant)
    binding = [reason for reason in why.reasons if reason.kind not in _NOT_BINDING]
    return binding[0].text if binding else ""
