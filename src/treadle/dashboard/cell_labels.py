"""Labels of cells: on a narrow screen each row of a table is a card, in which cells say what they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_PIECE: Final = re.compile(  # it begins with a literal text, which is searched for fast
    r'<t(?:able\b|r\b|h scope="col"[^>]*>(?P<head>.*?)</th>|h scope="row"|(?P<cell>d\b)(?P<rest>[^>]*>))',
    re.S,
)
_TAG: Final = re.compile(r'<span class="visually-hidden">.*?</span>|<[^>]*>', re.S)
_END: Final = re.compile(r"\s*(?:–\s*)?</td>")
_SPEAKS: Final = ("status", "state")
"""Columns whose cells need no name."""


def with_labels(html: str) -> str:
    """The same page, with `data-label` on the cells of its tables, and `data-empty` on those without content.
    What visitors have typed is escaped, so it holds no tags."""
    return "".join(_pieces(html))


def _pieces(html: str) -> Iterator[str]:
    heads: list[str] = []
    at, column = 0, 0
    for found in _PIECE.finditer(html):
        if (head := found["head"]) is not None:
            heads.append(" ".join(_TAG.sub(" ", head).split()))
        elif found[0] == "<table":
            heads = []
        elif found[0] == "<tr":
            column = 0
        else:
            if found["cell"]:
                label = heads[column] if column < len(heads) else ""
                label = "" if label in _SPEAKS or "colspan" in found["rest"] else label
                said = f' data-label="{label}"' if label else ""
                yield html[at : found.start("rest")]
                yield " data-empty" if _END.match(html, found.end()) else said
                yield found["rest"]
                at = found.end()
            column += 1
    yield html[at:]
