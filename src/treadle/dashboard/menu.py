"""Menu: the pages that a visitor can go to."""

from __future__ import annotations

from typing import Final, NamedTuple

from .view import Section
from .visit import Visit


class MenuEntry(NamedTuple):
    section: Section
    title: str
    path: str
    key: str
    """After `g`, this key goes there."""
    of_fleet: bool = False
    needs: frozenset[str] = frozenset(("listing", "watching"))


ENTRIES: Final = (
    MenuEntry("overview", "Overview", "/", "o"),
    MenuEntry("items", "Items", "/items", "i"),
    MenuEntry("dead", "Dead letters", "/dead", "d"),
    MenuEntry("queues", "Queues", "/queues", "q"),
    MenuEntry("types", "Types", "/types", "t"),
    MenuEntry("workers", "Workers", "/workers", "w", of_fleet=True),
    MenuEntry("schedules", "Schedules", "/schedules", "s", of_fleet=True, needs=frozenset(("schedules",))),
    MenuEntry("limits", "Limits", "/limits", "l"),
    MenuEntry("tenants", "Tenants", "/tenants", "n", of_fleet=True),
    MenuEntry("bulk", "Bulk actions", "/bulk", "b", needs=frozenset(("recording",))),
    MenuEntry("audit", "Audit", "/audit", "a", needs=frozenset(("recording",))),
)


class MenuLink(NamedTuple):
    section: str
    title: str
    url: str
    key: str


def menu(visit: Visit) -> list[MenuLink]:
    """The entries that this visitor sees, as links."""
    capabilities = visit.site.client.backend.capabilities
    return [
        MenuLink(entry.section, entry.title, visit.url(entry.path), entry.key)
        for entry in ENTRIES
        if entry.needs <= capabilities and (visit.sees_fleet or not entry.of_fleet)
    ]
