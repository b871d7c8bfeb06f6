"""Where: conditions on what is inside items, such as `input.user_id=42`. The store does not read inputs, so
items are read here, one after the other, up to a bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.item import Filter, ItemState
from treadle.operate.filters import WhereCondition
from treadle.operate.item_json import Values

from .shell import Shell


class Found(NamedTuple):
    """What a walk found."""

    items: list[ItemState]
    looked_at: int
    last: ItemState | None
    """The last item that was looked at."""
    cursor: str | None
    """Where to go on. None: everything was looked at."""


async def find(
    shell: Shell,
    where: Filter,
    conditions: Sequence[WhereCondition],
    *,
    limit: int,
    scan: int,
    cursor: str | None,
    oldest_first: bool = False,
) -> Found:
    """Return up to `limit` items for which all conditions hold, among the next `scan` items."""
    items: list[ItemState] = []
    looked_at, last = 0, None
    while True:
        size = min(limit if not conditions else 500, scan - looked_at, 1000)
        page = await shell.backend.list(where, limit=size, cursor=cursor, oldest_first=oldest_first)
        for index, item in enumerate(page.items, 1):
            looked_at, last = looked_at + 1, item
            if not conditions or matches(shell.client.values, item, conditions):
                items.append(item)
            if len(items) == limit and index < len(page.items):
                # The same page, cut here: its cursor goes on after this item.
                cut = await shell.backend.list(where, limit=index, cursor=cursor, oldest_first=oldest_first)
                return Found(items, looked_at, last, cut.cursor)
        cursor = page.cursor
        if cursor is None or looked_at >= scan or len(items) >= limit:
            return Found(items, looked_at, last, cursor)


def matches(values: Values, item: ItemState, conditions: Sequence[WhereCondition]) -> bool:
    fields = values.item(item, reveal=True)
    return all(condition.holds(fields) for condition in conditions)
