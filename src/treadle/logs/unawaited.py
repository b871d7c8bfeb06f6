"""Forgotten awaits: what is said of a call that was made and never awaited.

Type checkers find them only with rules that few have on: see docs/types.md. So the log says where the call
was made, as soon as the call is dropped.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Coroutine, Generator
from types import CodeType, TracebackType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from treadle.base.wording import one_line

from .lines import ERROR, log_line

T = TypeVar("T")

CallSite: TypeAlias = tuple[CodeType, int]
"""A function, and the instruction in it that made a call. The line is looked up only if it is shown."""


get_frame: Final = sys._getframe  # pyright: ignore[reportPrivateUsage]


def call_site() -> CallSite:
    """Return where the caller of this function was called."""
    frame = get_frame(2)
    return frame.f_code, frame.f_lasti


def say_unawaited(call: str, effect: str, site: CallSite, source: object) -> None:
    """Log that a call was never awaited, as an error, and warn of it."""
    code, line = site[0], _line(site)
    message = one_line(f"{call} in {code.co_filename}:{line} was never awaited: {effect}")
    log_line(ERROR, message)
    warnings.warn_explicit(message, RuntimeWarning, code.co_filename, line, source=source)


def _line(site: CallSite) -> int:
    code, at = site
    found = (line for start, end, line in code.co_lines() if start <= at < end)
    return next(found, None) or code.co_firstlineno


class ContextCall(Coroutine[Any, Any, T]):
    """A coroutine of a Context method whose answer decides something. Used as the answer, it raises: without
    `await` it would always be true."""

    __slots__ = ("_begun", "_call", "_inner", "_site")

    def __init__(self, inner: Coroutine[Any, Any, T], call: str, site: CallSite) -> None:
        self._begun = False
        self._inner = inner
        self._call = call
        self._site = site

    def __await__(self) -> Generator[Any, Any, T]:
        self._begun = True
        return self._inner.__await__()

    def send(self, value: Any) -> Any:
        self._begun = True
        return self._inner.send(value)

    def throw(
        self, typ: Any, val: BaseException | object = None, tb: TracebackType | None = None
    ) -> Any:  # as asyncio calls it
        self._begun = True
        return self._inner.throw(typ) if val is None else self._inner.throw(typ, val, tb)

    def close(self) -> None:
        self._begun = True
        self._inner.close()

    def __bool__(self) -> NoReturn:
        self.close()
        raise TypeError(f"{self._call} is not awaited, so it has no answer: write `await {self._call}`")

    def __del__(self) -> None:
        if not self._begun:
            self._inner.close()
            say_unawaited(self._call, "it had no effect", self._site, self)
