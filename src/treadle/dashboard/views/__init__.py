"""Views: the pages, one module each."""

from __future__ import annotations

from treadle.dashboard.view import View

from . import dead, graphs, item, items, overview

VIEWS: tuple[View, ...] = (
    overview.VIEW,
    items.VIEW,
    item.VIEW,
    dead.MARKS,
    dead.MARK,
    graphs.GROUP,
    graphs.WORKFLOW,
)
