"""Kept answer: ask the store once for all that want to know, and use its answer for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class KeptAnswer(Generic[T]):
    """What `ask` has returned. Those who come while it is asked wait for the same answer."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._answer: tuple[T, float] | None = None
        """The last answer, and when it came."""
        self._asking: asyncio.Task[T] | None = None

    async def get(self, seconds: float) -> T:
        """An answer that is younger than this. Raises what `ask` raises."""
        if self._answer is not None and time.monotonic() - self._answer[1] < seconds:
            return self._answer[0]
        asking = self._asking
        if asking is None or asking.done() or asking.get_loop() is not asyncio.get_running_loop():
            asking = self._asking = asyncio.ensure_future(self._renew())
        return await asyncio.shield(asking)

    async def _renew(self) -> T:
        answer = await self._ask()
        self._answer = (answer, time.monotonic())
        return answer
