"""Views: the pages, one module each. A `View` says where a page is, what it reads, and how that is shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from treadle.dashboard.visit import Visit

Shown: TypeAlias = msgspec.Struct
"""What a page shows: plain data. A template makes HTML of it, and programs get JSON: see `View.to_json`. A
text `wrong` says that the page was asked for something that it does not understand: the answer is 400."""
Section: TypeAlias = Literal[
    "overview",
    "items",
    "dead",
    "groups",
    "queues",
    "types",
    "workers",
    "schedules",
    "limits",
    "tenants",
    "audit",
    "bulk",
]


class View(NamedTuple):
    """One page."""

    path: str
    """Its path, as a route of Starlette: `/queues/{queue}`."""
    template: str
    read: Callable[[Visit], Awaitable[Shown]]
    """Reads what it shows. `NotShown`: there is no such page."""
    section: Section
    """The part of the menu that it belongs to."""
    to_json: Callable[[Visit, Any], Mapping[str, object]]
    """What programs get of what it shows: the names of `--json`, and instants as texts."""
    of_fleet: bool = False
    """It is about the whole fleet: visitors of single tenants do not see it."""
    needs: frozenset[str] = frozenset(("listing", "watching"))
    """Capabilities that it needs. Without them it does not exist."""


class Elsewhere(msgspec.Struct, frozen=True):
    """In place of what a page shows: the visitor is led to another page."""

    url: str


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
