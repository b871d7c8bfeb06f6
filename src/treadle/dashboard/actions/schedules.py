"""Pause, resume, trigger and cancel schedules."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response

from treadle.dashboard.access import NotShown
from treadle.dashboard.forms import Form, read_form
from treadle.dashboard.visit import Visit
from treadle.errors import InputError

from .answers import asking, finished, reason_of


class CancelSchedulePage(msgspec.Struct, frozen=True):
    name: str
    next_at: float | None
    state: str
    reason: str = ""


async def pause(visit: Visit) -> Response:
    return await _change(visit, "pause_schedule")


async def resume(visit: Visit) -> Response:
    return await _change(visit, "resume_schedule")


async def _change(visit: Visit, verb: Literal["pause_schedule", "resume_schedule"]) -> Response:
    form, name = await read_form(visit.request), visit.part("name")
    schedules = visit.acting(verb, reason=reason_of(form)).schedules
    await (schedules.pause(name) if verb == "pause_schedule" else schedules.resume(name))
    return finished(visit, form, verb, to=visit.url("/schedules"))


async def trigger(visit: Visit) -> Response:
    """Run it now. Its code must be in this process."""
    form, name = await read_form(visit.request), visit.part("name")
    handle = await visit.acting("trigger_schedule", reason=reason_of(form)).schedules.trigger(name)
    to = visit.url("/schedules")
    if handle is None:
        return finished(visit, form, "trigger_schedule", 0, to=to, id=None)
    (state,) = await visit.client.get([handle.id])
    item = None if state is None else (state.id, state.tenant)
    return finished(visit, form, "trigger_schedule", to=to, item=item, id=handle.id)


async def cancel(visit: Visit) -> Response:
    """Ask, and remove it."""
    name = visit.part("name")
    found = next((each for each in await visit.client.schedules.list() if each.name == name), None)
    if found is None:
        raise NotShown(f"there is no schedule {name!r}")
    page = CancelSchedulePage(name, found.next_at, found.state)
    if visit.request.method != "POST":
        return asking(visit, "ask_schedule.html", "schedules", page)
    form = await read_form(visit.request)
    try:
        return await _cancel(visit, name, form)
    except InputError as error:
        page = msgspec.structs.replace(page, reason=reason_of(form))
        return asking(visit, "ask_schedule.html", "schedules", page, error=error)


async def _cancel(visit: Visit, name: str, form: Form) -> Response:
    await visit.acting("cancel_schedule", reason=reason_of(form)).schedules.cancel(name)
    return finished(visit, form, "cancel_schedule", to=visit.url("/schedules"))
