"""Database threads: how a coroutine has a verb executed by a thread that has a connection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final, TypeVar

from treadle.base.clock import Clock

from .connection import FileIdentity, connect_to_read, retry_while_locked
from .statements import Tx, statements


class DatabaseCall:
    """A verb with its arguments, and the future that gets its result.

    The verb is executed even if its caller was cancelled.
    """

    __slots__ = ("arguments", "asked", "error", "future", "loop", "options", "result", "urgent", "verb")

    def __init__(
        self,
        verb: Callable[..., Any],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] = {},
        *,
        urgent: bool = False,
    ) -> None:
        self.verb = verb
        self.arguments = arguments
        self.options = options
        self.urgent = urgent
        """Executed before others that wait at the same time."""
        self.asked = time.monotonic()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None


def answer(calls: Iterable[DatabaseCall]) -> None:
    """Hand the results of these calls to their callers. For any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[DatabaseCall]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, theirs)
        except RuntimeError:
            # The loop is closed, and its callers with it.
            continue


def _resolve(calls: list[DatabaseCall]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is None:
            call.future.set_result(call.result)
        else:
            call.future.set_exception(call.error)


NUDGE: Final = "nudge"
"""In a queue of calls: makes the thread that waits for them look around."""


class DatabaseThread(ABC):
    """A thread that executes calls on its own connection, until it is stopped."""

    purpose: ClassVar[str]

    def __init__(self, path: Path, clock: Clock, patience: float) -> None:
        self._path = path
        self._clock = clock
        self._patience = patience
        self._queue: SimpleQueue[DatabaseCall | str | None] = SimpleQueue()
        """None: the end."""
        self._stopping: DatabaseCall | None = None
        self._between_calls = threading.Lock()
        """Held while a call is executed."""

    def start(self) -> asyncio.Future[None]:
        """Start the thread. The future tells when its connection is open, or why it cannot be."""
        opening = DatabaseCall(_nothing)
        name = f"treadle-{self.purpose}-{self._path.name}"
        threading.Thread(target=self._run, args=(opening,), name=name, daemon=True).start()
        return opening.future

    def call(
        self,
        verb: Callable[..., Any],
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        *,
        urgent: bool = False,
    ) -> asyncio.Future[Any]:
        call = DatabaseCall(verb, arguments, options, urgent=urgent)
        self._queue.put(call)
        return call.future

    def stop(self) -> asyncio.Future[None]:
        """Execute the calls so far, then end the thread. The future tells when it has ended."""
        self._stopping = DatabaseCall(_nothing)
        self._queue.put(None)
        return self._stopping.future

    def pause(self, patience: float) -> bool:
        """Let no call begin, and wait until none is being executed. False: that took too long."""
        return self._between_calls.acquire(timeout=patience)

    def resume(self) -> None:
        self._between_calls.release()

    def _run(self, opening: DatabaseCall) -> None:
        try:
            self._open()
        except BaseException as error:  # noqa: BLE001  the opener gets every error
            opening.error = error
            answer([opening])
            return
        answer([opening])
        try:
            self._serve()
        finally:
            self._close()
            if self._stopping is not None:
                answer([self._stopping])

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _serve(self) -> None:
        """Execute calls until the queue has ended."""
        ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def close_inherited(self) -> None:
        """Close the connection in a forked process, where this thread does not exist. It was paused."""
        ...


def _nothing() -> None:
    """The verb of a call that only waits for its thread."""


# -- the reader ----------------------------------------------------------------------------------------


_SQL = statements("wakeups")

T = TypeVar("T")

POLL_EVERY = 0.04


class ReaderThread(DatabaseThread):
    """Executes verbs that only read, each on one snapshot, on a connection of its own: reads do not wait
    behind writes. It also polls for submits inside users' own transactions, which no process can announce."""

    purpose: ClassVar[str] = "read"

    def __init__(self, path: Path, clock: Clock, patience: float) -> None:
        super().__init__(path, clock, patience)
        self._on_user_submit: Callable[[], None] | None = None

    def watch_user_submits(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` in this thread when a user's own transaction has submitted. None: stop polling."""
        self._on_user_submit = callback
        # The thread may be waiting without a timeout.
        self._queue.put(NUDGE)

    def _open(self) -> None:
        self._connection = self._retry(lambda: connect_to_read(self._path))
        self._user_submits = self._retry(lambda: _UserSubmits(self._connection))
        self._identity = FileIdentity(self._path)

    def _serve(self) -> None:
        while True:
            try:
                call = self._queue.get(timeout=None if self._on_user_submit is None else POLL_EVERY)
            except Empty:
                call = NUDGE
            if call is None:
                return
            with self._between_calls:
                if isinstance(call, DatabaseCall):
                    self._answer(call)
                elif self._user_submits.changed() and self._on_user_submit is not None:
                    self._on_user_submit()

    def _close(self) -> None:
        self._connection.close()

    def close_inherited(self) -> None:
        self._connection.close()

    def _answer(self, call: DatabaseCall) -> None:
        try:
            call.result = self._retry(lambda: self._read(call))
        except BaseException as error:  # noqa: BLE001  the caller gets every error
            call.error = error
        answer([call])

    def _read(self, call: DatabaseCall) -> object:
        connection = self._connection
        connection.execute("BEGIN")
        try:
            found = call.verb(Tx(connection, self._clock.now()), *call.arguments, **call.options)
            self._identity.check()
            return found
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_while_locked(action, self._path, self._patience)


class _UserSubmits:
    """Whether users' own transactions have submitted since the last look. Looking is cheap while no process
    writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._version = self._number("data_version")
        self._count = self._number("user_submits")

    def changed(self) -> bool:
        try:
            version = self._number("data_version")
            if version == self._version:
                return False
            self._version = version
            before, self._count = self._count, self._number("user_submits")
        except sqlite3.Error:
            # Locked or broken: the next read reports it.
            return False
        return before != self._count

    def _number(self, name: str) -> int:
        return int(self._connection.execute(_SQL[name]).fetchall()[0][0])
