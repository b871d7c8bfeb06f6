"""Wake-ups: sent to subscribers within this process and to other processes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from treadle.base.loop_mark import LoopMark, is_running_on
from treadle.item import Wake

from .process_directory import ProcessDirectory
from .reader import ReaderThread

_log = logging.getLogger("treadle")

Receive: TypeAlias = Callable[[Wake], None]

# A write to a pipe of up to this size arrives in one piece on every system (PIPE_BUF may be larger).
_LARGEST = 4096
_READ_SIZE = 65536
_decoder = msgspec.json.Decoder(Wake)

EVERYTHING = Wake(ready=True, everything=True)
_NOTHING = Wake()


class SqliteWakeups:
    """The subscribers of one backend, and the pipes to all other processes."""

    def __init__(self, directory: ProcessDirectory, reader: ReaderThread) -> None:
        self._directory = directory
        self._reader = reader
        self._subscribers: dict[object, tuple[LoopMark, Receive]] = {}
        self._pipe: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where the pipe is read."""
        self._rest = b""

    def publish(self, wake: Wake) -> None:
        if wake == _NOTHING:
            return
        self._deliver(wake)
        pipes = self._directory.other_pipes()
        if not pipes:
            return
        message = msgspec.json.encode(wake) + b"\n"
        if len(message) > _LARGEST:
            message = msgspec.json.encode(Wake(ready=wake.ready, everything=True)) + b"\n"
        self._directory.send(pipes, message)

    def subscribe(self, receive: Receive) -> Callable[[], None]:
        key = object()
        self._subscribers[key] = LoopMark(), receive
        if len(self._subscribers) == 1:
            self._listen()
        return lambda: self._unsubscribe(key)

    def close(self) -> None:
        self._subscribers.clear()
        self._stop_listening()

    def abandon(self) -> None:
        """Forget the subscribers whose event loops are closed. If one of those read the pipe, another one
        does."""
        self._subscribers = {key: each for key, each in self._subscribers.items() if not each[0].is_gone}
        if not self._subscribers or (self._loop is not None and self._loop.is_closed()):
            self._stop_listening()
        if self._subscribers and self._pipe is None:
            self._listen()

    def _unsubscribe(self, key: object) -> None:
        if self._subscribers.pop(key, None) is not None and not self._subscribers:
            self._stop_listening()

    def _deliver(self, wake: Wake) -> None:
        """Call every subscriber on its own loop: those of the loop that runs here at once. For any thread."""
        for mark, receive in list(self._subscribers.values()):
            if is_running_on(mark.loop):
                _call(receive, wake)
                continue
            try:
                mark.loop.call_soon_threadsafe(_call, receive, wake)
            except RuntimeError:
                # Its loop is closed.
                continue

    # -- from other processes --------------------------------------------------------------------------

    def _listen(self) -> None:
        self._reader.watch_user_submits(lambda: self._deliver(EVERYTHING))
        pipe = self._directory.listen()
        if pipe is None:
            return
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(pipe, self._receive)
        except NotImplementedError:
            self._directory.stop_listening(pipe)
            return
        self._pipe, self._loop = pipe, loop

    def _stop_listening(self) -> None:
        self._reader.watch_user_submits(None)
        pipe, loop, self._pipe, self._loop = self._pipe, self._loop, None, None
        if pipe is None:
            return
        if loop is not None and not loop.is_closed():
            loop.remove_reader(pipe)
        self._directory.stop_listening(pipe)

    def _receive(self) -> None:
        if self._pipe is None:
            return
        try:
            found = os.read(self._pipe, _READ_SIZE)
        except BlockingIOError:
            return
        *messages, self._rest = (self._rest + found).split(b"\n")
        for wake in _wakes(messages):
            self._deliver(wake)


def _wakes(messages: list[bytes]) -> list[Wake]:
    """The wake-ups in these messages, each once: repeated ones say nothing new."""
    found: dict[bytes, Wake] = {}
    for message in messages:
        if message not in found:
            try:
                found[message] = _decoder.decode(message)
            except (msgspec.MsgspecError, RecursionError):
                _log.debug("treadle: not a wake-up: %r", message[:100])
    return list(found.values())


def _call(receive: Receive, wake: Wake) -> None:
    try:
        receive(wake)
    except Exception:  # noqa: BLE001  a user's function may raise anything
        _log.exception("treadle: a receiver of wake-ups raised")
