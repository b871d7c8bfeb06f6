"""Kept lines: what handlers log while they run, for the store. A handler of `logging` at the root of all
loggers finds, by a context variable, the call in which a record was made."""

from __future__ import annotations

import logging
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

import msgspec

from .lines import traceback_of

MOST_LINES: Final = 100
"""Records of one attempt that are kept, the last ones."""
MOST_BYTES: Final = 16 * 1024
"""Bytes of them."""
LEAST_BYTES: Final = 1024
"""Bytes that each item of a large batch keeps."""
BEGINNING: Final = 1000
"""Characters at the beginning of a long text that are kept. Of a traceback the end matters most."""
END: Final = 3000
"""The same for its end."""
SPARE: Final = 4000
"""Characters beyond these that are looked through for secrets, so that none is cut in two and half shown."""
LONGEST_NAME: Final = 300
"""Characters of the name of a logger that are kept."""

_encode: Final = msgspec.json.Encoder().encode

KeptLine: TypeAlias = tuple[float, str, str, str]
"""When it was logged, the level, the name of the logger, and the text. All lines of an attempt are encoded at
once, when they are stored."""


class LogReceiver(Protocol):
    """A call of a handler, which keeps what is logged in it."""

    def keep(self, record: logging.LogRecord) -> None:
        """Threads may call it."""
        ...


RUNNING: Final[ContextVar[LogReceiver | None]] = ContextVar("treadle_running", default=None)
"""The call that runs here."""


class KeptLines:
    """The last records of one call. Threads may add to them. mask: hides secrets in a text."""

    __slots__ = ("_count", "_lines", "_lock", "_mask", "_size", "has_news")

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask
        self._lines: deque[KeptLine] = deque()
        self._size = 0
        """Characters of them: not more than their bytes."""
        self._count = 0
        """Records so far, with those that are no longer kept."""
        self._lock = threading.Lock()
        self.has_news = False
        """Whether one came since the store was told."""

    def add(self, record: logging.LogRecord) -> None:
        # Lines come by the thousand: what is rare is asked for without a call.
        text = self._mask(text_of(record))
        if len(text) > BEGINNING + END:
            text = cut(text)
        level: object = record.levelname
        logger: object = record.name
        if type(level) is not str or type(logger) is not str:
            level, logger = str(level), str(logger)
        line = (record.created, level[:LONGEST_NAME], logger[:LONGEST_NAME], text)
        with self._lock:
            self._lines.append(line)
            self._count += 1
            self._size += len(text)
            while len(self._lines) > MOST_LINES or self._size > MOST_BYTES:
                self._size -= len(self._lines.popleft()[3])
            self.has_news = True

    def encoded(self, attempt: int, shared_by: int = 1) -> bytes:
        """What is stored: an `AttemptLog` as JSON. shared_by: how many items share the room, and all have
        these lines."""
        with self._lock:
            lines, count = [*self._lines], self._count
            self.has_news = False
        room = MOST_BYTES if shared_by == 1 else max(LEAST_BYTES, MOST_BYTES // shared_by)
        with suppress(UnicodeEncodeError):  # half of a character
            log = _encode({"attempt": attempt, "left_out": count - len(lines), "lines": lines})
            if len(log) <= room:
                return log
        encoded = [_line(line) for line in lines]
        size = sum(len(line) + 1 for line in encoded)
        left_out = 0
        while size > room and left_out < len(encoded) - 1:
            size -= len(encoded[left_out]) + 1
            left_out += 1
        head = _encode({"attempt": attempt, "left_out": count - len(encoded) + left_out})
        return b"".join((head[:-1], b',"lines":[', b",".join(encoded[left_out:]), b"]}"))


def _line(line: KeptLine) -> bytes:
    at, level, logger, text = line
    try:
        encoded = _encode(line)
    except UnicodeEncodeError:  # half of a character
        words = (each.encode("utf-8", "replace").decode() for each in (level, logger, text))
        encoded = _encode((at, *words))
    # Escaped characters take six bytes.
    return encoded if len(encoded) < MOST_BYTES else _line((at, level, logger, cut(text, len(text) // 2)))


def text_of(record: logging.LogRecord) -> str:
    """The message of a record, and the traceback of its error. It never raises. Of a long one more than
    `cut` leaves."""
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001  its arguments do not fit, or cannot be shown
        text = f"{record.msg if isinstance(record.msg, str) else ''} [its arguments do not fit]"
    if record.exc_text:
        text = f"{text}\n{record.exc_text}"
    elif record.exc_info and record.exc_info[1] is not None:
        text = f"{text}\n{traceback_of(record.exc_info[1], whole=True)}"
    most = BEGINNING + END + 2 * SPARE
    return text if len(text) <= most else cut(text, most)


def cut(text: str, most: int = BEGINNING + END) -> str:
    """The beginning and the end of a long text, which is what matters."""
    if len(text) <= most:
        return text
    beginning = most // 2 if most > BEGINNING + END else most * BEGINNING // (BEGINNING + END)
    return f"{text[:beginning]} [...] {text[beginning - most :]}"


class KeepingHandler(logging.Handler):
    """Gives records to the call that runs where they were made. Without one it costs a look at a variable.

    A program without a handler gets warnings on its standard error, by `logging.lastResort`. This handler
    must not end that.
    """

    def __init__(self, receiver: Callable[[], LogReceiver | None] = RUNNING.get) -> None:
        super().__init__()
        self._receiver = receiver

    def handle(self, record: logging.LogRecord) -> bool:  # without the lock of `Handler`
        if (receiver := self._receiver()) is not None:
            receiver.keep(record)
        last = logging.lastResort
        if len(logging.root.handlers) == 1 and last is not None and self._is_alone(record, last.level):
            last.handle(record)
        return True

    def _is_alone(self, record: logging.LogRecord, level: int) -> bool:
        """Whether no other handler gets a record, of this level or above."""
        logger = logging.getLogger(record.name) if record.levelno >= level else None
        if logger is None:
            return False
        while logger is not None:
            if any(each is not self for each in logger.handlers):
                return False
            logger = logger.parent
        return True


_HANDLER: Final = KeepingHandler()
_users: Final[dict[int, AbstractEventLoop]] = {}
"""By the id of each that keeps lines: its event loop."""
_lock: Final = threading.Lock()


def start_keeping(user: object, loop: AbstractEventLoop) -> None:
    """A part of a worker in this process keeps what handlers log, until `stop_keeping`, or until its
    event loop has ended without it."""
    with _lock:
        _users[id(user)] = loop
        logging.root.addHandler(_HANDLER)


def stop_keeping(user: object) -> None:
    with _lock:
        _users.pop(id(user), None)
        if all(loop.is_closed() for loop in _users.values()):
            _users.clear()
            logging.root.removeHandler(_HANDLER)
