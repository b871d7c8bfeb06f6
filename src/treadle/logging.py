"""Formatters for the records of treadle, and of any other logger. `treadle worker` uses them.

Text is for people: one line per record, then a traceback if there is one. JSON is for programs: one object
per line, with the fields of the record. Neither can be broken by what a message holds.
"""

from __future__ import annotations

import logging
import sys
import textwrap
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from .base.wording import one_line, printable_json, shows_colours
from .errors import shown
from .logs.lines import LOGGER, RECORD_FIELDS, lines

__all__ = ["JsonFormatter", "TextFormatter"]

MOST_MESSAGE: Final = 10_000
MOST_FIELD: Final = 2_000
_COLOURS: Final = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}
_PLAIN: Final = "\x1b[0m"


class TextFormatter(logging.Formatter):
    """`2026-11-16 10:31:02 WARNING [4711] the message`, in local time."""

    def __init__(self, *, colour: bool | None = None) -> None:
        super().__init__()
        self._colour = shows_colours(sys.stderr) if colour is None else colour

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        level = f"{record.levelname:<7}"
        if self._colour and (colour := _COLOURS.get(record.levelname)):
            level = f"{colour}{level}{_PLAIN}"
        logger = "" if record.name == LOGGER.name else f"{one_line(record.name)}: "
        message = one_line(_message(record), MOST_MESSAGE)
        line = f"{at} {level} [{record.process}] {logger}{message}{_item(record)}"
        trace = self.traceback(record)
        # Indented, so that no line of an error looks like a record.
        return f"{line}\n{textwrap.indent(trace, '  ')}" if trace else line

    def traceback(self, record: logging.LogRecord) -> str:
        if record.exc_info and not record.exc_text:
            try:
                record.exc_text = self.formatException(record.exc_info)
            except BaseException:  # noqa: BLE001  attributes of the user's exception
                record.exc_text = "(its traceback cannot be shown)"
        texts = (record.exc_text, self.formatStack(record.stack_info) if record.stack_info else "")
        return "\n".join(lines(text) for text in texts if text)


class JsonFormatter(TextFormatter):
    """One object per line: `time, level, logger, pid, message`, the fields of the record, `traceback`."""

    def __init__(self) -> None:
        super().__init__(colour=False)

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": _short(_message(record), MOST_MESSAGE),
        }
        for name, value in vars(record).items():
            if name not in RECORD_FIELDS:
                facts[f"extra_{name}" if name in facts else name] = _field(value)
        if trace := self.traceback(record):
            facts["traceback"] = trace
        return printable_json(msgspec.json.encode(facts).decode())


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except BaseException:  # noqa: BLE001  arguments that do not fit: the message is better than nothing
        return f"{shown(record.msg)} {shown(record.args)}"


def _item(record: logging.LogRecord) -> str:
    """Which item a line is about, if it does not say so itself: a line of `ctx.log`."""
    fields = vars(record)
    id, type, attempt = fields.get("id"), fields.get("type"), fields.get("attempt")
    if not isinstance(id, str) or not isinstance(type, str) or id in str(record.msg):
        return ""
    return f" [{one_line(type, 100)} {one_line(id, 100)} attempt {attempt}]"


def _field(value: object) -> Any:
    """A value that can be written as JSON."""
    if isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
    if isinstance(value, str):
        return _short(value, MOST_FIELD)
    try:
        text = msgspec.json.encode(value)
        return msgspec.Raw(text) if len(text) <= MOST_FIELD else _short(text.decode(), MOST_FIELD)
    except BaseException:  # noqa: BLE001  the user's value
        return shown(value)


def _short(text: str, most: int) -> str:
    """No more than `most` characters, none of them a lone surrogate."""
    short = text if len(text) <= most else f"{text[: most - 3]}..."
    return short.encode(errors="backslashreplace").decode()
