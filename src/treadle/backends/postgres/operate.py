"""Operate: cancel, complete, requeue, trigger, hold, delete, prune."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import asyncpg
import msgspec
from msgspec import UNSET

from treadle.errors import AlreadyEnded, NotFound, NotHoldable, NotTriggerable, NotUpdatable, ReferencedError
from treadle.item import AuditNote, Changed, Effects, Filter, ItemUpdate
from treadle.store.rules.listing import narrowed_filter, plan_list
from treadle.store.rules.records import NotedChange, noted_change

from .columns import status_of
from .connection import PostgresVerbs, Record
from .lists import ListQuery
from .read import state_of
from .records import note_values, noted_statement
from .settle import EffectsReader
from .statements import statements, text

_sql = statements("operate")


class PostgresOperate(PostgresVerbs):
    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        change = noted_change(note, "cancel", tenant, ids)
        return await self._change("cancel", change, list(ids), tenant, only_open)

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        change = noted_change(note, "complete", tenant, [id])
        return await self._change("complete", change, id, tenant, result)

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
        change = noted_change(note, "requeue", tenant, where)
        if not isinstance(where, Filter):
            return await self._change(
                "requeue_ids", change, list(where), tenant, redrives, backoff, alone, cancelled, from_step
            )
        query = _requeued(where, tenant, limit, redrives, cancelled=cancelled)
        numbers = text("operate", "numbers_of_list", list=query.text)
        requeue = text("operate", "requeue", numbers=numbers)
        values: dict[str, object] = {}
        if change is not None:
            requeue, values = text("audits", "noted_items", change=requeue), note_values(change)
        sql, arguments = query.bind(
            requeue,
            redrives=redrives,
            backoff=backoff,
            alone=alone,
            cancelled=cancelled,
            from_step=from_step,
            **values,
        )
        return await self._changed(sql, *arguments)

    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        given = {
            name: None if value is UNSET else value for name, value in msgspec.structs.asdict(changes).items()
        }
        return await self._change(
            "update",
            noted_change(note, "update", tenant, ids),
            list(ids),
            tenant,
            *(given[name] for name in ("run_at", "priority", "lane", "queue", "deadline")),
            changes.deadline is not UNSET,
        )

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        change = noted_change(note, "trigger", tenant, ids)
        return await self._change("trigger", change, list(ids), tenant)

    async def hold(
        self,
        ids: Sequence[str],
        held: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        change = noted_change(note, "hold" if held else "unhold", tenant, ids)
        return await self._change("hold", change, list(ids), tenant, held)

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        change = noted_change(note, "delete", tenant, group_ids)
        return await self._change("delete", change, list(group_ids), tenant, cascade)

    async def prune(self, limit: int = 1000) -> int:
        pruned: int = await self._calls.value(_sql("prune"), limit)
        return pruned

    async def _change(self, verb: str, change: NotedChange | None, *arguments: object) -> Changed:
        if change is None:
            return await self._changed(_sql(verb), *arguments)
        sql = noted_statement("noted_items", "operate", verb)
        return await self._changed(sql, *arguments, *note_values(change).values())

    async def _changed(self, sql: str, *arguments: object) -> Changed:
        try:
            rows = await self._calls.rows(sql, *arguments, repeatable=False)
        except asyncpg.PostgresError as error:
            _raise_refusal(error)
        return _changed(rows)


def _requeued(
    where: Filter, tenant: str | None, limit: int, redrives: int | None, *, cancelled: bool
) -> ListQuery:
    """The oldest dead items, or cancelled ones too, that a filter matches."""
    narrowed = narrowed_filter(where, tenant, ("dead", "cancelled") if cancelled else ("dead",))
    plan = plan_list("postgres", narrowed or where, limit=limit, oldest_first=True)
    return ListQuery(plan, limit=0 if narrowed is None else limit, redrives=redrives)


def _changed(rows: Sequence[Record]) -> Changed:
    effects = EffectsReader()
    for row in rows:
        if row["doomed"] is not None:
            effects.add(row)
    items = tuple(state_of(row) for row in rows if row["no"] is not None)
    return Changed(items, effects.effects() if rows else Effects())


def _raise_refusal(error: asyncpg.PostgresError) -> NoReturn:
    """Raise treadle's error for what our functions refused."""
    found: dict[str, Any] = {}
    if (error.sqlstate or "").startswith("TR"):
        found = json.loads(getattr(error, "detail", None) or "{}")
    match error.sqlstate:
        case "TR003":
            raise NotFound(found["id"]) from None
        case "TR004":
            raise AlreadyEnded(found["id"], status_of(found["state"])) from None
        case "TR005":
            raise NotTriggerable(found["id"], status_of(found["state"]), found.get("held", False)) from None
        case "TR014":
            raise NotHoldable(found["id"], status_of(found["state"])) from None
        case "TR012":
            raise NotUpdatable(found["id"], status_of(found["state"])) from None
        case "TR006":
            raise ReferencedError([(on, waiting) for on, waiting in found["references"]]) from None
        case _:
            raise error
