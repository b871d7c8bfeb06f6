"""Repair: run the failed part of a group again."""

from __future__ import annotations

from starlette.responses import Response

from treadle.bulk_action import BULK_TYPE
from treadle.dashboard.access import NotShown
from treadle.dashboard.forms import read_form
from treadle.dashboard.visit import Visit
from treadle.errors import ConflictError

from .answers import finished, reason_of
from .named_item import read_tenant


async def repair(visit: Visit) -> Response:
    """Requeue the items whose deaths failed it."""
    form, id = await read_form(visit.request), visit.part("id")
    group = await visit.client_of(read_tenant(visit, form, f"there is no group {id!r}")).group(id)
    if group is None:
        raise NotShown(f"there is no group {id!r}")
    if group.type == BULK_TYPE:
        raise ConflictError(f"group {id!r} is a bulk action: start another one")
    client = visit.acting("requeue", tenant=group.tenant, reason=reason_of(form))
    count = await client.repair(id)
    if not count:
        raise ConflictError(f"there is nothing to run again in group {id!r}: no death failed it")
    return finished(visit, form, "requeue", count, to=visit.group_url(id, group.tenant))
