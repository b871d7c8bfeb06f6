"""Close names: what a person perhaps meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 100
"""Characters that are compared: names may come from anywhere, and a comparison of long ones takes long."""


def close_names(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that are similar, the closest first. Not the name itself."""
    import difflib

    by_start = {each[:LONGEST]: each for each in known if each != name}
    return [by_start[each] for each in difflib.get_close_matches(name[:LONGEST], by_start, n=most)]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for a message: `did you mean 'send'?`."""
    close = close_names(name, known)
    return f"did you mean {close[0]!r}?" if close else otherwise
