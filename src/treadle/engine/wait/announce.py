"""Events that do not belong to one attempt: items queued, released, cancelled or completed, groups ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, cast

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.base.timing import Clock
from treadle.define.condition import shown_names
from treadle.engine.hooks import Hooks
from treadle.engine.registry import Registry
from treadle.events import Cancelled, Event, GroupDone, ItemEvent, Queued, Released, Succeeded
from treadle.item import Effects, EndedGroup, Item, ItemState, Lease, Ref
from treadle.metrics import Metrics

from .wait_result import decode_group_value

_type = attrgetter("type")


class Announcer:
    """Emits these events and counts queued and cancelled items. Call it after the commit.

    start: starts a task.
    """

    def __init__(
        self,
        hooks: Hooks,
        metrics: Metrics,
        registry: Registry,
        clock: Clock,
        backend: Backend,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._backend = backend
        self._start = start
        self._reading: set[asyncio.Task[None]] = set()
        """Reads of groups that have ended, before they are announced."""
        self.unannounced: set[Ref] = set()
        """These groups. Who waits for one is answered after its event."""
        self._hooks = hooks
        self._metrics = metrics
        self._registry = registry
        self._clock = clock

    def queued(
        self,
        items: Iterable[Item],
        at: float,
        existing: Mapping[str, str] | None = None,
        parent: Lease | None = None,
    ) -> None:
        """These items were stored, except those in `existing`, for which an earlier item was found. `at`:
        when, by the store's clock; 0 if unknown."""
        now, hooks = self._clock.now(), self._hooks
        stored = [item for item in items if item.id not in existing] if existing else list(items)
        types = list(map(_type, stored))
        listening: set[str] = set()
        for type in dict.fromkeys(types):
            metrics = self._metrics.by_type.get(type) or self._metrics.of(self._registry.name_of(type))
            metrics.queued_some(types.count(type), now)
            if (hooks.on_event is not None or hooks.by_type) and hooks.listening(type):
                listening.add(type)
        if not listening:
            return
        for item in stored:
            if item.type in listening:
                group_id = item.group_id or (item.id if parent is None else parent.group_id)
                origin = item.parent or (None if parent is None else parent.id)
                after = shown_names(item.after)
                self._hooks.emit(
                    Queued(item.id, item.type, group_id, item.tenant, 0, origin, after, at or now)
                )

    def effects(
        self, effects: Effects, at: float, announced: Callable[[EndedGroup], None] | None = None
    ) -> None:
        """What a commit caused elsewhere: released items, ended groups. `at`: as for `queued`.

        announced: called for each ended group after its event. If the store did not say whether a group
        failed, and an event tells of it, the group is read before.
        """
        hooks = self._hooks
        now = at or self._clock.now()
        for item in effects.released:
            if hooks.listening(item.type):
                after = shown_names(item.after)
                hooks.emit(
                    Released(item.id, item.type, item.group_id, item.tenant, 0, item.parent, after, now)
                )
        unknown: list[EndedGroup] = []
        for group in effects.ended_groups:
            if group.failed is None and hooks.on_event is not None:
                unknown.append(group)
            else:
                self._group_done(group, now, announced)
        if unknown:
            self.unannounced.update(_refs(unknown))
            task = self._start(self._read_groups(unknown, now, announced))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
            task.add_done_callback(lambda _: self.unannounced.difference_update(_refs(unknown)))

    def _group_done(
        self, group: EndedGroup, at: float, announced: Callable[[EndedGroup], None] | None
    ) -> None:
        if self._hooks.on_event is not None:
            fields = (group.id, group.type, group.id, group.tenant, 0, None, (), at)
            self._hooks.emit(GroupDone(*fields, self._read_value(group), group.failed or 0))
        if announced is not None:
            announced(group)

    async def _read_groups(
        self, groups: Sequence[EndedGroup], at: float, announced: Callable[[EndedGroup], None] | None
    ) -> None:
        failed: dict[Ref, int] = {}
        try:
            for tenant in {group.tenant for group in groups}:
                ids = [group.id for group in groups if group.tenant == tenant]
                found = await self._backend.group(ids, tenant=tenant)
                failed.update({(tenant, each.id): each.failed for each in found if each is not None})
        except Exception as error:  # noqa: BLE001  the groups have ended all the same
            self._hooks.report(error, "hook", f"cannot read whether {len(groups)} group(s) failed")
        refs = _refs(groups)
        self.unannounced.difference_update(refs)
        for ref, group in zip(refs, groups, strict=True):
            self._group_done(replace(group, failed=failed.get(ref)), at, announced)

    def leave_dead_loop(self) -> None:
        self._reading = set()
        self.unannounced.clear()  # not replaced: `Waiters` looks into it

    async def flush(self) -> None:
        """Return when the groups that have ended are announced."""
        while self._reading:
            await asyncio.wait(self._reading)

    def _read_value(self, group: EndedGroup) -> Any:
        try:
            return decode_group_value(self._registry, group.type, group.value)
        except Exception as error:  # noqa: BLE001  the group has ended all the same
            self._hooks.report(error, "hook", f"cannot read the value of the group {group.id}")
            return None

    def cancelled(self, items: Iterable[ItemState], at: float) -> None:
        for item in items:
            self._metrics.of(self._registry.name_of(item.type)).cancelled_one(item.queue)
            self._ended(Cancelled, item, at)

    def completed(self, items: Iterable[ItemState], at: float, value: Any) -> None:
        for item in items:
            self._ended(Succeeded, item, at, result=value)

    def _ended(self, cls: type[ItemEvent], item: ItemState, at: float, **extra: Any) -> None:
        if self._hooks.listening(item.type):
            after = shown_names(item.after)
            origin = (item.id, item.type, item.group_id, item.tenant, item.attempt, item.parent, after)
            self._hooks.emit(cast("Event", cls(*origin, at, **extra)))


def _refs(groups: Iterable[EndedGroup]) -> list[Ref]:
    return [(group.tenant, group.id) for group in groups]
