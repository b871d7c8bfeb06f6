"""Wake-ups over a PubSub: they may be lost, and arrive on the event loop of the subscriber."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

from treadle.base.loop_mark import LoopMark
from treadle.item import Wake
from treadle.store.wakeups import EVERYTHING, MISSED, decode_wake, encode_wake

from .async_ports import AsyncPorts

log = logging.getLogger("treadle")

_UNSUBSCRIBING: set[asyncio.Future[object]] = set()


class PortsWakeups:
    def __init__(self, ports: AsyncPorts) -> None:
        self._ports = ports
        self._unsubscribes: dict[PortsSubscription, Callable[[], None]] = {}

    async def publish(self, wake: Wake) -> None:
        try:
            await self._ports.publish(encode_wake(wake).decode())
        except Exception as error:  # noqa: BLE001  wake-ups may be lost: the caller does not fail
            log.warning("a wake-up was not published: %s", error)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        subscription = PortsSubscription(receive)
        end = await self._ports.subscribe(subscription.receive)

        def unsubscribe() -> None:
            if subscription.active:
                subscription.active = False
                _finish(end())

        self._unsubscribes[subscription] = unsubscribe
        return unsubscribe

    def close(self) -> None:
        for unsubscribe in self._unsubscribes.values():
            unsubscribe()
        self._unsubscribes.clear()

    def abandon(self) -> None:
        """Forget the subscriptions whose event loops are gone. The ports belong to the user."""
        for subscription in [each for each in self._unsubscribes if each.mark.is_gone]:
            subscription.active = False
            del self._unsubscribes[subscription]


class PortsSubscription:
    def __init__(self, receive: Callable[[Wake], None]) -> None:
        self._receive = receive
        self.mark = LoopMark()
        self.active = True

    def receive(self, message: str) -> None:
        """Called from any thread."""
        wake = EVERYTHING if message == MISSED else decode_wake(message)
        if wake is None:
            log.warning("ignored a message that is not a wake-up: %.200s", message)
        elif not self.mark.is_gone:
            self.mark.loop.call_soon_threadsafe(self._deliver, wake)

    def _deliver(self, wake: Wake) -> None:
        if not self.active:
            return
        try:
            self._receive(wake)
        except Exception:
            log.exception("a receiver of wake-ups failed")


def _finish(answer: object) -> None:
    """Let an async unsubscribe run in the background."""
    if inspect.isawaitable(answer):
        task = asyncio.ensure_future(answer)
        _UNSUBSCRIBING.add(task)
        task.add_done_callback(_UNSUBSCRIBING.discard)
