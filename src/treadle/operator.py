"""Operator: the methods of a client that read stored items and change what becomes of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, Final

from msgspec import UNSET
from typing_extensions import Unpack

from treadle.engine.core import Core
from treadle.engine.ended_items import announce_ended, event_time
from treadle.engine.large_values import read_value
from treadle.engine.open_transaction import current_transaction, refuse_in_transaction
from treadle.engine.read_refs import by_tenant, outermost_groups
from treadle.engine.repair import deaths_to_repair
from treadle.engine.wait.wait_result import decode_group_value, decode_states
from treadle.errors import ConflictError, InputError, NotFound
from treadle.filter_options import item_filter
from treadle.ids import check_id, check_name, ids_of
from treadle.item import (
    DEFAULT_TENANT,
    GROUP_TYPE,
    TERMINAL,
    Count,
    DeathReason,
    Filter,
    GroupState,
    ItemState,
    Page,
    Status,
)
from treadle.item_facts import DeadMark
from treadle.observer import Observer, begin_read
from treadle.options import HasId
from treadle.timing import Instant
from treadle.update_options import UpdateOptions, check_update

Ids = str | HasId | Iterable[str | HasId]

PORTION: Final = 1000
"""How many items one step changes, where a filter may find any number."""


class Operator(Observer):
    """Reads and changes items: those of one tenant, or of all if it has no tenant."""

    def __init__(self, core: Core, tenant: str | None) -> None:
        self._core = core
        self._tenant = tenant
        self._submits_to = DEFAULT_TENANT if tenant is None else tenant

    # -- reading ---------------------------------------------------------------------------------------

    async def get(self, ids: Ids) -> list[ItemState | None]:
        """Return the items as they are now, in the order of `ids`. None for an unknown id."""
        wanted = ids_of(ids)
        await self.connect()
        backend = self._core.backend
        states = await (current_transaction(backend) or backend).get(wanted, tenant=self._tenant)
        return await decode_states(self._core.registry, states)

    async def group(self, id: str | HasId) -> GroupState | None:
        """Return a group as it is now, by the id of its root. None for an unknown id."""
        (id,) = ids_of(id)
        await self.connect()
        (group,) = await self._core.backend.group([id], tenant=self._tenant)
        if group is None:
            return None
        registry, data = self._core.registry, group.value
        await decode_states(registry, (*group.deaths, group.cancelled))
        if isinstance(data, bytes):
            group.value = await read_value(data, decode_group_value, registry, group.type, data)
        return group

    async def workflow(self, id: str) -> list[ItemState]:
        """Return every item of a workflow, in the order of creation."""
        check_name(id, field="workflow")
        items: list[ItemState] = []
        cursor: str | None = None
        while True:
            where = Filter(tenant=self._tenant, workflow=id)
            page = await self._page(where, 1000, cursor, oldest_first=True)
            items += page.items
            if page.cursor is None:
                return items
            cursor = page.cursor

    async def list(
        self,
        status: Status | Sequence[Status] | None = None,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        workflow: str | None = None,
        since: Instant | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        until: Instant | None = None,
        group_id: str | None = None,
        key: str | None = None,
        reason: DeathReason | None = None,
        mark: str | None = None,
        oldest_first: bool = False,
        history: bool = False,
    ) -> Page:
        """Return items that match all arguments, newest first. `cursor` continues after an earlier page. With
        `history`, the items have their failed attempts.

        `InputError` for a status or a reason that does not exist, and for texts that are no names.
        """
        where = item_filter(
            self._tenant,
            status=status,
            type=type,
            queue=queue,
            tenant=tenant,
            workflow=workflow,
            since=since,
            until=until,
            group_id=group_id,
            key=key,
            reason=reason,
            mark=mark,
        )
        _check_page(limit, cursor, oldest_first, history)
        if self._tenant is not None and tenant not in (None, self._tenant):
            return Page(())
        return await self._page(where, limit, cursor, oldest_first=oldest_first, history=history)

    async def _page(
        self, where: Filter, limit: int, cursor: str | None, *, oldest_first: bool, history: bool = False
    ) -> Page:
        await self.connect()
        page = await self._core.backend.list(
            where, limit=limit, cursor=cursor, oldest_first=oldest_first, history=history
        )
        await decode_states(self._core.registry, page.items)
        return page

    async def counts(self, *, ended: bool = False) -> Sequence[Count]:
        """Count the open and dead items by tenant, queue, type and status. With `ended` the other items too,
        which takes time in proportion to how many are kept."""
        await self.connect()
        return await self._core.backend.counts(tenant=self._tenant, ended=ended)

    # -- changing --------------------------------------------------------------------------------------

    def _begin_change(self, what: str) -> Coroutine[Any, Any, None]:
        refuse_in_transaction(self._core.backend, f"{what}()")
        return self._connect_for_change()

    async def _connect_for_change(self) -> None:
        await self.connect()
        if self._core.hooks.any_listening:
            await self._core.store_clock.refresh()  # for the times of events

    async def cancel(self, ids: Ids) -> int:
        """End these items and their open descendants, and interrupt handlers. With an item that closes a
        nested group, everything in the group ends. Returns how many ended."""
        wanted = ids_of(ids)
        await self._begin_change("cancel")
        changed = await self._core.backend.cancel(wanted, tenant=self._tenant)
        self._core.announcer.cancelled(changed.items, event_time(self._core, changed))
        announce_ended(self._core, changed)
        return len(changed.items)

    async def complete(self, id: str | HasId, value: Any = None) -> None:
        """End an open item as a success, without a worker. A running handler is interrupted. `ConflictError`
        for an item that closes a nested group, as long as that is open."""
        name = check_id(id if isinstance(id, str) else getattr(id, "id", id))
        await self._begin_change("complete")
        (state,) = await self._core.backend.get([name], tenant=self._tenant)
        if state is not None and state.type == GROUP_TYPE and state.status not in TERMINAL:
            await _check_group_ended(self._core, state)
        type, limit = state.type if state is not None else "", self._core.settings.max_payload
        result = self._core.registry.write_result(type, value, limit)
        changed = await self._core.backend.complete(name, result, tenant=self._tenant)
        self._core.announcer.completed(changed.items, event_time(self._core, changed), value)
        announce_ended(self._core, changed)

    async def requeue(self, ids: Ids, *, alone: bool = False, cancelled: bool = False) -> int:
        """Open dead items again, with all their attempts. Each waits for its `after` again. Items that could
        not run because one of them had died wait for it again. Returns how many items are open again.

        alone: leave the items that could not run as they are.
        cancelled: open cancelled items too.
        """
        wanted = ids_of(ids)
        await self._begin_change("requeue")
        return await self._requeue(wanted, self._tenant, alone=alone, cancelled=cancelled)

    async def _requeue(
        self, ids: Sequence[str], tenant: str | None, *, alone: bool = False, cancelled: bool = False
    ) -> int:
        changed = await self._core.backend.requeue(ids, tenant=tenant, alone=alone, cancelled=cancelled)
        self._core.announcer.effects(changed.effects, event_time(self._core, changed))
        self._core.wakeups.ready((item.type, item.queue) for item in changed.items)
        return len(changed.items)

    async def repair(self, group_id: str | HasId) -> int:
        """Run the failed part of a group again: requeue the items whose deaths failed it, in nested groups
        too. The items that could not run because of them wait for them again. Returns how many items are open
        again; 0 if no death failed the group. `NotFound` for an unknown group."""
        (group_id,) = ids_of(group_id)
        await self._begin_change("repair")
        backend = self._core.backend
        (group,) = await backend.group([group_id], tenant=self._tenant)
        if group is None:
            raise NotFound(group_id, "group")
        if not group.failed:
            return 0
        causes = await deaths_to_repair(backend, group)
        return await self._requeue(causes, group.tenant) if causes else 0

    async def trigger(self, ids: Ids) -> None:
        """Run scheduled items now: all, or none if one raises `NotFound` or `NotTriggerable`."""
        wanted = ids_of(ids)
        await self._begin_change("trigger")
        await self._core.backend.trigger(wanted, tenant=self._tenant)
        self._core.wakeups.ready()

    async def update(self, ids: Ids, **changes: Unpack[UpdateOptions]) -> int:
        """Change when and where items run that have not started: all of them, or none if one raises
        `NotFound` or `NotUpdatable`. What is not given stays as it is. Returns how many."""
        wanted, checked = ids_of(ids), check_update(changes)
        await self._begin_change("update")
        changed = await self._core.backend.update(wanted, checked, tenant=self._tenant)
        queue = checked.queue
        self._core.wakeups.ready(
            (item.type, item.queue if queue is UNSET else queue) for item in changed.items
        )
        return len(changed.items)

    async def delete(self, group_ids: Ids, cascade: bool = False) -> int:
        """Remove whole groups. `ReferencedError` while an item of another group waits for a member. With
        `cascade` the groups that members wait for are removed too. Returns how many items were removed."""
        wanted = ids_of(group_ids)
        await self._begin_change("delete")
        changed = await self._core.backend.delete(wanted, tenant=self._tenant, cascade=cascade)
        announce_ended(self._core, changed, gone={(item.tenant, item.group_id) for item in changed.items})
        return len(changed.items)

    async def pause(self, queue: str) -> None:
        """Stop handing out the items of a queue. Running items go on."""
        check_name(queue, field="queue")
        await self._begin_change("pause")
        await self._core.backend.pause(queue, True, tenant=self._tenant)

    async def resume(self, queue: str) -> None:
        """Hand out the items of a paused queue again."""
        check_name(queue, field="queue")
        await self._begin_change("resume")
        await self._core.backend.pause(queue, False, tenant=self._tenant)
        self._core.wakeups.ready()


class DeadLetters:
    """The dead items: `app.dead`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    async def list(self, /, **where: Any) -> Page:
        """Return dead items, newest first, with their failed attempts. Takes the arguments of `app.list`,
        except the status."""
        where.setdefault("history", True)
        return await self._operator.list("dead", **where)

    async def marks(self, *, count: int = 100, cap: int = 10_000) -> Sequence[DeadMark]:
        """Return the marks of dead items: what they died of, and how many died alike. At most `count`, those
        with the newest deaths first. Each counts up to `cap` items."""
        _check_count(count, "count")
        _check_count(cap, "cap")
        core = core_of(self._operator)
        await begin_read(core)
        return await core.backend.marks(tenant=tenant_of(self._operator), count=count, cap=cap)

    async def requeue(
        self, /, ids: Ids | None = None, *, alone: bool = False, cancelled: bool = False, **where: Any
    ) -> int:
        """As `app.requeue`, for the named items, or for all that a filter (as for `list`) finds. Each item is
        requeued once: one that dies again meanwhile stays dead. Returns how many items are open again."""
        refuse_in_transaction(core_of(self._operator).backend, "dead.requeue()")
        if ids is not None:
            return await self._operator.requeue(ids, alone=alone, cancelled=cancelled)
        total = 0
        statuses: tuple[Status, ...] = ("dead", "cancelled") if cancelled else ("dead",)
        async for tenant, items in self._found(where, statuses):
            # Oldest first, so that they become ready in the order of their submission.
            operator = Operator(core_of(self._operator), tenant)
            total += await operator.requeue(items[::-1], alone=alone, cancelled=cancelled)
        return total

    async def delete(self, /, ids: Ids | None = None, **where: Any) -> int:
        """Remove dead items with their groups, and with the groups around these: the items named, or all that
        a filter finds. Returns how many items were removed."""
        refuse_in_transaction(core_of(self._operator).backend, "dead.delete()")
        total = 0
        if ids is not None:
            named = await self._operator.get(ids)
            found = by_tenant(item for item in named if item is not None and item.status == "dead")
            for owner, dead in found.items():
                total += await self._delete(owner, dead)
            return total
        async for tenant, items in self._found(where):
            total += await self._delete(tenant, items)
        return total

    async def _delete(self, tenant: str, items: Sequence[ItemState]) -> int:
        core = core_of(self._operator)
        around = await outermost_groups(core.backend, {item.group_id for item in items}, tenant=tenant)
        groups = sorted({group.id for group in around.values()})
        return await Operator(core, tenant).delete(groups) if groups else 0

    async def _found(
        self, where: dict[str, Any], statuses: tuple[Status, ...] = ("dead",)
    ) -> AsyncGenerator[tuple[str, Sequence[ItemState]]]:
        """Yield the items that a filter finds, at most `limit`, in portions of one tenant. Two tenants may
        use the same id for different items."""
        left, cursor = where.pop("limit", None), where.pop("cursor", None)
        while left is None or left > 0:
            limit = min(left or PORTION, PORTION)
            page = await self._operator.list(statuses, **where, limit=limit, cursor=cursor)
            for portion in by_tenant(page.items).items():
                yield portion
            if page.cursor is None:
                return
            cursor = page.cursor
            left = None if left is None else left - len(page.items)


async def _check_group_ended(core: Core, closing: ItemState) -> None:
    """If the item ended before its nested group, the outer group could end while members run."""
    (group,) = await core.backend.group([closing.id], tenant=closing.tenant)
    if group is not None and group.open:
        raise ConflictError(
            f"item {closing.id} closes a group that is still open: complete or cancel its members, or cancel"
            " the item with everything in the group"
        )


def _check_page(limit: object, cursor: object, oldest_first: object, history: object) -> None:
    _check_count(limit, "limit")
    if cursor is not None and not isinstance(cursor, str):
        raise InputError.of("cursor", cursor, "must be a str")
    for field, given in (("oldest_first", oldest_first), ("history", history)):
        if not isinstance(given, bool):
            raise InputError.of(field, given, "must be True or False")


def _check_count(value: object, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError.of(field, value, "must be a whole number, 1 or more")


def core_of(client: Operator) -> Core:
    """Return the engine behind a client, for the modules of this package."""
    return client._core  # pyright: ignore[reportPrivateUsage]


def tenant_of(client: Operator) -> str | None:
    """Return the tenant that a client is bound to, for the modules of this package. None: all tenants."""
    return client._tenant  # pyright: ignore[reportPrivateUsage]


def submits_to(client: Operator) -> str:
    """Return the tenant that new items of a client belong to, for the modules of this package."""
    return client._submits_to  # pyright: ignore[reportPrivateUsage]
