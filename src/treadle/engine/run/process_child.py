"""Process child: the code that runs inside a child of the process pool. It answers calls over a pipe.

The parent decides when a child ends. Signals to the whole process group (Ctrl-C, a service manager's SIGTERM)
therefore do nothing here: the parent drains and then closes the pipe, or kills the child. If the parent dies,
a thread ends this process. On Linux the kernel does so too, even while a C call holds the interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, cast

from treadle.handler.result import Result

from .process_context import ChildLogs, Outputs, SentContexts, pickled_error, pickled_value

if TYPE_CHECKING:
    from .process_context import ChildContexts, InterruptListener

READY = b"ready"
IGNORED: Final = (signal.SIGINT, signal.SIGTERM)

_PR_SET_PDEATHSIG = 1


def serve(connection: Connection, notices: Connection) -> None:
    """Answer calls until the pipe closes."""
    # Not SIG_IGN: programs that a handler starts would inherit it.
    for each in IGNORED:
        signal.signal(each, _ignore)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # they were blocked until here
    _die_with_the_parent()
    # A daemon may not have children, and a handler may want to start some.
    multiprocessing.current_process().daemon = False
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(READY)
        link = ChildLink(connection, notices)
        while True:
            connection.send_bytes(answer(connection.recv_bytes(), link))


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


def answer(request: bytes, link: ChildLink) -> bytes:
    """Make the call that a request asks for. Returns the pickled outcome."""
    contexts: ChildContexts | None = None
    logs: ChildLogs | None = None
    try:
        reference, args, kwargs, sent, carried, is_batch, log_level = pickle.loads(request)
        function: Callable[..., Any] = reference.resolve()
        if sent is not None:
            contexts = link.contexts(sent)
            args = (contexts.argument, *args)
        if log_level is not None:
            logs = link.logs(log_level)
        with contextlib.nullcontext() if carried is None else _context(carried):
            value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  sys.exit() in a handler is a failed attempt too
        return pickled_error(error)
    finally:
        for each in (contexts, logs):
            if each is not None:
                each.close()
    created = () if contexts is None else contexts.created()
    if is_batch and isinstance(value, list | tuple):
        return pickle.dumps(_outputs(cast("Sequence[object]", value), created))
    return pickled_value(value, created)


def _outputs(values: Sequence[object], created: Sequence[list[Result[Any, Any]]]) -> Outputs:
    """The outputs of a batch, each with the Results that its context has made."""
    made = itertools.chain(((each,) for each in created), itertools.repeat(()))
    # Not isinstance: `__class__` of an output may raise.
    return Outputs(
        tuple(
            pickled_error(cast("BaseException", value))
            if issubclass(type(value), BaseException)
            else pickled_value(value, own)
            for value, own in zip(values, made, strict=False)
        )
    )


def _context(carried: bytes) -> AbstractContextManager[None]:
    from treadle.engine.guarded_telemetry import carried_context  # few apps need it

    return carried_context(carried)


class ChildLink:
    """This end of both pipes: `connection` for calls, answers and requests of handlers, `notices` for
    interrupts, which may come at any time."""

    def __init__(self, connection: Connection, notices: Connection) -> None:
        self.connection = connection
        self._notices = notices
        self._lock = threading.Lock()
        self._listener: InterruptListener | None = None

    def contexts(self, sent: SentContexts) -> ChildContexts:
        """The contexts of a call."""
        from .process_context import ChildContexts, InterruptListener  # few handlers need them

        if self._listener is None:
            self._listener = InterruptListener(self._notices)
        return ChildContexts(sent, self.connection, self._lock, self._listener)

    def logs(self, level: int) -> ChildLogs:
        """For what a call logs."""
        return ChildLogs(self.connection, self._lock, level)
