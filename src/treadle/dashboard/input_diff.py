"""What differs between the inputs of two items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from treadle.logs.masking import MASK

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
    hidden: list[str]
    """Places where both show the same mask. Whether they differ is not told."""
    more: int
    """Differences that are not shown."""
    whole: bool = True
    """All of both was compared."""


def diff_of(left: Any, right: Any) -> InputDiff:
    """Compare two JSON values, leaf by leaf. Secret values are masked in both."""
    mine, theirs = _leaves(left), _leaves(right)
    differs: list[DiffRow] = []
    same: list[DiffRow] = []
    hidden: list[str] = []
    for path in dict.fromkeys((*mine, *theirs)):
        left_text, right_text = mine.get(path), theirs.get(path)
        if left_text == right_text and MASK in (left_text or ""):
            hidden.append(path)
        else:
            row = DiffRow(path, _cut(left_text), _cut(right_text))
            (same if left_text == right_text else differs).append(row)
    whole = len(mine) < MOST_LEAVES and len(theirs) < MOST_LEAVES
    more = max(0, len(differs) - MOST_ROWS)
    return InputDiff(differs[:MOST_ROWS], same[:MOST_ROWS], hidden[:MOST_ROWS], more, whole)


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
