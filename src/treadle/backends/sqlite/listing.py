"""list: items by filter, page by page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from treadle.errors import InputError
from treadle.item import OPEN, Filter, Page

from .codes import codes
from .read import root
from .rows import states
from .statements import Statements
from .tx import Tx, array

_SQL = Statements("list")

MOST = 1000
_CURSOR = re.compile(r"n([0-9a-f]{1,15})")


def listing(tx: Tx, where: Filter, limit: int, cursor: str | None, *, oldest_first: bool) -> Page:
    """One page. The cursor is the number of its last item: items that come and go do not move it."""
    limit = max(1, min(limit, MOST))
    place = None if cursor is None else _place(cursor)
    found = numbers_where(tx, where, limit + 1, after=place, oldest_first=oldest_first)
    shown = found[:limit]
    items = tuple(states(tx, shown).values())
    return Page(items, f"n{shown[-1]:x}" if len(found) > limit else None)


def numbers_where(
    tx: Tx,
    where: Filter,
    limit: int,
    *,
    after: int | None = None,
    oldest_first: bool = True,
    redrives: int | None = None,
) -> list[int]:
    """The numbers of the items that a filter finds, in order. `redrives`: only those with fewer."""
    parts = list(_parts(tx, where))
    if redrives is not None:
        parts.append((_SQL["redrives"], (redrives,)))
    if after is not None:
        parts.append((_SQL["newer" if oldest_first else "older"], (after,)))
    parts.append((_SQL["oldest_first" if oldest_first else "newest_first"], (limit,)))
    sql = "\n".join([_origin(where), *(text for text, _ in parts)])
    return [no for (no,) in tx.rows(sql, *(value for _, values in parts for value in values))]


def _place(cursor: str) -> int:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InputError.of("cursor", cursor, "is not a cursor of this list: hand back what a page gave")
    return int(match[1], 16)


def _origin(where: Filter) -> str:
    narrow = where.workflow is not None or where.group_id is not None or where.key is not None
    if where.status and not narrow:
        if OPEN.issuperset(where.status):
            return _SQL["from_open"]
        if where.status == ("dead",):
            return _SQL["from_dead"]
    return _SQL["from_all"]


def _parts(tx: Tx, where: Filter) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The conditions, each with its parameters."""
    for name in ("tenant", "type", "queue", "workflow", "key", "reason", "since", "until"):
        value = getattr(where, name)
        if value is not None:
            yield _SQL[name], (value,)
    if where.status:
        yield _SQL["status"], (array(codes(where.status)),)
    if where.group_id is not None:
        no = root(tx, where.group_id, where.tenant)
        yield _SQL["group"], (no, no)
