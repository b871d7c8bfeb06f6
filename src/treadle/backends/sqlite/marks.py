"""Marks: that the tables of a file are out of sight, and why. moving.py sets them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

from treadle.errors import BackendError, StoreMoved, StoreUnfinished
from treadle.records import StoreMark

from .statements import statements

_SQL: Final = statements("moving")

MOVED: Final = 2
IMPORTING: Final = 3
"""What the column `state` says."""

_NO_MARK: Final = "no such table: main.treadle_part"
_HIDDEN: Final = "no such table: treadle_"
"""What SQLite says when tables are out of sight."""


def read_mark(connection: sqlite3.Connection | sqlite3.Cursor) -> StoreMark | None:
    try:
        rows = connection.execute(_SQL["mark"]).fetchall()
    except sqlite3.OperationalError as error:
        if str(error) != _NO_MARK:
            raise
        return None
    if not rows:
        return None
    state, move, to, content = rows[0]
    if state == MOVED:
        return StoreMark(state="moved", move=move, to=to, content=content)
    return StoreMark(state="importing", move=move, source=to, whole=True)


def refusal(mark: StoreMark) -> BackendError:
    """What a marked store raises."""
    return StoreMoved(mark.to) if mark.state == "moved" else StoreUnfinished(mark.move, mark.source)


def check_unmarked(connection: sqlite3.Connection | sqlite3.Cursor) -> None:
    mark = read_mark(connection)
    if mark is not None:
        raise refusal(mark)


def mark_behind(error: sqlite3.Error, path: Path) -> StoreMark | None:
    """The mark that explains an error of a statement. None: nothing does."""
    if not str(error).startswith(_HIDDEN):
        return None
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        return read_mark(connection)
    return None
