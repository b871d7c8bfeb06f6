"""Views: the pages, one module each."""

from __future__ import annotations

from treadle.dashboard.view import View

from . import graphs, overview

VIEWS: tuple[View, ...] = (overview.VIEW, graphs.GROUP, graphs.WORKFLOW)
