"""Drain: ask a worker to stop."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from treadle.dashboard.access import NotShown
from treadle.dashboard.forms import read_form
from treadle.dashboard.visit import Visit
from treadle.errors import ConflictError, InputError
from treadle.store.fleet import Fleet, is_blocked, place_of

from .answers import asking, finished, reason_of


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
