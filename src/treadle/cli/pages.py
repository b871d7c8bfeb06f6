"""Pages: walks through the items that a filter selects, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from treadle.item import Filter, ItemState, Page, Status

from .filters import ItemFilters
from .names import whole_mark
from .shell import Shell

PAGE: Final = 500
"""Items per call of the store."""


async def filter_of(shell: Shell, filters: ItemFilters, status: tuple[Status, ...] = ()) -> Filter:
    """The filter for the store: with the tenant of the shell, times by the store's clock, and a whole mark.

    status: used if `--status` is not given.
    """
    now = await shell.now() if filters.needs_clock else 0.0
    where = filters.filter(tenant=shell.tenant, now=now, status=status)
    if where.mark is None:
        return where
    return msgspec.structs.replace(where, mark=await whole_mark(shell, where.mark))


async def pages(
    shell: Shell,
    where: Filter,
    *,
    most: int | None = None,
    oldest_first: bool = False,
    history: bool = False,
    size: int = PAGE,
) -> AsyncGenerator[Page]:
    """Yield pages until there are no more, or with `most` items in all. The cursor of the last one says
    whether there are more."""
    cursor: str | None = None
    left = most
    while left is None or left > 0:
        limit = size if left is None else min(size, left)
        page = await shell.backend.list(
            where, limit=limit, cursor=cursor, oldest_first=oldest_first, history=history
        )
        yield page
        cursor = page.cursor
        if cursor is None:
            return
        if left is not None:
            left -= len(page.items)


async def first_items(shell: Shell, where: Filter, most: int) -> tuple[list[ItemState], bool]:
    """Up to `most` items, oldest first, and whether there are more."""
    items: list[ItemState] = []
    more = True
    async for page in pages(shell, where, most=most, oldest_first=True, size=1000):
        items += page.items
        more = page.cursor is not None
    return items, more
