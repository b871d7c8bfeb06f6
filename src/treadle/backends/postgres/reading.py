"""Get, group, ended, list, counts, workers: what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from treadle.item import Count, Ended, Filter, GroupState, ItemState, Page, Ref, WorkerState

from .base import Verbs
from .calls import Record
from .codes import status_of
from .columns import NAMES, call_of, names
from .listing import Listing, cursor_of
from .states import group_of, state_of

GET: Final = "select * from treadle.show(treadle.find($1::text[], $2), true)"
SHOW: Final = "select * from treadle.show($1::bigint[], false)"
GROUP: Final = "select * from treadle.groups(treadle.find($1::text[], $2))"
GROUPS: Final = "select * from treadle.groups($1::bigint[])"
ENDED: Final = call_of("ended", NAMES, NAMES, NAMES, NAMES)
OPEN_COUNTS: Final = """
    select j.tenant, j.queue, j.type,
      case when j.verdict is not null then j.was when j.status = 3 then 2 else j.status end, count(*)
    from treadle.job j where $1::text is null or j.tenant = $1 group by 1, 2, 3, 4
    union all
    select i.tenant, i.queue, i.type, d.outcome, count(*)
    from treadle.done d join treadle.item i on i.no = d.no
    where (d.outcome = 7) and ($1::text is null or i.tenant = $1) group by 1, 2, 3, 4"""
ALL_COUNTS: Final = OPEN_COUNTS.replace("(d.outcome = 7)", "true")
WORKERS: Final = """
    select w.id, w.until, w.types,
      (select count(*) from treadle.job j where j.worker = w.no and j.status = 5
        and j.verdict is null)
    from treadle.worker w where not w.gone order by w.id"""
MOST_LISTED: Final = 1000


class Reading(Verbs):
    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        if not ids:
            return []
        found = {row["id"]: state_of(row) for row in await self._calls.rows(GET, list(ids), tenant)}
        return [found.get(id) for id in ids]

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        if not ids:
            return []
        groups = await self._groups(await self._calls.rows(GROUP, list(ids), tenant))
        found = {group.id: group for group in groups}
        return [found.get(id) for id in ids]

    async def _groups(self, rows: Sequence[Record]) -> list[GroupState]:
        """With the members that failed, if any."""
        failed = [row["failed"] for row in rows if row["failed"] is not None]
        members: dict[int, ItemState] = {}
        if failed:
            members = {row["no"]: state_of(row) for row in await self._calls.rows(SHOW, failed)}
        return [group_of(row, members.get(row["failed"])) for row in rows]

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        if not items and not groups:
            return Ended({}, {})
        found = await self._calls.row(ENDED, *_columns(items), *_columns(groups))
        missing: list[Ref] = [items[place - 1] for place in found["no_items"] or ()]
        missing += [groups[place - 1] for place in found["no_groups"] or ()]
        states: Iterable[ItemState] = ()
        ended: Iterable[GroupState] = ()
        if found["items"]:
            states = [state_of(row) for row in await self._calls.rows(SHOW, found["items"])]
        if found["groups"]:
            ended = await self._groups(await self._calls.rows(GROUPS, found["groups"]))
        return Ended(
            {(state.tenant, state.id): state for state in states},
            {(group.tenant, group.id): group for group in ended if group.ended_at is not None},
            frozenset(missing),
        )

    async def list(
        self, where: Filter, *, limit: int = 100, cursor: str | None = None, oldest_first: bool = False
    ) -> Page:
        limit = max(1, min(limit, MOST_LISTED))
        listing = Listing(where, cursor=cursor, oldest_first=oldest_first, limit=limit + 1)
        shown = f"select * from treadle.show(array({listing.sql}), false)"  # noqa: S608  constants
        rows = await self._calls.rows(shown, *listing.arguments)
        rows.sort(key=lambda row: row["no"], reverse=not oldest_first)
        more = len(rows) > limit
        items = tuple(state_of(row) for row in rows[:limit])
        return Page(items, cursor_of(rows[limit - 1]["no"]) if more else None)

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        rows = await self._calls.rows(ALL_COUNTS if ended else OPEN_COUNTS, tenant)
        return [
            Count(tenant, queue, type, status_of(status), count)
            for tenant, queue, type, status, count in rows
        ]

    async def workers(self) -> Sequence[WorkerState]:
        return [
            WorkerState(id, until, None if types is None else tuple(types), running)
            for id, until, types, running in await self._calls.rows(WORKERS)
        ]


def _columns(refs: Sequence[Ref]) -> tuple[str | None, str | None]:
    if not refs:
        return None, None
    return names([tenant for tenant, _ in refs], whole=True), names([id for _, id in refs], whole=True)
