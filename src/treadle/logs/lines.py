"""Log lines: records of the library that no content can break, with the facts of an item as fields.

Every record about an item has the attributes of `item_fields`, so that formatters that write JSON find them.
What comes from users (errors, ids, names) is cut, and its control characters are escaped: it cannot make a
line look like two, or write to a terminal.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import Any, Final

from treadle.base.headers import trace_id_of
from treadle.base.wording import MINUTE, one_line
from treadle.errors import class_name, message_of
from treadle.item import Lease

from .tracebacks import frames_of, traceback_text, user_frames

MOST_TRACEBACK: Final = 10_000
"""Of a traceback: its end, which names the error."""
MOST_LINES: Final = 500
MOST_NAMED: Final = 10
"""The most items that a line names."""


def lines(text: str, most: int = MOST_TRACEBACK) -> str:
    """The end of a text of several lines, each of them as `one_line` makes it."""
    short = "\n".join(one_line(line) for line in text.rstrip("\n").split("\n")[-MOST_LINES:])
    return short if len(short) <= most else f"[...]{short[5 - most :]}"


def error_text(error: BaseException) -> str:
    """The class and the message of an error, on one line. It never raises."""
    message = message_of(error)
    return one_line(f"{class_name(error)}: {message}" if message else class_name(error))


def traceback_of(error: BaseException, *, whole: bool = False) -> str:
    """The traceback of an error for a record, as `traceback_text` makes it. It never raises."""
    return lines(traceback_text(error, whole=whole))


def item_fields(lease: Lease) -> dict[str, Any]:
    """The attributes of a record about an attempt: id, type, attempt, tenant, workflow, and `trace_id` if the
    item was submitted within a trace."""
    fields: dict[str, Any] = {
        "id": lease.id,
        "type": lease.type,
        "attempt": lease.attempt,
        "tenant": lease.tenant,
        "workflow": lease.workflow,
    }
    if lease.options and (trace_id := trace_id_of(lease.options)) is not None:
        fields["trace_id"] = trace_id
    return fields


def log_line(
    level: int,
    message: str,
    fields: Mapping[str, Any] | None = None,
    *,
    error: BaseException | None = None,
    trace: str = "",
) -> None:
    """Log one line. The message is complete: nothing is formatted into it. With `trace`, the traceback of
    `error` as text, which formatters then show instead of formatting the error again."""
    if not LOGGER.isEnabledFor(level):
        return
    caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    record = LOGGER.makeRecord(
        LOGGER.name,
        level,
        caller.f_code.co_filename,
        caller.f_lineno,
        message,
        (),
        None if error is None or not trace else (type(error), error, user_frames(error) or frames_of(error)),
        caller.f_code.co_name,
        fields,
    )
    if trace:
        record.exc_text = trace
    LOGGER.handle(record)


def log_error(message: str, error: BaseException) -> None:
    """Log an error of a user's function, with its traceback. It never raises."""
    log_line(WARNING, f"{message}: {error_text(error)}", error=error, trace=traceback_of(error))


WARNING: Final = logging.WARNING
ERROR: Final = logging.ERROR
INFO: Final = logging.INFO


MOST_KEYS = 1000


class Seldom:
    """Decides, for each key, whether something is said again: once per `every` seconds. Threads may share
    it."""

    def __init__(self, every: float = MINUTE, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._monotonic = monotonic
        self._said: dict[Hashable, tuple[float, int]] = {}
        """When each was last said, and how often it was left out since."""
        self._lock = threading.Lock()

    def occurrence(self, key: Hashable) -> int | None:
        """It happens now. Returns None if it is not to be said, otherwise how often it was left out."""
        now = self._monotonic()
        with self._lock:
            at, left_out = self._said.get(key, (-self._every, 0))
            if key in self._said and now - at < self._every:
                self._said[key] = (at, left_out + 1)
                return None
            self._said.pop(key, None)
            self._said[key] = (now, 0)
            if len(self._said) > MOST_KEYS:
                del self._said[next(iter(self._said))]
            return left_out


def repeated(left_out: int) -> str:
    """What to append to a line that stands for others too."""
    return f" (and {left_out} more times since it was last logged)" if left_out else ""


def named(lease: Lease) -> str:
    """The type and the id of an item, for a line."""
    return f"{one_line(lease.type, 100)} {one_line(lease.id, 100)}"


def named_items(leases: list[Lease]) -> str:
    """The items of these leases, but not more than `MOST_NAMED`."""
    names = ", ".join(named(lease) for lease in leases[:MOST_NAMED])
    more = len(leases) - MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names


LOGGER: Final = logging.getLogger("treadle")

RECORD_FIELDS: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""The fields that `logging` has in records."""
TRACE_FIELDS: Final = frozenset(("trace_id", "span_id"))
"""The fields that a tracer adds to records."""
ITEM_FIELDS: Final = TRACE_FIELDS | {"id", "type", "attempt", "tenant", "workflow", "reason"}
"""The fields that treadle has in records about an attempt."""


def field_name(name: str) -> str:
    """The name of a field of `log_context` in a record. What records have anyway keeps its meaning; `logging`
    even raises for names that it uses itself (`name`, `args`)."""
    return f"input_{name}" if name in RECORD_FIELDS or name in ITEM_FIELDS else name


class ContextLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields of one attempt to every record. The `extra=` of a call wins over them."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs
