"""SQL statements: loaded from the files under sql/, executed inside a transaction by `Tx`.

Each file is named after a verb. It holds several statements, each under a `-- :name x`.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec

from treadle.item import Ref
from treadle.store.rules.settlement import token_step

Row: TypeAlias = tuple[Any, ...]

_NAME = re.compile(r"^-- :name (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"\s*--[^\n]*")
_VALUES = "VALUES "

# How many rows go into one statement. Each statement is one call into SQLite, and each call releases the
# interpreter lock: row by row, a busy event loop would slow a batch down tenfold. There are few sizes, so
# that each statement is compiled once per size.
_CHUNKS = (256, 64, 16, 4, 1)

NULL = ""
"""Stands for NULL in rows that are written many at once, where the statement says `nullif(?, '')`. The driver
takes ten times as long to bind a None as a text."""

NEXT = "\0"
"""A name followed by this is the least text that is greater than the name: names hold no NUL."""

blob = bytearray
"""Wraps bytes to be written. The driver takes ten times as long to bind bytes as a bytearray."""


def package_files() -> Traversable:
    return resources.files(__name__.rpartition(".")[0])


def statements(verb: str) -> dict[str, str]:
    """The statements of one file, by name."""
    text = package_files().joinpath(f"sql/{verb}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)
    return {name: _COMMENT.sub("", sql).strip() for name, sql in zip(parts[1::2], parts[2::2], strict=True)}


_SQL = statements("counter")

random_bits = random.SystemRandom().getrandbits


class Numbers(NamedTuple):
    """The first of the numbers taken, of each kind."""

    no: int
    seq: int
    token: int


class Tx(msgspec.Struct, eq=False):
    """A cursor inside a transaction, and the time at which its verb happens."""

    _cursor: sqlite3.Cursor
    now: float
    lapsed_until: float = 0.0
    """Leases of workers that end by then have lapsed. In a transaction of a user: none."""

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        # Always all of them: a statement left half read would keep its snapshot of the database open.
        return self._cursor.execute(sql, parameters).fetchall()

    def row(self, sql: str, *parameters: Any) -> Row | None:
        found = self._cursor.execute(sql, parameters).fetchall()
        return found[0] if found else None

    def value(self, sql: str, *parameters: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        found = self._cursor.execute(sql, parameters).fetchall()
        return found[0][0] if found else None

    def names(self, sql: str, *within: str) -> Iterator[str]:
        """The distinct names in an index, each found by one step. The last parameter of the statement is the
        least name to find."""
        found = self.value(sql, *within, "")
        while found is not None:
            yield found
            found = self.value(sql, *within, found + NEXT)

    def rows_of(self, sql: str, refs: Iterable[Ref]) -> Iterator[tuple[str, Row]]:
        """The rows that a statement finds for these ids, each with its tenant. The statement takes ids, and
        the tenant of them all."""
        by_tenant: dict[str, list[str]] = {}
        for tenant, id in refs:
            by_tenant.setdefault(tenant, []).append(id)
        for tenant, ids in by_tenant.items():
            for row in self.rows(sql, array(ids), tenant):
                yield tenant, row

    def run(self, sql: str, *parameters: Any) -> int:
        """Execute a statement. Return how many rows it changed."""
        return self._cursor.execute(sql, parameters).rowcount

    def run_rows(self, sql: str, rows: Sequence[Sequence[Any]], *behind: Any) -> int:
        """Execute a statement with one `VALUES (?, ?)` for all of these rows. Return how many an INSERT has
        added. behind: the parameters that follow the rows."""
        if len(rows) == 1:
            return self._cursor.execute(sql, (*rows[0], *behind) if behind else rows[0]).rowcount
        begin = added = 0
        for size in _CHUNKS:
            while len(rows) - begin >= size:
                part = rows[begin : begin + size]
                parameters = (*chain.from_iterable(part), *behind)
                added += self._cursor.execute(_repeated(sql, size), parameters).rowcount
                begin += size
        return added

    def numbers(self, *, no: int = 0, seq: int = 0, token: int = 0) -> Numbers:
        """Take this many numbers of each kind from the counter."""
        self.run(_SQL["take_numbers"], no, seq, token_step(token, random_bits))
        last = self.rows(_SQL["numbers_taken"])[0]
        return Numbers(last[0] - no + 1, last[1] - seq + 1, last[2] - token + 1)


def array(values: Iterable[Any]) -> str:
    """A JSON array, to be read with `json_each`: how a statement takes a list."""
    return msgspec.json.encode(list(values)).decode()


@cache
def _repeated(sql: str, count: int) -> str:
    """The statement for `count` rows at once: its `VALUES (?, ?)` repeated."""
    begin = sql.index(_VALUES) + len(_VALUES)
    end = _closing(sql, begin)
    return sql[:begin] + ", ".join([sql[begin:end]] * count) + sql[end:]


def _closing(sql: str, begin: int) -> int:
    """The place behind the parenthesis that closes the one at `begin`."""
    depth = 0
    for place in range(begin, len(sql)):
        depth += {"(": 1, ")": -1}.get(sql[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError(sql)
