"""The links of Markdown pages, and what they lead to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^()\s]+)(\))")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")
"""A link with a scheme, as `https:`: it leads away from the project."""


class Link(NamedTuple):
    """A link of a page to a file or directory of the project, or to a place in the page itself."""

    path: str
    anchor: str
    line: int


def links(text: str) -> Iterator[Link]:
    """The links of a page, except those that lead away from the project."""
    for found in LINK.finditer(_without_code(text)):
        if not ELSEWHERE.match(found[2]):
            path, _, anchor = found[2].partition("#")
            yield Link(path, anchor, text.count("\n", 0, found.start()) + 1)


def replace_links(text: str, new: Callable[[str], str]) -> str:
    """The page with other targets. `new` is given each target that does not lead away from the project."""
    plain = _without_code(text)
    parts: list[str] = []
    end = 0
    for found in LINK.finditer(plain):
        if not ELSEWHERE.match(found[2]):
            parts += [text[end : found.start(2)], new(found[2])]
            end = found.end(2)
    return "".join(parts) + text[end:]


def _without_code(text: str) -> str:
    """The text with blanks in place of code. All other characters keep their places."""
    for pattern in (FENCE, CODE):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of the headings of a page, without those that GitHub and the site write differently."""
    text = FENCE.sub("", page.read_text())
    on_github: set[str] = set()
    on_site: set[str] = set()
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        on_github.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
        on_site.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return frozenset(on_github & on_site)


def dead_links(page: Path) -> Iterator[str]:
    """What is wrong with the links of a page."""
    for link in links(page.read_text()):
        target = (page.parent / link.path).resolve() if link.path else page
        if not target.exists():
            yield f"{page.name}:{link.line}: there is no {link.path}"
        elif link.anchor and target.suffix == ".md" and link.anchor not in anchors(target):
            yield f"{page.name}:{link.line}: {target.name} has no #{link.anchor}"
