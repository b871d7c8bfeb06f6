"""Wake-ups: sent to subscribers within this process and to other processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from treadle.item import Wake
from treadle.store.wakeups import EVERYTHING, NOTHING, Receive, WakeReceivers, decode_wake, encode_wake

from .process_directory import ProcessDirectory
from .threads import ReaderThread

_LARGEST = 4096
"""Bytes that a write to a pipe delivers in one piece on every system (PIPE_BUF may be larger)."""
_READ_SIZE = 65536


class SqliteWakeups:
    """The subscribers of one backend, and the pipes to all other processes."""

    def __init__(self, directory: ProcessDirectory, reader: ReaderThread) -> None:
        self._directory = directory
        self._reader = reader
        self._receivers = WakeReceivers()
        self._pipe: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where the pipe is read."""
        self._rest = b""

    def publish(self, wake: Wake) -> None:
        if wake == NOTHING:
            return
        if pipes := self._directory.other_pipes():
            message = encode_wake(wake) + b"\n"
            if len(message) > _LARGEST:
                message = encode_wake(Wake(ready=wake.ready, everything=True)) + b"\n"
            self._directory.send(pipes, message)
        self._receivers.deliver(wake)

    def subscribe(self, receive: Receive) -> Callable[[], None]:
        remove = self._receivers.add(receive)
        if len(self._receivers) == 1:
            self._listen()

        def unsubscribe() -> None:
            if self._receivers:
                remove()
                if not self._receivers:
                    self._stop_listening()

        return unsubscribe

    def close(self) -> None:
        self._receivers.clear()
        self._stop_listening()

    def abandon(self) -> None:
        """Forget the receivers whose event loops are closed. If one of those read the pipe, another one
        does."""
        self._receivers.abandon()
        if not self._receivers or (self._loop is not None and self._loop.is_closed()):
            self._stop_listening()
        if self._receivers and self._pipe is None:
            self._listen()

    # -- from other processes --------------------------------------------------------------------------

    def _listen(self) -> None:
        self._reader.watch_user_submits(lambda: self._receivers.deliver(EVERYTHING))
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
            self._receivers.deliver(wake)


def _wakes(messages: list[bytes]) -> list[Wake]:
    """The wake-ups in these messages, each once: repeated ones say nothing new."""
    return [wake for message in dict.fromkeys(messages) if (wake := decode_wake(message)) is not None]
