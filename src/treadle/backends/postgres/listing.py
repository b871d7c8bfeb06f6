"""Listing: a filter as a query for the numbers of its items, along an index.

| the filter says | it is answered from |
| --- | --- |
| a group, a workflow, a key | that index of `item` |
| only open statuses | `job`, in which only open items are |
| only dead (or a reason) | the index of the dead in `done` |
| only ended statuses | `done` |
| anything else | `item`, in the order of submission |

`since` and `until` bound the numbers. What else it says is looked up on the way.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Final

from treadle.errors import InputError
from treadle.item import TERMINAL, Filter, Status

from .codes import DEAD, PARKED, READY, REASON_CODES, STATUS_CODES

_CURSOR: Final = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{8})")

DISORDER: Final = 60.0
"""Seconds by which the order of numbers and that of instants may differ."""
TABLES: Final = {"i": "treadle.item", "j": "treadle.job", "d": "treadle.done"}


class Listing:
    """`sql` selects numbers, in order; `arguments` are its parameters."""

    def __init__(
        self,
        where: Filter,
        *,
        limit: int,
        cursor: str | None = None,
        oldest_first: bool = False,
        redrives: int | None = None,
    ) -> None:
        self.arguments: list[object] = []
        self._conditions: list[str] = []
        statuses = _statuses(where)
        front = _front(where, statuses)
        if front == "i":
            self._conditions.append("i.type is not null")
        self._add_status(where, statuses, front)
        self._add_labels(where, front)
        if redrives is not None:
            self._add("d.redrives < {}", redrives)
        if cursor is not None:
            self._add(f"{front}.no {'>' if oldest_first else '<'} {{}}::bigint", number_of(cursor))
        direction = "" if oldest_first else " desc"
        self.sql = (
            f"select {front}.no from {self._tables(front)} where {' and '.join(self._conditions)}"  # noqa: S608
            f" order by {front}.no{direction} limit {self._parameter(limit)}"
        )

    def _parameter(self, value: object) -> str:
        self.arguments.append(value)
        return f"${len(self.arguments)}"

    def _add(self, condition: str, value: object) -> None:
        self._conditions.append(condition.format(self._parameter(value)))

    def _add_status(self, where: Filter, statuses: set[Status], front: str) -> None:
        codes = sorted(STATUS_CODES[status] for status in statuses)
        if where.reason is not None:
            self._add("d.reason = {}::smallint", REASON_CODES[where.reason])
            if where.status and not statuses:
                self._conditions.append("false")  # none of those has a reason
        if codes == [DEAD]:
            self._conditions.append(f"d.outcome = {DEAD}")
        elif statuses and statuses <= TERMINAL:
            self._add("d.outcome = any({}::smallint[])", codes)
        elif statuses and front == "j":
            self._conditions.append(_open(codes))
        elif statuses:
            self._conditions.append(f"({_open(codes)} or d.outcome in ({_listed(codes)}))")

    def _add_labels(self, where: Filter, front: str) -> None:
        labelled = "j" if front == "j" else "i"
        for column in ("tenant", "type", "queue"):
            if (value := getattr(where, column)) is not None:
                self._add(f"{labelled}.{column} = {{}}", value)
        for column in ("workflow", "key"):
            if (value := getattr(where, column)) is not None:
                self._add(f"i.{column} = {{}}", value)
        if where.since is not None:
            self._add("i.queued >= {}::float8", where.since)
            self._add(f"{front}.no >= (select treadle.number_at({{}}::float8))", where.since - DISORDER)
        if where.until is not None:
            self._add("i.queued < {}::float8", where.until)
            self._add(f"{front}.no < (select treadle.number_at({{}}::float8))", where.until + DISORDER)
        if where.group_id is not None:
            root = self._parameter(where.group_id)
            roots = f"select r.no from treadle.item r where r.id = {root}"  # noqa: S608  a placeholder
            self._conditions.append(
                f"(i.grp = any(array({roots})) or i.no = any(array({roots} and r.grp is null)))"
            )

    def _tables(self, front: str) -> str:
        """The table in front, and those that the conditions name. All of a front's rows are in `item`."""
        text = " ".join(self._conditions)
        joins = [
            f"{'' if alias == 'i' else 'left '}join {table} {alias} on {alias}.no = {front}.no"
            for alias, table in TABLES.items()
            if alias != front and f"{alias}." in text
        ]
        return " ".join([f"{TABLES[front]} {front}", *joins])


def _open(codes: Sequence[int]) -> str:
    """The condition for open items that are shown in one of these statuses. Constants: partial indexes are
    used for nothing else."""
    raw = [*codes, PARKED] if READY in codes else codes
    return (
        f"(j.verdict is null and j.status in ({_listed(raw)})"
        f" or j.verdict is not null and j.was in ({_listed(codes)}))"
    )


def _listed(codes: Sequence[int]) -> str:
    return ", ".join(map(str, codes))


def _statuses(where: Filter) -> set[Status]:
    statuses: set[Status] = set(where.status)
    if where.reason is None:
        return statuses
    dead: set[Status] = {"dead"}
    return statuses & dead if statuses else dead


def _front(where: Filter, statuses: set[Status]) -> str:
    """The table along whose numbers the list goes."""
    if where.workflow is not None or where.key is not None or where.group_id is not None:
        return "i"
    if statuses and not statuses & TERMINAL:
        return "j"
    return "d" if (statuses or where.reason) and statuses <= TERMINAL else "i"


def cursor_of(number: int) -> str:
    """Where a list goes on: behind this item. The checksum keeps out what is no cursor of ours."""
    digits = f"{number:x}"
    return f"{digits}.{zlib.crc32(digits.encode()):08x}"


def number_of(cursor: str) -> int:
    match = _CURSOR.fullmatch(cursor)
    if match is None or int(match[2], 16) != zlib.crc32(match[1].encode()) or int(match[1], 16) >= 2**63:
        raise InputError.of("cursor", cursor, "is not one that list() answered")
    return int(match[1], 16)
