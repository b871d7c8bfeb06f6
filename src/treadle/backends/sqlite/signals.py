"""Signals: wake-ups, within this process and between processes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from treadle.item import Wake

from .beside import Beside
from .reader import Reader

_log = logging.getLogger("treadle")

Receive: TypeAlias = Callable[[Wake], None]

# What is written to a pipe at once arrives in one piece, up to this size everywhere (PIPE_BUF may be larger).
_LARGEST = 4096
_READ = 65536
_decoder = msgspec.json.Decoder(Wake)

EVERYTHING = Wake(ready=True, everything=True)


class _Subscription(NamedTuple):
    loop: asyncio.AbstractEventLoop
    receive: Receive


class Signals:
    """The subscribers of one backend, and the way to all others."""

    def __init__(self, beside: Beside, reader: Reader) -> None:
        self._beside = beside
        self._reader = reader
        self._subscribers: dict[object, _Subscription] = {}
        self._pipe: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rest = b""

    def publish(self, wake: Wake) -> None:
        if wake == Wake():
            return
        self._deliver(wake)
        message = msgspec.json.encode(wake) + b"\n"
        if len(message) > _LARGEST:
            message = msgspec.json.encode(Wake(ready=wake.ready, everything=True)) + b"\n"
        self._beside.tell_others(message)

    def subscribe(self, receive: Receive) -> Callable[[], None]:
        key = object()
        self._subscribers[key] = _Subscription(asyncio.get_running_loop(), receive)
        if len(self._subscribers) == 1:
            self._listen()
        return lambda: self._unsubscribe(key)

    def close(self) -> None:
        self._subscribers.clear()
        self._hang_up()

    def _unsubscribe(self, key: object) -> None:
        if self._subscribers.pop(key, None) is not None and not self._subscribers:
            self._hang_up()

    def _deliver(self, wake: Wake) -> None:
        """Call every subscriber, on its own loop; from any thread."""
        for subscription in list(self._subscribers.values()):
            try:
                subscription.loop.call_soon_threadsafe(_call, subscription.receive, wake)
            except RuntimeError:
                # Its loop is closed.
                continue

    # -- from other processes --------------------------------------------------------------------------

    def _listen(self) -> None:
        self._reader.watch(lambda: self._deliver(EVERYTHING))
        pipe = self._beside.listen()
        if pipe is None:
            return
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(pipe, self._readable)
        except NotImplementedError:
            self._beside.hang_up(pipe)
            return
        self._pipe, self._loop = pipe, loop

    def _hang_up(self) -> None:
        self._reader.watch(None)
        pipe, loop, self._pipe, self._loop = self._pipe, self._loop, None, None
        if pipe is None:
            return
        if loop is not None and not loop.is_closed():
            loop.remove_reader(pipe)
        self._beside.hang_up(pipe)

    def _readable(self) -> None:
        if self._pipe is None:
            return
        try:
            found = os.read(self._pipe, _READ)
        except BlockingIOError:
            return
        *messages, self._rest = (self._rest + found).split(b"\n")
        for wake in _signals(messages):
            self._deliver(wake)


def _signals(messages: list[bytes]) -> list[Wake]:
    """The signals in these messages, each once: many say no more than "look"."""
    found: dict[bytes, Wake] = {}
    for message in messages:
        if message not in found:
            try:
                found[message] = _decoder.decode(message)
            except msgspec.MsgspecError:
                _log.debug("treadle: not a wake: %r", message[:100])
    return list(found.values())


def _call(receive: Receive, wake: Wake) -> None:
    try:
        receive(wake)
    except Exception:  # noqa: BLE001  whatever a user's function raises
        _log.exception("treadle: a receiver of signals raised")
