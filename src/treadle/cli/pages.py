"""Pages: walks through the items that a filter selects, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from treadle.item import Filter, ItemState, Page, Status

from .filters import ItemFilters
from .shell import Shell

PAGE: Final = 500
"""Items per call of the store."""


async def filter_of(shell: Shell, filters: ItemFilters, status: tuple[Status, ...] = ()) -> Filter:
    """The filter for the store: with the tenant of the shell, and times by the store's clock.

    status: used if `--status` is not given.
    """
    now = await shell.now() if filters.needs_clock else 0.0
    return filters.filter(tenant=shell.tenant, now=now, status=status)


async def pages(
    shell: Shell, where: Filter, *, cursor: str | None = None, history: bool = False, size: int = PAGE
) -> AsyncGenerator[Page]:
    """Yield pages, newest items first, until there are no more."""
    while True:
        page = await shell.backend.list(where, limit=size, cursor=cursor, history=history)
        yield page
        if page.cursor is None:
            return
        cursor = page.cursor


async def first_items(shell: Shell, where: Filter, most: int) -> tuple[list[ItemState], bool]:
    """Up to `most` items, oldest first, and whether there are more."""
    items: list[ItemState] = []
    cursor: str | None = None
    while len(items) < most:
        limit = min(most - len(items), 1000)
        page = await shell.backend.list(where, limit=limit, cursor=cursor, oldest_first=True)
        items += page.items
        if page.cursor is None:
            return items, False
        cursor = page.cursor
    return items, True
