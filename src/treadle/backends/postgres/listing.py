"""Listing: a filter as a query for the numbers of its items, along an index.

| the filter says | it is answered from |
| --- | --- |
| a group, a workflow, a key | that index of `item` |
| only open statuses | `job`, in which only open items are |
| only dead (or a reason) | the index of the dead in `done` |
| only ended statuses | `done` |
| anything else | `item`, in the order of submission |
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from treadle.errors import InputError
from treadle.item import TERMINAL, Filter, Status

from .codes import DEAD, REASON_CODES, STATUS_CODES

_CURSOR: Final = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{8})")

SHOWN: Final = "case when j.verdict is not null then j.was when j.status = 3 then 2 else j.status end"


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
        self._conditions = ["i.type is not null"]
        first, tables = self._tables(where)
        self._add_labels(where)
        if redrives is not None:
            self._add("d.redrives < {}", redrives)
        if cursor is not None:
            self._add(f"{first}.no {'>' if oldest_first else '<'} {{}}::bigint", number_of(cursor))
        direction = "" if oldest_first else " desc"
        self.sql = (
            f"select {first}.no from {tables} where {' and '.join(self._conditions)}"  # noqa: S608  constants
            f" order by {first}.no{direction} limit {self._parameter(limit)}"
        )

    def _parameter(self, value: object) -> str:
        self.arguments.append(value)
        return f"${len(self.arguments)}"

    def _add(self, condition: str, value: object) -> None:
        self._conditions.append(condition.format(self._parameter(value)))

    def _tables(self, where: Filter) -> tuple[str, str]:
        """The table in front, along whose numbers the list goes, and all of them."""
        statuses: set[Status] = set(where.status)
        if where.reason is not None:
            dead: set[Status] = {"dead"}
            statuses = statuses & dead if statuses else dead
            self._add("d.reason = {}::smallint", REASON_CODES[where.reason])
        elif not statuses:
            return "i", "treadle.item i"
        codes = sorted(STATUS_CODES[status] for status in statuses)
        if statuses == {"dead"}:
            self._conditions.append(f"d.outcome = {DEAD}")
            return "d", "treadle.done d join treadle.item i on i.no = d.no"
        if statuses <= TERMINAL:
            self._add("d.outcome = any({}::smallint[])", codes)
            return "d", "treadle.done d join treadle.item i on i.no = d.no"
        if not statuses & TERMINAL:
            self._add(f"{SHOWN} = any({{}}::smallint[])", codes)
            return "j", "treadle.job j join treadle.item i on i.no = j.no"
        self._add(f"coalesce({SHOWN}, d.outcome) = any({{}}::smallint[])", codes)
        joins = "left join treadle.job j on j.no = i.no left join treadle.done d on d.no = i.no"
        return "i", f"treadle.item i {joins}"

    def _add_labels(self, where: Filter) -> None:
        labels = {"tenant": where.tenant, "type": where.type, "queue": where.queue}
        labels |= {"workflow": where.workflow, "key": where.key}
        for column, value in labels.items():
            if value is not None:
                self._add(f"i.{column} = {{}}", value)
        if where.since is not None:
            self._add("i.queued >= {}::float8", where.since)
        if where.until is not None:
            self._add("i.queued < {}::float8", where.until)
        if where.group_id is not None:
            root = self._parameter(where.group_id)
            roots = f"select r.no from treadle.item r where r.id = {root}"  # noqa: S608  a placeholder
            self._conditions.append(
                f"(i.grp = any(array({roots})) or i.no = any(array({roots} and r.grp is null)))"
            )


def cursor_of(number: int) -> str:
    """Where a list goes on: behind this item. The checksum keeps out what is no cursor of ours."""
    digits = f"{number:x}"
    return f"{digits}.{zlib.crc32(digits.encode()):08x}"


def number_of(cursor: str) -> int:
    match = _CURSOR.fullmatch(cursor)
    if match is None or int(match[2], 16) != zlib.crc32(match[1].encode()) or int(match[1], 16) >= 2**63:
        raise InputError.of("cursor", cursor, "is not one that list() answered")
    return int(match[1], 16)
