"""POSIX locks on whole files, where the system has them."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

# Any: type checkers know the module only on the systems that have it.
_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

AVAILABLE: Final[bool] = _fcntl is not None


def try_lock(file: int) -> bool:
    """Take the lock unless another process has it. This process may take it as often as it likes."""
    if _fcntl is None:
        return False
    try:
        _fcntl.lockf(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(file: int) -> None:
    if _fcntl is not None:
        _fcntl.lockf(file, _fcntl.LOCK_UN)
