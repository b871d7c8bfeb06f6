"""Requeue, cancel and trigger one item."""

from __future__ import annotations

from starlette.responses import Response

from treadle.bulk_action import ActionVerb
from treadle.dashboard.forms import read_form
from treadle.dashboard.visit import Visit

from .answers import finished, reason_of
from .named_item import read_item
from .portion import change_items


async def requeue(visit: Visit) -> Response:
    return await _change(visit, "requeue")


async def cancel(visit: Visit) -> Response:
    return await _change(visit, "cancel")


async def trigger(visit: Visit) -> Response:
    return await _change(visit, "trigger")


async def _change(visit: Visit, verb: ActionVerb) -> Response:
    """Change the item. Why it cannot be changed is raised."""
    form = await read_form(visit.request)
    item = await read_item(visit, form)
    count, refused = await change_items(visit, verb, [(item.id, item.tenant)], reason=reason_of(form))
    if refused and not count:
        raise refused[0].error
    return finished(visit, form, verb, count, to=visit.item_url(item.id, item.tenant))
