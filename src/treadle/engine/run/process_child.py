"""What runs inside a child of the process pool: calls come in over a pipe, answers go back.

The parent decides when a child ends. Signals meant for the whole group (Ctrl-C, a service manager's SIGTERM)
therefore do nothing here: the parent drains and then closes the pipe, or kills. If the parent itself dies,
a thread ends this process, and on Linux the kernel does, even if a C call holds the interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from treadle.errors import EncodeError, RemoteError

READY = b"ready"

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """A function by name: what can be told to another process."""

    module: str
    qualname: str

    def resolve(self) -> Any:
        """What the name means here. Where the function was decorated, the name means its work type."""
        found: Any = importlib.import_module(self.module)
        for part in self.qualname.split("."):
            found = getattr(found, part)
        return found if isinstance(found, type) else getattr(found, "fn", found)


@dataclass(frozen=True, slots=True)
class Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    error: Exception
    traceback: str


def serve(connection: Connection) -> None:
    """Answer calls until the pipe closes."""
    _leave_signals_to_the_parent()
    _die_with_the_parent()
    # A daemon may have no children of its own, and a handler may well want some.
    multiprocessing.current_process().daemon = False
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(READY)
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))


def _leave_signals_to_the_parent() -> None:
    # Not SIG_IGN, which programs that a handler starts would inherit.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _nothing)


def _nothing(signum: int, frame: object) -> None:
    pass


def _die_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True, name="treadle-parent").start()
    # Only for a direct child: one of a fork server would hear of that server's death.
    if sys.platform == "linux" and os.getppid() == parent.pid:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def answer(request: bytes) -> bytes:
    """Do what a request asks, and say in bytes what came of it."""
    try:
        reference, args, kwargs = pickle.loads(request)
        function: Callable[..., Any] = reference.resolve()
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  sys.exit() in a handler is a failed attempt too
        return _raised(error)
    try:
        return pickle.dumps(Returned(value))
    except Exception as error:  # noqa: BLE001  whatever a class does when it is pickled
        what = f"the result, a {type(value).__name__}, cannot be sent back from a process: {error}"
        return _raised(EncodeError(what))


def _raised(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):
            raised = pickle.dumps(Raised(error, text))
            # Many exceptions can be written but not made again from what was written.
            pickle.loads(raised)
            return raised
    # SystemExit and the like would end the parent's event loop.
    kind = type(error)
    return pickle.dumps(Raised(RemoteError(f"{kind.__module__}.{kind.__qualname__}", str(error)), text))
