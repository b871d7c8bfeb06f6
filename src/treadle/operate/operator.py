"""Operator: the methods of a client that read stored items and change what becomes of them."""

from __future__ import annotations

from collections.abc import Container, Coroutine, Iterable, Sequence
from typing import Any

from msgspec import UNSET
from typing_extensions import Unpack

from treadle.backend import Backend
from treadle.base.ids import check_name, id_of, ids_of
from treadle.base.timing import Instant
from treadle.codec.json_codec import read_value
from treadle.define.option_checks import check_count, check_page_size
from treadle.engine.core import Core, announce_ended, event_time
from treadle.engine.open_transaction import current_transaction, refuse_in_transaction
from treadle.engine.wait.wait_result import decode_group_value, decode_states
from treadle.errors import ConflictError, InputError, NotFound
from treadle.item import (
    DEFAULT_TENANT,
    GROUP_MARK,
    GROUP_TYPE,
    JOIN_TYPE,
    TERMINAL,
    AuditNote,
    Count,
    DeathReason,
    Filter,
    GroupState,
    ItemState,
    Page,
    Status,
)
from treadle.options import HasId, UpdateOptions, check_update
from treadle.store.audit_note import about, check_recording, log_change, noted_about, noted_for
from treadle.store.rules.listing import LARGEST_PAGE

from .filters import item_filter
from .group_lists import GroupLists
from .observer import Observer, Placements, in_store
from .orders import OrderVerbs
from .steps import StepVerbs, end_joined_waits

Ids = str | HasId | Iterable[str | HasId]


class Operator(StepVerbs, OrderVerbs, GroupLists, Placements, Observer):
    """Reads and changes items: those of one tenant, or of all if it has no tenant."""

    def __init__(self, core: Core, tenant: str | None, note: AuditNote | None = None) -> None:
        self._core = core
        self._tenant = tenant
        self._note = note
        """Who makes the changes, for the audit. None: they are not noted."""
        self._submits_to = DEFAULT_TENANT if tenant is None else tenant

    # -- reading ---------------------------------------------------------------------------------------

    async def get(self, ids: Ids) -> list[ItemState | None]:
        """Return the items as they are now, in the order of `ids`. None for an unknown id."""
        wanted = ids_of(ids)
        await self.connect()
        backend = self._core.backend
        states = await (current_transaction(backend) or backend).get(wanted, tenant=self._tenant)
        return await decode_states(self._core.registry, states)

    async def group(self, id: str | HasId, *, decode: bool = True) -> GroupState | None:
        """Return a group as it is now, by the id of its root. None for an unknown id.

        decode: False leaves its value as it is stored. So it names its type, which says what is secret in it:
            see `values`.
        """
        id = id_of(id)
        await self.connect()
        (group,) = await self._core.backend.group([id], tenant=self._tenant)
        if group is None or not decode:
            return group
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
            page = await self._page(where, LARGEST_PAGE, cursor, oldest_first=True)
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
        release: str | None = None,
        held: bool = False,
        store: str | None = None,
        oldest_first: bool = False,
        history: bool = False,
        reach: int | None = None,
    ) -> Page:
        """Return items that match all arguments, newest first. `cursor` continues after an earlier page. With
        `history`, the items have their failed attempts.

        reach: about the most items to look at. If a page is short because of that, it has a cursor, and
            `reached_at` says how far it has looked. Without it, a filter that few items match reads on until
            the page is full.
        store: only items of this one of several stores.

        `InputError` for a status or a reason that does not exist, for texts that are no names, and for
        another tenant than that of the client.
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
            release=release,
            held=held,
            store=store,
        )
        _check_page(limit, cursor, oldest_first, history)
        if reach is not None:
            check_count(reach, "reach")
        return await self._page(where, limit, cursor, oldest_first=oldest_first, history=history, reach=reach)

    async def _page(
        self,
        where: Filter,
        limit: int,
        cursor: str | None,
        *,
        oldest_first: bool,
        history: bool = False,
        reach: int | None = None,
    ) -> Page:
        await (self.connect() if reach is None else self._begin_read())
        page = await self._core.backend.list(
            where, limit=limit, cursor=cursor, oldest_first=oldest_first, history=history, reach=reach
        )
        await decode_states(self._core.registry, page.items)
        return page

    async def counts(self, *, ended: bool = False, store: str | None = None) -> Sequence[Count]:
        """Count the open and dead items by tenant, queue, type and status. With `ended` the other items too,
        which takes time in proportion to how many are kept. With `store`, those of this one of several."""
        await self.connect()
        with in_store(self._core, store):
            return await self._core.backend.counts(tenant=self._tenant, ended=ended)

    # -- changing --------------------------------------------------------------------------------------

    def _begin_change(self, what: str) -> Coroutine[Any, Any, None]:
        refuse_in_transaction(self._core.backend, f"{what}()")
        return self._connect_for_change()

    async def _connect_for_change(self) -> None:
        if self._note is not None:
            check_recording(self._core.backend)
        await self.connect()
        if self._core.hooks.any_listening:
            await self._core.store_clock.refresh()  # for the times of events

    async def cancel(self, ids: Ids) -> int:
        """End these items and their open descendants, and interrupt handlers. With an item that closes a
        nested group, everything in the group ends. Returns how many ended."""
        wanted = ids_of(ids)
        await self._begin_change("cancel")
        changed = await self._core.backend.cancel(wanted, tenant=self._tenant, note=self._note)
        log_change(self._note, "cancel", wanted, len(changed.items), self._tenant)
        await end_joined_waits(self._core, changed.items)
        self._core.announcer.cancelled(changed.items, event_time(self._core, changed))
        announce_ended(self._core, changed)
        return len(changed.items)

    async def complete(self, id: str | HasId, value: Any = None) -> None:
        """End an open item as a success, without a worker. A running handler is interrupted. `ConflictError`
        for an item that closes a nested group, as long as that is open."""
        name = id_of(id)
        await self._begin_change("complete")
        (state,) = await self._core.backend.get([name], tenant=self._tenant)
        if state is not None and state.type == GROUP_TYPE and state.status not in TERMINAL:
            await _check_group_ended(self._core, state)
        if state is not None and state.type == JOIN_TYPE:
            raise ConflictError(
                f"item {name} tells {state.parent} that its children have ended: complete or cancel those"
            )
        type, limit = state.type if state is not None else "", self._core.settings.max_payload
        result = self._core.registry.write_result(type, value, limit)
        changed = await self._core.backend.complete(name, result, tenant=self._tenant, note=self._note)
        log_change(self._note, "complete", [name], 1, self._tenant)
        self._core.announcer.completed(changed.items, event_time(self._core, changed), value)
        announce_ended(self._core, changed)

    async def requeue(
        self, ids: Ids, *, alone: bool = False, cancelled: bool = False, from_step: str | None = None
    ) -> int:
        """Open dead items again, with all their attempts. Each waits for its `after` again. Items that could
        not run because one of them had died wait for it again. Returns how many items are open again.

        alone: leave the items that could not run as they are.
        cancelled: open cancelled items too.
        from_step: forget this step of each item, and those recorded after it. Items without it are left as
            they are. Without it, all recorded steps stay, except those that were undone.
        """
        wanted = ids_of(ids)
        if from_step is not None:
            check_name(from_step, field="from_step")
        await self._begin_change("requeue")
        return await self._requeue(wanted, alone=alone, cancelled=cancelled, from_step=from_step)

    async def _requeue(
        self,
        ids: Sequence[str],
        *,
        alone: bool = False,
        cancelled: bool = False,
        from_step: str | None = None,
    ) -> int:
        note = self._note if from_step is None else noted_about(self._note, about({"from_step": from_step}))
        changed = await self._core.backend.requeue(
            ids,
            tenant=self._tenant,
            alone=alone,
            cancelled=cancelled,
            from_step=from_step,
            note=note,
        )
        log_change(note, "requeue", ids, len(changed.items), self._tenant)
        self._core.announcer.effects(changed.effects, event_time(self._core, changed))
        self._core.wakeups.ready((item.type, item.queue) for item in changed.items)
        return len(changed.items)

    async def repair(self, group_id: str | HasId) -> int:
        """Run the failed part of a group again: requeue the items whose deaths failed it, in nested groups
        too. The items that could not run because of them wait for them again. Returns how many items are open
        again; 0 if no death failed the group. `NotFound` for an unknown group."""
        group_id = id_of(group_id)
        await self._begin_change("repair")
        backend = self._core.backend
        (group,) = await backend.group([group_id], tenant=self._tenant)
        if group is None:
            raise NotFound(group_id, "group")
        if not group.failed:
            return 0

        causes = await deaths_to_repair(backend, group)
        if not causes:
            return 0
        note = noted_about(self._note, f"repair of {group_id}")
        return await Operator(self._core, group.tenant, note)._requeue(causes)

    async def trigger(self, ids: Ids) -> None:
        """Run scheduled items now: all, or none if one raises `NotFound` or `NotTriggerable`."""
        wanted = ids_of(ids)
        await self._begin_change("trigger")
        changed = await self._core.backend.trigger(wanted, tenant=self._tenant, note=self._note)
        log_change(self._note, "trigger", wanted, len(changed.items), self._tenant)
        self._core.wakeups.ready()

    async def hold(self, ids: Ids) -> int:
        """Hold ready and scheduled items, also between attempts and while they are suspended: they stay, and
        are not handed out until `unhold`. All, or none if one raises `NotFound` or `NotHoldable`. Returns how
        many were not held before."""
        wanted = ids_of(ids)
        await self._begin_change("hold")
        changed = await self._core.backend.hold(wanted, tenant=self._tenant, note=self._note)
        log_change(self._note, "hold", wanted, len(changed.items), self._tenant)
        return len(changed.items)

    async def unhold(self, ids: Ids) -> int:
        """Let held items go: they are due when they were. All, or none if one raises `NotFound`. Returns how
        many were held."""
        wanted = ids_of(ids)
        await self._begin_change("unhold")
        changed = await self._core.backend.hold(wanted, False, tenant=self._tenant, note=self._note)
        log_change(self._note, "unhold", wanted, len(changed.items), self._tenant)
        self._core.wakeups.ready((item.type, item.queue) for item in changed.items)
        return len(changed.items)

    async def update(self, ids: Ids, **changes: Unpack[UpdateOptions]) -> int:
        """Change when and where items run that have not started: all of them, or none if one raises
        `NotFound` or `NotUpdatable`. What is not given stays as it is. Returns how many."""
        wanted, checked = ids_of(ids), check_update(changes)
        await self._begin_change("update")
        note = noted_about(self._note, about(changes))
        changed = await self._core.backend.update(wanted, checked, tenant=self._tenant, note=note)
        log_change(self._note, "update", wanted, len(changed.items), self._tenant)
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
        changed = await self._core.backend.delete(
            wanted, tenant=self._tenant, cascade=cascade, note=self._note
        )
        log_change(self._note, "delete", wanted, len(changed.items), self._tenant)
        announce_ended(self._core, changed, gone={(item.tenant, item.group_id) for item in changed.items})
        return len(changed.items)

    async def drain_worker(self, id: str) -> bool:
        """Ask a worker to stop, as a signal would: it starts nothing more, and waits for its handlers for as
        long as its `drain` says. It learns so with its next heartbeat. False if there is no such worker. A
        client of one tenant can stop workers that serve this tenant alone."""
        check_name(id, field="id")
        await self._begin_change("drain_worker")
        check_recording(self._core.backend)
        if self._tenant is not None and not await _serves_only(self._core, id, self._tenant):
            return False
        found = await self._core.backend.drain_worker(id, note=noted_for(self._note, self._tenant))
        log_change(self._note, "drain_worker", [id], int(found), self._tenant)
        return found


async def _serves_only(core: Core, worker: str, tenant: str) -> bool:
    infos = [each.info for each in await core.backend.workers() if each.id == worker]
    return any(info is not None and info.tenants == (tenant,) for info in infos)


async def _check_group_ended(core: Core, closing: ItemState) -> None:
    """If the item ended before its nested group, the outer group could end while members run."""
    (group,) = await core.backend.group([closing.id], tenant=closing.tenant)
    if group is not None and group.open:
        raise ConflictError(
            f"item {closing.id} closes a group that is still open: complete or cancel its members, or cancel"
            " the item with everything in the group"
        )


def _check_page(limit: object, cursor: object, oldest_first: object, history: object) -> None:
    check_page_size(limit, cursor)
    for field, given in (("oldest_first", oldest_first), ("history", history)):
        if not isinstance(given, bool):
            raise InputError.of(field, given, "must be True or False")


def core_of(client: Operator) -> Core:
    """Return the engine behind a client, for the modules of this package."""
    return client._core  # pyright: ignore[reportPrivateUsage]


def note_of(client: Operator) -> AuditNote | None:
    """Return who changes something with a client, for the modules of this package."""
    return client._note  # pyright: ignore[reportPrivateUsage]


def tenant_of(client: Operator) -> str | None:
    """Return the tenant that a client is bound to, for the modules of this package. None: all tenants."""
    return client._tenant  # pyright: ignore[reportPrivateUsage]


def submits_to(client: Operator) -> str:
    """Return the tenant that new items of a client belong to, for the modules of this package."""
    return client._submits_to  # pyright: ignore[reportPrivateUsage]


# -- repair ------------------------------------------------------------------------------------------


async def deaths_to_repair(backend: Backend, group: GroupState) -> list[str]:
    """The ids of the dead members that failed the group, oldest first, in nested groups too: the causes, then
    those that died because of others. The store opens those of them whose condition can be met.

    A tolerated death is a cause only if another member could not run because of it, and failed the group."""
    found: dict[str, ItemState] = {}
    groups = [group.id]
    for id in groups:  # it grows: a nested group that failed is read too
        new = await _failing_deaths(backend, group.tenant, id)
        while new:
            found |= {item.id: item for item in new}
            groups += [item.id for item in new if item.type == GROUP_TYPE and item.id not in groups]
            new = await _dead_prerequisites(backend, group.tenant, groups, new, found)
    return [item.id for item in sorted(found.values(), key=lambda one: one.reason == "unsatisfiable")]


async def _failing_deaths(backend: Backend, tenant: str, group_id: str) -> list[ItemState]:
    where, cursor = Filter(tenant=tenant, status=("dead",), group_id=group_id, failed_group=True), None
    found: list[ItemState] = []
    while True:
        page = await backend.list(where, limit=LARGEST_PAGE, cursor=cursor, oldest_first=True)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


async def _dead_prerequisites(
    backend: Backend,
    tenant: str,
    groups: Container[str],
    items: Iterable[ItemState],
    known: Container[str],
) -> list[ItemState]:
    """The dead members of these groups that items could not run because of, and that are not known yet."""
    after = dict.fromkeys(name for item in items if item.reason == "unsatisfiable" for name in item.after)
    names = [name for name in after if name not in known and not name.startswith(GROUP_MARK)]
    found: list[ItemState] = []
    for start in range(0, len(names), LARGEST_PAGE):
        states = await backend.get(names[start : start + LARGEST_PAGE], tenant=tenant)
        found += [
            one for one in states if one is not None and one.status == "dead" and one.group_id in groups
        ]
    return found
