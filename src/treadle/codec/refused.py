"""The one exception inside the codec: what is wrong with a value, and where in it."""

from __future__ import annotations

import re
from typing import Final

from treadle.errors import shown

# How msgspec ends a message: "... - at `$.a[...]`", or "... - at `key` in `$.a`".
_PATH: Final = re.compile(r" - at `(?:key[^`]*` in `)?(\$[^`]*)`\Z")


class Refused(Exception):
    """Becomes InputError, EncodeError or DecodeError at the door; the path grows on the way there."""

    def __init__(self, problem: str, path: str = "$") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def at(self, step: object) -> Refused:
        """The same, seen from the container that holds the value under `step`."""
        self.path = f"${_step(step)}{self.path[1:]}"
        return self

    @classmethod
    def because(cls, error: Exception) -> Refused:
        """What msgspec, or a constructor that it called, had to say."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, RecursionError):
            return cls("nested too deeply, or inside itself")
        text = str(error) or type(error).__name__
        found = _PATH.search(text)
        return cls(text[: found.start()], found[1]) if found else cls(text)


def _step(step: object) -> str:
    if isinstance(step, str) and step.isidentifier():
        return f".{step}"
    return f"[{shown(step)}]"
