"""Wake-ups for all apps that share this backend, each on the event loop that it subscribed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from treadle.base.loop_mark import LoopMark
from treadle.item import Wake

log = logging.getLogger("treadle")


class WakeSubscriber:
    __slots__ = ("_loop", "_receive", "active", "mark")

    def __init__(self, receive: Callable[[Wake], None]) -> None:
        self.mark = LoopMark()
        self._loop = self.mark.loop
        self._receive = receive
        self.active = True

    def send(self, wake: Wake) -> bool:
        """False: its loop is closed. It can never receive again."""
        if self._loop is asyncio.get_running_loop():
            self._loop.call_soon(self._deliver, wake)
            return True
        try:
            self._loop.call_soon_threadsafe(self._deliver, wake)
        except RuntimeError:
            return False
        return True

    def _deliver(self, wake: Wake) -> None:
        if not self.active:
            return
        try:
            self._receive(wake)
        except Exception:
            log.exception("a subscriber failed to handle a wake-up")


class MemoryWakeups:
    def __init__(self) -> None:
        self._subscribers: dict[WakeSubscriber, None] = {}

    def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        subscriber = WakeSubscriber(receive)
        self._subscribers[subscriber] = None

        def unsubscribe() -> None:
            subscriber.active = False
            self._subscribers.pop(subscriber, None)

        return unsubscribe

    def abandon(self) -> None:
        """Forget the subscribers whose event loops are gone."""
        for subscriber in [each for each in self._subscribers if each.mark.is_gone]:
            self._subscribers.pop(subscriber, None)

    def publish(self, wake: Wake) -> None:
        for subscriber in list(self._subscribers):
            if not subscriber.send(wake):
                self._subscribers.pop(subscriber, None)
