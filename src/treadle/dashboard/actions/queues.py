"""Pause queues, and let them go on."""

from __future__ import annotations

from starlette.responses import Response

from treadle.dashboard.addresses import segment
from treadle.dashboard.forms import read_form
from treadle.dashboard.visit import Visit

from .answers import finished


async def pause(visit: Visit) -> Response:
    """For the tenant that is shown, or for all."""
    form, queue = await read_form(visit.request), visit.part("queue")
    await visit.acting("pause", reason=form.get("reason")).pause(queue)
    return finished(visit, form, "pause", to=visit.url(f"/queues/{segment(queue)}"))


async def resume(visit: Visit) -> Response:
    form, queue = await read_form(visit.request), visit.part("queue")
    await visit.acting("resume", reason=form.get("reason")).resume(queue)
    return finished(visit, form, "resume", to=visit.url(f"/queues/{segment(queue)}"))
