"""Lease: keep this worker alive in the store, and learn which of its attempts are no longer its own.

One beat, one row, however many items run. The event loop beats; while a handler blocks it, a thread does, on
a connection of its own. (A C call that holds the GIL stops the thread too: `treadle worker` beats from a
process of its own.)
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from typing import Protocol

from treadle.backend import Backend, HeartbeatConnection
from treadle.clock import Clock
from treadle.engine import store_retry as patience
from treadle.engine.hooks import LOGGER, Hooks
from treadle.engine.tasks import finish
from treadle.item import Heartbeat, Lease


class Holder(Protocol):
    """What the heart asks of the worker."""

    def leases(self) -> Collection[Lease]: ...

    def lose(self, token: int, why: str) -> None: ...

    def lose_all(self, why: str) -> None: ...


class HeartbeatLoop:
    def __init__(
        self,
        backend: Backend,
        holder: Holder,
        clock: Clock,
        hooks: Hooks,
        *,
        worker: str,
        lease: float,
        heartbeat: float,
        types: Callable[[], tuple[str, ...]],
    ) -> None:
        self._backend = backend
        self._holder = holder
        self._clock = clock
        self._hooks = hooks
        self._worker = worker
        self._lease = lease
        self._heartbeat = heartbeat
        self._types = types
        self.last_beat = 0.0
        """When the last beat that arrived was sent, by the monotonic clock."""
        self.kept = -math.inf
        """The same for the beats of the watchdog."""

    async def begin(self) -> None:
        """The first beat. A worker of that name that the store knows already is an earlier life of this one:
        what it was running ended with it."""
        if await self.beat():
            return
        await self._backend.remove_worker(self._worker)
        await self.beat()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await self._clock.sleep(self._heartbeat)
            try:
                await self._beat_in_time()
            except Exception as error:  # noqa: BLE001  a heart that stops for an error would be a murder
                self._hooks.report(error, "renew", "could not renew the worker's lease; trying again")
                self._check()

    async def _beat_in_time(self) -> None:
        """Heartbeat. A store that does not answer at all is noticed as well."""
        beating = asyncio.ensure_future(self.beat())
        try:
            while not beating.done():
                await asyncio.wait({beating}, timeout=self._heartbeat)
                self._check()
        finally:
            beating.cancel()
        beating.result()

    async def beat(self) -> bool:
        """Whether the worker was not known to the store."""
        sent = self._clock.monotonic()
        beat = Heartbeat(
            worker=self._worker, lease=self._lease, held=tuple(self._holder.leases()), types=self._types()
        )
        pulse = await finish(self._backend.beat(beat))
        self.last_beat = sent
        for token, why in pulse.lost.items():
            self._holder.lose(token, why)
        return pulse.fresh

    def silence(self) -> float:
        """Seconds since the last beat that arrived was sent."""
        return self._clock.monotonic() - self.last_beat

    def _check(self) -> None:
        """Without a beat for a whole lease, others may have taken over: go no further."""
        if min(self.silence(), self._clock.monotonic() - self.kept) > self._lease:
            self._holder.lose_all("error")


class Watchdog:
    """A thread that beats in the heart's place while the event loop is blocked, and says who blocks it; or
    while the heart's own beats do not come through."""

    def __init__(
        self,
        heart: HeartbeatLoop,
        heartbeat_connection: Callable[[], HeartbeatConnection],
        *,
        worker: str,
        lease: float,
        heartbeat: float,
    ) -> None:
        self._heart = heart
        self._pacemaker = heartbeat_connection
        self._beat = Heartbeat(worker=worker, lease=lease)
        self._heartbeat = heartbeat
        self._over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="treadle watchdog", daemon=True)
        self._blocked = False

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._over.set()
        await asyncio.to_thread(self._thread.join, patience.FAREWELL)

    def _run(self) -> None:
        while not self._over.wait(self._heartbeat / 2):
            if not self._late():
                self._blocked = False
                continue
            self._blame()
            asyncio.run(self._beat_here())

    def _late(self) -> bool:
        heart = self._heart
        return heart.last_beat > 0 and heart.silence() > self._heartbeat * 1.5

    def _blame(self) -> None:
        """Say once, for as long as it lasts, who blocks the loop, if anybody does."""
        if not self._blocked and not self._loop_answers():
            self._blocked = True
            self._report()

    def _loop_answers(self) -> bool:
        """Whether the loop turns, and it is the store that is slow."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return True  # it is closed: there is nobody to blame
        return answered.wait(self._heartbeat / 4)

    async def _beat_here(self) -> None:
        """Heartbeat, on a connection of our own, until the loop does so again."""
        try:
            heartbeat_connection = self._pacemaker()
            try:
                await heartbeat_connection.open()
                while self._late() and not self._over.is_set():
                    sent = time.monotonic()
                    await heartbeat_connection.beat(self._beat)
                    self._heart.kept = sent
                    self._blame()
                    await asyncio.sleep(self._heartbeat)
            finally:
                await heartbeat_connection.close()
        except Exception as error:  # noqa: BLE001  whatever it is: the thread lives, and tries again
            LOGGER.warning("could not renew the worker's lease from the watchdog: %s", error)

    def _report(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        LOGGER.warning(
            "the event loop has been blocked for over %.1f s; make that handler sync (it then runs in a "
            "thread), or run_in='process'. It is here:\n%s",
            self._heartbeat * 1.5,
            stack,
        )
