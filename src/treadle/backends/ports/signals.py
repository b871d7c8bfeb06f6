"""Signals over a PubSub: lossy, decoded once, delivered on the loop of whoever subscribed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

import msgspec

from treadle.item import Signal

from .calls import Ports, answered

log = logging.getLogger("treadle")

_decoder = msgspec.json.Decoder(Signal)
_ENDING: set[asyncio.Future[object]] = set()


class Signals:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._ends: list[Callable[[], None]] = []

    async def publish(self, signal: Signal) -> None:
        try:
            await answered(self._ports.pubsub.publish, msgspec.json.encode(signal).decode())
        except Exception as error:  # noqa: BLE001  lossy: failing to is not an error of the caller's
            log.warning("a signal was lost: %s", error)

    async def subscribe(self, receive: Callable[[Signal], None]) -> Callable[[], None]:
        subscription = Subscription(receive)
        end = await answered(self._ports.pubsub.subscribe, subscription.hear)

        def unsubscribe() -> None:
            if subscription.active:
                subscription.active = False
                _finish(end())

        self._ends.append(unsubscribe)
        return unsubscribe

    def close(self) -> None:
        for end in self._ends:
            end()
        self._ends.clear()


class Subscription:
    def __init__(self, receive: Callable[[Signal], None]) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self.active = True

    def hear(self, message: str) -> None:
        """From any thread."""
        try:
            signal = _decoder.decode(message)
        except (msgspec.DecodeError, msgspec.ValidationError):
            log.warning("what is not a signal of ours was heard: %.200s", message)
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, signal)

    def _deliver(self, signal: Signal) -> None:
        if not self.active:
            return
        try:
            self._receive(signal)
        except Exception:
            log.exception("a receiver of signals failed")


def _finish(answer: object) -> None:
    """An end that is async ends a little later."""
    if inspect.isawaitable(answer):
        ending = asyncio.ensure_future(answer)
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
