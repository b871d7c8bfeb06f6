"""Rows of databases as portable records, and back: what SQLite and PostgreSQL have in common.

Each of the two has columns of its own for items. What items have recorded, groups and the rest differ in few
columns only. Here rows have their columns in the order of the fields of the record; a store names its columns
in that order, with `-` for one that it does not have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from msgspec.structs import asdict, astuple

from treadle.errors import BackendError, InputError
from treadle.item import StepKind

from .portable import (
    AnyRecord,
    Head,
    Portable,
    PortableAudit,
    PortableGroup,
    PortableItem,
    PortableKey,
    PortableLimit,
    PortableOrder,
    PortableRelease,
    PortableRemoval,
    PortableRun,
    PortableSample,
    PortableSchedule,
    PortableStat,
    PortableStep,
    PortableWorker,
    limit_of,
)
from .rules.limits import LimitState, idle_at
from .rules.orders import read_order

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = defaultdict[str, list[Row]]
"""Rows by table."""

READ: Final[Mapping[str, type[Portable]]] = {
    "orders": PortableOrder,
    "schedules": PortableSchedule,
    "removals": PortableRemoval,
    "runs": PortableRun,
    "limits": PortableLimit,
    "claimed_keys": PortableKey,
    "releases": PortableRelease,
    "stats": PortableStat,
    "samples": PortableSample,
    "audits": PortableAudit,
}
"""Statements, and the kind of record that a row of each is, in the order of an export."""
AS_OF_NOW: Final = frozenset({"orders", "claimed_keys"})
"""Statements that leave out what has expired."""


class Columns(NamedTuple):
    """The columns of a table, and where a row has their values."""

    table: str
    names: tuple[str, ...]
    places: tuple[int, ...]
    width: int
    fields: Callable[[Any], Row] | None
    """The first values of a row for an item: those of its fields."""

    def row(self, item: PortableItem, *others: object) -> Row:
        return (*(self.fields(item) if self.fields else ()), *others)

    def pick(self, rows: Iterable[Row]) -> list[Row]:
        """The values for the columns of each row. A driver would drop what is too much."""
        found = list(rows)
        if any(len(row) != self.width for row in found):
            raise BackendError(f"a row of the table {self.table} has not one value for each column")
        if len(self.places) == self.width:
            return found
        return [tuple([row[place] for place in self.places]) for row in found]


def columns(tables: Mapping[str, str]) -> dict[str, Columns]:
    """The columns of tables. Those before `|` have the values of fields of an item, of the same name, or of
    the one behind `=`."""
    found: dict[str, Columns] = {}
    for table, names in tables.items():
        of_fields, bar, _ = names.partition("|")
        fields = [name.rpartition("=")[2] for name in of_fields.split()]
        given = [name.partition("=")[0] for name in names.replace("|", " ").split()]
        places = tuple(place for place, name in enumerate(given) if name != "-")
        kept = tuple(given[place] for place in places)
        found[table] = Columns(table, kept, places, len(given), attrgetter(*fields) if bar else None)
    return found


def outer_number(item: PortableItem) -> int | None:
    """The number of its group. None for a root."""
    return None if item.group == item.number else item.group


class RowValues(NamedTuple):
    """How a database stores values that have no form of their own in SQL."""

    ids: Callable[[Sequence[str]], object]
    read_ids: Callable[[Any], tuple[str, ...]]
    histogram: Callable[[Sequence[int]], object]
    read_histogram: Callable[[Any], tuple[int, ...]]
    kind: Callable[[StepKind], object]
    read_kind: Callable[[Any], StepKind]


# ---------------------------------------------------------------------------------------------------- reading


def record_of(kind: type[Portable], row: Iterable[Any], values: RowValues) -> Any:
    """The record of a row of one of `READ`."""
    if kind is PortableStat:
        step, at, type, queue, *counts, wait, run = row
        spans = values.read_histogram(wait), values.read_histogram(run)
        row = step, float(at), type, queue, tuple(counts), *spans
    fields = dict(zip(kind.__struct_fields__, row, strict=True))
    for name, read in (("paused", bool), ("estimated", bool), ("ids", values.read_ids)):
        if name in fields:
            fields[name] = read(fields[name])
    return kind(**fields)


def group_of(row: Iterable[Any]) -> PortableGroup:
    group = PortableGroup(**dict(zip(PortableGroup.__struct_fields__, row, strict=True)))
    group.final = bool(group.final)
    if not group.total:
        group.keep = None
    return group


def by_item(rows: Iterable[Iterable[Any]]) -> defaultdict[int, list[Row]]:
    """Rows without their first column, by that: the number of an item."""
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for no, *row in rows:
        found[no].append(tuple(row))
    return found


def recorded(read: Mapping[str, Iterable[Iterable[Any]]], values: RowValues) -> dict[int, dict[str, Any]]:
    """Fields for what items have recorded, from the rows of these statements, each of which begins with the
    number of its item."""
    found: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for no, rows in by_item(read["steps"]).items():
        found[no]["steps"] = tuple(_step(row, values) for row in rows)
    for no, mail in by_item(read["mail"]).items():
        found[no]["unread"] = tuple((name, value) for name, _, taken, value in mail if not taken)
        found[no]["signal_keys"] = tuple(sorted((name, key) for name, key, *_ in mail if key is not None))
    for no, value, at in read["progress"]:
        found[no] |= {"progress": value, "progress_at": at}
    for no, chunks in by_item(read["chunks"]).items():
        found[no]["chunks"] = tuple(chunks)
    for no, logs in by_item(read["logs"]).items():
        found[no]["logs"] = tuple(value for (value,) in logs)
    return found


def _step(row: Row, values: RowValues) -> PortableStep:
    name, kind, value, took, undo, signal, over, *others = row
    return PortableStep(name, values.read_kind(kind), value, took, undo, signal or "", bool(over), *others)


# ---------------------------------------------------------------------------------------------------- writing


def add_recorded(item: PortableItem, values: RowValues, rows: Rows) -> None:
    """Add the rows of what an item has recorded, and of its history."""
    no = item.number
    for place, one in enumerate(item.history, 1):
        *others, release = astuple(one)
        rows["attempt"].append((no, place, *others, release or None))
    for step in item.steps:
        kind, signal = values.kind(step.kind), step.signal
        rows["step"].append((no, step.name, kind, *astuple(step)[2:5], signal, *astuple(step)[6:]))
    rows["mail"] += [(no, name, None, False, value) for name, value in item.unread]
    rows["mail"] += [(no, name, key, True, None) for name, key in item.signal_keys]
    if item.progress is not None:
        rows["progress"].append((no, item.progress, item.progress_at))
    rows["chunk"] += [(no, *chunk) for chunk in item.chunks]
    rows["log"] += [(no, token, 0.0, log) for token, log in enumerate(item.logs, 1)]


def add_other(record: AnyRecord, values: RowValues, rows: Rows) -> None:
    """Add the row of a record that is no item."""
    match record:
        case Head() | PortableItem():
            raise AssertionError(record)
        case PortableWorker():
            raise InputError("a worker is no record of a file")
        case PortableGroup():
            table, row = "group", astuple(record)
        case PortableOrder():
            order = read_order(record.body, record.at)
            part = order.paused_part or (None, None)
            table, row = "orders", (order.subject, *part, order.until, record.at, record.body)
        case PortableSchedule():
            table, row = "schedule", astuple(record)
        case PortableRemoval():
            table, row = "removed_schedule", astuple(record)
        case PortableRun():
            table, row = "schedule_run", (*astuple(record)[:-1], record.error or None)
        case PortableLimit():
            state = LimitState(record.at, record.used, record.before)
            until = idle_at(limit_of(record), state)
            table, row = "limit", (record.name, record.algorithm, *state, until, record.limit, record.window)
        case PortableKey():
            table, row = "claimed_key", astuple(record)
        case PortableRelease():
            table, row = "release", astuple(record)
        case PortableStat():
            key, spans = (
                astuple(record)[:4],
                (values.histogram(record.wait), values.histogram(record.run)),
            )
            table, row = "stat", (*key, *record.counts, *spans)
        case PortableSample():
            table, row = "sample", astuple(record)
        case PortableAudit():
            fields = asdict(record) | {"ids": values.ids(record.ids)}
            table, row = "audit", tuple(fields.values())
        case _:
            assert_never(record)
    rows[table].append(row)
