"""Requeue, cancel and trigger one item."""

from __future__ import annotations

from starlette.responses import Response

from treadle.bulk_action import ActionVerb
from treadle.dashboard.forms import read_form
from treadle.dashboard.site import wants_json
from treadle.dashboard.visit import Visit

from .answers import back_of, finished, reason_of
from .named_item import read_item
from .portion import change, change_of, tell_refused


async def requeue(visit: Visit) -> Response:
    return await _change(visit, "requeue")


async def cancel(visit: Visit) -> Response:
    return await _change(visit, "cancel")


async def trigger(visit: Visit) -> Response:
    return await _change(visit, "trigger")


async def _change(visit: Visit, verb: ActionVerb) -> Response:
    """Change the item. A page says why it cannot be changed; for programs that is raised."""
    form = await read_form(visit.request)
    item = await read_item(visit, form)
    count, refused = await change(visit, verb, [item], change_of(verb), reason=reason_of(form))
    to = visit.item_url(item.id, item.tenant)
    if not refused or count:
        return finished(visit, form, verb, count, to=to)
    if wants_json(visit.request):
        raise refused[0].error
    return tell_refused(visit, verb, count, refused, back=back_of(visit, form, to))
