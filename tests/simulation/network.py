"""Between a process and the store: what can happen to a call."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.simulation.loop import PROCESS
from tests.simulation.watch import Watch
from treadle.backend import Backend
from treadle.errors import StoreUnavailable
from treadle.item import Wake
from treadle.testing.wrap import WrappedBackend

T = TypeVar("T")

REPEATABLE = frozenset(("submit", "settle", "beat", "claim_key", "fire"))
"""What the contract allows to be repeated with the same arguments."""
FIRST_ANSWER = frozenset(("submit", "fire"))
"""Of these the caller hears the first answer: the second one says that it was done already."""
TROUBLES = ("fail", "lose", "late", "repeat", "slow", "drop_signal", "double_signal")


class Weather:
    """How bad things are. Drawn per seed, so that each has a character of its own."""

    def __init__(self, rng: random.Random, without: frozenset[str] = frozenset()) -> None:
        def chance(most: float) -> float:
            return rng.choice((0.0, rng.uniform(0, most)))

        self.fail = chance(0.15)
        self.lose = chance(0.15)
        self.late = chance(0.04)
        self.repeat = chance(0.1)
        self.slow = chance(0.3)
        self.latency = rng.choice((0.0005, 0.005, 0.05))
        self.drop_signal = chance(1.0)
        self.double_signal = chance(0.3)
        self.only = rng.choice((None, None, None, "submit", "claim", "settle", "beat"))
        """The one verb that fails, is lost or is late; None: all of them."""
        self.clear(*without)

    def clear(self, *which: str) -> None:
        for trouble in which:
            setattr(self, trouble, 0.0)

    @property
    def reliable(self) -> bool:
        return not (self.fail or self.lose or self.late or self.slow)


class Network(WrappedBackend):
    """One process's connection to the store."""

    def __init__(self, inner: Backend, weather: Weather, rng: random.Random, watch: Watch) -> None:
        super().__init__(inner)
        self._weather = weather
        self._rng = rng
        self._watch = watch

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb in ("open", "close", "subscribe"):
            return await call()
        weather, draw = self._weather, self._rng.random
        await asyncio.sleep(self._delay())
        troubled = weather.only in (None, verb)
        if troubled and draw() < weather.late:
            self._send_late(verb, call)
            raise StoreUnavailable(f"simulated: {verb} is late")
        if troubled and draw() < weather.fail:
            self._watch.sometimes(f"{verb} failed before it happened")
            raise StoreUnavailable(f"simulated: {verb} did not arrive")
        answer = await call()
        if verb in REPEATABLE and draw() < weather.repeat:
            again = await call()
            answer = answer if verb in FIRST_ANSWER else again
            self._watch.sometimes(f"{verb} repeated")
        lost = troubled and draw() < weather.lose
        await asyncio.sleep(self._delay())
        if lost:
            self._watch.sometimes(f"{verb} answer lost")
            raise StoreUnavailable(f"simulated: the answer to {verb} was lost")
        return answer

    def _send_late(self, verb: str, call: Callable[[], Awaitable[Any]]) -> None:
        """It is on its way, whatever becomes of the process that sent it; nobody hears the answer."""
        self._watch.sometimes(f"{verb} late")
        delay = self._rng.expovariate(0.5)
        context = contextvars.copy_context()
        context.run(PROCESS.set, None)
        asyncio.get_running_loop().create_task(_after(delay, call), context=context)

    def _delay(self) -> float:
        weather, draw = self._weather, self._rng.random
        delay = draw() * 2 * weather.latency
        return delay * 50 if weather.slow and draw() < weather.slow else delay

    async def publish(self, wake: Wake) -> None:
        if self._rng.random() < self._weather.drop_signal:
            self._watch.sometimes("signal dropped")
            return
        await self.inner.publish(wake)
        if self._rng.random() < self._weather.double_signal:
            self._watch.sometimes("signal doubled")
            await self.inner.publish(wake)


async def _after(delay: float, call: Callable[[], Awaitable[Any]]) -> None:
    await asyncio.sleep(delay)
    try:
        await call()
    except Exception:  # noqa: BLE001  it was refused, and nobody hears of it
        return
