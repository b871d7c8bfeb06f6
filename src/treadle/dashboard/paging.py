"""Paging: a part of a list that is known whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from .visit import Visit

T = TypeVar("T")


class Pages(msgspec.Struct, frozen=True):
    """Which part of a list is shown."""

    number: int
    """From 1 on."""
    count: int
    total: int
    """How many rows there are."""


def page_of(visit: Visit, rows: Sequence[T], most: int) -> tuple[list[T], Pages]:
    """The rows of the page that the URL names: `?page=2`. A page that does not exist is the nearest one."""
    count = max(1, -(-len(rows) // most))
    wanted = visit.query("page", "1")
    number = min(count, max(1, int(wanted))) if wanted.isdecimal() and len(wanted) < 10 else 1
    return list(rows[(number - 1) * most : number * most]), Pages(number, count, len(rows))


def pages_json(pages: Pages) -> dict[str, Any]:
    return {"page": pages.number, "pages": pages.count, "total": pages.total}
