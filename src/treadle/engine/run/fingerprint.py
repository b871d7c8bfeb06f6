"""The fingerprint of a death. Dead items that have the same one died alike, and are shown together."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import CodeType
from typing import Final

from treadle.item import DeathReason, ErrorInfo
from treadle.logs.tracebacks import frames_of, is_users, package_of

MARK_LENGTH: Final = 12
"""Hexadecimal digits of a mark."""


def mark_of(type: str, reason: DeathReason, failure: ErrorInfo, error: BaseException | None) -> str:
    """The type, the class of the error, and the deepest function of the user's code that raised it. Lines and
    messages are left out: they change with every deploy and every item."""
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
