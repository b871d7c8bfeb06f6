"""Events that do not belong to one attempt: what was queued, released, cancelled, and groups that ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from treadle.events import Cancelled, Event, GroupDone, ItemEvent, Queued, Released, Succeeded
from treadle.item import Effects, EndedGroup, Item, ItemState, Lease

from . import wait_result as values

if TYPE_CHECKING:
    from treadle.engine.core import Core


def queued(
    core: Core, items: Iterable[Item], existing: Mapping[str, str] | None, parent: Lease | None = None
) -> None:
    """Items that were stored; those that an earlier one answered for were not."""
    now = core.settings.clock.now()
    for item in items:
        if existing and item.id in existing:
            continue
        core.metrics.of(item.type).queued_one(now)
        if core.hooks.listening(item.type):
            group_id = item.id if parent is None else parent.group_id
            origin = item.parent or (None if parent is None else parent.id)
            core.hooks.emit(Queued(item.id, item.type, group_id, item.tenant, 0, origin, item.after, now))


def effects(core: Core, effects: Effects) -> None:
    now = core.settings.clock.now()
    for item in effects.released:
        if core.hooks.listening(item.type):
            core.hooks.emit(
                Released(item.id, item.type, item.group_id, item.tenant, 0, item.parent, item.after, now)
            )
    if core.hooks.on_event is None:
        return
    for group in effects.closed:
        value = _value(core, group)
        core.hooks.emit(GroupDone(group.id, group.type, group.id, group.tenant, 0, None, (), now, value))


def _value(core: Core, group: EndedGroup) -> Any:
    try:
        return values.decode_group_value(core.registry, group.type, group.value)
    except Exception as error:  # noqa: BLE001  the group has ended all the same
        core.hooks.report(error, "hook", f"cannot read the value of the group {group.id}")
        return None


def cancelled(core: Core, items: Iterable[ItemState]) -> None:
    for item in items:
        _ended(core, Cancelled, item)


def completed(core: Core, items: Iterable[ItemState], value: Any) -> None:
    for item in items:
        _ended(core, Succeeded, item, result=value)


def _ended(core: Core, cls: type[ItemEvent], item: ItemState, **extra: Any) -> None:
    if core.hooks.listening(item.type):
        now = core.settings.clock.now()
        origin = (item.id, item.type, item.group_id, item.tenant, item.attempt, item.parent, item.after)
        core.hooks.emit(cast("Event", cls(*origin, now, **extra)))
