"""Pause queues, and let them go on."""

from __future__ import annotations

from typing import Literal

from starlette.responses import Response

from treadle.dashboard.addresses import segment
from treadle.dashboard.forms import read_form
from treadle.dashboard.visit import Visit

from .answers import finished, reason_of


async def pause(visit: Visit) -> Response:
    """For the tenant that is shown, or for all."""
    return await _change(visit, "pause")


async def resume(visit: Visit) -> Response:
    return await _change(visit, "resume")


async def _change(visit: Visit, verb: Literal["pause", "resume"]) -> Response:
    form, queue = await read_form(visit.request), visit.part("queue")
    client = visit.acting(verb, reason=reason_of(form))
    await (client.pause(queue) if verb == "pause" else client.resume(queue))
    return finished(visit, form, verb, to=visit.url(f"/queues/{segment(queue)}"))
