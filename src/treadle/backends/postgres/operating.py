"""Operator verbs: cancel, complete, requeue, trigger, delete, pause, prune."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import asyncpg

from treadle.errors import AlreadyEnded, NotFound, NotTriggerable, ReferencedError
from treadle.item import Changed, Effects, Filter

from .base import Verbs
from .calls import Record
from .codes import status_of
from .listing import Listing
from .settling import Following
from .states import state_of

_CHANGED: Final = "select (c.item).*, (c.effects).* from treadle.{} c"
CANCEL: Final = _CHANGED.format("cancel($1::text[], $2)")
COMPLETE: Final = _CHANGED.format("complete($1, $2, $3)")
TRIGGER: Final = _CHANGED.format("trigger($1::text[], $2)")
DELETE: Final = _CHANGED.format("delete($1::text[], $2, $3)")
PAUSE: Final = "insert into treadle.pause (queue, tenant) values ($1, $2) on conflict do nothing"
RESUME: Final = "delete from treadle.pause where queue = $1 and tenant = $2"
PAUSED: Final = "select queue, tenant from treadle.pause order by queue, tenant"
PRUNE: Final = "select treadle.prune($1)"


class Operating(Verbs):
    async def cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> Changed:
        return await self._change(CANCEL, list(ids), tenant)

    async def complete(self, id: str, result: bytes | None, *, tenant: str | None = None) -> Changed:
        return await self._change(COMPLETE, id, tenant, result)

    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
    ) -> Changed:
        if isinstance(where, Filter):
            chosen = _dead(where, tenant, limit, redrives)
            numbers, arguments = f"array({chosen.sql})", chosen.arguments
        else:
            numbers, arguments = "treadle.find($1::text[], $2)", [list(where), tenant]
        place = len(arguments)
        call = f"requeue({numbers}, ${place + 1}, ${place + 2})"
        return await self._change(_CHANGED.format(call), *arguments, redrives, backoff)

    async def trigger(self, ids: Sequence[str], *, tenant: str | None = None) -> Changed:
        return await self._change(TRIGGER, list(ids), tenant)

    async def delete(
        self, group_ids: Sequence[str], *, tenant: str | None = None, cascade: bool = False
    ) -> Changed:
        return await self._change(DELETE, list(group_ids), tenant, cascade)

    async def pause(self, queue: str, paused: bool = True, *, tenant: str | None = None) -> None:
        await self._calls.rows(PAUSE if paused else RESUME, queue, tenant or "")

    async def paused(self) -> Sequence[tuple[str, str | None]]:
        return [(queue, tenant or None) for queue, tenant in await self._calls.rows(PAUSED)]

    async def prune(self, limit: int = 1000) -> int:
        pruned: int = await self._calls.value(PRUNE, limit)
        return pruned

    async def _change(self, text: str, *arguments: object) -> Changed:
        try:
            rows = await self._calls.rows(text, *arguments, repeatable=False)
        except asyncpg.PostgresError as error:
            _refuse(error)
        return _changed(rows)


def _dead(where: Filter, tenant: str | None, limit: int, redrives: int | None) -> Listing:
    """The oldest dead items that a filter finds."""
    statuses = where.status or ("dead",)
    narrowed = Filter(
        tenant=where.tenant if tenant is None else tenant,
        status=("dead",),
        type=where.type,
        queue=where.queue,
        workflow=where.workflow,
        group_id=where.group_id,
        key=where.key,
        reason=where.reason,
        since=where.since,
        until=where.until,
    )
    foreign = tenant is not None and where.tenant not in (None, tenant)
    none = foreign or "dead" not in statuses
    return Listing(narrowed, limit=0 if none else limit, oldest_first=True, redrives=redrives)


def _changed(rows: Sequence[Record]) -> Changed:
    following = Following()
    for row in rows:
        if row["doomed"] is not None:
            following.add(row)
    items = tuple(state_of(row) for row in rows if row["no"] is not None)
    return Changed(items, following.effects() if rows else Effects())


def _refuse(error: asyncpg.PostgresError) -> NoReturn:
    """What our functions refused, as the error that says so."""
    found: dict[str, Any] = json.loads(getattr(error, "detail", None) or "{}") if error.sqlstate else {}
    match error.sqlstate:
        case "TR003":
            raise NotFound(found["id"]) from None
        case "TR004":
            raise AlreadyEnded(found["id"], status_of(found["state"])) from None
        case "TR005":
            raise NotTriggerable(found["id"], status_of(found["state"])) from None
        case "TR006":
            raise ReferencedError([(on, waiting) for on, waiting in found["references"]]) from None
        case _:
            raise error
