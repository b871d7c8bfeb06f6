"""Shown: how items and groups look for a person: as a row of a table, and in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from treadle.base.wording import first_line, plural
from treadle.item import GroupState, ItemState, Status
from treadle.operate.filters import attempt_words, matters_at

from .text import Cell, ago, json_line, speaks_unicode, table_lines, terminal_width

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
    "failing": ("✕", "x", "red"),
    "overdue": ("✕", "x", "yellow"),
    "orphaned": ("✕", "x", "red"),
}
"""For queues, groups and schedules: a shape, one in ASCII, and a style."""
ITEM_DROPPED: Final = ("TRIES", "QUEUE", "STORE", "TENANT", "WHAT")
"""Columns that a narrow terminal does not show, in this order."""
ITEM_COLUMNS: Final = ("ID", "STATE", "TYPE", "TENANT", "STORE", "QUEUE", "TRIES", "WHEN", "WHAT")


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


# ------------------------------------------------------------------------------------------------ tables


def item_lines(items: Sequence[ItemState], now: float) -> list[str]:
    """Items as a table. Tenants and queues are shown where they differ, or are not the usual ones."""
    tenants = {item.tenant for item in items}
    queues = {item.queue for item in items}
    rows = [
        (
            item.id,
            status_cell(item.status),
            item.type,
            item.tenant if len(tenants) > 1 else "",
            item.store,
            item.queue if queues != {"default"} else "",
            attempt_words(item),
            when(item, now),
            Cell(what(item), "dim"),
        )
        for item in items
    ]
    width = terminal_width()
    return table_lines(ITEM_COLUMNS, rows, width=width, keep=("ID", "STATE", "WHEN"), drop=ITEM_DROPPED)


def when(item: ItemState, now: float) -> str:
    """The instant that matters in its status, as seen from `now`."""
    at = matters_at(item)
    return "held" if item.held else "waits" if at is None and item.suspended else ago(at, now)


def what(item: ItemState) -> str:
    """What is worth a word: that it is suspended, why it died, its last error, its key."""
    if item.suspended and item.status == "scheduled":
        return "suspended"
    error = first_line(item.error or "")
    if item.status == "dead" and item.reason not in (None, "exhausted"):
        return f"{item.reason}: {error.partition(': ')[2] or error}" if error else item.reason
    if error:
        return error
    return f"key {item.key}" if item.key else ""


MOST_SHOWN: Final = 2000
"""Characters of a value that are shown."""


def value_text(value: object) -> str:
    """A JSON value for a person: one line if it is short, else indented; cut if it is long."""
    line = json_line(value)
    if len(line) > MOST_SHOWN:
        return f"{line[:MOST_SHOWN]}… ({len(line):,} characters: --json shows all)"
    return line if len(line) <= 60 else msgspec.json.format(line, indent=2)


# ------------------------------------------------------------------------------------------------ groups


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
