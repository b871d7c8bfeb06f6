"""Signals over a PubSub: lossy, decoded once, delivered on the loop of whoever subscribed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

import msgspec

from treadle.item import Wake

from .calls import Ports, answered

log = logging.getLogger("treadle")

_decoder = msgspec.json.Decoder(Wake)
_ENDING: set[asyncio.Future[object]] = set()


class Signals:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._ends: list[Callable[[], None]] = []

    async def publish(self, wake: Wake) -> None:
        try:
            await answered(self._ports.pubsub.publish, msgspec.json.encode(wake).decode())
        except Exception as error:  # noqa: BLE001  lossy: failing to is not an error of the caller's
            log.warning("a wake was lost: %s", error)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
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
    def __init__(self, receive: Callable[[Wake], None]) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self.active = True

    def hear(self, message: str) -> None:
        """From any thread."""
        try:
            wake = _decoder.decode(message)
        except (msgspec.DecodeError, msgspec.ValidationError):
            log.warning("what is not a wake of ours was heard: %.200s", message)
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, wake)

    def _deliver(self, wake: Wake) -> None:
        if not self.active:
            return
        try:
            self._receive(wake)
        except Exception:
            log.exception("a receiver of signals failed")


def _finish(answer: object) -> None:
    """An end that is async ends a little later."""
    if inspect.isawaitable(answer):
        ending = asyncio.ensure_future(answer)
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
