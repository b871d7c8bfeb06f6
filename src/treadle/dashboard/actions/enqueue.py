"""Enqueue: submit work from a form that is made of the signature of its type."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from treadle.base.ids import check_name
from treadle.dashboard.access import NotShown
from treadle.dashboard.forms import Form, read_form
from treadle.dashboard.visit import Visit
from treadle.define.work_type import AnyWorkType, json_input
from treadle.errors import ConflictError, InputError, PayloadError
from treadle.item import DEFAULT_TENANT
from treadle.operate.filters import read_duration
from treadle.options import EnqueueOptions

from .answers import asking, finished, hiding, reason_of
from .arguments_form import ArgumentField, argument_fields, read_arguments
from .fields import read_whole

FIELDS = ("queue", "delay", "key", "priority", "lane", "tenant", "reason")


class EnqueuePage(msgspec.Struct, frozen=True):
    type: str
    about: str
    """The first line of the docstring."""
    fields: list[ArgumentField]
    queue: str
    """The queue of the type."""
    typed: dict[str, str] = {}


async def enqueue(visit: Visit) -> Response:
    """Ask for the arguments, and submit the work."""
    name = visit.part("type")
    type = visit.client.types.get(name)
    if type is None:
        raise NotShown(f"there is no type {name!r} here: the dashboard does not have its code")
    form = await read_form(visit.request)
    typed = {each: form.get(each) for each in FIELDS}
    about = (type.__doc__ or "").strip().partition("\n")[0]
    fields = argument_fields(type, visit.site.secrets, form)
    page = EnqueuePage(type.name, about, fields, str(type.options.get("queue", "default")), typed)
    if visit.request.method != "POST":
        return asking(visit, "ask_enqueue.html", "types", page)
    try:
        return await _enqueue(visit, type, form, fields)
    except (InputError, ConflictError, PayloadError) as error:
        return asking(visit, "ask_enqueue.html", "types", page, error=error)


async def _enqueue(visit: Visit, type: AnyWorkType, form: Form, fields: list[ArgumentField]) -> Response:
    options: EnqueueOptions = {}
    if queue := form.get("queue"):
        options["queue"] = queue
    if delay := form.get("delay"):
        options["delay"] = read_duration(delay, "delay")
    if key := form.get("key"):
        options["key"] = key
    if priority := form.get("priority"):
        options["priority"] = read_whole(priority, "priority")
    if lane := form.get("lane"):
        options["lane"] = lane
    tenant = check_name(form.get("tenant") or visit.tenant or DEFAULT_TENANT, field="tenant")
    client = visit.acting("enqueue", tenant=tenant, reason=reason_of(form))
    try:
        work = type.from_input(json_input(type, read_arguments(type, form)))
    except InputError as error:
        raise hiding(error, (form.text(f"input.{each.name}") for each in fields if each.secret)) from None
    handle = await client.enqueue(work, **options)
    if handle.existing:
        raise ConflictError(f"nothing was queued: the item {handle.id} has this key")
    return finished(visit, form, "enqueue", to=visit.item_url(handle.id, tenant), id=handle.id)
