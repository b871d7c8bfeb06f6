"""Wake-ups: what sending and receiving them needs in more than one store.

A lost wake-up costs latency, never work. So they are sent at a bounded rate, a text that cannot be read is
ignored, and after a time in which some may have been missed, receivers get `EVERYTHING`.

`PubSub` is one of the three ports (`treadle.ports`). It can carry the wake-ups of another store too:
`Treadle("postgresql://...", notify=...)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec

from treadle.base.loop_mark import LoopMark
from treadle.errors import BackendError, WakeupsLost
from treadle.item import Wake

log = logging.getLogger("treadle")

Receive: TypeAlias = Callable[[Wake], None]

EVERYTHING: Final = Wake(ready=True, everything=True)
NOTHING: Final = Wake()

encode_wake = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Wake).decode


def decode_wake(message: bytes | str) -> Wake | None:
    """None for a message that is no wake-up. Fields of later versions are ignored."""
    try:
        return _decode(message)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return None


class WakePublisher:
    """Sends wake-ups, but not too often: the engine collects those that come meanwhile.

    lone: rate per second of wake-ups that stand for one occasion.
    per_second: rate of occasions, for wake-ups that stand for several; no lower than `when_busy` wake-ups.
    at_once: lone wake-ups that are sent without a wait in between.
    """

    def __init__(
        self,
        send: Callable[[Wake], Awaitable[object]],
        *,
        lone: float,
        per_second: float,
        when_busy: float,
        at_once: int = 0,
    ) -> None:
        self._send = send
        self._lone = lone
        self._per_second = per_second
        self._when_busy = when_busy
        self._ahead = at_once / lone
        self._free_at = 0.0

    async def publish(self, wake: Wake) -> None:
        """Returns when it was sent, or could not be."""
        if wake == NOTHING:
            return
        now = time.monotonic()
        wait = self._free_at - now
        rate = self._lone if wake.times <= 1 else self._per_second / wake.times
        self._free_at = max(self._free_at, now - self._ahead) + 1 / max(rate, self._when_busy)
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            await self._send(wake)
        except Exception:
            log.debug("a wake-up was not sent", exc_info=True)


class WakeReceivers:
    """The receivers of wake-ups. Each is called on its own event loop."""

    def __init__(self) -> None:
        self._receivers: dict[object, tuple[Receive, LoopMark]] = {}

    def __len__(self) -> int:
        return len(self._receivers)

    def add(self, receive: Receive) -> Callable[[], None]:
        """Returns a function that removes it."""
        key = object()
        self._receivers[key] = (receive, LoopMark())

        def remove() -> None:
            self._receivers.pop(key, None)

        return remove

    def clear(self) -> None:
        self._receivers.clear()

    def abandon(self) -> None:
        """Forget the receivers whose event loops are gone."""
        self._receivers = {key: each for key, each in self._receivers.items() if not each[1].is_gone}

    def deliver(self, wake: Wake) -> None:
        """Call those of the event loop that runs here at once. For any thread."""
        here = asyncio._get_running_loop()  # None in a thread
        for receive, mark in list(self._receivers.values()):
            if mark.loop is here:
                _receive(receive, wake)
            elif not mark.is_gone:
                with contextlib.suppress(RuntimeError):  # the loop was closed just now
                    mark.loop.call_soon_threadsafe(_receive, receive, wake)


def _receive(receive: Receive, wake: Wake) -> None:
    try:
        receive(wake)
    except Exception:
        log.exception("a receiver of wake-ups raised")


class WakeupsAbsence:
    """The time in which wake-ups do not arrive. Logs its beginning and its end, and is a problem once."""

    def __init__(self, carrier: str) -> None:
        self._carrier = carrier
        self._since: float | None = None
        self._cause = ""
        self._reported = False

    @property
    def lasts(self) -> bool:
        return self._since is not None

    def begin(self, cause: str) -> None:
        if self._since is None:
            self._since, self._reported, self._cause = time.monotonic(), False, cause
            log.warning("wake-ups do not arrive by %s, polling goes on: %s", self._carrier, self._cause)

    def end(self) -> bool:
        """Returns whether it lasted until now."""
        lasted, self._since = self.lasts, None
        if lasted:
            log.warning("wake-ups arrive again by %s", self._carrier)
        return lasted

    def news(self) -> Sequence[BackendError]:
        if self._since is None or self._reported:
            return ()
        self._reported = True
        return (WakeupsLost(self._carrier, time.monotonic() - self._since, self._cause),)


T = TypeVar("T")

Answer: TypeAlias = T | Awaitable[T]
"""The return type of a method that may be sync or async."""

MISSED: Final = ""
"""What a receiver gets when messages may have been lost."""


class PubSub(Protocol):
    """Delivers each published message to every subscriber in every process. It may lose messages: that costs
    time, never work.

    A message is never empty. A port that was cut off from its server, and is subscribed again, calls its
    receivers with an empty text: messages may have been lost. This is optional, and so is a method `close()`.
    """

    def publish(self, message: str, /) -> Answer[None]: ...

    def subscribe(self, receive: Callable[[str], None], /) -> Answer[Callable[[], Answer[None] | None]]:
        """Call `receive`, from any thread, for each message from now on. Return a function that ends the
        subscription."""
        ...


async def resolved(answer: Answer[T]) -> T:
    """The answer of a method that may be sync or async."""
    if inspect.isawaitable(answer):
        return await answer
    return answer
