"""Enqueue: submit work from a form that is made of the signature of its type."""

from __future__ import annotations

import datetime as dt
import inspect
import types
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

import msgspec
from starlette.responses import Response

from treadle.base.ids import check_name
from treadle.base.wording import one_line
from treadle.codec.hooks import to_json
from treadle.dashboard.access import NotShown
from treadle.dashboard.forms import Form, read_form, read_json, read_whole
from treadle.dashboard.visit import Visit
from treadle.define.secret_values import SecretMask, holds_secret
from treadle.define.signature import type_text
from treadle.define.work_type import AnyWorkType, arguments_of, json_input
from treadle.errors import ConflictError, InputError, PayloadError
from treadle.item import DEFAULT_TENANT
from treadle.logs.masking import MASK
from treadle.operate.filters import read_duration
from treadle.options import EnqueueOptions

from .answers import asking, finished, hiding, reason_of

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


Kind = Literal["text", "number", "flag", "json"]
PLAIN: Final[dict[Any, Kind]] = {
    **dict.fromkeys((str, date, datetime, dt.time, timedelta, Decimal, UUID), "text"),
    **dict.fromkeys((int, float), "number"),
    bool: "flag",
}
"""Types whose values are typed as they are. Others are typed as JSON."""
LONGEST_HINT: Final = 120


class ArgumentField(msgspec.Struct, frozen=True):
    """A field of the form."""

    name: str
    kind: Kind
    hint: str
    """Its annotation."""
    required: bool
    default: str
    """As JSON. Empty: there is none."""
    secret: bool
    choices: tuple[str, ...]
    """Empty: anything may be typed."""
    typed: str = ""


def argument_fields(type: AnyWorkType, mask: SecretMask, form: Form | None = None) -> list[ArgumentField]:
    """The fields, with what was typed. Secrets have to be typed again."""
    return [_field(each, mask, form) for each in arguments_of(type).parameters]


def _field(parameter: Any, mask: SecretMask, form: Form | None) -> ArgumentField:
    secret = mask.is_secret_name(parameter.name) or holds_secret(parameter.type)
    typed = form.text(f"input.{parameter.name}") if form is not None and not secret else ""
    default = "" if parameter.default is inspect.Parameter.empty else _json(parameter.default)
    return ArgumentField(
        parameter.name,
        _kind(parameter),
        one_line(type_text(parameter.type), LONGEST_HINT) + (", secret" if secret else ""),
        parameter.is_required,
        MASK if secret and default else default,
        secret,
        _choices(parameter),
        typed,
    )


def _kind(parameter: Any) -> Kind:
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return "json"
    if _choices(parameter) and _bare(parameter.type) is not bool:
        return "text"
    try:
        return PLAIN.get(_bare(parameter.type), "json")
    except TypeError:  # it cannot be hashed
        return "json"


def _choices(parameter: Any) -> tuple[str, ...]:
    """The texts that a parameter takes, if these are all."""
    bare = _bare(parameter.type)
    if bare is bool:
        return ("true", "false")
    values: list[Any] = []
    if get_origin(bare) is Literal:
        values = list(get_args(bare))
    elif isinstance(bare, type) and issubclass(bare, Enum):
        values = [each.value for each in bare]
    return tuple(values) if values and all(isinstance(each, str) for each in values) else ()


def _bare(annotation: Any) -> Any:
    """The type without marks, and without None."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        others = [each for each in get_args(annotation) if each is not type(None)]
        return _bare(others[0]) if len(others) == 1 else annotation
    return annotation


def _json(value: object) -> str:
    return one_line(msgspec.json.encode(to_json(value)).decode("utf-8", "replace"), LONGEST_HINT)


def read_arguments(type: AnyWorkType, form: Form) -> dict[str, Any]:
    """What was typed, as JSON values by name. An empty field is left out."""
    given: dict[str, Any] = {}
    for parameter in arguments_of(type).parameters:
        kind, text = _kind(parameter), form.text(f"input.{parameter.name}")
        if text.strip():
            given[parameter.name] = _read(kind, text, parameter.name)
    return given


def _read(kind: Kind, text: str, name: str) -> Any:
    match kind:
        case "text":
            return text
        case "flag":
            if text not in ("true", "false"):
                raise InputError.of(name, text, "must be true or false")
            return text == "true"
        case "number":
            return _read_number(text.strip(), name)
        case "json":
            return read_json(text.strip(), name)


def _read_number(text: str, name: str) -> int | float:
    try:
        value = read_json(text, name)
    except InputError:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError.of(name, text, "must be a number")
    return value
