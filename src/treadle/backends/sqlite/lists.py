"""Lists: items by filter, page by page.

A list walks along the narrowest table that holds all items asked for, in the order of their numbers. With a
`reach`, the number is looked up first at which the walk ends: then it is a constant for all tables that are
read. Where an index finds the items of a group, workflow or key, and they are no more than that, the walk is
along this index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from treadle.errors import InputError
from treadle.item import OPEN, Filter, Page
from treadle.store.rules.watching import WalkEnd

from .read import root
from .rows import full_states, states
from .statements import Row, Tx, array, statements
from .status_codes import codes

_LIST = statements("list")

LARGEST_PAGE = 1000
Source: TypeAlias = Literal["all", "open", "leased", "killing", "dead", "success", "cancelled"]
"""What a listing reads: all items, the open ones, those with a lease, those that end workers, or those that
ended in one way."""
_DISORDER = 60.0
"""Seconds by which the order of numbers and that of instants may differ."""
_CURSOR = re.compile(r"n([0-9a-f]{1,15})")
_NEAR = 1000
_INDEXED = ("group_id", "workflow", "key")
"""Fields of a filter that an index of all items has."""
_Part: TypeAlias = tuple[str, tuple[Any, ...]]
"""A part of a statement, and its parameters."""


def list_items(
    tx: Tx,
    where: Filter,
    limit: int,
    cursor: str | None,
    *,
    oldest_first: bool,
    history: bool,
    reach: int | None = None,
) -> Page:
    """One page. The cursor is the number of its last item: items that come and go do not move it."""
    limit = max(1, min(limit, LARGEST_PAGE))
    after = None if cursor is None else _decode_cursor(cursor)
    found, end = _numbers_within(tx, where, limit + 1, after, oldest_first=oldest_first, reach=reach)
    shown = found[:limit]
    items = tuple((full_states(tx, shown) if history else states(tx, shown)).values())
    if len(found) > limit:
        return Page(items, f"n{shown[-1]:x}")
    if end is not None:
        return Page(items, f"n{end.no:x}", end.queued_at if len(items) < limit else None)
    return Page(items)


def _numbers_within(
    tx: Tx, where: Filter, limit: int, after: int | None, *, oldest_first: bool, reach: int | None
) -> tuple[list[int], WalkEnd | None]:
    """The numbers of the first items that a filter finds. With a reach, and if it was too short for so many:
    where the walk ended. To find that end takes time too, so a near one is tried first."""
    query = SqliteListQuery(tx, where, after=after, oldest_first=oldest_first)
    if reach is None:
        return query.numbers(limit), None
    end = query.stop_after(max(1, min(reach, _NEAR)))
    found = query.numbers(limit)
    if end is not None and len(found) < limit and reach > _NEAR:
        end = query.stop_after(reach)
        found = query.numbers(limit)
    return found, end


def numbers_where(tx: Tx, where: Filter, limit: int, *, redrives: int | None = None) -> list[int]:
    """The numbers of the oldest items that a filter finds, in order. `redrives`: only those with fewer
    redrives."""
    return SqliteListQuery(tx, where, oldest_first=True, redrives=redrives).numbers(limit)


class SqliteListQuery:
    """A filter as a statement that reads the numbers of its items, in order."""

    def __init__(
        self,
        tx: Tx,
        where: Filter,
        *,
        after: int | None = None,
        oldest_first: bool,
        redrives: int | None = None,
    ) -> None:
        self._tx = tx
        self._where = where
        self._oldest_first = oldest_first
        self._source: Source | None = _narrowest_source(where)
        self._prefix = "ended_" if self._source in ("success", "cancelled") else ""
        self._after, self._before = self._bounds(after)
        """The numbers between which the items are."""
        self._end: int | None = None
        """The last number that is looked at."""
        self._conditions = [] if self._source is None else list(_conditions(tx, where, self._source))
        if redrives is not None:
            self._conditions.append((_LIST["redrives"], (redrives,)))

    def numbers(self, limit: int) -> list[int]:
        if self._source is None:
            return []
        parts = [(_LIST[f"from_{self._source}"], ()), *self._conditions, *self._range(), self._order(limit)]
        return [no for (no,) in self._rows(parts)]

    def stop_after(self, reach: int) -> WalkEnd | None:
        """Look at no more items than that. Returns the last of these. None: there are no others."""
        self._end = None
        if self._source is None or not (self._conditions or self._source == "success"):
            return None
        index = self._small_index(reach)
        self._conditions = list(_conditions(self._tx, self._where, self._source, index))
        if index is not None or self._is_small_source(reach):
            return None
        walk: _Part = (_LIST["walk_mark"], (self._where.mark,))
        if self._where.mark is None or self._source != "dead":
            walk = (_LIST[f"walk_{self._source}"], ())
        text, (limit,) = self._order(2)
        found = self._rows([walk, *self._range(), (f"{text} OFFSET ?", (limit, reach - 1))])
        if len(found) < 2:
            return None
        last: int = found[0][0]
        self._end = last
        return WalkEnd(last, self._tx.value(_LIST["queued_at"], last))

    def _is_small_source(self, reach: int) -> bool:
        return self._source == "leased" and self._tx.value(_LIST["count_leased"], reach + 1) <= reach

    def _small_index(self, reach: int) -> str | None:
        """The field whose index finds all items that have to be looked at, and no more than so many."""
        for name in _INDEXED:
            value = getattr(self._where, name)
            if value is not None:
                if name == "group_id":
                    value = root(self._tx, value, self._where.tenant)
                if self._tx.value(_LIST[f"count_{name}"], value, reach + 1) <= reach:
                    return name
        return None

    def _bounds(self, cursor: int | None) -> tuple[int | None, int | None]:
        """SQLite uses one bound on each side: so there is only the narrowest."""
        where = self._where
        after = [cursor] if cursor is not None and self._oldest_first else []
        before = [cursor] if cursor is not None and not self._oldest_first else []
        if where.since is not None:
            after.append(_first_since(self._tx, where.since - _DISORDER) - 1)
        if where.until is not None:
            before.append(_first_since(self._tx, where.until + _DISORDER))
        return max(after, default=None), min(before, default=None)

    def _range(self) -> Iterator[_Part]:
        after, before = self._after, self._before
        if self._end is not None and self._oldest_first:
            before = self._end + 1
        elif self._end is not None:
            after = self._end - 1
        if after is not None:
            yield _LIST[f"{self._prefix}newer"], (after,)
        if before is not None:
            yield _LIST[f"{self._prefix}older"], (before,)

    def _order(self, limit: int) -> _Part:
        direction = "oldest_first" if self._oldest_first else "newest_first"
        return _LIST[f"{self._prefix}{direction}"], (limit,)

    def _rows(self, parts: list[_Part]) -> list[Row]:
        sql = "\n".join(text for text, _ in parts)
        return self._tx.rows(sql, *(value for _, values in parts for value in values))


def _first_since(tx: Tx, at: float) -> int:
    """The number from which on items were submitted at this time or later, found by halving."""
    low, high = 1, 1 + (tx.value(_LIST["last_number"]) or 0)
    while low < high:
        middle = (low + high) // 2
        no, queued_at = tx.rows(_LIST["next_number"], middle)[0]
        if queued_at >= at:
            high = middle
        else:
            low = no + 1
    return low


def _decode_cursor(cursor: str) -> int:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InputError.of(
            "cursor", cursor, "is not a cursor of this list: pass the one that a page returned"
        )
    return int(match[1], 16)


def _narrowest_source(where: Filter) -> Source | None:
    """The table that holds all items asked for. None: there can be none."""
    only_dead = where.mark is not None or where.reason is not None or where.failed_group
    if only_dead and where.status and "dead" not in where.status:
        return None
    if where.killing and (only_dead or (where.status and not OPEN.intersection(where.status))):
        return None
    if where.workflow is not None or where.group_id is not None or where.key is not None:
        return "all"
    if only_dead:
        return "dead"
    if where.killing:
        return "killing"
    match where.status:
        case ("dead" | "success" | "cancelled" as ended,):
            return ended
        case ("running",):
            return "leased"
        case status:
            return "open" if status and OPEN.issuperset(status) else "all"


def _conditions(tx: Tx, where: Filter, source: Source, index: str | None = "any") -> Iterator[_Part]:
    """The conditions of a filter, each with its parameters. The narrow tables have columns of their own; what
    they lack is read from the item. `index`: the only one of `_INDEXED` whose index may be used, or any."""
    wide = source not in ("open", "leased", "killing", "dead")
    for name in ("tenant", "type", "queue", "workflow", "key", "reason", "since", "until", "mark"):
        value = getattr(where, name)
        if value is not None and name in _INDEXED and index not in ("any", name):
            yield _LIST[f"unindexed_{name}"], (value,)
        elif value is not None:
            yield _LIST[f"all_{name}" if wide and f"all_{name}" in _LIST else name], (value,)
    if where.status and source in ("all", "open", "leased", "killing"):
        yield _LIST["all_status" if source == "all" else "open_status"], (array(codes(where.status)),)
    if where.killing and source == "all":
        yield _LIST["all_killing"], ()
    if where.failed_group:
        yield _LIST["failed_group"], ()
    if where.group_id is not None:
        no = root(tx, where.group_id, where.tenant)
        if index in ("any", "group_id"):
            yield _LIST["group"], (no, no)
        else:
            yield _LIST["unindexed_group"], (no,)
