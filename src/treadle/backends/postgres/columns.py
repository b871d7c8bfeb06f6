"""Columns: many values as one parameter.

A call takes a column per field of its rows, so that any number of rows is one round trip. The driver looks at
every element of an array in Python, which takes longer than all the rest; so names and numbers go as one text
each, and the server takes it apart. A column that says the same in every row says it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, TypeVar, cast

from treadle.errors import BackendError

V = TypeVar("V")

NAMES: Final = "names"
BETWEEN: Final = "\n"
NOTHING: Final = "\x01"
WITHIN: Final = "\x1f"
"""Between names, in the place of one, and between names within one: names hold no control characters."""


def call_of(function: str, *types: str | None) -> str:
    """A call of one of our functions with parameters of these types. None: null."""
    numbers = count(1)
    parameters = ", ".join("null" if type is None else parameter(next(numbers), type) for type in types)
    return f"select * from treadle.{function}({parameters})"  # noqa: S608  constants


def parameter(number: int, type: str) -> str:
    """A parameter of a statement, as this type."""
    if type == NAMES:
        return f"treadle.names(${number})"
    if type.endswith("[]") and type != "bytea[]":
        return f"${number}::text::{type}"
    return f"${number}::{type}"


def names(column: Sequence[str | None], *, whole: bool = False) -> str | None:
    """A column of names. `whole`: its length says how many rows there are, whatever they say."""
    column = column if whole else _short(column)
    if None in column:
        if len(column) == 1:
            return None
        column = [NOTHING if name is None else name for name in column]
    text = BETWEEN.join(cast("Sequence[str]", column))
    if text.count(BETWEEN) >= len(column):
        raise BackendError("a name holds a control character: names are text without any")
    return text


def numbers(column: Sequence[float | None], *, whole: bool = False) -> str | None:
    """A column of numbers."""
    column = column if whole else _short(column)
    if None in column:
        if len(column) == 1:
            return None
        return _literal(["null" if number is None else repr(number) for number in column])
    return _literal(map(repr, column))


def _literal(numbers: Iterable[str]) -> str:
    return f"{{{','.join(numbers)}}}"


def data(column: Sequence[bytes | None]) -> Sequence[bytes | None] | None:
    """A column of bytes."""
    column = _short(column)
    return None if column == [None] else column


def _short(column: Sequence[V]) -> Sequence[V]:
    """One element, if all are the same."""
    if not column:
        return column
    first = column[0]
    return [first] if column.count(first) == len(column) else column


def joined(names: Sequence[str]) -> str | None:
    """Several names as one."""
    return WITHIN.join(names) or None


def parted(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(WITHIN)) if text else ()
