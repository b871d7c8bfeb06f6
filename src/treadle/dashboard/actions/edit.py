"""Forms that change one item: complete it, signal it, update it, or run it again with a changed input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, cast

import msgspec
from starlette.responses import Response

from treadle.client import check_ended
from treadle.dashboard.forms import Form, read_form, read_instant, read_json, read_whole
from treadle.dashboard.steps import ItemSteps, read_steps
from treadle.dashboard.visit import Visit, wants_json
from treadle.define.work_type import AnyWorkType, json_input, json_result, result_text
from treadle.errors import AlreadyEnded, ConflictError, InputError, PayloadError
from treadle.item import TERMINAL, ItemState
from treadle.logs.masking import MASK
from treadle.options import UpdateOptions

from .answers import asking, finished, hiding, reason_of
from .item_verbs import ItemBrief, brief, read_item

MOST_CHARACTERS: Final = 64_000
"""Browsers take seconds to show more of it in a form."""


class EditPage(msgspec.Struct, frozen=True):
    item: ItemBrief
    input: str
    """As JSON, with `***` in place of secrets."""
    key: str
    masked: bool
    """There are secrets that are kept as they are."""
    unreadable: str = ""
    too_large: bool = False
    """It has no place in a form."""
    reason: str = ""


async def edit(visit: Visit) -> Response:
    """Show the input, and submit a new item with what was made of it."""
    form = await read_form(visit.request)
    item = await read_item(visit, form)
    shown, unreadable = _shown_input(visit, item)
    text = msgspec.json.format(msgspec.json.encode(shown), indent=2).decode("utf-8", "replace")
    page = EditPage(brief(item), text, item.key or "", MASK in text, unreadable)
    if len(text) > MOST_CHARACTERS and visit.request.method != "POST":
        page = msgspec.structs.replace(page, input="", too_large=True)
        return asking(visit, "ask_edit.html", "items", page)
    error: InputError | ConflictError | PayloadError | None = None
    if visit.request.method == "POST":
        page = msgspec.structs.replace(
            page, input=form.text("input"), key=form.get("key"), reason=reason_of(form)
        )
    try:
        type = _check_editable(visit, item)
        if visit.request.method == "POST":
            return await _edit(visit, item, type, form, shown)
    except (InputError, ConflictError, PayloadError) as refused:
        error = refused
    return asking(visit, "ask_edit.html", "items", page, error=error)


def _shown_input(visit: Visit, item: ItemState) -> tuple[object, str]:
    value, unreadable = visit.values.input(item)
    return visit.site.secrets.masked(value), unreadable


def _check_editable(visit: Visit, item: ItemState) -> AnyWorkType:
    check_ended(item)
    type = visit.client.types.get(item.type)
    if type is None:
        raise ConflictError(f"the code of {item.type!r} is not here, so its input cannot be checked")
    return type


async def _edit(visit: Visit, item: ItemState, type: AnyWorkType, form: Form, shown: object) -> Response:
    stored, _ = visit.values.input(item, reveal=True)
    try:
        typed = with_secrets(read_json(form.text("input"), "input"), shown, stored)
    except RecursionError:
        raise InputError("input is nested too deeply", parameters=("input",)) from None
    if not isinstance(typed, dict):
        raise InputError("input must be a JSON object: the arguments by name", parameters=("input",))
    try:
        work = type.from_input(json_input(type, cast("dict[str, Any]", typed)))
    except InputError as error:
        raise hiding(error, _secrets(shown, stored)) from None
    client = visit.acting("edit", tenant=item.tenant, reason=reason_of(form))
    handle = await client.edit(item, work, key=form.get("key") or None)
    return finished(visit, form, "edit", to=visit.item_url(handle.id, item.tenant), id=handle.id)


def with_secrets(typed: object, shown: object, stored: object, path: str = "input") -> Any:
    """What was typed, with the stored value in place of each `***` that still stands where it was shown."""
    if typed == MASK or (isinstance(typed, str) and f":{MASK}@" in typed):
        if typed != shown:
            raise InputError(f"{MASK} at {path} stands for no secret: type the value", parameters=("input",))
        return stored
    fields, parts = _by_name(typed), _by_place(typed)
    if isinstance(typed, dict):
        old, own = _by_name(shown), _by_name(stored)
        return {
            name: with_secrets(each, old.get(name), own.get(name), f"{path}.{name}")
            for name, each in fields.items()
        }
    if isinstance(typed, list):
        old, own = _by_place(shown), _by_place(stored)
        return [with_secrets(each, old.get(at), own.get(at), f"{path}[{at}]") for at, each in parts.items()]
    return typed


def _secrets(shown: object, stored: object) -> Iterator[object]:
    """The stored values for which `***` is shown, and what is in them."""
    own, old = {**_by_name(stored), **_by_place(stored)}, {**_by_name(shown), **_by_place(shown)}
    if shown != stored and not own:
        yield stored
    for step, each in own.items():
        yield from _secrets(MASK if shown == MASK else old.get(step), each)


def _by_name(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _by_place(value: object) -> dict[str, Any]:
    parts = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
    return {str(at): each for at, each in enumerate(parts)}


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
    if visit.request.method == "POST":
        page = msgspec.structs.replace(page, value=form.text("value"), reason=reason_of(form))
    return await _ask_or_act(visit, item, form, "ask_complete.html", page, _complete)


async def _ask_or_act(
    visit: Visit,
    item: ItemState,
    form: Form,
    template: str,
    page: msgspec.Struct,
    act: Callable[[Visit, ItemState, Form], Awaitable[Response]],
) -> Response:
    """Do what the form says. Ask for it, with what is wrong, if it was not sent, cannot be done, or the item
    has ended."""
    error: InputError | ConflictError | PayloadError | None = None
    if visit.request.method == "POST":
        try:
            return await act(visit, item, form)
        except (InputError, ConflictError, PayloadError) as refused:
            error = refused
    elif item.status in TERMINAL:
        error = AlreadyEnded(item.id, item.status)
    return asking(visit, template, "items", page, error=error)


async def _complete(visit: Visit, item: ItemState, form: Form) -> Response:
    reason = reason_of(form, needed_for="completing an item without running it")
    value = read_json(form.text("value").strip() or "null", "value")
    type = visit.client.types.get(item.type)
    if type is not None:
        value = json_result(type, value)
    await visit.acting("complete", tenant=item.tenant, reason=reason).complete(item.id, value)
    return finished(visit, form, "complete", to=visit.item_url(item.id, item.tenant))


class SignalPage(msgspec.Struct, frozen=True):
    item: ItemBrief
    waits_for: list[str]
    mailbox: dict[str, int]
    """How many signals of each name no wait has taken."""
    name: str
    value: str = "null"
    key: str = ""
    reason: str = ""


async def signal(visit: Visit) -> Response:
    """Ask for the name and the value, and send it."""
    form = await read_form(visit.request)
    item = await read_item(visit, form)
    found = await read_steps(visit, item) or ItemSteps()
    name = visit.query("name") or (found.awaited or [""])[0]
    page = SignalPage(brief(item), found.awaited, found.mailbox, name)
    if visit.request.method == "POST":
        page = msgspec.structs.replace(
            page, name=form.get("name"), value=form.text("value"), key=form.get("key"), reason=reason_of(form)
        )
    return await _ask_or_act(visit, item, form, "ask_signal.html", page, _signal)


async def _signal(visit: Visit, item: ItemState, form: Form) -> Response:
    name, key = form.get("name"), form.get("key") or None
    value = read_json(form.text("value").strip() or "null", "value")
    client = visit.acting("signal", tenant=item.tenant, reason=reason_of(form))
    sent = await client.signal(item.id, name, value, key=key)
    if not sent and not wants_json(visit.request):
        raise ConflictError(f"nothing was sent: a signal {name!r} with the key {key!r} was sent before")
    return finished(visit, form, "signal", int(sent), to=visit.item_url(item.id, item.tenant))


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
    changes = await read_changes(visit, form)
    client = visit.acting("update", tenant=item.tenant, reason=reason_of(form))
    count = await client.update([item.id], **changes)
    return finished(visit, form, "update", count, to=visit.item_url(item.id, item.tenant))


async def read_changes(visit: Visit, form: Form) -> UpdateOptions:
    """What a form changes about items."""
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
    return changes
