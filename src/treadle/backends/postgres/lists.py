"""Lists: items by filter, page by page.

A list is a query for the numbers of its items, along an index:

| the filter has | it is answered from |
| --- | --- |
| a group, a workflow, a key | that index of `item` |
| only open statuses | `open_item` |
| `killing` | the index of these in `open_item` |
| only dead (or a reason), only cancelled | the index of these in `ended_item` |
| a mark | the index of the marks of the dead in `ended_item` |
| only ended statuses | `ended_item` |
| anything else | `item`, in the order of submission |

`since` and `until` bound the numbers. The other conditions are checked row by row.

With a `reach`, a statement before that walks along the same index, and finds the numbers between which so
many items are. They bound each table that the list reads: were a table without a bound, the server would
choose to read all of it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Final

from treadle.errors import InputError
from treadle.item import OPEN, TERMINAL, Filter, Status
from treadle.store.rules.watching import WalkEnd

from .codes import CANCELLED, DEAD, PARKED, READY, REASON_CODES, RUNNING, STATUS_CODES
from .connection import AnswerRow
from .statements import numbered, text

MOST_LISTED: Final = 1000
DISORDER: Final = 60.0
"""Seconds by which the order of numbers and that of instants may differ."""
TABLES: Final = {"i": "item", "o": "open_item", "e": "ended_item"}
LAST_NUMBER: Final = 2**63 - 1
_CURSOR: Final = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{8})")


class ListQuery:
    """A filter as a query."""

    def __init__(
        self,
        where: Filter,
        *,
        limit: int,
        cursor: str | None = None,
        oldest_first: bool = False,
        redrives: int | None = None,
    ) -> None:
        self._where = where
        self._statuses = _statuses(where)
        self._front = _front(where, self._statuses)
        is_dead = self._front == "e" and self._statuses == {"dead"}
        self._labels = self._front if is_dead or self._front == "o" else "i"
        """Where tenant, queue and type are. The rows of the dead have them."""
        self._oldest_first = oldest_first
        self._direction = "" if oldest_first else "desc"
        self._values: dict[str, object] = {"limit": limit}
        self._is_bounded = False
        self._along: list[str] = []
        """Conditions that the index in front has: the walk meets no row that fails them."""
        self._conditions: list[str] = []
        """The others, which are checked row by row."""
        self._between: list[str] = []
        """Between which numbers the rows are."""
        self._add_status()
        self._add_labels()
        if redrives is not None:
            self._add("redrives", redrives=redrives)
        if cursor is not None:
            name = "after_cursor" if oldest_first else "before_cursor"
            self._between.append(self._part(name, cursor=number_of(cursor)))

    @property
    def text(self) -> str:
        """Selects the numbers of its items, in order."""
        conditions = [*self._along, *self._conditions, *self._between]
        if self._front == "i":
            conditions.append(self._part("is_submitted"))
        return text(
            "list",
            "numbers",
            front=self._front,
            tables=self._tables(conditions),
            conditions=" and ".join(conditions) or "true",
            direction=self._direction,
        )

    def bind(self, text: str, **values: object) -> tuple[str, list[object]]:
        """A statement that contains this query, and its arguments. `values`: those of its other
        parameters."""
        sql, parameters = numbered(text)
        known = self._values | values
        return sql, [known[name] for name in parameters]

    # -- with a reach ------------------------------------------------------------------------------------

    @property
    def counting(self) -> str | None:
        """Counts what an index finds, up to `most`. None: no index finds it all."""
        if self._where.group_id is not None:
            return text("list", "count", table="treadle.item i", conditions=self._part("group_id"))
        if self._statuses == {"running"} and self._front == "o":
            return text("list", "count", table="treadle.open_item o", conditions=self._part("is_running"))
        return None

    @property
    def walk(self) -> str | None:
        """Finds the number at which a walk begins, and after `looked_at` others the next two. None: all rows
        that it meets belong to the list."""
        if not self._conditions:
            return None
        return text(
            "list",
            "walk",
            front=self._front,
            table=text("list", TABLES[self._front]),
            conditions=" and ".join((*self._along, *self._between)) or "true",
            direction=self._direction,
        )

    def stop_at(self, walked: Sequence[AnswerRow]) -> WalkEnd | None:
        """Look at no more than these rows of `walk` say. None: nothing is left out."""
        first = next((row["no"] for row in walked if row["is_first"]), 0)
        others = sorted(
            ((row["no"], row["queued"]) for row in walked if not row["is_first"]),
            reverse=not self._oldest_first,
        )
        end = WalkEnd(*others[0]) if len(others) > 1 else None
        last = (LAST_NUMBER if self._oldest_first else 0) if end is None else end.no
        self._is_bounded = True
        self._between = [self._within(self._front)]
        self._values |= {"low": min(first, last), "high": max(first, last) if walked else -1}
        self._conditions = [each for each in self._conditions if each != self._part("group_id")]
        if self._where.group_id is not None:
            self._add("unindexed_group_id")
        return end

    def _within(self, alias: str) -> str:
        return text("list", "within", alias=alias)

    # -- the conditions ----------------------------------------------------------------------------------

    def _part(self, condition: str, **values: object) -> str:
        self._values |= values
        return text("list", condition, front=self._front, labels=self._labels)

    def _add(self, condition: str, **values: object) -> None:
        self._conditions.append(self._part(condition, **values))

    def _add_status(self) -> None:
        where, statuses = self._where, self._statuses
        codes = sorted(STATUS_CODES[status] for status in statuses)
        if where.reason is not None:
            self._add("reason", reason=REASON_CODES[where.reason])
        along = self._along if self._front == "e" else self._conditions
        if where.mark is not None:
            along.append(self._part("mark", mark=where.mark))
        if where.failed_group:
            self._add("failed_group")
        if where.killing:
            (self._along if self._front == "o" else self._conditions).append(self._part("is_killing"))
        if where.status and not statuses:
            self._add("nothing")  # only the dead have a reason, and fail groups
        if codes == [DEAD]:
            along.append(self._part("is_dead"))
        elif codes == [CANCELLED]:
            along.append(self._part("is_cancelled"))
        elif codes == [RUNNING] and self._front == "o":
            self._add("is_running")
        elif statuses and statuses <= TERMINAL:
            self._add("has_ended", outcomes=codes)
        elif statuses:
            stored = [*codes, PARKED] if READY in codes else codes
            condition = "is_open" if self._front == "o" else "is_open_or_ended"
            self._conditions.append(text("list", condition, stored=_listed(stored), shown=_listed(codes)))

    def _add_labels(self) -> None:
        where = self._where
        for name in ("workflow", "key", "tenant", "type", "queue", "group_id"):
            if (value := getattr(where, name)) is None:
                continue
            is_indexed = name in ("workflow", "key") and not self._along
            (self._along if is_indexed else self._conditions).append(self._part(name, **{name: value}))
        if where.since is not None:
            self._add("since", since=where.since)
            self._between.append(self._part("since_number", first_at=where.since - DISORDER))
        if where.until is not None:
            self._add("until", until=where.until)
            self._between.append(self._part("until_number", last_at=where.until + DISORDER))

    def _tables(self, conditions: Sequence[str]) -> str:
        """The table in front, and those that the conditions name. Every row has one in `item`."""
        named = " ".join(conditions)
        tables = [text("list", TABLES[self._front])]
        for alias, table in TABLES.items():
            if alias != self._front and re.search(rf"\b{alias}\.", named):
                tables.append(text("list", f"join_{table}", front=self._front))
                if self._is_bounded:
                    tables.append(f"and {self._within(alias)}")
        return " ".join(tables)


def _listed(codes: Sequence[int]) -> str:
    return ", ".join(map(str, codes))


def _statuses(where: Filter) -> set[Status]:
    statuses: set[Status] = set(where.status)
    possible: set[Status] = set(OPEN) if where.killing else set()
    if where.reason is not None or where.mark is not None or where.failed_group:
        possible = {"dead"}
    return statuses & possible if statuses and possible else statuses or possible


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
