"""The fingerprint of a death. Dead items that have the same one died alike, and are shown together."""

from __future__ import annotations

import hashlib
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Final

from treadle.item import DeathReason, ErrorInfo
from treadle.tracebacks import frames_of

_LIBRARIES: Final = tuple(
    str(Path(path).resolve())
    for path in (*sysconfig.get_paths().values(), str(Path(__file__).parents[2]))
    if path
)


def mark_of(type: str, reason: DeathReason, failure: ErrorInfo, error: BaseException | None) -> str:
    """The type, the class of the error, and the deepest function of the user's code that raised it. Lines and
    messages are left out: they change with every deploy and every item."""
    where = _deepest_own_function(error) if error is not None else ""
    text = "\0".join((type, failure.type, where or reason))
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def _deepest_own_function(error: BaseException) -> str:
    trace, found = frames_of(error), ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if _is_own(code.co_filename):
            found = _name_of(code)
        trace = trace.tb_next
    return found


def _name_of(code: CodeType) -> str:
    return f"{Path(code.co_filename).name}:{code.co_qualname}"


@cache
def _is_own(file: str) -> bool:
    """Whether a file is the user's: neither a library, nor Python's own, nor treadle's."""
    return not file.startswith("<") and not str(Path(file).resolve()).startswith(_LIBRARIES)
