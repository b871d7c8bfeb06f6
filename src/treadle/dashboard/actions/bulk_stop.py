"""Stop a bulk action."""

from __future__ import annotations

from starlette.responses import Response

from treadle.dashboard.addresses import segment
from treadle.dashboard.forms import read_form
from treadle.dashboard.visit import Visit

from .answers import finished, reason_of


async def stop(visit: Visit) -> Response:
    """What it has changed stays changed."""
    form, id = await read_form(visit.request), visit.part("id")
    state = await visit.acting("stop_bulk", reason=reason_of(form)).bulk.stop(id)
    return finished(visit, form, "stop_bulk", to=visit.url(f"/bulk/{segment(id)}"), state=state.state)
