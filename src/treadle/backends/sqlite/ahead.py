"""What has ended of a tenant that moves, copied before the freeze: read here, or staged here.

The old store keeps one row for each number that was read: the digest of its records, and whether it has
changed since. Triggers note the changes, on every table that a record of an ended item or group is read
from. They exist while there are such rows: a file without a move pays nothing. A number is stored before it
is read: so what writes later sees it, and what wrote before is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from treadle.backend import EndedRecords, ReadAhead
from treadle.store import portable
from treadle.store.portable import PortableGroup, record_digest
from treadle.store.portable_rows import group_of

from .moving import items_of
from .statements import Tx, array, statements

_SQL: Final = statements("ahead")
MOST: Final = 2**62
"""More than any number."""
_ANY: Final = ("INSERT", "UPDATE", "DELETE")
_NOTED: Final = {
    "item": ("UPDATE", "DELETE"),
    "done": ("UPDATE", "DELETE"),
    "dead": ("UPDATE", "DELETE"),
    "key": _ANY,
    "group": _ANY,
    "attempt": _ANY,
    "step": _ANY,
    "mail": _ANY,
    "progress": _ANY,
    "chunk": _ANY,
    "log": _ANY,
}
"""Tables that a record of an ended item or group is read from, and what changes it."""


def forget(connection: sqlite3.Connection, tenant: str) -> None:
    """In the open transaction: what was read ahead of a tenant is not noted any more."""
    if not connection.execute(_SQL["has_ahead"]).fetchall()[0][0]:
        return
    connection.execute(_SQL["forget"], (tenant,))
    if not connection.execute(_SQL["any_ahead"]).fetchall()[0][0]:
        for (name,) in connection.execute(_SQL["notes"]).fetchall():
            connection.execute(f'DROP TRIGGER "{name}"')


def take_numbers(connection: sqlite3.Connection, tenant: str, after: int, limit: int) -> list[int]:
    """Numbers of what has ended, in the open transaction. From its end on their changes are noted."""
    connection.execute(_SQL["create_read_ahead"])
    for table, events in _NOTED.items():
        for event in events:
            row = "old" if event == "DELETE" else "new"
            connection.execute(_SQL["note"].format(table=table, event=event, name=event.lower(), row=row))
    for name in ("note_old_holder", "note_replaced_holder"):
        connection.execute(_SQL[name])
    nos = [no for (no,) in connection.execute(_SQL["next_ended"], (tenant, after, limit))]
    last = nos[-1] if len(nos) == limit else MOST
    nos = sorted(nos + [no for (no,) in connection.execute(_SQL["next_rootless"], (tenant, after, last))])
    connection.execute(_SQL["take"], (tenant, array(nos)))
    return nos


def read_numbers(tx: Tx, tenant: str, nos: Sequence[int]) -> list[EndedRecords]:
    """The records of these numbers, in a snapshot. One may be open by now, or gone."""
    items, groups = dict[int, bytes](), dict[int, bytes]()
    for item in items_of(tx, nos, leases=True):
        if item.ended_at is not None:
            items[item.number] = portable.encode(item)
    for row in tx.rows(_SQL["groups_of"], array(nos)):
        group = group_of(row)
        if group.tenant == tenant and group.ended_at is not None:
            groups[group.number] = portable.encode(group)
    return [
        EndedRecords(no, int(no in items), [found[no] for found in (items, groups) if no in found])
        for no in nos
    ]


def note_read(connection: sqlite3.Connection, read: Iterable[EndedRecords]) -> None:
    """Store the digests of what was read, in the open transaction."""
    connection.executemany(
        _SQL["note_read"],
        [(one.items, len(one.records), sum(map(record_digest, one.records)), one.number) for one in read],
    )


def freeze(tx: Tx, tenant: str) -> ReadAhead:
    """Under the freeze: what was read and has not changed, and what has."""
    tx.run(_SQL["create_read_ahead"])
    items = records = checksum = 0
    for row in tx.rows(_SQL["unchanged"], tenant):
        items, records, checksum = items + row[0], records + row[1], checksum + row[2]
    changed = [no for (no,) in tx.rows(_SQL["changed"], tenant)]
    return ReadAhead(items, records, checksum, changed)


def rest_items(tx: Tx, tenant: str) -> Iterator[list[int]]:
    """Numbers of items that were not read ahead, or have changed since, in portions."""
    last = -1
    while nos := [no for (no,) in tx.rows(_SQL["rest_items"], last, tenant)]:
        last = nos[-1]
        yield nos


def rest_groups(tx: Tx, tenant: str) -> Iterator[PortableGroup]:
    last = -1
    while nos := [no for (no,) in tx.rows(_SQL["rest_groups"], last, tenant)]:
        last = nos[-1]
        yield from map(group_of, tx.rows(_SQL["groups_of"], array(nos)))


def stage(connection: sqlite3.Connection, tenant: str, records: Iterable[bytes]) -> None:
    connection.executemany(_SQL["stage"], [(tenant, None, data) for data in records])


def stage_ended(connection: sqlite3.Connection, tenant: str, ended: Sequence[EndedRecords]) -> None:
    """In place of what was staged under the same numbers."""
    unstage(connection, tenant, [one.number for one in ended])
    rows = [(tenant, one.number, data) for one in ended for data in one.records]
    connection.executemany(_SQL["stage"], rows)


def unstage(connection: sqlite3.Connection, tenant: str, numbers: Sequence[int]) -> None:
    connection.execute(_SQL["unstage"], (tenant, array(numbers)))


def last_staged(connection: sqlite3.Connection, tenant: str) -> int:
    last: int = connection.execute(_SQL["last_staged"], (tenant,)).fetchall()[0][0]
    return last
