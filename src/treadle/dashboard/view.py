"""View: one page: where it is, what it reads, and how that is shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from .visit import Visit

Shown: TypeAlias = msgspec.Struct
"""What a page shows: plain data. A template makes HTML of it, and programs get it as JSON. A text `wrong`
says that the page was asked for something that it does not understand: the answer is 400."""
Section: TypeAlias = Literal[
    "overview",
    "items",
    "dead",
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
    of_fleet: bool = False
    """It is about the whole fleet: visitors of single tenants do not see it."""
    needs: frozenset[str] = frozenset(("listing", "watching"))
    """Capabilities that it needs. Without them it does not exist."""
    to_json: Callable[[Visit, Any], object] | None = None
    """What programs get. None: what it shows, as it is."""


class Elsewhere(msgspec.Struct, frozen=True):
    """In place of what a page shows: the visitor is led to another page."""

    url: str
