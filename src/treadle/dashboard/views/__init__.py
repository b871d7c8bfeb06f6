"""Views: the pages, one module each."""

from __future__ import annotations

from treadle.dashboard.view import View

from . import graphs, limits, overview, queues, schedules, tenants, types, workers

VIEWS: tuple[View, ...] = (
    overview.VIEW,
    graphs.GROUP,
    graphs.WORKFLOW,
    queues.VIEW,
    queues.QUEUE_VIEW,
    types.VIEW,
    types.TYPE_VIEW,
    workers.VIEW,
    schedules.VIEW,
    limits.VIEW,
    tenants.VIEW,
)
