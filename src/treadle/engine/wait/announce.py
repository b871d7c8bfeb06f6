"""Events that do not belong to one attempt: items queued, released, cancelled or completed, groups ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from treadle.clock import Clock
from treadle.engine.hooks import Hooks
from treadle.engine.registry import Registry
from treadle.events import Cancelled, Event, GroupDone, ItemEvent, Queued, Released, Succeeded
from treadle.group_ref import shown_names
from treadle.item import Effects, EndedGroup, Item, ItemState, Lease
from treadle.metrics import Metrics

from .wait_result import decode_group_value


class Announcer:
    """Emits these events and counts queued items. Call it after the commit."""

    def __init__(self, hooks: Hooks, metrics: Metrics, registry: Registry, clock: Clock) -> None:
        self._hooks = hooks
        self._metrics = metrics
        self._registry = registry
        self._clock = clock

    def queued(
        self, items: Iterable[Item], existing: Mapping[str, str] | None = None, parent: Lease | None = None
    ) -> None:
        """These items were stored, except those in `existing`, for which an earlier item was found."""
        now = self._clock.now()
        for item in items:
            if existing and item.id in existing:
                continue
            self._metrics.of(item.type).queued_one(now)
            if self._hooks.listening(item.type):
                group_id = item.group_id or (item.id if parent is None else parent.group_id)
                origin = item.parent or (None if parent is None else parent.id)
                after = shown_names(item.after)
                self._hooks.emit(Queued(item.id, item.type, group_id, item.tenant, 0, origin, after, now))

    def effects(self, effects: Effects) -> None:
        """What a commit caused elsewhere: released items, ended groups."""
        hooks = self._hooks
        for item in effects.released:
            if hooks.listening(item.type):
                now, after = self._clock.now(), shown_names(item.after)
                hooks.emit(
                    Released(item.id, item.type, item.group_id, item.tenant, 0, item.parent, after, now)
                )
        if hooks.on_event is None or not effects.ended_groups:
            return
        now = self._clock.now()
        for group in effects.ended_groups:
            value = self._read_value(group)
            hooks.emit(GroupDone(group.id, group.type, group.id, group.tenant, 0, None, (), now, value))

    def _read_value(self, group: EndedGroup) -> Any:
        try:
            return decode_group_value(self._registry, group.type, group.value)
        except Exception as error:  # noqa: BLE001  the group has ended all the same
            self._hooks.report(error, "hook", f"cannot read the value of the group {group.id}")
            return None

    def cancelled(self, items: Iterable[ItemState]) -> None:
        for item in items:
            self._ended(Cancelled, item)

    def completed(self, items: Iterable[ItemState], value: Any) -> None:
        for item in items:
            self._ended(Succeeded, item, result=value)

    def _ended(self, cls: type[ItemEvent], item: ItemState, **extra: Any) -> None:
        if self._hooks.listening(item.type):
            now = self._clock.now()
            after = shown_names(item.after)
            origin = (item.id, item.type, item.group_id, item.tenant, item.attempt, item.parent, after)
            self._hooks.emit(cast("Event", cls(*origin, now, **extra)))
