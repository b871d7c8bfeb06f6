"""Views: the pages, one module each."""

from __future__ import annotations

from treadle.dashboard.view import View

from . import (
    audit,
    bulk,
    dead,
    graphs,
    item,
    items,
    limits,
    overview,
    queues,
    schedules,
    tenants,
    types,
    workers,
)

VIEWS: tuple[View, ...] = (
    overview.VIEW,
    items.VIEW,
    item.VIEW,
    dead.MARKS,
    dead.MARK,
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
    bulk.VIEW,
    bulk.VIEW_ONE,
    audit.VIEW,
)
