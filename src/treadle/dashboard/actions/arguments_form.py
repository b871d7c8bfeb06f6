"""Arguments form: one field for each parameter of a work type."""

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

from treadle.base.wording import one_line
from treadle.dashboard.forms import Form
from treadle.define.secret_values import SecretMask, holds_secret
from treadle.define.signature import type_text
from treadle.define.work_type import AnyWorkType, arguments_of
from treadle.errors import InputError
from treadle.logs.masking import MASK
from treadle.operate.item_json import to_json

from .fields import read_json

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
