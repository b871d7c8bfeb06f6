"""Log format: how `treadle worker`, its processes and `treadle web` write their logs, if the app has not
decided that."""

from __future__ import annotations

import enum
import logging
import sys

from treadle.base.wording import plain
from treadle.logging import JsonFormatter, TextFormatter
from treadle.logs.lines import ERROR, LOGGER, log_line, traceback_of


class LogFormat(enum.StrEnum):
    text = "text"
    json = "json"


class LogLevel(enum.StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def is_configured() -> bool:
    """Whether the app has set logging up: then it is left alone."""
    return bool(logging.getLogger().handlers or LOGGER.handlers)


def set_up(level: str, format: str) -> None:
    """Write the log to standard error, unless the app has set logging up."""
    if is_configured():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if format == LogFormat.json else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())


def say_refusal(message: str, format: str, cause: BaseException | None = None) -> None:
    """Write to standard error why something is not done, with the traceback of what the user's code raised.
    If the log is JSON, it is a record."""
    trace = "" if cause is None else traceback_of(cause)
    if format == LogFormat.json:
        set_up(LogLevel.error, format)
        log_line(ERROR, message, error=cause, trace=trace)
        return
    sys.stderr.write(f"{trace}\n" if trace else "")
    sys.stderr.write(f"treadle: {plain(message)}\n")
