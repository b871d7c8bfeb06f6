"""Read: items, groups, lists and counts.

A list is a query for the numbers of its items, along an index:

| the filter has | it is answered from |
| --- | --- |
| a group, a workflow, a key | that index of `item` |
| only open statuses | `open_item` |
| only dead (or a reason) | the index of the dead in `ended_item` |
| a mark | the index of the marks of the dead in `ended_item` |
| only ended statuses | `ended_item` |
| anything else | `item`, in the order of submission |

`since` and `until` bound the numbers. The other conditions are checked row by row.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from treadle.errors import InputError
from treadle.item import TERMINAL, Attempt, Count, Ended, Filter, GroupState, ItemState, Page, Ref, Status

from .codes import DEAD, PARKED, READY, REASON_CODES, REASONS, STATUS_CODES, SUCCESS, decoded, status_of
from .columns import names
from .connection import PostgresVerbs, Record
from .statements import numbered, statement, statements, text

_sql = statements("read")
OPEN_COUNTS: Final = statement("read", "counts", ended=text("read", "only_dead"))
ALL_COUNTS: Final = statement("read", "counts", ended=text("read", "every_outcome"))

MOST_LISTED: Final = 1000
DISORDER: Final = 60.0
"""Seconds by which the order of numbers and that of instants may differ."""
TABLES: Final = {"i": "item", "o": "open_item", "e": "ended_item"}
_CURSOR: Final = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{8})")


class PostgresRead(PostgresVerbs):
    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        if not ids:
            return []
        found = {row["id"]: state_of(row) for row in await self._calls.rows(_sql("get"), list(ids), tenant)}
        return [found.get(id) for id in ids]

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        if not ids:
            return []
        rows = await self._calls.rows(_sql("group"), list(ids), tenant)
        found = {group.id: group for group in _groups_of(rows)}
        return [found.get(id) for id in ids]

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        if not items and not groups:
            return Ended({}, {})
        found = await self._calls.row(_sql("ended"), *_ref_columns(items), *_ref_columns(groups))
        missing: list[Ref] = [items[place - 1] for place in found["missing_items"] or ()]
        missing += [groups[place - 1] for place in found["missing_groups"] or ()]
        states: Iterable[ItemState] = ()
        ended: Iterable[GroupState] = ()
        if found["items"]:
            states = [state_of(row) for row in await self._calls.rows(_sql("items"), found["items"])]
        if found["groups"]:
            ended = _groups_of(await self._calls.rows(_sql("groups"), found["groups"]))
        # What was requeued after the first statement has not ended.
        return Ended(
            {(state.tenant, state.id): state for state in states if state.status in TERMINAL},
            {(group.tenant, group.id): group for group in ended if group.ended_at is not None},
            frozenset(missing),
        )

    async def list(
        self,
        where: Filter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        history: bool = False,
    ) -> Page:
        limit = max(1, min(limit, MOST_LISTED))
        query = ListQuery(where, cursor=cursor, oldest_first=oldest_first, limit=limit + 1)
        sql, arguments = query.bind(text("list", "list", numbers=query.text), history=history)
        rows = await self._calls.rows(sql, *arguments)
        rows.sort(key=lambda row: row["no"], reverse=not oldest_first)
        more = len(rows) > limit
        items = tuple(state_of(row) for row in rows[:limit])
        if not history:
            for item in items:
                item.waiting_for = ()
        return Page(items, cursor_of(rows[limit - 1]["no"]) if more else None)

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        rows = await self._calls.rows(ALL_COUNTS if ended else OPEN_COUNTS, tenant)
        return [
            Count(tenant, queue, type, status_of(status), count)
            for tenant, queue, type, status, count in rows
        ]


def _ref_columns(refs: Sequence[Ref]) -> tuple[str | None, str | None]:
    if not refs:
        return None, None
    return names([tenant for tenant, _ in refs], whole=True), names([id for _, id in refs], whole=True)


# -- rows as states ----------------------------------------------------------------------------------------


def state_of(row: Record | Sequence[Any]) -> ItemState:
    """The item in a row with the columns of `treadle.item_state`. By position: by name, the driver would take
    twice as long."""
    (
        _, id, tenant, type, queue, lane, priority, attempts, queued, due, deadline, claimed, ended, state,
        reason, attempt, group_id, parent, workflow, workflow_type, after, key, worker, result, input,
        options, error_type, error, waiting_for, failures, losses, *rest,
    ) = row  # fmt: skip
    kind, message = decoded(error_type), decoded(error)
    item = ItemState(
        id=id,
        type=type,
        status=status_of(state),
        tenant=tenant,
        reason=REASONS[reason or 0],
        attempt=attempt,
        attempts=attempts,
        failures=failures,
        losses=losses,
        result=result,
        error_type=None if state == SUCCESS else kind,
        error=None if state == SUCCESS else f"{kind}: {message}" if message else kind,
        queued_at=queued,
        due_at=due,
        claimed_at=claimed,
        started_at=rest[6],
        ended_at=ended,
        deadline=deadline,
        priority=priority,
        lane=lane,
        queue=queue,
        group_id=group_id,
        parent=parent,
        workflow=workflow,
        workflow_type=workflow_type,
        after=tuple(after or ()),
        waiting_for=tuple(waiting_for or ()),
        key=key,
        worker=worker,
        input=input,
        options=options,
        mark=rest[7] or "",
    )
    if rest[0] is not None:
        item.history = _history(rest[:6])
    return item


def _history(columns: Sequence[Sequence[Any]]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(attempt, decoded(type) or "", decoded(message) or "", decoded(traceback) or "", at, worker)
        for attempt, type, message, traceback, at, worker in zip(*columns, strict=True)
    )


def _groups_of(rows: Sequence[Record]) -> list[GroupState]:
    """The groups in rows with the columns of `treadle.group_state`, and then those of a member that failed
    the group or was cancelled, if there is one."""
    found: dict[int, GroupState] = {}
    for row in rows:
        (
            no, id, tenant, type, open, value, contributed, final, version, ended, failed, _, _, outer,
            *member,
        ) = row  # fmt: skip
        group = found.get(no)
        if group is None:
            group = found[no] = GroupState(
                id=id,
                tenant=tenant,
                type=type,
                open=open,
                value=value,
                contributed=contributed,
                final=final,
                version=version,
                ended_at=ended,
                failed=failed,
                outer=outer,
            )
        if member[0] is not None:
            state = state_of(member)
            if state.status == "cancelled":
                group.cancelled = state
            else:
                group.deaths += (state,)
    return list(found.values())


# -- lists -------------------------------------------------------------------------------------------------


class ListQuery:
    """A filter as a query. `text` selects the numbers of its items, in order."""

    def __init__(
        self,
        where: Filter,
        *,
        limit: int,
        cursor: str | None = None,
        oldest_first: bool = False,
        redrives: int | None = None,
    ) -> None:
        statuses = _statuses(where)
        self._front = _front(where, statuses)
        is_dead = self._front == "e" and statuses == {"dead"}
        self._labels = self._front if is_dead or self._front == "o" else "i"
        """Where tenant, queue and type are. The rows of the dead have them."""
        self._conditions: list[str] = []
        self._values: dict[str, object] = {"limit": limit}
        if self._front == "i":
            self._add("is_submitted")
        self._add_status(where, statuses)
        self._add_labels(where)
        if redrives is not None:
            self._add("redrives", redrives=redrives)
        if cursor is not None:
            self._add("after_cursor" if oldest_first else "before_cursor", cursor=number_of(cursor))
        self.text = text(
            "list",
            "numbers",
            front=self._front,
            tables=self._tables(),
            conditions=" and ".join(self._conditions),
            direction="" if oldest_first else "desc",
        )

    def bind(self, text: str, **values: object) -> tuple[str, list[object]]:
        """A statement that contains this query, and its arguments. `values`: those of its other
        parameters."""
        sql, parameters = numbered(text)
        known = self._values | values
        return sql, [known[name] for name in parameters]

    def _add(self, condition: str, **values: object) -> None:
        self._conditions.append(text("list", condition, front=self._front, labels=self._labels))
        self._values |= values

    def _add_status(self, where: Filter, statuses: set[Status]) -> None:
        codes = sorted(STATUS_CODES[status] for status in statuses)
        if where.reason is not None:
            self._add("reason", reason=REASON_CODES[where.reason])
        if where.mark is not None:
            self._add("mark", mark=where.mark)
        if where.failed_group:
            self._add("failed_group")
        if where.status and not statuses:
            self._add("nothing")  # only the dead have a reason, and fail groups
        if codes == [DEAD]:
            self._add("is_dead")
        elif statuses and statuses <= TERMINAL:
            self._add("has_ended", outcomes=codes)
        elif statuses:
            stored = [*codes, PARKED] if READY in codes else codes
            condition = "is_open" if self._front == "o" else "is_open_or_ended"
            self._conditions.append(text("list", condition, stored=_listed(stored), shown=_listed(codes)))

    def _add_labels(self, where: Filter) -> None:
        for name in ("tenant", "type", "queue", "workflow", "key", "group_id"):
            if (value := getattr(where, name)) is not None:
                self._add(name, **{name: value})
        if where.since is not None:
            self._add("since", since=where.since, first_at=where.since - DISORDER)
        if where.until is not None:
            self._add("until", until=where.until, last_at=where.until + DISORDER)

    def _tables(self) -> str:
        """The table in front, and those that the conditions name. Every row has one in `item`."""
        conditions = " ".join(self._conditions)
        joins = [
            text("list", f"join_{table}", front=self._front)
            for alias, table in TABLES.items()
            if alias != self._front and re.search(rf"\b{alias}\.", conditions)
        ]
        return " ".join([text("list", TABLES[self._front]), *joins])


def _listed(codes: Sequence[int]) -> str:
    return ", ".join(map(str, codes))


def _statuses(where: Filter) -> set[Status]:
    statuses: set[Status] = set(where.status)
    if where.reason is None and where.mark is None and not where.failed_group:
        return statuses
    dead: set[Status] = {"dead"}
    return statuses & dead if statuses else dead


def _front(where: Filter, statuses: set[Status]) -> str:
    """The alias of the table whose numbers the list follows."""
    if where.workflow is not None or where.key is not None or where.group_id is not None:
        return "i"
    if statuses and not statuses & TERMINAL:
        return "o"
    return "e" if (statuses or where.reason or where.mark is not None) and statuses <= TERMINAL else "i"


def cursor_of(number: int) -> str:
    """Where a list continues: behind this item. The checksum rejects texts that are no cursor of ours."""
    digits = f"{number:x}"
    return f"{digits}.{zlib.crc32(digits.encode()):08x}"


def number_of(cursor: str) -> int:
    match = _CURSOR.fullmatch(cursor)
    if match is None or int(match[2], 16) != zlib.crc32(match[1].encode()) or int(match[1], 16) >= 2**63:
        raise InputError.of("cursor", cursor, "is not one that list() returned")
    return int(match[1], 16)
