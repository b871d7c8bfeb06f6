"""Shown: how items look: as a row of a table, as details, and as JSON.

JSON has the names of `ItemState`. Instants are ISO 8601 in UTC, always with microseconds. `input`, `result`
and `headers` are JSON values. What this code cannot read is shown as JSON if it is JSON, else as
`{"$base64": ...}`, and `unreadable` says why. `options`, which only the engine reads, is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from treadle.codec import hooks
from treadle.engine.registry import Registry
from treadle.engine.wait.wait_result import decode_group_value
from treadle.errors import DecodeError, shown
from treadle.group_ref import GroupRef, shown_names
from treadle.headers import headers_of
from treadle.item import GROUP_TYPE, Attempt, GroupState, ItemState, Status
from treadle.log_lines import error_text
from treadle.wording import first_line, plural

from .text import Cell, ago, iso, json_line, speaks_unicode, table_lines, terminal_width

SHAPES: Final[dict[Status, str]] = {
    "blocked": "◇",
    "scheduled": "◷",
    "ready": "○",
    "running": "●",
    "success": "✓",
    "dead": "✕",
    "cancelled": "–",
}
ASCII_SHAPES: Final[dict[Status, str]] = {
    "blocked": "#",
    "scheduled": "@",
    "ready": "o",
    "running": ">",
    "success": "+",
    "dead": "x",
    "cancelled": "-",
}
STATUS_STYLES: Final[dict[Status, str]] = {
    "blocked": "",
    "scheduled": "",
    "ready": "",
    "running": "cyan",
    "success": "green",
    "dead": "red",
    "cancelled": "dim",
}
OTHER_SHAPES: Final = {
    "active": ("●", "*", "green"),
    "open": ("●", "*", "cyan"),
    "ended": ("–", "-", "dim"),
    "paused": ("‖", "=", "yellow"),
    "overdue": ("✕", "x", "yellow"),
    "orphaned": ("✕", "x", "red"),
}
"""For queues, groups and schedules: a shape, one in ASCII, and a style."""
INSTANTS: Final = frozenset(("queued_at", "due_at", "claimed_at", "started_at", "ended_at", "deadline"))
LEFT_OUT: Final = frozenset(("options", "input", "result", "history", "waiting_for", "after", "headers"))
ITEM_DROPPED: Final = ("TRIES", "QUEUE", "TENANT", "WHAT")
"""Columns that a narrow terminal does not show, in this order."""
ITEM_COLUMNS: Final = ("ID", "STATE", "TYPE", "TENANT", "QUEUE", "TRIES", "WHEN", "WHAT")


def status_cell(status: Status) -> Cell:
    """A status by word and shape. The colour only repeats it."""
    shapes = SHAPES if speaks_unicode() else ASCII_SHAPES
    return Cell(f"{shapes[status]} {status}", STATUS_STYLES[status])


def status_word(word: str) -> Cell:
    """The same for a word that may be no status of an item: of a queue, a schedule, or `missing`."""
    if word in SHAPES:
        return status_cell(word)
    shape, ascii_shape, style = OTHER_SHAPES.get(word, ("?", "?", "yellow"))
    return Cell(f"{shape if speaks_unicode() else ascii_shape} {word}", style)


# ---------------------------------------------------------------------------------------------- reading


def read_input(registry: Registry, state: ItemState) -> tuple[object, str]:
    """The arguments of an item as a JSON value, read as a worker with this code would, and why that could
    not be done, or ""."""
    type = registry.get(state.type)
    try:
        value = (
            registry.codec.decode(state.input)
            if type is None
            else type.decode_input(state.input, registry.codec)
        )
        return to_json(value), ""
    except Exception as error:  # noqa: BLE001  a codec or an upcast of the user may raise anything
        return _stored_json(state.input), why_not(error)


def read_result(registry: Registry, state: ItemState) -> tuple[object, str]:
    """The same for its result."""
    data = state.result
    if not isinstance(data, bytes):
        return to_json(data), ""  # a client has decoded it
    try:
        if state.type == GROUP_TYPE:
            return to_json(decode_group_value(registry, state.type, data)), ""
        return to_json(registry.read_result(state.type, data)), ""
    except Exception as error:  # noqa: BLE001  as above
        return _stored_json(data), why_not(error)


def to_json(value: object) -> Any:
    """A Python value as JSON-native values. What has no form in JSON is shown as text."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_write)
    except Exception:  # noqa: BLE001  a class of the user may raise anything
        return shown(value)


def _write(value: object) -> object:
    try:
        return hooks.write(value)
    except Exception:  # noqa: BLE001  a class of the user, read by a codec of the user
        return str(value)


def _stored_json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return {"$base64": base64.b64encode(data).decode()}


def why_not(error: Exception) -> str:
    """Why a value cannot be read: what a codec or an upcast of the user, or treadle's own, has raised."""
    return str(error) if isinstance(error, DecodeError) else error_text(error)


# ------------------------------------------------------------------------------------------------- JSON


def item_json(registry: Registry, state: ItemState, *, history: bool = False) -> dict[str, Any]:
    """An item for programs. `history` and `waiting_for` are there only if asked for: a list has neither."""
    fields: dict[str, Any] = {}
    for name in state.__struct_fields__:
        if name not in LEFT_OUT:
            value = getattr(state, name)
            fields[name] = iso(value) if name in INSTANTS else value
    fields["after"] = names_json(state.after)
    fields["headers"] = item_headers(state)
    fields["input"], bad_input = read_input(registry, state)
    fields["result"], bad_result = read_result(registry, state)
    if bad_input or bad_result:
        fields["unreadable"] = "; ".join(
            f"{what}: {why}" for what, why in (("input", bad_input), ("result", bad_result)) if why
        )
    if history:
        fields["waiting_for"] = names_json(state.waiting_for)
        fields["history"] = [attempt_json(each) for each in state.history]
    return fields


def item_headers(state: ItemState) -> dict[str, str]:
    """The headers of an item as the store has it."""
    return dict(state.headers or headers_of(state.options))


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    return {**msgspec.structs.asdict(attempt), "at": iso(attempt.at)}


def names_json(names: Iterable[str]) -> list[str]:
    """The names in `after`. A whole group is `group:ID`."""
    return [
        f"group:{name}" if isinstance(name, GroupRef) else str(name) for name in shown_names(tuple(names))
    ]


# ------------------------------------------------------------------------------------------------ tables


def item_lines(items: Sequence[ItemState], now: float, *, width: int | str | None = "terminal") -> list[str]:
    """Items as a table. Tenants and queues are shown where they differ, or are not the usual ones.

    width: None cuts nothing. By default it is that of the terminal.
    """
    tenants = {item.tenant for item in items}
    queues = {item.queue for item in items}
    rows = [
        (
            item.id,
            status_cell(item.status),
            item.type,
            item.tenant if len(tenants) > 1 else "",
            item.queue if queues != {"default"} else "",
            tries(item),
            when(item, now),
            Cell(what(item), "dim"),
        )
        for item in items
    ]
    columns = terminal_width() if width == "terminal" else width
    assert not isinstance(columns, str)
    return table_lines(ITEM_COLUMNS, rows, width=columns, keep=("ID", "STATE", "WHEN"), drop=ITEM_DROPPED)


def tries(item: ItemState) -> str:
    """How many attempts have begun, and how many it may have."""
    if item.attempt == 0:
        return ""
    # Lost attempts do not count among those that may fail: with one of them there may be more.
    ends_well = item.status in ("running", "success", "cancelled", "dead") and item.reason != "lease_lost"
    counts = item.attempts is not None and item.attempt <= min(item.attempts, item.failures + ends_well)
    return f"{item.attempt}/{item.attempts}" if counts else str(item.attempt)


def when(item: ItemState, now: float) -> str:
    """The instant that matters in its status: when it ended, began, is due, became ready or was queued."""
    match item.status:
        case "success" | "dead" | "cancelled":
            return ago(item.ended_at, now)
        case "running":
            return ago(item.started_at or item.claimed_at, now)
        case "scheduled":
            return ago(item.due_at, now)
        case "ready":
            return ago(max(item.due_at, item.queued_at), now)
        case "blocked":
            return ago(item.queued_at, now)


def what(item: ItemState) -> str:
    """What is worth a word: why it died, its last error, its key."""
    error = first_line(item.error or "")
    if item.status == "dead" and item.reason not in (None, "exhausted"):
        return f"{item.reason}: {error.partition(': ')[2] or error}" if error else item.reason
    if error:
        return error
    return f"key {item.key}" if item.key else ""


def value_text(value: object, most: int = 2000) -> str:
    """A JSON value for a person: one line if it is short, else indented; cut if it is long."""
    line = json_line(value)
    if len(line) > most:
        return f"{line[:most]}… ({len(line):,} characters: --json shows all)"
    return line if len(line) <= 60 else msgspec.json.format(line, indent=2)


# ------------------------------------------------------------------------------------------------ groups


def group_json(registry: Registry, group: GroupState) -> dict[str, Any]:
    """A group for programs: the names of `GroupState`."""
    value, problem = read_group_value(registry, group)
    fields: dict[str, Any] = {
        "id": group.id,
        "tenant": group.tenant,
        "type": group.type,
        "open": group.open,
        "failed": group.failed,
        "ended_at": iso(group.ended_at),
        "contributed": group.contributed,
        "final": group.final,
        "version": group.version,
        "value": value,
        "deaths": [ref_json(each) for each in group.deaths],
        "cancelled": None if group.cancelled is None else ref_json(group.cancelled),
        "outer": group.outer,
    }
    return {**fields, "unreadable": f"value: {problem}"} if problem else fields


def read_group_value(registry: Registry, group: GroupState) -> tuple[object, str]:
    """The value of a group as a JSON value, and why it could not be read, or ""."""
    if not isinstance(group.value, bytes):
        return to_json(group.value), ""
    try:
        return to_json(decode_group_value(registry, group.type, group.value)), ""
    except Exception as error:  # noqa: BLE001  as above
        return _stored_json(group.value), why_not(error)


def group_text(group: GroupState, now: float) -> str:
    """How a group stands, in a few words."""
    if group.ended_at is None:
        state = f"{plural(group.open, 'open member')}"
        return f"{state}, {plural(group.failed, 'death')} failed it" if group.failed else state
    if group.failed:
        return f"failed ({plural(group.failed, 'death')}), ended {ago(group.ended_at, now)}"
    if group.cancelled is not None:
        return f"cancelled, ended {ago(group.ended_at, now)}"
    return f"ended well {ago(group.ended_at, now)}"


def ref_json(item: ItemState) -> dict[str, Any]:
    """Which item, and how it stands: for lists inside other objects."""
    return {
        "id": item.id,
        "tenant": item.tenant,
        "type": item.type,
        "status": item.status,
        "reason": item.reason,
        "error": item.error,
    }
