"""Update: change when and where an item runs that has not started."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from treadle.dashboard.forms import Form, read_form
from treadle.dashboard.visit import Visit
from treadle.errors import ConflictError, InputError
from treadle.item import ItemState
from treadle.options import UpdateOptions

from .answers import asking, finished, reason_of
from .fields import read_instant, read_whole
from .named_item import ItemBrief, brief, read_item

FIELDS = ("run_at", "priority", "queue", "lane", "deadline", "reason")


class UpdatePage(msgspec.Struct, frozen=True):
    item: ItemBrief
    due_at: float
    priority: int
    lane: str
    deadline: float | None
    typed: dict[str, str] = {}


async def update(visit: Visit) -> Response:
    """Ask what to change, and change it. A field that is left empty changes nothing."""
    form = await read_form(visit.request)
    item = await read_item(visit, form)
    page = UpdatePage(
        brief(item),
        item.due_at,
        item.priority,
        item.lane,
        item.deadline,
        {each: form.get(each) for each in FIELDS},
    )
    if visit.request.method != "POST":
        return asking(visit, "ask_update.html", "items", page)
    try:
        return await _update(visit, item, form)
    except (InputError, ConflictError) as error:
        return asking(visit, "ask_update.html", "items", page, error=error)


async def _update(visit: Visit, item: ItemState, form: Form) -> Response:
    now = await visit.client.backend.now()
    changes: UpdateOptions = {}
    if run_at := form.get("run_at"):
        changes["run_at"] = read_instant(run_at, "run_at", now)
    if priority := form.get("priority"):
        changes["priority"] = read_whole(priority, "priority")
    if queue := form.get("queue"):
        changes["queue"] = queue
    if lane := form.get("lane"):
        changes["lane"] = "" if lane == "none" else lane
    if deadline := form.get("deadline"):
        changes["deadline"] = None if deadline == "none" else read_instant(deadline, "deadline", now)
    client = visit.acting("update", tenant=item.tenant, reason=reason_of(form))
    count = await client.update([item.id], **changes)
    return finished(visit, form, "update", count, to=visit.item_url(item.id, item.tenant))
