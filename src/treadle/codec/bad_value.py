"""A bad value: the exception that the modules of the codec raise among themselves."""

from __future__ import annotations

import re
from typing import Final

from treadle.errors import DecodeError, shown

# How msgspec ends a message: "... - at `$.a[...]`", or "... - at `key` in `$.a`".
_PATH: Final = re.compile(r" - at `(?:key[^`]*` in `)?(\$[^`]*)`\Z")


LONGEST_PATH: Final = 200
"""Of a longer path only the end is kept: keys of stored data may be of any length."""


class BadValue(Exception):
    """What is wrong with a value, and the path of the part at fault.

    Each container adds its step to the path. Public methods turn it into a public error.
    """

    def __init__(self, problem: str, path: str = "$") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def at(self, step: object) -> BadValue:
        """Add to the path the step by which a container holds this value."""
        if len(self.path) < LONGEST_PATH:
            self.path = f"${_step(step)}{self.path[1:]}"
        elif not self.path.startswith("$..."):
            self.path = f"$...{self.path[1:]}"
        return self

    @classmethod
    def because(cls, error: Exception) -> BadValue:
        """Wrap an exception of msgspec, or of a constructor that msgspec called."""
        if isinstance(error, BadValue):
            return error
        if isinstance(error, RecursionError):
            return cls("nested too deeply, or inside itself")
        text = _shortened(str(error) or type(error).__name__)
        found = _PATH.search(text)
        return cls(text[: found.start()], found[1]) if found else cls(text)


def unreadable(error: Exception) -> DecodeError:
    """The error for data that msgspec, or a constructor that it called, has refused."""
    bad = BadValue.because(error)
    return DecodeError(bad.problem, path=bad.path)


def _shortened(text: str) -> str:
    """Cut the middle out of a long message: it may quote stored data."""
    return text if len(text) <= 1000 else f"{text[:500]}...{text[-500:]}"


def _step(step: object) -> str:
    if isinstance(step, str) and len(step) <= LONGEST_PATH and step.isidentifier():
        return f".{step}"
    return f"[{shown(step)}]"
