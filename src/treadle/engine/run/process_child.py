"""Process child: the code that runs inside a child of the process pool. It answers calls over a pipe.

The parent decides when a child ends. Signals to the whole process group (Ctrl-C, a service manager's SIGTERM)
therefore do nothing here: the parent drains and then closes the pipe, or kills the child. If the parent dies,
a thread ends this process. On Linux the kernel does so too, even while a C call holds the interpreter.
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

from treadle.errors import RemoteError, message_of

READY = b"ready"

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """A function by name, as it is sent to another process."""

    module: str
    qualname: str

    def resolve(self) -> Any:
        """The function with that name in this process. If the name refers to a work type, its handler."""
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


@dataclass(frozen=True, slots=True)
class Unsendable:
    """The call returned a value that cannot be pickled."""

    kind: str
    problem: str


def serve(connection: Connection) -> None:
    """Answer calls until the pipe closes."""
    # Not SIG_IGN: programs that a handler starts would inherit it.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _ignore)
    _die_with_the_parent()
    # A daemon may not have children, and a handler may want to start some.
    multiprocessing.current_process().daemon = False
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(READY)
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))


def _ignore(signum: int, frame: object) -> None:
    pass


def _die_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True, name="treadle-parent").start()
    # If the parent is gone already, this process has another one, and the thread ends it.
    if sys.platform == "linux" and os.getppid() == parent.pid:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def answer(request: bytes) -> bytes:
    """Make the call that a request asks for. Returns the pickled outcome."""
    try:
        reference, args, kwargs = pickle.loads(request)
        function: Callable[..., Any] = reference.resolve()
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  sys.exit() in a handler is a failed attempt too
        return _raised(error)
    try:
        return pickle.dumps(Returned(value))
    except BaseException as error:  # noqa: BLE001  a class may raise anything when it is pickled
        return pickle.dumps(Unsendable(type(value).__name__, message_of(error)))


def _raised(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    if isinstance(error, Exception):
        with contextlib.suppress(BaseException):
            raised = pickle.dumps(Raised(error, text))
            # Many exceptions can be pickled but not unpickled.
            pickle.loads(raised)
            return raised
    # SystemExit and the like would end the parent's event loop.
    kind = type(error)
    return pickle.dumps(
        Raised(RemoteError(f"{kind.__module__}.{kind.__qualname__}", message_of(error)), text)
    )
