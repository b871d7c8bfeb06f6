"""ProcessPool: runs sync handlers in processes. Unlike threads, they can be ended one by one.

    run -> borrow a child -> its thread: send the call, wait for the answer -> return the child
                 |                                     |
                 '--- cancelled: kill the child -------'--- the child died: ProcessDied

`treadle.engine.run.process_pool` has the thread, `treadle.engine.run.process_child` is the other side.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
import weakref
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from treadle.engine.core import UNGUARDED
from treadle.errors import (
    Abort,
    BadResultError,
    HandlerError,
    InputError,
    ProcessDied,
    RetryAfter,
    Stopped,
    TreadleError,
    class_name,
    message_of,
    shown,
)
from treadle.handler.result import Result
from treadle.logs.kept_lines import LogReceiver
from treadle.logs.tracebacks import RemoteTraceback

from .process_child import IGNORED, serve
from .process_context import Asked, Logged, Outputs, Raised, Reference, Returned, Unsendable

if TYPE_CHECKING:
    from .process_context import PoolContexts

RESULT_ADVICE: Final = (
    "define its `append=`, and the types of its works, at the top of a module, or run it in a thread"
)


class ProcessPool:
    """Runs functions in up to `size` processes (default: one per core), started when first needed."""

    def __init__(self, size: int | None = None) -> None:
        if size is not None and (type(size) is not int or size < 1):
            raise InputError.of("processes", size, "must be a whole number, 1 or more")
        self.size = size or os.cpu_count() or 1
        self._children: set[PoolChild] = set()
        self._idle: list[PoolChild] = []
        self._waiting: deque[Future[None]] = deque()
        self._references: dict[Callable[..., Any], Reference] = {}
        self._closed = False

    async def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        name: str = "",
        contexts: PoolContexts | None = None,
        carried: bytes | None = None,
        is_batch: bool = False,
        logs: LogReceiver | None = None,
    ) -> Any:
        """Call `fn` in a child process. Returns what it returns, raises what it raises.

        Cancelling this kills the child. If the child dies by itself, this call raises `ProcessDied`.

        contexts: those of the attempts that the call is for, if the function takes a Context first.
        carried: the context that the child enters around the call.
        is_batch: it returns a list of outputs. One that cannot be sent back is an error in the list.
        logs: keeps what is logged in the call.
        """
        what = name or fn.__qualname__
        level = None if logs is None else logging.root.level
        request = self._request(fn, args, kwargs or {}, what, contexts, carried, is_batch, level)
        child = await self._borrow()
        try:
            answer = await child.call(request, what, contexts, logs)
        except BaseException:
            # Cancelled, or the child died. A child that was still starting has not seen the call.
            if child.calling is None:
                self._return(child)
            else:
                await self._discard(child)
            raise
        self._return(child)
        if isinstance(answer, tuple):
            return _outputs(what, answer, contexts)
        if not isinstance(answer, Returned):
            raise _error(what, answer)
        if contexts is not None:
            contexts.returned(answer.created)
        return answer.value

    async def ready(self) -> None:
        """Return when a child is free and has started. Starting takes a while, which should not count against
        a call's timeout."""
        child = await self._borrow()
        try:
            await asyncio.wait([child.started])
        finally:
            self._return(child)

    async def close(self) -> None:
        """End all children. Idle ones end by themselves, busy ones are killed. Idempotent."""
        self._closed = True
        while self._waiting:
            self._wake_next()
        self._idle = []
        children = list(self._children)
        for child in children:
            child.stop()
        for wait in (END_WAIT, KILL_WAIT) if children else ():
            await asyncio.wait([child.ended for child in children], timeout=wait)
            for child in children:
                if not child.ended.done():  # it was idle, and does not end by itself in time
                    child.kill()
        self._children.clear()

    def _request(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        contexts: PoolContexts | None,
        carried: bytes | None,
        is_batch: bool,
        log_level: int | None,
    ) -> bytes:
        reference = self._references.get(fn)
        if reference is None:
            reference = self._references[fn] = reference_to(fn)
        try:
            sent = None if contexts is None else contexts.sent()
            return pickle.dumps((reference, args, kwargs, sent, carried, is_batch, log_level))
        except Exception as error:
            raise BadArgumentError(name, error) from error

    # -- children --------------------------------------------------------------------------------------

    async def _borrow(self) -> PoolChild:
        while True:
            if self._closed:
                raise Stopped("the process pool")
            while self._idle:
                child = self._idle.pop()
                if child.is_alive():
                    return child
                self._remove(child)
            if len(self._children) < self.size:
                child = PoolChild(asyncio.get_running_loop())
                self._children.add(child)
                return child
            await self._wait_for_child()

    async def _wait_for_child(self) -> None:
        """Wait, in order of arrival, until a child may be free."""
        place: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._wake_next()
            raise

    def _return(self, child: PoolChild) -> None:
        if self._closed:
            child.stop()
            self._remove(child)
        else:
            self._idle.append(child)
            self._wake_next()

    async def _discard(self, child: PoolChild) -> None:
        child.kill()
        self._remove(child)
        self._wake_next()
        await asyncio.wait([child.ended], timeout=KILL_WAIT)

    def _remove(self, child: PoolChild) -> None:
        self._children.discard(child)
        child.stop()

    def _wake_next(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return


def _outputs(name: str, answers: Sequence[ReadAnswer], contexts: PoolContexts | None) -> list[Any]:
    """The outputs of a batch, with an error for each that has none."""
    if contexts is not None:
        contexts.returned(
            [each.created[0] if isinstance(each, Returned) and each.created else [] for each in answers]
        )
    return [each.value if isinstance(each, Returned) else _error(name, each) for each in answers]


def _error(name: str, answer: Raised | Unsendable | BadResultError) -> Exception:
    """The error of a call, or of an output of it, that returned nothing."""
    if isinstance(answer, BadResultError):
        return answer
    if isinstance(answer, Unsendable):
        return BadResultError(
            name,
            f"a {answer.kind}, which cannot be sent back from its process ({answer.problem}); "
            f"{RESULT_ADVICE if answer.kind == Result.__name__ else ADVICE}",
        )
    error = answer.error
    if answer.traceback:
        error.__cause__ = RemoteTraceback(answer.traceback)
        cause = error.cause if isinstance(error, Abort | RetryAfter) else None
        if isinstance(cause, BaseException):
            cause.__cause__ = error.__cause__  # what is stored is the cause
    return error


class BadArgumentError(HandlerError):
    """An argument cannot be pickled. Another attempt would not help."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(
            f"an argument of {name} cannot be sent to a process ({error}): take plain data, or run it in a "
            "thread"
        )


def reference_to(fn: Callable[..., Any]) -> Reference:
    """`fn` by name. `InputError` if the name does not refer to it."""
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    reference = Reference(module or "", qualname)
    try:
        found = reference.resolve()
    except (AttributeError, ImportError, ValueError):
        found = None
    if found is not fn:
        raise InputError.of(
            "run_in",
            "process",
            f"needs a function that {qualname or fn!r} of {module} names: define it at the top",
        )
    return reference


ReadAnswer: TypeAlias = Returned | Raised | Unsendable | BadResultError
ChildAnswer: TypeAlias = ReadAnswer | tuple[ReadAnswer, ...]
"""How a call ended. For a batch, the answers of its items. A `BadResultError`: it cannot be read."""

ADVICE: Final = "return plain data, or run it in a thread"

END_WAIT: Final = 1.0
"""Seconds in which an idle process ends by itself. Then it is killed."""
KILL_WAIT: Final = 10.0
"""Seconds in which a killed process is gone. It takes milliseconds, unless it waits for a core or hangs in
the kernel."""


class ProcessNotStarted(TreadleError):
    """The system could not start a process for a handler. Another attempt may help."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(f"the process for {name} could not be started: {shown(error)}")
        self.__cause__ = error


class UnguardedProgram(HandlerError):
    """The process for a handler began to run the whole program. Another attempt would not help."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the process for {name} imported the main module, which started the program once more: put the "
            'code that starts it under `if __name__ == "__main__":`'
        )


class PoolChild:
    """One process, and the thread that serves it. It makes one call at a time.

    Both are daemons: a pool that was not closed does not keep the program from ending.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: SimpleQueue[ChildCall | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._heard, self._notices = get_context("spawn").Pipe(duplex=False)
        """The pipe of interrupts: the child's end, and this one."""
        self.calling: ChildCall | None = None
        """The call that was handed to it."""
        self._killed = False
        self.started: Future[None] = loop.create_future()
        """Done when the process takes calls, or never will."""
        self.ended: Future[None] = loop.create_future()
        """Done when the process is gone."""
        threading.Thread(target=self._run_thread, daemon=True, name="treadle-process").start()

    # -- from the event loop ---------------------------------------------------------------------------

    async def call(
        self,
        request: bytes,
        name: str,
        contexts: PoolContexts | None = None,
        logs: LogReceiver | None = None,
    ) -> ChildAnswer:
        call = self.calling = ChildCall(request, name, self._loop.create_future(), contexts, logs)
        self._calls.put(call)
        if contexts is not None:
            contexts.watch(self._tell)
        try:
            answer = await call.answer
        except asyncio.CancelledError:
            with self._lock:
                if not call.sent:
                    call.withdrawn, self.calling = True, None
            raise
        finally:
            if contexts is not None:
                contexts.stop()
        self.calling = None
        return answer

    def _tell(self, notice: bytes) -> None:
        # A few bytes, which the pipe holds: the event loop is not blocked.
        with contextlib.suppress(OSError):
            self._notices.send_bytes(notice)

    def is_alive(self) -> bool:
        with self._lock:
            return not self.ended.done() and (self._process is None or self._process.is_alive())

    def stop(self) -> None:
        """End it. If it waits for calls it ends by itself, else it is killed."""
        if self.calling is not None or not self.started.done():
            self.kill()
        self._calls.put(None)

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    # -- in the thread ---------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        try:
            with self._start() as connection:
                self._serve(connection)
        except Exception as error:  # noqa: BLE001  there is no process: every call fails
            self._post(self.started, None)
            while (call := self._calls.get()) is not None:
                self._post(call.answer, ProcessNotStarted(call.name, error))
        self._reap()
        self._heard.close()
        self._notices.close()
        self._post(self.started, None)
        self._post(self.ended, None)

    def _start(self) -> Connection:
        spawn = get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, self._heard), daemon=True, name="treadle-process")
        with _shielded():
            process.start()
        theirs.close()
        self._heard.close()
        _alive.add(self)
        with self._lock:
            self._process = process
            if self._killed:
                process.kill()
        return ours

    def _serve(self, connection: Connection) -> None:
        """Pass calls on until told to stop, or until the process is dead."""
        with contextlib.suppress(EOFError, OSError):
            connection.recv_bytes()
        self._post(self.started, None)
        while (call := self._calls.get()) is not None:
            with self._lock:
                if call.withdrawn:
                    continue
                call.sent = True
            try:
                connection.send_bytes(call.request)
                answer = _receive(connection, call)
            except (EOFError, OSError):
                self._post(call.answer, self._died(call.name))
                return
            self._post(call.answer, answer)

    def _died(self, name: str) -> Exception:
        assert self._process is not None
        # The pipe closes a moment before the process ends.
        self._process.join(KILL_WAIT)
        exitcode = self._process.exitcode
        return UnguardedProgram(name) if exitcode == UNGUARDED else ProcessDied(name, exitcode)

    def _reap(self) -> None:
        """Wait until the process is gone. The pipe is closed, so an idle process ends by itself."""
        process = self._process
        if process is None:
            return
        process.join(END_WAIT)
        if process.is_alive():
            process.kill()
            process.join()
        with self._lock:
            self._process = None
        # It is not closed here: at exit the standard library may be joining it.

    def _post(self, future: Future[Any], result: Any) -> None:
        # The loop may be closed by now. Then no caller waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_resolve, future, result)


@contextlib.contextmanager
def _shielded() -> Generator[None]:
    """Block the signals that a child ignores, in this thread: the child inherits that. Otherwise Ctrl-C would
    end a child that is starting, and does not ignore it yet."""
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # before: it unblocks signals when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@dataclass(slots=True)
class ChildCall:
    """A call that was handed to a child. `sent` and `withdrawn` exclude each other."""

    request: bytes
    name: str
    answer: Future[ChildAnswer]
    contexts: PoolContexts | None = None
    logs: LogReceiver | None = None
    sent: bool = False
    withdrawn: bool = False


def _receive(connection: Connection, call: ChildCall) -> ChildAnswer:
    """How a call ended. What its handler asks before that is answered."""
    while True:
        answer: ReadAnswer | Outputs | Asked | Logged = _read(connection.recv_bytes(), call.name)
        if isinstance(answer, Outputs):
            return tuple(_read(each, call.name) for each in answer.pickled)
        if not isinstance(answer, Asked | Logged):
            return answer
        if isinstance(answer, Logged) and call.logs is not None:
            call.logs.keep(answer.record)
        if isinstance(answer, Logged) and answer.index is None:
            continue
        assert call.contexts is not None
        if (reply := call.contexts.serve(answer)) is not None:
            connection.send_bytes(reply)


def _read(data: bytes, name: str) -> Any:
    try:
        return pickle.loads(data)
    except BaseException as error:  # noqa: BLE001  a class may raise anything when it is unpickled
        problem = f"{class_name(error)}: {message_of(error):.300}"
        return BadResultError(name, f"a value that cannot be read from its process ({problem}); {ADVICE}")


def _resolve(future: Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


_alive: Final[weakref.WeakSet[PoolChild]] = weakref.WeakSet()


if hasattr(os, "register_at_fork"):  # the processes belong to the parent
    os.register_at_fork(after_in_child=_alive.clear)


@atexit.register
def _kill_all() -> None:
    # At exit the standard library sends SIGTERM to every child and waits. These children ignore SIGTERM.
    for child in list(_alive):
        child.kill()
