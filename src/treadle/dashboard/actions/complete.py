"""Complete: end an item as a success, with a value that is typed."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from treadle.dashboard.forms import Form, read_form
from treadle.dashboard.visit import Visit
from treadle.define.work_type import json_result, result_text
from treadle.errors import AlreadyEnded, ConflictError, InputError, PayloadError
from treadle.item import TERMINAL, ItemState

from .answers import asking, finished, reason_of
from .fields import read_json
from .named_item import ItemBrief, brief, read_item


class CompletePage(msgspec.Struct, frozen=True):
    item: ItemBrief
    expects: str
    """The type of the value, as the code says. Empty: unknown."""
    value: str = "null"
    reason: str = ""


async def complete(visit: Visit) -> Response:
    """Ask for the value, and end the item with it."""
    form = await read_form(visit.request)
    item = await read_item(visit, form)
    type = visit.client.types.get(item.type)
    page = CompletePage(brief(item), "" if type is None else result_text(type))
    error: InputError | ConflictError | PayloadError | None = None
    if visit.request.method == "POST":
        page = msgspec.structs.replace(page, value=form.text("value"), reason=reason_of(form))
        try:
            return await _complete(visit, item, form)
        except (InputError, ConflictError, PayloadError) as refused:
            error = refused
    elif item.status in TERMINAL:
        error = AlreadyEnded(item.id, item.status)
    return asking(visit, "ask_complete.html", "items", page, error=error)


async def _complete(visit: Visit, item: ItemState, form: Form) -> Response:
    reason = reason_of(form, needed_for="completing an item without running it")
    value = read_json(form.text("value").strip() or "null", "value")
    type = visit.client.types.get(item.type)
    if type is not None:
        value = json_result(type, value)
    await visit.acting("complete", tenant=item.tenant, reason=reason).complete(item.id, value)
    return finished(visit, form, "complete", to=visit.item_url(item.id, item.tenant))
