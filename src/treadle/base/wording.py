"""Wording: how durations, counts, lists and texts from elsewhere are said, in logs and on terminals."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, TextIO

MOST_CHARACTERS: Final = 500
"""Of a text in a line."""
NAMES_SHOWN: Final = 3
"""Names that a list of names shows before "and 4 more"."""
MOST_COMPARED: Final = 100
"""Characters of a name: it may come from anywhere, and a comparison of long names takes long."""
MINUTE, HOUR, DAY = 60, 3600, 86400
_UNITS: Final = ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s"))
"""Each with the one that is named after it."""
_UNPRINTABLE: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""What JSON does not escape, and what a terminal may obey."""
_NOT_ASCII: Final = re.compile("[^\x00-\x7e]")


def shows_colours(stream: TextIO) -> bool:
    """Whether to write colours: only to a terminal, and not with NO_COLOR."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def duration(seconds: float, *, brief: bool = False) -> str:
    """A duration: `250 ms`, `1.5 s`, `40 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`. brief: with one unit, as
    tables show it: `2 s`, `90 s`, `3 min`, `36 h`, `3 d`."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 9.95 and not brief:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    for unit, name, smaller, smaller_name in _UNITS:
        if round(seconds / smaller) * smaller >= (2 * unit if brief else unit):
            if brief:
                return f"{round(seconds / unit)} {name}"
            large, rest = divmod(round(seconds / smaller), unit // smaller)
            return f"{large} {name} {rest} {smaller_name}" if rest else f"{large} {name}"
    return f"{round(seconds)} s"


def plain(text: str) -> str:
    """A text from elsewhere on one line: what cannot be printed is escaped as Python would, so it cannot make
    a line look like two, or write to a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """The same, cut to `most` characters before that."""
    return plain(text if len(text) <= most else f"{text[: most - 3]}...")


def first_line(text: str, most: int = 300) -> str:
    """The first line of a text that may be long."""
    return one_line(text.strip().partition("\n")[0].rstrip(), most)


def error_line(name: str, message: str) -> str:
    """The class of an error and the first line of its message: `ValueError: no`."""
    return first_line(f"{name}: {message}" if message.strip() else name)


def printable_json(text: str, *, ascii: bool = False) -> str:
    """JSON on one line without what a terminal might obey. ascii: without all that is not ASCII."""
    import json

    unsafe = _NOT_ASCII if ascii else _UNPRINTABLE
    return unsafe.sub(lambda found: json.dumps(found[0])[1:-1], text)


def capped(count: int, more: bool) -> str:
    """A count that may be a lower bound: `10,000+`."""
    return f"{count:,}+" if more else f"{count:,}"


def approximate(count: int, estimated: bool, sign: str = "≈") -> str:
    """A count that may be an estimate: `≈1,230,000`. An estimate has three digits that say something."""
    return f"{sign}{round(count, 3 - len(str(count))):,}" if estimated else f"{count:,}"


def plural(count: int, noun: str, more: bool = False, *, estimated: bool = False) -> str:
    """`1 item`, `2 items`, `10,000+ items`, `about 1,230,000 items`."""
    number = approximate(count, True, "about ") if estimated else capped(count, more)
    return f"{number} {noun if count == 1 and not more else noun + 's'}"


def times(count: int) -> str:
    """`once`, `2 times`."""
    return "once" if count == 1 else f"{count:,} times"


def listed(names: Iterable[str], most: int = NAMES_SHOWN, *, total: int | None = None) -> str:
    """`a, b, c and 4 more`, as `plain` shows them. total: how many there are, if not all are given."""
    given = list(names)
    more = (len(given) if total is None else total) - min(len(given), most)
    shown = ", ".join(map(plain, given[:most]))
    return f"{shown} and {more:,} more" if more > 0 else shown


def counted_names(counts: Mapping[str, int]) -> str:
    """`a (12), b, c and 4 more`: the most frequent first."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return listed(f"{name} ({counts[name]:,})" if counts[name] > 1 else name for name in names)


def close_names(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that are similar, the closest first. Not the name itself."""
    import difflib

    by_start = {each[:MOST_COMPARED]: each for each in known if each != name}
    return [by_start[each] for each in difflib.get_close_matches(name[:MOST_COMPARED], by_start, n=most)]


def close_to(name: str, known: Iterable[str]) -> str | None:
    """The name that was perhaps meant."""
    return next(iter(close_names(name, known)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for a message: `did you mean 'send'?`."""
    close = close_to(name, known)
    return f"did you mean {close!r}?" if close else otherwise
