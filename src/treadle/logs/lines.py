"""Log lines: records of the library that no content can break, with the facts of an item as fields.

Every record about an item has the attributes of `item_fields`, so that formatters that write JSON find them.
What comes from users (errors, ids, names) is cut, and its control characters are escaped: it cannot make a
line look like two, or write to a terminal.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, Final

from treadle.base.headers import trace_id_of
from treadle.base.wording import one_line
from treadle.errors import class_name, message_of
from treadle.item import Lease

from .context_log import LOGGER
from .tracebacks import frames_of, traceback_text, user_frames

MOST_TRACEBACK: Final = 10_000
"""Of a traceback: its end, which names the error."""
MOST_LINES: Final = 500


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
