"""Tx: one step in the database, seen by a verb."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec

from .statements import Statements, repeated

Row: TypeAlias = tuple[Any, ...]

_SQL = Statements("tx")

# How many rows go into one statement. Each statement is one call into SQLite, and each call gives up the
# interpreter lock: row by row, a busy event loop would slow a batch down tenfold. Few sizes, so that each is
# compiled once.
_CHUNKS = (256, 64, 16, 4, 1)

NULL = ""
"""What stands for NULL in many rows at once, where the statement says `nullif(?, '')`: the driver takes ten
times as long to hand over a None as a text."""


class Numbers(NamedTuple):
    """The first of the numbers taken, of each kind."""

    no: int
    seq: int
    token: int


class Tx:
    """A connection inside a transaction, and the instant at which its verb happens."""

    __slots__ = ("_cursor", "now", "waited")

    def __init__(self, connection: sqlite3.Connection, now: float, waited: float = 0.0) -> None:
        self._cursor = connection.cursor()
        # A user's connection may have a row factory of its own.
        self._cursor.row_factory = None
        self.now = now
        self.waited = waited
        """Seconds that this process just waited for the write lock. So may others have."""

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        # Always all of them: a statement left half read would keep its snapshot of the database open.
        return self._cursor.execute(sql, parameters).fetchall()

    def row(self, sql: str, *parameters: Any) -> Row | None:
        found = self.rows(sql, *parameters)
        return found[0] if found else None

    def value(self, sql: str, *parameters: Any) -> Any:
        """The first column of the first row; None if there is none."""
        found = self.row(sql, *parameters)
        return found[0] if found else None

    def run(self, sql: str, *parameters: Any) -> int:
        """Carry out a statement; how many rows it changed."""
        return self._cursor.execute(sql, parameters).rowcount

    def run_rows(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Carry out a statement with one `VALUES (?, ?)` for all of these rows."""
        begin = 0
        for size in _CHUNKS:
            while len(rows) - begin >= size:
                part = rows[begin : begin + size]
                self._cursor.execute(repeated(sql, size), tuple(chain.from_iterable(part)))
                begin += size

    def numbers(self, *, no: int = 0, seq: int = 0, token: int = 0) -> Numbers:
        """Take so many numbers of each kind from the counter."""
        last = self.rows(_SQL["take_numbers"], no, seq, token)[0]
        return Numbers(last[0] - no + 1, last[1] - seq + 1, last[2] - token + 1)


def blob(value: bytes) -> bytearray:
    """The driver takes ten times as long to hand over bytes as a bytearray."""
    return bytearray(value)


def array(values: Iterable[Any]) -> str:
    """A JSON array, to be read with `json_each`: how a statement takes a list."""
    return msgspec.json.encode(list(values)).decode()
