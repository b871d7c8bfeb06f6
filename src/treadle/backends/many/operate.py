"""What operators change over several stores: one step in each store, with an audit entry in each.

Ids of one tenant are in one store. Without a tenant, the stores are asked first who has which id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.backend import all_stores
from treadle.errors import NotFound, NotHoldable, NotTriggerable, NotUpdatable
from treadle.item import AuditNote, Changed, Filter, ItemState, ItemUpdate, Signal, Signalled

from .member import Member
from .merge import changed_of
from .places import TenantPlaces
from .read import ManyReads, tagged
from .roots import RootPlaces
from .transactions import check_transactions, within
from .view import Views

Change = Callable[[Member, Sequence[str]], Awaitable[Changed]]


class ManyOperations:
    def __init__(self, places: TenantPlaces, views: Views, reads: ManyReads) -> None:
        self._places = places
        self._views = views
        self._reads = reads
        self._pruned = 0

    async def _change(self, member: Member, verb: str, /, *args: Any, **options: Any) -> Changed:
        changed: Changed = await member.call(verb, *args, **options)
        for state in changed.items:
            tagged(state, member)
        self._views.heat([member.number])
        return changed

    async def _by_id(
        self, ids: Sequence[str], tenant: str | None, change: Change, *, groups: bool = False
    ) -> Changed:
        """Call the stores that have these ids, each with its own. Each call is one step, all of them are
        not. An id that no store has goes to one of these, which answers for it. groups: the ids may be those
        of groups whose roots are gone."""
        if isinstance(self._places, RootPlaces):
            by_store: dict[Member, list[str]] = {}
            for id in ids:
                by_store.setdefault(self._places.of_id(id), []).append(id)
            return changed_of([await change(*each) for each in (by_store or {self._places.home: []}).items()])
        if tenant is not None:
            return await self._where_it_is(tenant, lambda member: change(member, ids))
        with all_stores():
            known = await self._reads.find_items(ids, None)
            if groups and None in known:
                those = await self._reads.find("group", ids, None, lambda _: 0.0)
                known = [each or group for each, group in zip(known, those, strict=True)]
        first = next((each.member.number for each in known if each is not None), 0)
        parts: dict[int, list[str]] = {}
        tenants: dict[int, set[str]] = {}
        for id, found in zip(ids, known, strict=True):
            number = first if found is None else found.member.number
            parts.setdefault(number, []).append(id)
            if found is not None:
                tenants.setdefault(number, set()).add(found.state.tenant)

        async def one(number: int, some: list[str]) -> Changed:
            member = self._places.members[number]
            return await self._unless_left(
                member,
                tenants.get(number, ()),
                lambda: change(member, some),
                lambda: self._by_id(some, None, change, groups=groups),
            )

        return changed_of([await one(*part) for part in (parts or {0: []}).items()])

    async def _where_it_is(self, tenant: str, change: Callable[[Member], Awaitable[Changed]]) -> Changed:
        """Change something in the store that has a tenant."""
        member = await self._places.checked(tenant) or self._places.home
        return await self._unless_left(
            member, [tenant], lambda: change(member), lambda: self._where_it_is(tenant, change)
        )

    async def _unless_left(
        self,
        member: Member,
        tenants: Iterable[str],
        change: Callable[[], Awaitable[Changed]],
        again: Callable[[], Awaitable[Changed]],
    ) -> Changed:
        """A call may wait in a store until one of these tenants has moved, and finds nothing there then."""
        try:
            changed = await change()
        except NotFound:
            if await self._has_left(member, tenants):
                return await again()
            raise
        if changed.items or not await self._has_left(member, tenants):
            return changed
        return await again()

    async def _has_left(self, member: Member, tenants: Iterable[str]) -> bool:
        """Whether one of these tenants is not in this store any more."""
        return any([await self._places.moved_from(tenant, member) is not None for tenant in tenants])

    async def _check(
        self, ids: Sequence[str], tenant: str | None, refusal: Callable[[ItemState], Exception | None]
    ) -> None:
        """All or none, as far as one look can tell, if the ids are in several stores."""
        if tenant is not None and not self._places.by_root:
            return
        with all_stores():
            found = await self._reads.find_items(ids, tenant)
        members = {each.member for each in found if each is not None}
        if isinstance(self._places, RootPlaces):
            members = {self._places.of_id(id) for id in ids}
        if len(members) < 2:
            return
        for id, each in zip(ids, found, strict=True):
            if each is None:
                raise NotFound(id)
            if (error := refusal(each.state)) is not None:
                raise error

    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        return await self._by_id(
            ids,
            tenant,
            lambda member, some: self._change(
                member, "cancel", some, tenant=tenant, only_open=only_open, note=note
            ),
        )

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        return await self._by_id(
            [id],
            tenant,
            lambda member, _: self._change(member, "complete", id, result, tenant=tenant, note=note),
        )

    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
        alone: bool = False,
        cancelled: bool = False,
        from_step: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        """By a filter: store after store, the oldest of each, up to `limit` in all."""
        options: dict[str, Any] = {
            "tenant": tenant,
            "redrives": redrives,
            "backoff": backoff,
            "alone": alone,
            "cancelled": cancelled,
            "from_step": from_step,
            "note": note,
        }
        if not isinstance(where, Filter):
            return await self._by_id(
                where,
                tenant,
                lambda member, some: self._change(member, "requeue", some, limit=limit, **options),
            )
        whose = where.tenant if tenant is None else tenant
        out: list[Changed] = []
        inner = replace(where, store=None)
        if whose is not None and where.store is None and not self._places.by_root:
            return await self._where_it_is(
                whose, lambda member: self._change(member, "requeue", inner, limit=limit, **options)
            )
        having = await self._places.having(whose) or [self._places.home]
        for member in self._places.asked(having, where.store):
            left = limit - sum([len(part.items) for part in out])
            if left > 0:
                out.append(await self._change(member, "requeue", inner, limit=left, **options))
        return changed_of(out)

    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        await self._check(ids, tenant, _not_updatable)
        return await self._by_id(
            ids,
            tenant,
            lambda member, some: self._change(member, "update", some, changes, tenant=tenant, note=note),
        )

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        await self._check(ids, tenant, _not_triggerable)
        return await self._by_id(
            ids,
            tenant,
            lambda member, some: self._change(member, "trigger", some, tenant=tenant, note=note),
        )

    async def hold(
        self,
        ids: Sequence[str],
        held: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        await self._check(ids, tenant, _not_holdable if held else lambda _: None)
        return await self._by_id(
            ids,
            tenant,
            lambda member, some: self._change(member, "hold", some, held, tenant=tenant, note=note),
        )

    async def signal(
        self,
        signals: Sequence[Signal],
        *,
        tenant: str | None = None,
        tx: object = None,
        note: AuditNote | None = None,
    ) -> Sequence[Signalled]:
        if tx is not None:
            check_transactions(self._places)
        ids = [signal.id for signal in signals]
        whose: list[str | None] = [tenant] * len(ids)
        if self._places.by_root:
            members = [await self._places.find(tenant, id) or self._places.home for id in ids]
        elif tenant is not None:
            members = [await self._places.checked(tenant) or self._places.home] * len(ids)
        else:
            with all_stores():
                known = await self._reads.find_items(ids, None)
            members = [self._places.home if each is None else each.member for each in known]
            whose = [None if each is None else each.state.tenant for each in known]
        answers: dict[int, Signalled] = {}
        for member in {member.number: member for member in members}.values():
            places = [place for place, each in enumerate(members) if each is member]
            some = [signals[place] for place in places]
            with within(tx, member, tenant):
                said: Sequence[Signalled] = await member.call("signal", some, tenant=tenant, tx=tx, note=note)
            answers.update(zip(places, said, strict=True))
            self._views.heat([member.number])
        for place, (owner, member) in enumerate(zip(whose, members, strict=True)):
            if answers[place].verb != "not_found" or owner is None or tx is not None:
                continue
            if await self._has_left(member, [owner]):
                (answers[place],) = await self.signal([signals[place]], tenant=owner, note=note)
        return [answers[place] for place in range(len(ids))]

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        return await self._by_id(
            group_ids,
            tenant,
            lambda member, some: self._change(
                member, "delete", some, tenant=tenant, cascade=cascade, note=note
            ),
            groups=True,
        )

    async def prune(self, limit: int = 1000) -> int:
        """Of the stores that answer, another one first each time."""
        members = self._places.members
        self._pruned += 1
        total = 0
        for step in range(len(members)):
            member = members[(self._pruned + step) % len(members)]
            if total < limit and not member.is_away:
                count: int = await member.call("prune", limit - total)
                total += count
        return total


def _is_unstarted(state: ItemState) -> bool:
    return state.status in ("blocked", "scheduled", "ready") and not state.attempt and not state.suspended


def _not_updatable(state: ItemState) -> Exception | None:
    return None if _is_unstarted(state) else NotUpdatable(state.id, state.status)


def _not_triggerable(state: ItemState) -> Exception | None:
    if state.status == "scheduled" and not state.held:
        return None
    return NotTriggerable(state.id, state.status, state.held)


def _not_holdable(state: ItemState) -> Exception | None:
    return None if state.status in ("ready", "scheduled") else NotHoldable(state.id, state.status)
