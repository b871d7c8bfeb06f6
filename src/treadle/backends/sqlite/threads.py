"""Database threads: one that executes all verbs that write, one for verbs that only read, and one for reads
that take long.

Group commit: verbs that wait for the writer at the same time share a transaction, each in its own savepoint,
and are answered after the commit. A commit costs a flush of the disk. This way many verbs pay for one flush.

To wake a thread, and to be woken by it, takes longer than a small transaction. So a verb that writes few rows
is executed in the thread of its caller, if no other verb waits and the disk is quick: see `Pace`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from treadle.base.timing import Clock
from treadle.errors import StoreUnavailable

from .connection import (
    LOG_LIMIT,
    breaks_connection,
    connect_to_read,
    is_busy,
    retry_while_locked,
    translated,
)
from .process_directory import try_lock, unlock
from .statements import Tx, statements

T = TypeVar("T")
P = ParamSpec("P")

_COUNTS = statements("wakeups")
_LOG = statements("connection")

_log = logging.getLogger("treadle")


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


class FileIdentity:
    """Checks that the path still names the file that was opened.

    SQLite goes on writing into a file that was deleted. Such writes must not be reported as durable.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._opened = self._current()

    def check(self) -> None:
        if self._opened is None or self._current() != self._opened:
            raise StoreUnavailable(
                f"{self._path} was deleted or replaced while in use: close it, open it again"
            )

    def _current(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116  called for every commit, and faster than Path.stat
        except OSError:
            return None
        return found.st_dev, found.st_ino


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


# -- the writer ----------------------------------------------------------------------------------------


MOST_CALLS = 64
"""The most verbs in one transaction."""
LONGEST = 0.02
"""Seconds in which a transaction accepts more verbs. Other processes wait for the lock meanwhile."""
LONG_WAIT = 1.0
"""Seconds of waiting for the write lock, after which others may have waited too. A process that cannot write
cannot send heartbeats: then leases lapse later by the time that this one waited."""
IDLE_AFTER = 0.25
"""Seconds without a call after which the writer looks at the size of the log. After each commit, that would
take longer than a statement."""


QUICK = 0.001
"""Seconds that a transaction may take, on average, to be executed in a thread that runs an event loop."""
AT_FIRST = 0.01
"""Seconds that a transaction is taken for before the first one. As much counts a lock that is found taken."""
_NEWEST = 0.125
"""The part of the newest transaction in the average."""
MOST_HERE = 256
"""Transactions in threads of callers before one in the writer's, which moves the log into the file if it is
long."""
_LOOK_EVERY = 8
"""Transactions in threads of callers before one looks whether others wait for the lock: two system calls."""


class Pace:
    """How long transactions take now: a moving average of those that have written, of all threads.

    While it is at most `QUICK`, callers execute verbs of few rows in their own threads. A flush of 8 ms ends
    that, and seven quick ones in the writer's thread bring it back."""

    def __init__(self) -> None:
        self._average = AT_FIRST

    @property
    def is_quick(self) -> bool:
        return self._average <= QUICK

    def add(self, seconds: float) -> None:
        self._average += _NEWEST * (seconds - self._average)


class WriterThread(DatabaseThread):
    """Executes verbs that write."""

    purpose: ClassVar[str] = "write"

    def __init__(
        self,
        path: Path,
        clock: Clock,
        patience: float,
        connect: Callable[[], sqlite3.Connection],
        lock: WriteLock,
    ) -> None:
        super().__init__(path, clock, patience)
        self._connect = connect
        self._lock = lock
        self._connection: sqlite3.Connection | None = None
        self._pace = Pace()
        self._here = 0
        """Transactions in threads of callers since the last one in this thread."""
        self._blocked: asyncio.AbstractEventLoop | None = None
        """The event loop in whose thread one was executed, until its next turn."""
        self._committed: list[DatabaseCall] = []
        """Those to answer."""

    def execute_here(
        self, verb: Callable[Concatenate[Tx, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T | None:
        """Execute a verb of few rows in the caller's thread, one in each turn of its event loop. None: it
        would have to wait, or the disk is slow, or the verb says so. Nothing is written: `call` it then."""
        if not (self._pace.is_quick and self._queue.empty()):
            return None
        loop = asyncio.get_running_loop()
        if loop is self._blocked or not self._between_calls.acquire(blocking=False):
            return None
        try:
            connection = self._connection
            if connection is None or self._stopping is not None:
                return None
            try:
                if not self._begin_here(connection):
                    return None
                self._blocked = loop
                loop.call_soon(self._next_turn)
                now, began, changes = self._clock.now(), time.monotonic(), connection.total_changes
                found = verb(Tx(connection.cursor(), now, now), *arguments, **options)
                if found is None:
                    self._roll_back()
                    return None
                self._end(connection)
            except BaseException as error:
                self._roll_back()
                if (failure := self._failure(error)) is error:
                    raise
                raise failure from error
            if connection.total_changes > changes:
                self._pace.add(time.monotonic() - began)
            return found
        finally:
            self._between_calls.release()

    def _next_turn(self) -> None:
        self._blocked = None

    def _begin_here(self, connection: sqlite3.Connection) -> bool:
        """Begin a transaction whose commit leaves the log as it is. False: the writer's thread has to."""
        if self._here == MOST_HERE:
            return False
        if self._here == 0:
            connection.execute(_LOG["no_checkpoint"])
        self._here += 1
        if not self._lock.begin_at_once(connection, look=self._here % _LOOK_EVERY == 1):
            self._pace.add(AT_FIRST)
            return False
        return True

    def _open(self) -> None:
        self._connection = self._connect()
        self._identity = FileIdentity(self._path)

    def _serve(self) -> None:
        while True:
            try:
                call = self._queue.get(timeout=IDLE_AFTER)
            except Empty:
                with self._between_calls:
                    self._truncate_log()
                call = self._queue.get()
            if not isinstance(call, DatabaseCall):
                return
            with self._between_calls:
                self._commit([call] if self._queue.empty() else [call, *self._waiting(MOST_CALLS)])
                if self._queue.empty():
                    self._lock.wrote = False
            # Now, so that a caller that writes again at once can do so in its own thread.
            committed, self._committed = self._committed, []
            answer(committed)

    def _close(self) -> None:
        with self._between_calls:
            self._disconnect()
            self._lock.close()

    def close_inherited(self) -> None:
        self._disconnect()

    def _waiting(self, most: int) -> list[DatabaseCall]:
        """The calls that wait now, urgent ones first. The end of the queue stays in it."""
        found: list[DatabaseCall] = []
        while len(found) < most:
            try:
                call = self._queue.get_nowait()
            except Empty:
                break
            if not isinstance(call, DatabaseCall):
                self._queue.put(call)
                break
            found.append(call)
        found.sort(key=lambda call: not call.urgent)
        return found

    # -- one transaction -------------------------------------------------------------------------------

    def _commit(self, calls: list[DatabaseCall]) -> None:
        """Execute these calls, and those that come meanwhile, in one transaction. Answer those that fail."""
        try:
            connection = self._connection or self._connected()
            if self._here:
                connection.execute(_LOG["checkpoint_pages"])
                self._here = 0
            waited = self._begin(connection, calls)
        except BaseException as error:  # noqa: BLE001  the callers get every error
            self._fail(calls, error)
            return
        began, changes = time.monotonic(), connection.total_changes
        try:
            self._execute(connection, calls, waited)
            self._end(connection)
        except BaseException as error:  # noqa: BLE001  the callers get every error
            self._roll_back()
            if isinstance(error, sqlite3.Error) and len(calls) > 1:
                # One of the calls may have caused the error, or all: commit each on its own.
                for call in calls:
                    self._commit([call])
                return
            self._fail(calls, error)
            return
        if connection.total_changes > changes:
            self._pace.add(time.monotonic() - began)
        self._committed += calls

    def _end(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")
        self._identity.check()

    def _begin(self, connection: sqlite3.Connection, calls: list[DatabaseCall]) -> float:
        """Begin a transaction for these calls, and for those that came while others wrote, heartbeats first:
        a claim would remove workers whose heartbeats wait behind it. Return the seconds that it took.

        Each call waits for `busy_timeout` at most, also behind others. Those whose time is over fail and
        leave `calls`. If all are, the error is raised."""
        while True:
            try:
                asked = calls[0].asked if len(calls) == 1 else min([call.asked for call in calls])
                waited = self._lock.begin(connection, asked + self._patience)
                break
            except sqlite3.Error as error:
                now = time.monotonic()
                late = [call for call in calls if call.asked + self._patience <= now]
                if not is_busy(error) or len(late) == len(calls):
                    raise
                self._fail(late, error)
                calls[:] = [call for call in calls if call not in late]
        if not self._queue.empty():
            calls += self._waiting(MOST_CALLS - len(calls))
            calls.sort(key=lambda call: not call.urgent)
        return waited

    def _execute(self, connection: sqlite3.Connection, calls: list[DatabaseCall], waited: float) -> None:
        late = waited if waited > LONG_WAIT else 0.0
        if len(calls) == 1 and self._queue.empty():
            # The only verb needs no savepoint: if it raises, the whole transaction is rolled back.
            call = calls[0]
            now = self._clock.now()
            tx = Tx(connection.cursor(), now, now - late)
            call.result, call.error = call.verb(tx, *call.arguments, **call.options), None
            return
        end = time.monotonic() + LONGEST
        done = 0
        while done < len(calls):
            now = self._clock.now()
            _execute_in_savepoint(connection, calls[done], Tx(connection.cursor(), now, now - late))
            done += 1
            if done == len(calls) < MOST_CALLS and time.monotonic() < end:
                calls += self._waiting(MOST_CALLS - done)

    def _fail(self, calls: list[DatabaseCall], error: BaseException) -> None:
        failure = self._failure(error)
        for call in calls:
            call.error = failure
        answer(calls)

    def _failure(self, error: BaseException) -> BaseException:
        """What callers get for this error. The connection is closed if it is of no more use."""
        if not isinstance(error, sqlite3.Error):
            return error
        failure = translated(error, self._path)
        failure.__cause__ = error
        if breaks_connection(error):
            self._disconnect()
        return failure

    def _connected(self) -> sqlite3.Connection:
        """The connection; a new one if the last one broke. Only ever to the file that was opened first."""
        if self._connection is None:
            self._identity.check()
            self._connection = self._connect()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _roll_back(self) -> None:
        try:
            # After some errors SQLite has rolled back by itself.
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _truncate_log(self) -> None:
        try:
            if self._connection is not None and Path(f"{self._path}-wal").stat().st_size > LOG_LIMIT:
                self._connection.execute(_LOG["cut_log"]).fetchall()
        except (OSError, sqlite3.Error) as error:
            # A reader is in the way, or the disk is full. A later call truncates the log.
            _log.debug("treadle: cannot truncate the write-ahead log of %s: %s", self._path, error)


def _execute_in_savepoint(connection: sqlite3.Connection, call: DatabaseCall, tx: Tx) -> None:
    connection.execute("SAVEPOINT verb")
    try:
        call.result, call.error = call.verb(tx, *call.arguments, **call.options), None
    except sqlite3.Error:
        raise
    except BaseException as error:  # noqa: BLE001  only this call fails: the others go on
        connection.execute("ROLLBACK TO verb")
        call.error = error
    connection.execute("RELEASE verb")


# -- the write lock ------------------------------------------------------------------------------------
#
# SQLite's write lock has no queue: a process that commits and begins again at once, over and over, keeps it
# from those that sleep between two attempts. So a writer that finds it taken shows that it waits: by a lock
# on a file in the process directory, and by a count within this process. A writer that has just written
# pauses briefly before its next transaction while another one waits.


LONGEST_PAUSE = 0.005
"""Seconds that a writer pauses at most for others."""
_FIRST_IN_LINE = 0.0002
_BEHIND = (0.0005, 0.003)

_waiting: Counter[str] = Counter()
_waiting_guard = threading.Lock()


def forget_waiting() -> None:
    """In a forked process no thread waits."""
    _waiting.clear()


class WriteLock:
    """One writer's access to the write lock of a file."""

    def __init__(self, path: Path, open_waiting_file: Callable[[], int | None]) -> None:
        self._path = str(path)
        self._open_waiting_file = open_waiting_file
        self._opened = False
        self._file: int | None = None
        """It is opened when it is first needed."""
        self.wrote = False
        """This writer wrote last, and has not been idle since. Then it pauses for others that wait."""
        self._began: float | None = None
        """Since when it tries to get the lock, also if it has given up meanwhile."""

    def begin(self, connection: sqlite3.Connection, until: float) -> float:
        """Begin a write transaction. Return the seconds that it took to get the lock, earlier calls that
        failed included. Raises SQLite's own error if the lock is still taken at `until`, by the monotonic
        clock."""
        if self.wrote and self._others_wait():
            self._pause()
        now = time.monotonic()
        if self._began is None:
            self._began = now
        if not _try_begin(connection):
            self._wait(connection, until)
        self.wrote = True
        began, self._began = self._began, None
        return time.monotonic() - began

    def begin_at_once(self, connection: sqlite3.Connection, *, look: bool) -> bool:
        """Begin a write transaction, unless another has the lock or, with `look`, waits for it. Nor after
        calls that failed because of the lock: `begin` tells how long that took."""
        if self._began is not None or (look and self._others_wait()):
            return False
        try:
            return _try_begin(connection)
        except sqlite3.Error:
            return False  # the writer's thread meets the same error, and knows what to do

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _pause(self) -> None:
        end = time.monotonic() + LONGEST_PAUSE
        while time.monotonic() < end and self._others_wait():
            time.sleep(_FIRST_IN_LINE)

    def _others_wait(self) -> bool:
        if _waiting[self._path] > 0:
            return True
        if not self._lock_file():
            return self._file is not None
        self._unlock_file()
        return False

    def _wait(self, connection: sqlite3.Connection, end: float) -> None:
        with _waiting_guard:
            _waiting[self._path] += 1
        first = False
        try:
            while True:
                first = first or self._lock_file()
                time.sleep(_FIRST_IN_LINE if first else random.uniform(*_BEHIND))
                if _try_begin(connection, last=time.monotonic() >= end):
                    return
        finally:
            with _waiting_guard:
                _waiting[self._path] -= 1
            if first:
                self._unlock_file()

    def _lock_file(self) -> bool:
        if not self._opened:
            self._opened, self._file = True, self._open_waiting_file()
        return self._file is not None and try_lock(self._file)

    def _unlock_file(self) -> None:
        if self._file is not None:
            unlock(self._file)


def _try_begin(connection: sqlite3.Connection, *, last: bool = False) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if last or not is_busy(error):
            raise
        return False
    return True


# -- the reader ----------------------------------------------------------------------------------------


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
        cursor = connection.cursor()
        try:
            found = call.verb(Tx(cursor, self._clock.now()), *call.arguments, **call.options)
            self._identity.check()
            return found
        finally:
            cursor.close()  # an error refers to it, and would keep the file open
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_while_locked(action, self._path, self._patience)


class CountingThread(ReaderThread):
    """Executes reads that take longer the more items there are. Others do not wait behind them."""

    purpose: ClassVar[str] = "count"


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
        return int(self._connection.execute(_COUNTS[name]).fetchall()[0][0])
