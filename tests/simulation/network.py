"""Between a process and the store: what can happen to a call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.simulation.watch import Watch
from treadle.backend import Backend
from treadle.errors import StoreUnavailable
from treadle.item import Signal
from treadle.testing.wrap import WrappedBackend

T = TypeVar("T")

REPEATABLE = frozenset(("submit", "settle", "beat", "claim_key"))
"""What the contract allows to be repeated with the same arguments."""


class Weather:
    """How bad things are. Drawn per seed, so that each has a character of its own."""

    def __init__(self, rng: random.Random) -> None:
        def chance(most: float) -> float:
            return rng.choice((0.0, rng.uniform(0, most)))

        self.fail = chance(0.15)
        self.lose = chance(0.15)
        self.repeat = chance(0.1)
        self.slow = chance(0.3)
        self.latency = rng.choice((0.0005, 0.005, 0.05))
        self.drop_signal = chance(1.0)
        self.double_signal = chance(0.3)

    def clear(self) -> None:
        self.fail = self.lose = self.repeat = self.slow = self.drop_signal = self.double_signal = 0.0


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
        if draw() < weather.fail:
            self._watch.sometimes(f"{verb} failed before it happened")
            raise StoreUnavailable(f"simulated: {verb} did not arrive")
        answer = await call()
        self._watch.stepped(verb, args, answer)
        if verb in REPEATABLE and draw() < weather.repeat:
            answer = await call()
            self._watch.sometimes(f"{verb} repeated")
            self._watch.stepped(verb, args, answer)
        lost = draw() < weather.lose
        await asyncio.sleep(self._delay())
        if lost:
            self._watch.sometimes(f"{verb} answer lost")
            raise StoreUnavailable(f"simulated: the answer to {verb} was lost")
        return answer

    def _delay(self) -> float:
        weather = self._weather
        slow = self._rng.random() < weather.slow
        return self._rng.expovariate(1 / weather.latency) * (50 if slow else 1)

    async def publish(self, signal: Signal) -> None:
        if self._rng.random() < self._weather.drop_signal:
            self._watch.sometimes("signal dropped")
            return
        await self.inner.publish(signal)
        if self._rng.random() < self._weather.double_signal:
            await self.inner.publish(signal)
