"""Process messages: what a worker and the processes of its pool send each other, pickled, over pipes.

    worker -> child   a call: (Reference, args, kwargs, SentContexts | None, carried context | None, whether
                      it is that of a batch)
    child  -> worker  while the handler runs, if it has a Context: Asked, which is answered, and Logged
    worker -> child   the answer to Asked: Returned or Raised
    child  -> worker  the end of the call: Returned, Raised or Unsendable; of a batch Outputs
    worker -> child   on a pipe of its own: Notice, at any time

Works and Results are pickled as they are, with all their fields. A work type is pickled by its name.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pickle
from dataclasses import dataclass, field
from typing import Any

from treadle.errors import Abort, Defer, Directive, RemoteError, RetryAfter, message_of
from treadle.handler.context import InterruptReason
from treadle.handler.result import Result
from treadle.item import Lease
from treadle.logs.tracebacks import frames_of, traceback_text


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
    """A handler has written to its `ctx.log`."""

    index: int
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
