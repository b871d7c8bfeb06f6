"""Build children: the items that an item queues, with the nested groups that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.engine.settings import Settings
from treadle.handler.result_plan import PlannedGroup, ResultPlan
from treadle.item import GROUP_MARK, GROUP_TYPE, Item, Lease

from .build_item import SILENT, ItemBuilder, not_contributing


def build_children(builder: ItemBuilder, settings: Settings, plan: ResultPlan, lease: Lease) -> list[Item]:
    """Build the children of the item of this lease. An item that closes a nested group comes before the
    members of the group."""
    items = [
        builder.item(child.work, child.options, tenant=lease.tenant, parent=lease) for child in plan.children
    ]
    if not plan.groups:
        return items
    builder.check_nested("ctx.group")
    members = [
        item if child.group_id is None else replace(item, group_id=child.group_id)
        for child, item in zip(plan.children, items, strict=True)
    ]
    keyed: dict[str | None, list[str]] = {}
    for item in members:
        if item.key is not None:
            keyed.setdefault(item.group_id, []).append(item.id)
    closing = [_closing_item(group, lease, settings, keyed.get(group.id, ())) for group in plan.groups]
    return [*closing, *members]


def _closing_item(group: PlannedGroup, lease: Lease, settings: Settings, keyed: Sequence[str]) -> Item:
    """The item that ends with the nested group. It waits in the line of the item that queued it, so that a
    worker claims it that can claim that one. If other works follow, these take the value of the group.

    keyed: the works of the group that have a key. For each an earlier item may answer, which is no member.
    The store leaves out the names of those that it stores as members: see `Item.closes_group`.
    """
    after = (f"{GROUP_MARK}{group.id}", *keyed)
    return Item(
        id=group.id,
        type=GROUP_TYPE,
        input=b"",
        tenant=lease.tenant,
        queue=lease.queue,
        lane=lease.lane,
        priority=lease.priority,
        attempts=None,
        workflow=lease.workflow,
        workflow_type=lease.workflow_type,
        after=after,
        need=len(after),
        keep=settings.keep,
        keep_dead=settings.keep_dead,
        group_id=group.group_id,
        closes_group=True,
        contributes=not group.followed,
        options=SILENT if group.followed else b"",
    )


def silenced(items: Sequence[Item]) -> list[Item]:
    """The same items as children of one that adds nothing to the value of its group: nor do those that join
    the same group. Members of a nested group may: its value ends at the item that closes it."""
    return [not_contributing(item) if item.group_id is None else item for item in items]
