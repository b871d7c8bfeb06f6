"""A handler that holds the GIL stops the event loop and every thread of its process, the watchdog too.

Heartbeats of other processes count as its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend, until
from treadle import Context, Treadle, work
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.engine import store_retry
from treadle.testing import Faults, FaultyBackend
from treadle.testing.wrap import WrappedBackend
from treadle.worker import copy_worker

pytestmark = pytest.mark.every_store

T = TypeVar("T")
LEASE = 0.2


def hold_gil(seconds: float) -> None:
    """One call into C that does not release the GIL."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


class SlowBeats(WrappedBackend):
    """Once `gripped` is set, a heartbeat sets `under_way`, and its answer comes after `released`. Not while a
    claim waits for its answer: one that reaches the store after the lease has lapsed would free the items."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.gripped = threading.Event()
        self.under_way = threading.Event()
        self.released = threading.Event()
        self._claims = 0

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb == "claim":
            self._claims += 1
            try:
                return await call()
            finally:
                self._claims -= 1
        answer = await call()
        if verb == "beat" and self.gripped.is_set() and not self._claims:
            self.under_way.set()
            while not self.released.is_set():  # noqa: ASYNC110  a thread sets it
                await asyncio.sleep(0.001)
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
        backend.gripped.set()
        assert backend.under_way.wait(PATIENCE)
        hold_gil(1.5 * LEASE)
        backend.released.set()
        ctx.interrupt.raise_if_set()
        return ctx.attempt

    # It polls rarely, so no claim is sent while the heartbeat is under way.
    async with make_app(grip, backend=backend, lease=LEASE, poll_interval=PATIENCE) as app:
        assert await app.enqueue(grip()).result(PATIENCE) == 1
    assert attempts == [1]


@pytest.mark.parametrize("supervised", [True, False])
async def test_a_supervisors_heartbeats_keep_the_attempts(
    faults: Faults, supervised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No heartbeat of the worker is answered for longer than a lease. Without a supervisor it stops its
    attempts, since another worker may own the items."""
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.05)
    started = asyncio.Event()
    reasons: list[object] = []

    @work(name="patient")
    async def patient(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(2 * LEASE if supervised else PATIENCE)
        finally:
            reasons.append(ctx.interrupt.reason)

    app = Treadle(FaultyBackend(MemoryBackend(), faults), work=[patient], lease=LEASE, poll_interval=0.05)
    worker = copy_worker(app.worker, id="w", last_supervisor_beat=time.monotonic if supervised else None)
    async with worker:
        held = [faults.hold(verb, times=None) for verb in ("heartbeat_connection", "beat")]
        await app.enqueue(patient())
        await asyncio.wait_for(started.wait(), PATIENCE)
        await until(lambda: reasons)
        assert reasons[:1] == ([None] if supervised else ["error"])
        for fault in held:
            fault.release()
    await app.close()
