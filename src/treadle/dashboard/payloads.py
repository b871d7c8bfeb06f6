"""Payloads: inputs, results, headers and errors as a visitor may see them: without secrets, cut if long."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from treadle.base.wording import first_line
from treadle.errors import shown
from treadle.item import ItemState
from treadle.operate.item_json import exact_json
from treadle.problems import Problem, ProblemKind
from treadle.why import Reason, ReasonKind, Why

from .visit import Visit

MOST_CHARACTERS: Final = 65_536
"""Of a payload on a page. A download has all of it."""
MOST_ON_A_LINE: Final = 200
"""Characters of an input in a list."""
LINE_BYTES: Final = 16_384
"""Largest input that a list decodes to show a line of it."""
HEX_BYTES: Final = 32
"""Bytes on one line."""

UNQUOTED: Final[Mapping[ReasonKind | ProblemKind, str]] = {
    "ended": "it has ended",
    "due_at": "it is due later",
    "doomed": "it can only end dead",
    "release": "items fail since the newest release",
    "dying": "items of a type die now",
    "undecodable": "arguments do not fit the code of workers",
    "group_failed": "a member of the group died",
    "run_failed": "its last run failed, and submitted nothing",
    "schedule_failed": "the last run of a schedule failed, and submitted nothing",
}
"""What is said in place of reasons and problems that quote messages."""

What: TypeAlias = Literal["input", "result"]


class Payload(msgspec.Struct, frozen=True):
    """An input or a result, to look at."""

    text: str
    """As JSON. Bytes that this code cannot read are in hexadecimal digits."""
    size: int
    """Characters of the whole."""
    cut: bool
    problem: str = ""
    """Why this code cannot read it as its type says. Empty: it can."""


def read_payload(visit: Visit, state: ItemState, what: What, *, reveal: bool = False) -> tuple[Any, str]:
    """A JSON value without secrets, and why this code could not read it, or "". reveal: with its secrets,
    which no visitor may see."""
    values = visit.values
    read = values.input if what == "input" else values.result
    value, problem = read(state, reveal=reveal)
    return value if reveal else visit.site.secrets.masked(value), problem


def shown_payload(visit: Visit, state: ItemState, what: What) -> Payload | None:
    """An input or a result for a page. None: this visitor sees no payloads."""
    if not visit.access.payloads:
        return None
    value, problem = read_payload(visit, state, what)
    line = json_text(value)
    if len(line) > MOST_CHARACTERS:
        return Payload(line[:MOST_CHARACTERS], len(line), True, problem)
    return Payload(pretty_text(value), len(line), False, problem)


def shown_line(visit: Visit, state: ItemState) -> str:
    """An input on one line, cut if it is long. Empty: it has no arguments, or this visitor sees none."""
    if not visit.access.payloads or not state.input:
        return ""
    if len(state.input) > LINE_BYTES:
        return f"{len(state.input):,} bytes"
    value = read_payload(visit, state, "input")[0]
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value).items()
        line = ", ".join(f"{name}: {json_text(each)}" for name, each in fields)
    else:
        line = "" if value in (None, []) else json_text(value)
    return line if len(line) <= MOST_ON_A_LINE else f"{line[:MOST_ON_A_LINE]}…"


def shown_headers(visit: Visit, state: ItemState) -> dict[str, str] | None:
    """The headers of an item. None: this visitor sees no payloads."""
    if not visit.access.payloads:
        return None
    return cast("dict[str, str]", visit.site.secrets.masked(visit.values.headers(state)))


def shown_error(visit: Visit, state: ItemState) -> str:
    """The first line of the last error. Its class alone if this visitor sees no payloads."""
    return first_line((state.error if visit.access.payloads else state.error_type) or "")


def shown_text(visit: Visit, said: Reason | Problem) -> str:
    """What a reason or a problem says. Some quote the message of an error, which is a payload."""
    if visit.access.payloads or said.kind not in UNQUOTED:
        return said.text
    return f"{UNQUOTED[said.kind]} (what was said is hidden)"


def shown_reasons(visit: Visit, why: Why) -> list[Reason]:
    """The reasons of an item or a queue."""
    return [msgspec.structs.replace(each, text=shown_text(visit, each)) for each in why.reasons]


def shown_item_json(visit: Visit, state: ItemState, *, history: bool = False) -> dict[str, Any]:
    """An item for programs, as `treadle show --json` has it. What is not shown is null, and `hidden` says so;
    what is long is null, and `cut` says so."""
    fields = visit.values.item(state, history=history)
    if not visit.access.payloads:
        fields |= {"input": None, "result": None, "headers": None, "error": None, "hidden": True}
        fields.pop("unreadable", None)
        for attempt in fields.get("history", ()):
            attempt |= {"message": None, "traceback": None}
        return fields
    mask = visit.site.secrets
    for name in ("input", "result", "headers"):
        fields[name] = exact_json(mask.masked(fields[name]))
    cut = [name for name in ("input", "result") if len(json_text(fields[name])) > MOST_CHARACTERS]
    return {**fields, **dict.fromkeys(cut), "cut": cut} if cut else fields


# ---------------------------------------------------------------------------------------------------- texts


def json_text(value: object) -> str:
    """A JSON value on one line."""
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.EncodeError):
        pass
    try:
        return json.dumps(value, default=repr)  # it can write halves of characters
    except (TypeError, ValueError, RecursionError):
        return shown(value)


def pretty_text(value: object) -> str:
    """A JSON value for people. Bytes in hexadecimal digits."""
    data = _bytes_in(value)
    if data is not None:
        return "\n".join(
            data[start : start + HEX_BYTES].hex(" ", 2) for start in range(0, len(data), HEX_BYTES)
        )
    line = json_text(value)
    try:
        return msgspec.json.format(line, indent=2) if len(line) > 60 else line
    except (ValueError, msgspec.DecodeError):
        return line


def _bytes_in(value: object) -> bytes | None:
    """The bytes that could not be read: `{"$base64": ...}`."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, object]", value)
    text = fields.get("$base64")
    if len(fields) != 1 or not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None
