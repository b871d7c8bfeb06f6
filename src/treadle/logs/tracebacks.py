"""Tracebacks: those of errors as they are logged and stored. They begin where the user's code begins.

If there is none of it, all is shown: it may be a bug of treadle. But an error about data says all in its
message, and the frames of the codec say nothing.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
import traceback
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Final

from treadle.errors import PayloadError
from treadle.item import DeathReason, ErrorInfo

_TREADLE: Final = str(Path(__file__).parents[1] / "_")[:-1]
_PYTHON: Final = tuple(str(Path(sysconfig.get_path(name)) / "_")[:-1] for name in ("stdlib", "platstdlib"))
_PACKAGE: Final = re.compile(r".*[\\/](?:site|dist)-packages[\\/][^\\/]+")
FIRST_FRAMES: Final = 20
LAST_FRAMES: Final = 80
"""Of a deep stack only the first and the last frames are shown."""
_frames = vars(BaseException)["__traceback__"].__get__


class RemoteTraceback(Exception):
    """The traceback of an error, from the child process that raised it."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def frames_of(error: BaseException) -> TracebackType | None:
    """The frames of an error. It never raises (a class may have a `__traceback__` of its own)."""
    frames: TracebackType | None = _frames(error)
    return frames


def user_frames(error: BaseException) -> TracebackType | None:
    """Its frames from the user's code on. None if there is none of it."""
    frames = frames_of(error)
    while frames is not None and not is_users(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def traceback_text(error: BaseException, *, whole: bool = False) -> str:
    """The traceback of an error as text, with those of its causes. whole: with the frames before the user's
    code. Empty if it cannot be read: the error's attributes may be the user's."""
    try:
        exception = traceback.TracebackException(type(error), error, frames_of(error), lookup_lines=False)
        if not whole:
            # The user's code is in the text of the cause, or is what cannot be read.
            elsewhere = isinstance(error.__cause__, RemoteTraceback) or isinstance(error, SyntaxError)
            if not _trim(exception, elsewhere=elsewhere) and isinstance(error, PayloadError):
                return ""
        for each in _chain(exception):
            if each.stack:  # None: it was left out
                each.stack = _shorten(each.stack)
        return "".join(exception.format())
    except BaseException:  # noqa: BLE001
        return ""


def _trim(exception: traceback.TracebackException, *, elsewhere: bool) -> bool:
    """Leave out what comes before the user's code. False if there is none of it: then all stays."""
    chain: list[Any] = list(_chain(exception))
    stacks = [_from_user(each.stack) for each in chain]
    if not elsewhere and not any(stacks):
        return False
    for each, stack in zip(chain, stacks, strict=True):
        each.stack = stack or None
    return True


def _chain(exception: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The exception, and all that caused it."""
    yield exception
    for other in (exception.__cause__, exception.__context__, *(exception.exceptions or ())):
        if other is not None:
            yield from _chain(other)


def _from_user(stack: traceback.StackSummary) -> traceback.StackSummary:
    """From the first frame of the user on, without treadle's between two of the user (middlewares)."""
    users = [n for n, frame in enumerate(stack) if is_users(frame.filename)]
    if not users:
        return traceback.StackSummary()
    first, last = users[0], users[-1]
    return traceback.StackSummary.from_list(
        frame
        for n, frame in enumerate(stack)
        if n >= last or (n >= first and not frame.filename.startswith(_TREADLE))
    )


class _ShortenedStack(traceback.StackSummary):
    """A stack without the frames in its middle. The frame without a file says how many they are."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        if not frame_summary.filename:
            return f"  [{frame_summary.lineno:,} frames are left out]\n"
        return super().format_frame_summary(frame_summary, **options)


def _shorten(stack: traceback.StackSummary) -> traceback.StackSummary:
    """The first and the last frames of a deep stack: each costs time, and texts are cut anyway."""
    left_out = len(stack) - FIRST_FRAMES - LAST_FRAMES
    if left_out <= 0:
        return stack
    mark = traceback.FrameSummary("", left_out, "", lookup_line=False, line="")
    return _ShortenedStack([*stack[:FIRST_FRAMES], mark, *stack[-LAST_FRAMES:]])


@lru_cache(10_000)
def is_users(file: str) -> bool:
    """Whether a file is neither treadle's nor Python's. It may be of a library."""
    if file.startswith((_TREADLE, "<frozen ")):
        return False
    return not file.startswith(_PYTHON) or bool(package_of(file))


@lru_cache(10_000)
def package_of(file: str) -> str:
    """The installed package that a file belongs to. Empty if it is not installed."""
    found = _PACKAGE.match(file)
    return found[0] if found else ""


MARK_LENGTH: Final = 12
"""Hexadecimal digits of a mark."""


def mark_of(type: str, reason: DeathReason, failure: ErrorInfo, error: BaseException | None) -> str:
    """The fingerprint of a death: dead items with the same one are shown together. It is made of the type,
    the class of the error, and the deepest function of the user's code that raised it. Lines and messages are
    left out: they change with every deploy and every item."""
    where = _deepest_own_function(error) if error is not None else ""
    text = "\0".join((type, failure.type, where or reason))
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=MARK_LENGTH // 2).hexdigest()


def _deepest_own_function(error: BaseException) -> str:
    """Installed packages are libraries. If all is installed, the one in which the user's code begins is the
    user's own."""
    deepest, trace = dict[str, CodeType](), frames_of(error)  # by package, "" for what is not installed
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename) and not code.co_filename.startswith("<"):
            deepest[package_of(code.co_filename)] = code
        trace = trace.tb_next
    found = deepest.get("") or next(iter(deepest.values()), None)
    return "" if found is None else _name_of(found)


def _name_of(code: CodeType) -> str:
    return f"{Path(code.co_filename).name}:{code.co_qualname}"
