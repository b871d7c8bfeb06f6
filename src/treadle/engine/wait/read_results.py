"""What `ctx.states` and `ctx.results` return: for items, and for whole groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from treadle.backend import Backend, Placed, placed
from treadle.base.wording import listed
from treadle.codec.json_codec import is_large, read_value
from treadle.define.condition import GroupRef
from treadle.define.work import WorkTypeBase
from treadle.engine.open_transaction import OpenTransaction
from treadle.engine.registry import Registry
from treadle.engine.tasks import Combiner, Tasks, combined
from treadle.errors import InputError, NotFound, TreadleError, WorkFailed
from treadle.item import GroupState, ItemState, Status
from treadle.store.reads import closed_failed_group

from .wait_result import decode_states, group_outcome, group_value, item_value

T = TypeVar("T")
Found: TypeAlias = ItemState | GroupState | None


class ResultReader:
    """Reads items and groups for handlers."""

    def __init__(self, backend: Backend, registry: Registry, tasks: Tasks) -> None:
        self._backend = backend
        self._registry = registry
        self._combined = CombinedReads(
            lambda ids, tenant: backend.get(ids, tenant=tenant), tasks, placed(backend)
        )

    async def states(
        self, within: Backend | OpenTransaction, tenant: str, ids: Sequence[str]
    ) -> list[ItemState | None]:
        """The items as they are now. A group has the status of the whole, and its value as its result.
        within: the handler's transaction, or the store."""
        found: list[ItemState | None] = []
        for each in await self._read(within, tenant, ids):
            if isinstance(each, GroupState):
                found.append(await self._as_item(each))
            else:
                # A copy: several handlers may read one state, and it is decoded in place.
                found += await decode_states(self._registry, [each and replace(each)])
        return found

    async def _as_item(self, group: GroupState) -> ItemState:
        ended: Status = "dead" if group.failed else "success" if group.cancelled is None else "cancelled"
        death = group.deaths[0] if group.deaths else None
        return ItemState(
            id=group.id,
            type=group.type,
            status=ended if group.ended_at is not None else "running",
            tenant=group.tenant,
            group_id=group.id,
            ended_at=group.ended_at,
            reason=None if death is None else death.reason,
            error=None if death is None else death.error,
            error_type=None if death is None else death.error_type,
            result=await read_value(group.value, group_value, self._registry, group),
        )

    async def results(
        self,
        within: Backend | OpenTransaction,
        tenant: str,
        ids: Sequence[str],
        *,
        return_exceptions: bool,
        of: WorkTypeBase | None = None,
    ) -> list[Any]:
        """The values of ended items and groups. of: only those of items of this type."""
        values: list[Any] = []
        found = await self._read(within, tenant, ids, failed=of is None)
        for id, each in zip(ids, found, strict=True):
            if of is not None and not _may_be(of, id, each):
                continue
            try:
                if isinstance(each, ItemState) and not is_large(each.result):
                    values.append(item_value(self._registry, each, id, of))  # without two coroutines for each
                else:
                    values.append(await self._value(id, each, of))
            except TreadleError as error:
                if not return_exceptions:
                    raise
                values.append(error)
        return values

    async def result_of(
        self, within: Backend | OpenTransaction, tenant: str, ids: Sequence[str], of: WorkTypeBase
    ) -> Any:
        """The value of the one item among `ids` that is of this type."""
        found = dict(zip(ids, await self._read(within, tenant, ids), strict=True))
        chosen = [id for id, each in found.items() if _may_be(of, id, each)]
        if len(chosen) != 1:
            raise _not_one(of, chosen, found)
        return await self._value(chosen[0], found[chosen[0]], of)

    async def _value(self, id: str, found: Found, of: WorkTypeBase | None) -> Any:
        if isinstance(found, ItemState):
            return await read_value(found.result, item_value, self._registry, found, id, of)
        if found is None:
            raise NotFound(str(id), "group" if isinstance(id, GroupRef) else "item")
        if found.ended_at is None:
            problem = f"it has not ended: {found.open} of its items are open"
            raise WorkFailed(found.id, found.type, problem, reason="open")
        return await group_outcome(self._backend, self._registry, found)

    async def _read(
        self, within: Backend | OpenTransaction, tenant: str, ids: Sequence[str], *, failed: bool = False
    ) -> list[Found]:
        """What `ids` name. failed: for an item that closes a failed group, the group."""
        plain = [id for id in ids if not isinstance(id, GroupRef)]
        source = self._combined if within is self._backend else within
        states = iter(await source.get(plain, tenant=tenant) if plain else ())
        found: list[Found] = [None if isinstance(id, GroupRef) else next(states) for id in ids]
        groups = [
            at
            for at, each in enumerate(found)
            if isinstance(ids[at], GroupRef)
            or (
                failed and isinstance(each, ItemState) and each.status == "dead" and closed_failed_group(each)
            )
        ]
        if groups:
            read = await self._backend.group([str(ids[at]) for at in groups], tenant=tenant)
            for at, group in zip(groups, read, strict=True):
                found[at] = found[at] if group is None else group
        return found


def _may_be(of: WorkTypeBase, id: str, found: Found) -> bool:
    """Whether this is an item of the type, or one that is gone, whose type is not known."""
    if isinstance(found, ItemState):
        return found.type in of.names
    return found is None and not isinstance(id, GroupRef)


def _not_one(of: WorkTypeBase, chosen: Sequence[str], found: Mapping[str, Found]) -> InputError:
    if chosen:
        which = f"{len(chosen)} dependencies of this item are ({listed(chosen)})"
        advice = f"use ctx.results({of.__name__})"
    else:
        which = "no dependency of this item is"
        others = listed(f"{each.type} {id}" for id, each in found.items() if each is not None)
        advice = f"it waited for {others}" if others else "it waited for nothing"
    return InputError(f"ctx.result_of takes the one dependency that is a {of.name!r}, and {which}: {advice}")


FEW: Final = 50
"""A read of more ids than this is not combined with others."""


class _Read(NamedTuple, Generic[T]):
    tenant: str
    ids: Sequence[str]
    answer: asyncio.Future[list[T]]


def _place(several: Placed, read: _Read[Any]) -> int | None:
    return several.place_of(read.tenant, read.ids[0]) if read.ids else None


class CombinedReads(Generic[T]):
    """Reads something of items, such as `Backend.get`, with few calls to the store."""

    def __init__(
        self,
        read: Callable[[Sequence[str], str], Awaitable[Sequence[T]]],
        tasks: Tasks,
        several: Placed | None,
    ) -> None:
        self._read = read
        self._combiner = combined(
            lambda: Combiner[_Read[T]](self._read_all, tasks, name="read"), several, _place
        )

    async def get(self, ids: Sequence[str], *, tenant: str) -> Sequence[T]:
        if len(ids) > FEW:
            return await self._read(ids, tenant)
        answer: asyncio.Future[list[T]] = asyncio.get_running_loop().create_future()
        self._combiner.add(_Read(tenant, ids, answer))
        return await answer

    async def _read_all(self, reads: list[_Read[T]]) -> None:
        by_tenant: dict[str, list[_Read[T]]] = {}
        for read in reads:
            by_tenant.setdefault(read.tenant, []).append(read)
        for tenant, some in by_tenant.items():
            ids = list(dict.fromkeys(id for read in some for id in read.ids))
            try:
                found = dict(zip(ids, await self._read(ids, tenant), strict=True))
            except BaseException as error:
                for read in some:
                    if not read.answer.done():
                        read.answer.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for read in some:
                if not read.answer.done():
                    read.answer.set_result([found[id] for id in read.ids])
