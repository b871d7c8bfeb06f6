"""Text for a terminal: what is stored, without control characters; relative times; tables that fit.

Stored texts may hold anything. Nothing of them reaches a terminal, or a line of JSON, as a control character.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from treadle.base.timing import MAX_INSTANT, MIN_INSTANT, to_datetime
from treadle.base.wording import duration, plain, printable_json, shows_colours

WIDTH: Final = 80
"""Columns, where the terminal does not say how many it has."""
LEAST_COLUMN: Final = 12
"""A column that is cut keeps this many characters."""
GAP: Final = "  "

# ---------------------------------------------------------------------------------------------------- texts


def plain_lines(text: str) -> list[str]:
    """A text of several lines, such as a traceback, as `plain` shows each."""
    return [plain(line.expandtabs(4)) for line in text.splitlines()]


def cut(text: str, width: int) -> str:
    """At most `width` columns of a printable text, with an ellipsis if something was cut."""
    if len(text) <= width and text.isascii():
        return text
    if columns(text) <= width:
        return text
    kept, used = "", 0
    for each in text[:width]:
        used += columns(each)
        if used > width - 1:
            break
        kept += each
    return kept + ellipsis()


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """A text in lines of at most `width` columns, if it has blanks: ids are not broken. None: in one line."""
    if width is None:
        return [indent + plain(text)]
    return textwrap.wrap(
        plain(text),
        max(width, len(indent) + LEAST_COLUMN),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns(text: str) -> int:
    """How many columns of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(each) for each in text)


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def ellipsis() -> str:
    return "…" if speaks_unicode() else "~"


def speaks_unicode() -> bool:
    """Whether standard output can show more than ASCII."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return encoding.lower().replace("-", "").startswith("utf")


def about() -> str:
    """The sign before an estimate."""
    return "≈" if speaks_unicode() else "~"


def json_line(value: object) -> str:
    """A value as JSON on one line. What a terminal might obey is escaped."""
    try:
        line = msgspec.json.encode(value, enc_hook=str).decode()
    except (UnicodeEncodeError, msgspec.EncodeError, TypeError, ValueError, RecursionError):
        line = json.dumps(_jsonable(value), default=str)
    return printable_json(line, ascii=not speaks_unicode())


def _jsonable(value: object) -> object:
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=str)
    except (UnicodeEncodeError, msgspec.EncodeError, TypeError, ValueError, RecursionError):
        return str(value)


def number(count: float) -> str:
    """1234567 as 1,234,567."""
    return f"{count:,.1f}".removesuffix(".0")


def size(count: int) -> str:
    """A number of bytes."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


# ---------------------------------------------------------------------------------------------------- times


def ago(at: float | None, now: float) -> str:
    """An instant, as seen from `now`: 3 min ago, in 3 min, now."""
    if at is None:
        return ""
    if abs(now - at) < 1.0:
        return "now"
    away = duration(abs(now - at), brief=True)
    return f"{away} ago" if at < now else f"in {away}"


def clock(at: float | None, now: float) -> str:
    """An instant for a person: 2026-11-16 09:30:36 UTC (3 min ago)."""
    if at is None:
        return ""
    return f"{to_datetime(min(max(at, MIN_INSTANT), MAX_INSTANT)):%Y-%m-%d %H:%M:%S} UTC ({ago(at, now)})"


# --------------------------------------------------------------------------------------------------- colour

STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def styled(text: str, style: str, on: bool | None = None) -> str:
    """The text in a style, if colours are on. The text is printable."""
    if not style or not text or not (shows_colours(sys.stdout) if on is None else on):
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


# --------------------------------------------------------------------------------------------------- tables


class Cell(str):
    """A text in a table, with a style."""

    __slots__ = ("style",)
    style: str

    def __new__(cls, text: str, style: str = "") -> Cell:
        made = super().__new__(cls, text)
        made.style = style
        return made


def terminal_width() -> int | None:
    """The columns of the terminal. None: standard output is no terminal, so nothing is cut."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, 20)


def table_lines(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int | None = None,
    numbers: Sequence[str] = (),
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    on: bool | None = None,
) -> list[str]:
    """A table as lines. Columns without any text are left out.

    width: what does not fit is cut, the widest column first. None: nothing is cut.
    numbers: the heads of columns that are aligned at the right.
    keep: the heads of columns that are never cut, such as ids.
    drop: the heads of columns that are left out, in this order, before any other column gets too narrow.
    """
    on = shows_colours(sys.stdout) if on is None else on
    cells = [[(each, plain(each)) for each in row] for row in rows]
    used = [index for index in range(len(heads)) if any(row[index][1] for row in cells)]
    widths = {index: max(columns(heads[index]), *(columns(row[index][1]) for row in cells)) for index in used}
    if width is not None:
        widths = _fitted(
            widths, width, {heads.index(each) for each in keep}, [heads.index(each) for each in drop]
        )
    right = {index for index in widths if heads[index] in numbers}
    last = max(widths, default=0)

    def line(texts: Sequence[tuple[str, str]], style: Callable[[str], str]) -> str:
        parts: list[str] = []
        for index, columns_of_it in widths.items():
            given, text = texts[index]
            text = cut(text, columns_of_it)
            padding = " " * (columns_of_it - columns(text))
            shown = styled(text, style(given), on)
            parts.append(padding + shown if index in right else shown if index == last else shown + padding)
        return GAP.join(parts).rstrip()

    head = line([(each, each) for each in heads], lambda _: "dim")
    return [head, *(line(row, lambda given: getattr(given, "style", "")) for row in cells)]


def _fitted(widths: dict[int, int], width: int, fixed: set[int], drop: Sequence[int]) -> dict[int, int]:
    """Widths with which all columns fit, if that is possible: the widest are cut, some are left out."""
    fitted = widths
    for dropped in ((), *(drop[: count + 1] for count in range(len(drop)))):
        fitted = {index: widths[index] for index in widths if index not in dropped}
        excess = sum(fitted.values()) + len(GAP) * (len(fitted) - 1) - width
        while excess > 0:
            flexible = [index for index in fitted if index not in fixed and fitted[index] > LEAST_COLUMN]
            if not flexible:
                break
            fitted[max(flexible, key=lambda index: fitted[index])] -= 1
            excess -= 1
        if excess <= 0:
            return fitted
    return fitted


def fact_lines(facts: Iterable[tuple[str, Any]], *, on: bool | None = None) -> list[str]:
    """Facts as two columns: a name and a text, which may have several lines. Empty texts are left out."""
    shown = [(name, text) for name, text in facts if text not in ("", None)]
    width = max((columns(name) for name, _ in shown), default=0)
    lines: list[str] = []
    for name, text in shown:
        style = getattr(text, "style", "")
        for index, part in enumerate(plain_lines(str(text)) or [""]):
            label = styled(name.ljust(width), "dim", on) if index == 0 else " " * width
            lines.append(f"{label}{GAP}{styled(part, style, on)}")
    return lines
