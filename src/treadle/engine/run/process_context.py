"""Process context: the Context of a handler that runs in a process, on both sides of the pipe.

The worker sends the facts of the attempt with the call (`PoolContexts`). The child makes a Context of them
(`ChildContexts`). What the handler asks of `ctx.sync` is answered by the thread of the worker that serves the
child, through the Context that the worker itself has of the attempt. Results that the handler makes come back
with its value. What belongs to the worker's process, `ctx.resources` and transactions, is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import logging
import pickle
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from msgspec.structs import replace

from treadle.base.callables import check_may_block
from treadle.define.work import WorkTypeBase
from treadle.errors import (
    Abort,
    BadResultError,
    Defer,
    Directive,
    RemoteError,
    RetryAfter,
    StepError,
    Stopped,
    message_of,
    shown,
)
from treadle.handler.context import (
    Context,
    ContextServices,
    InterruptReason,
    SyncContext,
    created_results,
    set_interrupt,
)
from treadle.handler.result import Result
from treadle.item import ItemState, Lease
from treadle.logs.kept_lines import KeepingHandler, text_of
from treadle.logs.lines import LOGGER, ContextLogger
from treadle.logs.tracebacks import frames_of, traceback_text

T = TypeVar("T")

Ask: TypeAlias = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]

_calls: Final = itertools.count(1)

# -- in the worker -------------------------------------------------------------------------------------


class PoolContexts:
    """The contexts of one call, in the worker."""

    def __init__(self, contexts: Sequence[Context], *, is_batch: bool) -> None:
        self._contexts = contexts
        self._is_batch = is_batch
        self._call = next(_calls)
        self._watching: list[asyncio.Task[None]] = []

    def sent(self) -> SentContexts:
        """What the child is told."""
        facts = tuple(_facts(ctx) for ctx in self._contexts)
        return SentContexts(self._call, facts, self._is_batch, LOGGER.getEffectiveLevel())

    def watch(self, tell: Callable[[bytes], None]) -> None:
        """Tell the child of interrupts, until `stop`."""
        for index, ctx in enumerate(self._contexts):
            self._watching.append(asyncio.ensure_future(self._forward(index, ctx, tell)))

    async def _forward(self, index: int, ctx: Context, tell: Callable[[bytes], None]) -> None:
        tell(pickle.dumps(Notice(self._call, index, await ctx.interrupt)))

    def stop(self) -> None:
        for task in self._watching:
            task.cancel()

    def serve(self, message: Asked | Logged) -> bytes | None:
        """Answer a handler, in the thread of its child. None: it does not wait for an answer."""
        ctx = self._contexts[message.index or 0]
        if isinstance(message, Logged):
            _log(ctx, message.record)
            return None
        try:
            value = getattr(ctx.sync, message.method)(*message.args, **message.kwargs)
        except Exception as error:  # noqa: BLE001  the handler gets it
            return pickled_error(error)
        try:
            return pickle.dumps(Returned(value))
        except Exception as error:  # noqa: BLE001  a class may raise anything when it is pickled
            problem = f"a value that cannot be sent to its process ({message_of(error)})"
            return pickled_error(BadResultError(ctx.type, f"ctx.sync.{message.method}() found {problem}"))

    def returned(self, made: Sequence[list[Result[Any, Any]]]) -> None:
        """Note the Results that the handler has made, as if it had made them here."""
        for ctx, created in zip(self._contexts, made, strict=False):  # a batch may return too few outputs
            created_results(ctx).extend(created)


def _facts(ctx: Context) -> SentContext:
    sent: dict[str, bytes] = {}
    unsent: dict[str, str] = {}
    for name, value in ctx.extra.items():
        try:
            sent[name] = pickle.dumps(value)
        except Exception as error:  # noqa: BLE001  a class may raise anything when it is pickled
            unsent[name] = message_of(error)
    lease = ctx._lease  # pyright: ignore[reportPrivateUsage]
    return SentContext(replace(lease, input=b""), ctx.worker_id, sent, unsent)


def _log(ctx: Context, record: logging.LogRecord) -> None:
    for name, value in (ctx.log.extra or {}).items():
        record.__dict__.setdefault(name, value)
    LOGGER.handle(record)


# -- in the child --------------------------------------------------------------------------------------


class InterruptListener:
    """Reads notices, in a thread, and sets the interrupts of the call that runs."""

    def __init__(self, notices: Connection) -> None:
        self._notices = notices
        self._lock = threading.Lock()
        self._call = 0
        self._contexts: Sequence[Context] = ()
        self._early: list[Notice] = []
        """Notices of a call that has not begun here."""
        threading.Thread(target=self._listen, daemon=True, name="treadle-notices").start()

    def begin(self, call: int, contexts: Sequence[Context]) -> None:
        with self._lock:
            self._call, self._contexts = call, contexts
            early, self._early = self._early, []
        for notice in early:
            self._receive(notice)

    def _listen(self) -> None:
        try:
            while True:
                self._receive(pickle.loads(self._notices.recv_bytes()))
        except (EOFError, OSError):
            pass  # the worker is gone, or ends this process

    def _receive(self, notice: Notice) -> None:
        with self._lock:
            if notice.call > self._call:
                self._early.append(notice)
            elif notice.call == self._call:
                set_interrupt(self._contexts[notice.index].interrupt, notice.reason)


class ChildContexts:
    """The contexts of one call, in the child."""

    def __init__(
        self, sent: SentContexts, connection: Connection, lock: threading.Lock, listener: InterruptListener
    ) -> None:
        self._connection = connection
        self._lock = lock
        self._closed = False
        self._contexts = [
            ProcessContext(
                each, partial(self._ask, index), _logger(partial(self._send_record, index), sent.log_level)
            )
            for index, each in enumerate(sent.contexts)
        ]
        self.argument: Any = self._contexts if sent.is_batch else self._contexts[0]
        """What the handler takes first."""
        listener.begin(sent.call, self._contexts)

    def _ask(self, index: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        data = _pickled(Asked(index, method, args, kwargs))
        with self._lock:
            if self._closed:
                raise Stopped("the attempt")
            self._connection.send_bytes(data)
            answer: Returned | Raised = pickle.loads(self._connection.recv_bytes())
        if isinstance(answer, Raised):
            raise answer.error
        return answer.value

    def _send_record(self, index: int, record: logging.LogRecord) -> None:
        data = _pickled_record(Logged(index, record))
        with self._lock:
            if not self._closed:
                self._connection.send_bytes(data)

    def close(self) -> None:
        """The handler has ended: threads that it has left behind are not answered."""
        with self._lock:
            self._closed = True

    def created(self) -> tuple[list[Result[Any, Any]], ...]:
        return tuple(created_results(ctx) for ctx in self._contexts)


def _pickled(message: Asked) -> bytes:
    try:
        return pickle.dumps(message)
    except Exception as error:
        given = shown((*message.args, *message.kwargs.values()))
        raise TypeError(f"ctx.sync.{message.method}() cannot be asked with {given}: {error}") from error


def _pickled_record(message: Logged) -> bytes:
    try:
        return pickle.dumps(message)
    except Exception:  # noqa: BLE001  the fields of the user's `extra=` are the only ones that may fail
        known = vars(logging.makeLogRecord({}))
        plain = {name: value for name, value in vars(message.record).items() if name in known}
        return pickle.dumps(Logged(message.index, logging.makeLogRecord(plain)))


class ProcessContext(Context):
    """The Context of a handler in a process. `ask`: calls a method of `ctx.sync` in the worker."""

    __slots__ = ("_ask",)

    def __init__(self, sent: SentContext, ask: Ask, log: ContextLogger) -> None:
        super().__init__(sent.lease, ChildServices(sent.worker_id, ask))
        self._ask = ask
        self._log = log
        self._extra = _extra(sent)

    @property
    def sync(self) -> SyncContext:
        """As `Context.sync`. The worker's process answers."""
        return ProcessSyncContext(self, self._services, self._ask)


class ProcessSyncContext(SyncContext):
    """`ctx.sync` in a process."""

    __slots__ = ("_ask_worker",)

    def __init__(self, ctx: Context, services: ContextServices, ask: Ask) -> None:
        super().__init__(ctx, services)
        self._ask_worker = ask

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        check_may_block(f"ctx.sync.{method}()", f"`await asyncio.to_thread(ctx.sync.{method}, ...)`")
        return self._ask_worker(method, args, kwargs)


class ChildServices:
    """What a Context in a process has without the worker: almost nothing."""

    keep = 0.0

    def __init__(self, worker_id: str, ask: Ask) -> None:
        self.worker_id = worker_id
        self._ask = ask

    def check_nested(self, what: str) -> None:
        """The worker checks it when it carries the Result out."""

    def extend(self, lease: Lease, seconds: float) -> float | None:
        until: datetime | None = self._ask("extend", (seconds,), {})
        return None if until is None else until.timestamp()

    @property
    def resources(self) -> Any:
        raise RuntimeError(
            "ctx.resources stays in the worker's process: a handler with run_in='process' makes what it "
            "needs itself, once per process (functools.cache), or runs in a thread"
        )

    def transaction(self, ctx: Context, session: Any = None) -> AbstractAsyncContextManager[Any]:
        raise RuntimeError(_TRANSACTION)

    def sync_transaction(self, ctx: Context, session: Any = None) -> AbstractContextManager[Any]:
        raise RuntimeError(_TRANSACTION)

    def steps(self, lease: Lease, what: str) -> NoReturn:
        raise StepError(f"ctx.{what} is not for a handler in a process: its steps would run elsewhere")

    # Only a handler that runs an event loop of its own gets here: see `check_async`.

    async def states(self, tenant: str, ids: Sequence[str]) -> list[ItemState | None]:
        raise RuntimeError(_ON_LOOP.format("states"))

    async def results(
        self, tenant: str, ids: Sequence[str], *, return_exceptions: bool, of: WorkTypeBase | None = None
    ) -> list[Any]:
        raise RuntimeError(_ON_LOOP.format("results"))

    async def result_of(self, tenant: str, ids: Sequence[str], of: WorkTypeBase) -> Any:
        raise RuntimeError(_ON_LOOP.format("result_of"))

    async def claim(self, lease: Lease, key: str, ttl: float) -> bool:
        raise RuntimeError(_ON_LOOP.format("claim"))

    def wait(self, request: Callable[[], Awaitable[T]]) -> T:
        raise RuntimeError("this is not available in a process")


_TRANSACTION: Final = (
    "ctx.transaction() is not available with run_in='process': its connection belongs to the worker's "
    "process. Run the handler in a thread, and use ctx.sync.transaction()"
)
_ON_LOOP: Final = "in a process, use `await asyncio.to_thread(ctx.sync.{}, ...)`"


class SentExtra(dict[str, Any]):
    """The `ctx.extra` of a handler in a process: what could be sent there. `unsent`: why other values could
    not."""

    unsent: dict[str, str]

    def __missing__(self, key: str) -> NoReturn:
        if key in self.unsent:
            raise KeyError(f"{key}: its value cannot be sent to a process ({self.unsent[key]})")
        raise KeyError(key)


def _extra(sent: SentContext) -> SentExtra:
    extra, unsent = SentExtra(), dict(sent.unsent)
    for name, value in sent.extra.items():
        try:
            extra[name] = pickle.loads(value)
        except Exception as error:  # noqa: BLE001  a class may raise anything when it is unpickled
            unsent[name] = message_of(error)
    extra.unsent = unsent
    return extra


class ChildLogs:
    """Sends what one call logs, to be kept. level: that of the worker's root logger, for a child without a
    configuration of its own."""

    def __init__(self, connection: Connection, lock: threading.Lock, level: int) -> None:
        self._connection = connection
        self._lock = lock
        self._closed = False
        if not logging.root.handlers:
            logging.root.setLevel(level)
        self._handler = KeepingHandler(lambda: self)
        logging.root.addHandler(self._handler)

    def keep(self, record: logging.LogRecord) -> None:
        """Send a copy: other handlers get the record as it is."""
        copy = logging.makeLogRecord({**vars(record), "msg": text_of(record), "args": None, "exc_info": None})
        copy.exc_text = None
        data = _pickled_record(Logged(None, copy))
        with contextlib.suppress(OSError), self._lock:
            if not self._closed:
                self._connection.send_bytes(data)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        logging.root.removeHandler(self._handler)


class _LogSender(logging.Handler):
    """Sends the records of a handler to the worker, which has the handlers of the program's logging."""

    def __init__(self, send: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Arguments and tracebacks cannot always be pickled, their texts can.
            record.msg, record.args = record.getMessage(), None
            if record.exc_info:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
                record.exc_info = None
            self._send(record)
        except Exception:  # noqa: BLE001  a log must not fail an attempt
            self.handleError(record)


def _logger(send: Callable[[logging.LogRecord], None], level: int) -> ContextLogger:
    logger = logging.Logger(LOGGER.name, level)
    logger.addHandler(_LogSender(send))
    return ContextLogger(logger, {})


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
    created: tuple[list[Result[Any, Any]], ...] = ()
    """For a call with contexts: the Results that each of them has made."""


@dataclass(frozen=True, slots=True)
class Raised:
    error: Exception
    traceback: str


@dataclass(frozen=True, slots=True)
class Unsendable:
    """The call returned a value that cannot be pickled."""

    kind: str
    problem: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a batch, in order. Each is a pickled Returned, Raised or Unsendable: one that cannot be
    sent or read fails its item alone."""

    pickled: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SentContext:
    """What a process is told of an attempt: the facts of its Context."""

    lease: Lease
    """Without the input, which is sent as arguments."""
    worker_id: str
    extra: dict[str, bytes]
    """The values that could be pickled."""
    unsent: dict[str, str] = field(default_factory=dict[str, str])
    """Why the others could not."""


@dataclass(frozen=True, slots=True)
class SentContexts:
    """The contexts of one call: one, or for a batch a list."""

    call: int
    """The number of the call. Notices name it."""
    contexts: tuple[SentContext, ...]
    is_batch: bool
    log_level: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A handler calls a method of its `ctx.sync`, and waits for the answer."""

    index: int
    """Which of the call's contexts."""
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Logged:
    """A handler has written to its `ctx.log`, or to another logger."""

    index: int | None
    """Which of the call's contexts. None: another logger, whose records are kept and go nowhere else."""
    record: logging.LogRecord


@dataclass(frozen=True, slots=True)
class Notice:
    """An attempt is interrupted."""

    call: int
    index: int
    reason: InterruptReason


def pickled_value(value: Any, created: tuple[list[Result[Any, Any]], ...] = ()) -> bytes:
    """A `Returned` with this value, or an `Unsendable`."""
    try:
        return pickle.dumps(Returned(value, created))
    except BaseException as error:  # noqa: BLE001  a class may raise anything when it is pickled
        return pickle.dumps(Unsendable(type(value).__name__, message_of(error)))


def pickled_error(error: BaseException) -> bytes:
    """A `Raised` with this error, or with one that stands for it. Its traceback is empty if it was not
    raised."""
    text = "" if frames_of(error) is None else traceback_text(error)
    return pickle.dumps(Raised(_sendable(error), text))


def _sendable(error: BaseException) -> Exception:
    """The error, or one that stands for it if another process could not read it."""
    if isinstance(error, Exception):
        with contextlib.suppress(BaseException):
            # Many exceptions can be pickled but not unpickled.
            pickle.loads(pickle.dumps(error))
            return error
    if isinstance(error, Directive):
        with contextlib.suppress(BaseException):
            return _plain_directive(error)
    # SystemExit and the like would end the parent's event loop.
    return _named(error)


def _plain_directive(error: Directive) -> Exception:
    """The same directive, without what cannot be sent: an `Abort` must not become a retry."""
    match error:
        case Abort():
            return Abort(_cause(error))
        case RetryAfter(delay=float(delay)):
            return RetryAfter(delay, _cause(error))
        case Defer():
            return Defer(delay=error.delay, run_at=error.run_at)
        case _:
            return _named(error)


def _cause(error: Abort | RetryAfter) -> Exception:
    return _sendable(error.cause) if isinstance(error.cause, BaseException) else _named(error)


def _named(error: BaseException) -> RemoteError:
    kind = type(error)
    return RemoteError(f"{kind.__module__}.{kind.__qualname__}", message_of(error))
