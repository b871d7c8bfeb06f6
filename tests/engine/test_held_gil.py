"""A handler that holds the GIL stops the event loop and every thread of its process, the watchdog too."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend
from treadle import Context, work
from treadle.testing.wrap import WrappedBackend

T = TypeVar("T")
LEASE = 0.6


def hold_gil(seconds: float) -> None:
    """One call into C that does not release the GIL."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


class SlowBeats(WrappedBackend):
    """Heartbeats take a moment. `under_way` is set while one waits for its answer."""

    under_way = threading.Event()

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb != "beat":
            return await call()
        answer = await call()
        self.under_way.set()
        await asyncio.sleep(LEASE / 20)
        self.under_way.clear()
        return answer


async def test_a_worker_asks_the_store_before_it_gives_up_its_items(
    make_app: MakeApp, store: MakeBackend
) -> None:
    """The GIL is held for 1.5 leases while a heartbeat is under way. The worker wakes up and finds that it
    was sent long ago. No other worker has claimed the item, so its first attempt goes on."""
    backend = SlowBeats(store())
    attempts: list[int] = []

    @work(name="grip")
    def grip(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if backend.under_way.wait(PATIENCE):
            hold_gil(1.5 * LEASE)
        ctx.interrupt.raise_if_set()
        return ctx.attempt

    async with make_app(grip, backend=backend, lease=LEASE) as app:
        assert await app.enqueue(grip()).result(PATIENCE) == 1
    assert attempts == [1]
