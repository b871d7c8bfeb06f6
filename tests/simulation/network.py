"""The network between a process and the store: calls that fail, are late, lose their answer or come twice."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.simulation.checker import Checker
from tests.simulation.loop import PROCESS
from treadle.backend import Backend
from treadle.errors import StoreUnavailable
from treadle.item import Wake
from treadle.testing.wrap import WrappedBackend

T = TypeVar("T")

REPEATABLE = frozenset(("submit", "settle", "beat", "claim_key", "fire", "record"))
"""Verbs that the contract allows to be repeated with the same arguments."""
FIRST_ANSWER = frozenset(("submit", "fire", "signal"))
"""Of these the caller gets the first answer. The second one would say that it was done already."""
FAULTS = ("fail", "lose", "late", "repeat", "slow", "drop_wake", "repeat_wake")
CALM = 0.35
"""The share of seeds without network faults. Only there does nothing excuse a late start."""


class NetworkFaults:
    """The probability of each fault, drawn per seed."""

    def __init__(self, rng: random.Random, without: frozenset[str] = frozenset()) -> None:
        def chance(most: float) -> float:
            return rng.choice((0.0, rng.uniform(0, most)))

        self.fail = chance(0.15)
        self.lose = chance(0.15)
        self.late = chance(0.04)
        self.repeat = chance(0.1)
        self.slow = chance(0.3)
        self.latency = rng.choice((0.0005, 0.005, 0.05))
        self.drop_wake = chance(1.0)
        self.repeat_wake = chance(0.3)
        self.only = rng.choice((None, None, None, "submit", "claim", "settle", "beat"))
        """The only verb that fails, loses its answer or is late. None means all verbs."""
        if rng.random() < CALM:
            self.clear(*FAULTS)
        self.clear(*without)

    def clear(self, *which: str) -> None:
        for fault in which:
            setattr(self, fault, 0.0)

    @property
    def reliable(self) -> bool:
        return not (self.fail or self.lose or self.late or self.slow)

    @property
    def calm(self) -> bool:
        """Reliable, and every wake-up arrives."""
        return self.reliable and not self.drop_wake


class FaultyNetwork(WrappedBackend):
    """The connection of one process to the store."""

    def __init__(self, inner: Backend, faults: NetworkFaults, rng: random.Random, checker: Checker) -> None:
        super().__init__(inner)
        self._faults = faults
        self._rng = rng
        self._checker = checker

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb in ("open", "close", "subscribe"):
            return await call()
        faults, draw = self._faults, self._rng.random
        await asyncio.sleep(self._delay())
        affected = faults.only in (None, verb)
        if affected and draw() < faults.late:
            self._send_late(verb, call)
            raise StoreUnavailable(f"simulated: {verb} is late")
        if affected and draw() < faults.fail:
            self._checker.cover(f"{verb} failed before it arrived")
            raise StoreUnavailable(f"simulated: {verb} did not arrive")
        answer = await call()
        if self._may_repeat(verb, args) and draw() < faults.repeat:
            again = await call()
            answer = answer if verb in FIRST_ANSWER else again
            self._checker.cover(f"{verb} repeated")
        lost = affected and draw() < faults.lose
        await asyncio.sleep(self._delay())
        if lost:
            self._checker.cover(f"{verb} answer lost")
            raise StoreUnavailable(f"simulated: the answer to {verb} was lost")
        return answer

    def _may_repeat(self, verb: str, args: tuple[Any, ...]) -> bool:
        return verb in REPEATABLE or (verb == "signal" and all(one.key is not None for one in args[0]))

    def _send_late(self, verb: str, call: Callable[[], Awaitable[Any]]) -> None:
        """The call arrives later, even if its process has died. Its answer is dropped."""
        self._checker.cover(f"{verb} late")
        delay = self._rng.expovariate(0.5)
        context = contextvars.copy_context()
        context.run(PROCESS.set, None)
        asyncio.get_running_loop().create_task(_after(delay, call), context=context)

    def _delay(self) -> float:
        faults, draw = self._faults, self._rng.random
        delay = draw() * 2 * faults.latency
        return delay * 50 if faults.slow and draw() < faults.slow else delay

    async def publish(self, wake: Wake) -> None:
        if self._rng.random() < self._faults.drop_wake:
            self._checker.cover("wake-up dropped")
            return
        await self.inner.publish(wake)
        if self._rng.random() < self._faults.repeat_wake:
            self._checker.cover("wake-up repeated")
            await self.inner.publish(wake)


async def _after(delay: float, call: Callable[[], Awaitable[Any]]) -> None:
    await asyncio.sleep(delay)
    try:
        await call()
    except Exception:  # noqa: BLE001  the caller is gone
        return
