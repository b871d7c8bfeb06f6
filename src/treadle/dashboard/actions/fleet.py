"""Actions on queues, schedules and workers."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response

from treadle.dashboard.access import NotShown
from treadle.dashboard.addresses import segment
from treadle.dashboard.forms import Form, read_form
from treadle.dashboard.visit import Visit
from treadle.errors import ConflictError, InputError, TreadleError
from treadle.logs.lines import error_text, log_error
from treadle.operate.filters import read_limit, read_until
from treadle.store.fleet import Fleet, is_blocked, place_of

from .answers import asking, finished, reason_of


async def pause(visit: Visit) -> Response:
    """For the tenant that is shown, or for all."""
    return await _change(visit, "pause")


async def resume(visit: Visit) -> Response:
    return await _change(visit, "resume")


async def _change(visit: Visit, verb: Literal["pause", "resume"]) -> Response:
    form = await read_form(visit.request)
    queue = visit.part("queue") if "queue" in visit.request.path_params else _given(form, "queue")
    client = visit.acting(verb, reason=reason_of(form))
    what: dict[str, str | None] = {name: _given(form, name) for name in ("type", "tenant")}
    if verb == "pause":
        await client.pause(queue, **what, until=read_until(_given(form, "until"), "until"))
    else:
        await client.resume(queue, **what)
    return finished(visit, form, verb, to=visit.url(f"/queues/{segment(queue)}" if queue else "/limits"))


async def set_limit(visit: Visit) -> Response:
    form = await read_form(visit.request)
    limit, window = read_limit(_given(form, "limit") or "", "limit")
    until = read_until(_given(form, "until"), "until")
    client = visit.acting("set_limit", reason=reason_of(form))
    await client.set_limit(_given(form, "name"), limit, window, type=_given(form, "type"), until=until)
    return finished(visit, form, "set_limit", to=visit.url("/limits"))


async def clear_limit(visit: Visit) -> Response:
    form = await read_form(visit.request)
    client = visit.acting("clear_limit", reason=reason_of(form))
    await client.clear_limit(_given(form, "name"), type=_given(form, "type"))
    return finished(visit, form, "clear_limit", to=visit.url("/limits"))


def _given(form: Form, name: str) -> str | None:
    return form.get(name) or None


class DrainPage(msgspec.Struct, frozen=True):
    id: str
    place: str
    """Where it runs, as `host:pid`. Empty: not known."""
    running: int | None
    """None: this visitor is not told, since it may run items of others."""
    blocked: bool
    """Its event loop does not run."""
    left_behind: str
    """What no worker takes any more without it. Empty: others take all of it."""
    reason: str = ""


async def drain(visit: Visit) -> Response:
    """Ask, and tell the worker."""
    id = visit.part("id")
    fleet = Fleet(await visit.client.workers(), visit.site.now())
    worker = fleet.find(id)
    if worker is None:
        raise NotShown(f"there is no worker {id!r}")
    place = place_of(worker) if visit.sees_fleet else ""
    page = DrainPage(id, place, worker.running, is_blocked(worker), fleet.left_behind([id]))
    if visit.request.method != "POST":
        return asking(visit, "ask_worker.html", "workers", page)
    form = await read_form(visit.request)
    try:
        if not await visit.acting("drain_worker", reason=reason_of(form)).drain_worker(id):
            raise ConflictError(f"the worker {id!r} is gone, or it serves others too")
    except (InputError, ConflictError) as error:
        page = msgspec.structs.replace(page, reason=reason_of(form))
        return asking(visit, "ask_worker.html", "workers", page, error=error)
    return finished(visit, form, "drain_worker", to=visit.url("/workers"))


class CancelSchedulePage(msgspec.Struct, frozen=True):
    name: str
    next_at: float | None
    state: str
    reason: str = ""


async def pause_schedule(visit: Visit) -> Response:
    return await _change_schedule(visit, "pause_schedule")


async def resume_schedule(visit: Visit) -> Response:
    return await _change_schedule(visit, "resume_schedule")


async def _change_schedule(visit: Visit, verb: Literal["pause_schedule", "resume_schedule"]) -> Response:
    form, name = await read_form(visit.request), visit.part("name")
    schedules = visit.acting(verb, reason=reason_of(form)).schedules
    await (schedules.pause(name) if verb == "pause_schedule" else schedules.resume(name))
    return finished(visit, form, verb, to=visit.url("/schedules"))


async def trigger_schedule(visit: Visit) -> Response:
    """Run it now. Its code must be in this process."""
    form, name = await read_form(visit.request), visit.part("name")
    schedules = visit.acting("trigger_schedule", reason=reason_of(form)).schedules
    try:
        handle = await schedules.trigger(name)
    except TreadleError:
        raise
    except Exception as error:  # it is a function of the user
        failed = f"run of schedule {name!r} failed"
        log_error(failed, error)
        # What it raised is a payload.
        why = error_text(error) if visit.access.payloads else "the log of the server says why"
        raise ConflictError(f"{failed}: {why}") from error
    to = visit.url("/schedules")
    if handle is None:
        return finished(visit, form, "trigger_schedule", 0, to=to, id=None)
    (state,) = await visit.client.get([handle.id])
    item = None if state is None else (state.id, state.tenant)
    return finished(visit, form, "trigger_schedule", to=to, item=item, id=handle.id)


async def cancel_schedule(visit: Visit) -> Response:
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
        return await _cancel_schedule(visit, name, form)
    except InputError as error:
        page = msgspec.structs.replace(page, reason=reason_of(form))
        return asking(visit, "ask_schedule.html", "schedules", page, error=error)


async def _cancel_schedule(visit: Visit, name: str, form: Form) -> Response:
    await visit.acting("cancel_schedule", reason=reason_of(form)).schedules.cancel(name)
    return finished(visit, form, "cancel_schedule", to=visit.url("/schedules"))
