"""Columns: many values as one parameter.

A call takes one column per field of its rows, so that any number of rows is one round trip. The driver
looks at every element of an array in Python, which takes longer than all the rest; so names and numbers are
sent as one text each, and the server splits it. A column that is the same in every row has a single
element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar, cast

from treadle.errors import BackendError

V = TypeVar("V")

SEPARATOR: Final = "\n"
NULL: Final = "\x01"
INNER_SEPARATOR: Final = "\x1f"
"""Between names, for None, and between the names within one element. Names have no control characters."""


def names(column: Sequence[str | None], *, whole: bool = False) -> str | None:
    """A column of names. `whole`: one element per row, even if all are the same."""
    column = column if whole else _shortened(column)
    if None in column:
        if len(column) == 1:
            return None
        column = [NULL if name is None else name for name in column]
    text = SEPARATOR.join(cast("Sequence[str]", column))
    if text.count(SEPARATOR) >= len(column):
        raise BackendError("a name has a control character: names are text without any")
    return text


def numbers(column: Sequence[float | None], *, whole: bool = False) -> str | None:
    """A column of numbers."""
    column = column if whole else _shortened(column)
    if None in column:
        if len(column) == 1:
            return None
        return _literal(["null" if number is None else repr(number) for number in column])
    return _literal(map(repr, column))


def _literal(numbers: Iterable[str]) -> str:
    return f"{{{','.join(numbers)}}}"


def data(column: Sequence[bytes | None]) -> Sequence[bytes | None] | None:
    """A column of bytes."""
    column = _shortened(column)
    return None if column == [None] else column


def _shortened(column: Sequence[V]) -> Sequence[V]:
    """One element, if all are the same."""
    if not column:
        return column
    first = column[0]
    return [first] if column.count(first) == len(column) else column


def joined(names: Sequence[str]) -> str | None:
    """Several names as one element."""
    return INNER_SEPARATOR.join(names) or None


def split(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(INNER_SEPARATOR)) if text else ()
