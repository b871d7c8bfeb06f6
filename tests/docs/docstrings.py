"""Docstrings as Markdown, for the reference: tables, parameters and code as the site shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BORDER = re.compile(r"=+(?:  +=+)+")
_COLUMNS = re.compile(r"(\S.*?) {2,}(\S.*)")
_PARAMETER = re.compile(r"(\*{0,2}[a-z_]\w*(?:, [a-z_]\w*)*): (.*)")


def as_markdown(text: str) -> str:
    """A docstring as Markdown."""
    return "\n\n".join(_paragraph(part) for part in _paragraphs(text))


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring. `::` before code is left out."""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        if part.strip() != "::":
            yield part


def _paragraph(part: str) -> str:
    lines = part.split("\n")
    if _BORDER.fullmatch(lines[0]):
        return _table(line for line in lines if not _BORDER.fullmatch(line))
    if len(lines) > 1 and all(_COLUMNS.fullmatch(line) for line in lines) and lines[0][0] not in " |":
        return _table(lines)
    if _PARAMETER.fullmatch(lines[0]):
        return "\n".join(_parameter(line) for line in lines)
    return part


def _table(lines: Iterator[str] | list[str]) -> str:
    rows = [found.groups() for line in lines if (found := _COLUMNS.fullmatch(line))]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {_code(name)} | {about} |" for name, about in rows)])


def _code(name: str) -> str:
    return name if "`" in name else ", ".join(f"`{each}`" for each in name.split(", "))


def _parameter(line: str) -> str:
    found = _PARAMETER.fullmatch(line)
    return f"  {line.strip()}" if found is None else f"- {_code(found[1])}: {found[2]}"
