"""What differs between the inputs of two items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from .payloads import json_text

MOST_ROWS: Final = 100
MOST_CHARACTERS: Final = 200
MOST_LEAVES: Final = 5_000
DEEPEST: Final = 50


class DiffRow(msgspec.Struct, frozen=True):
    """One place where they differ, or are alike."""

    path: str
    """`order.lines[0].sku`."""
    left: str | None
    """As JSON. None: it is not there."""
    right: str | None


class InputDiff(msgspec.Struct, frozen=True):
    differs: list[DiffRow]
    same: list[DiffRow]
    more: int
    """Differences that are not shown."""
    whole: bool = True
    """All of both was compared."""


def diff_of(left: Any, right: Any) -> InputDiff:
    """Compare two JSON values, leaf by leaf."""
    mine, theirs = _leaves(left), _leaves(right)
    differs: list[DiffRow] = []
    same: list[DiffRow] = []
    for path in dict.fromkeys((*mine, *theirs)):
        row = DiffRow(path, _cut(mine.get(path)), _cut(theirs.get(path)))
        (same if mine.get(path) == theirs.get(path) else differs).append(row)
    whole = len(mine) < MOST_LEAVES and len(theirs) < MOST_LEAVES
    return InputDiff(differs[:MOST_ROWS], same[:MOST_ROWS], max(0, len(differs) - MOST_ROWS), whole)


def _leaves(value: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, text in _walk(value, "", 0):
        found[path] = text
        if len(found) >= MOST_LEAVES:
            break
    return found


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth < DEEPEST and isinstance(value, dict) and value:
        for name, each in cast("dict[str, Any]", value).items():
            yield from _walk(each, f"{path}.{name}" if path else str(name), depth + 1)
    elif depth < DEEPEST and isinstance(value, list) and value:
        for at, each in enumerate(cast("Sequence[Any]", value)):
            yield from _walk(each, f"{path}[{at}]", depth + 1)
    else:
        yield path or "input", json_text(cast("object", value))


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
