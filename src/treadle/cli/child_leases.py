"""ChildLeases: the supervisor keeps the leases of its children alive, and frees what a dead one was running.

It never waits for the store: each call is a task of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from treadle.backend import Backend, store_name
from treadle.cli.child_process import ChildProcess
from treadle.item import Heartbeat, Lease, Wake
from treadle.logs.lines import WARNING, error_text, log_line, named_items
from treadle.store.fleet import Fleet
from treadle.store.outage import StoreOutage, is_outage
from treadle.worker import LeaseTimes
from treadle.worker_info import encode_worker_info

BLOCKED: Final = 2.0
"""Heartbeats without a sign of its event loop, after which the store is told that a child is blocked. The
child notices itself that it was, after the same time."""


class ChildLeases:
    """on_freed: called when the leases of a child that has ended are dealt with: with the child, its exit
    code, and how many items were freed; None if the store could not be told."""

    def __init__(
        self,
        backend: Backend,
        times: LeaseTimes,
        on_freed: Callable[[ChildProcess, int, int | None], None],
    ) -> None:
        self._backend = backend
        self._times = times
        self._on_freed = on_freed
        self._outage = StoreOutage()
        self._outage.store = store_name(backend)
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def freeing(self) -> bool:
        """Whether the items of a child that has ended are being freed."""
        return bool(self._removals)

    def renew(self, child: ChildProcess) -> None:
        """Send a heartbeat for a child whose event loop runs, if one is due and none is under way."""
        due = time.monotonic() - child.last_heartbeat >= self._times.heartbeat
        under_way = child.heartbeat is not None and not child.heartbeat.done()
        if due and not under_way and child.liveness.blocked_for() is not None:
            child.heartbeat = asyncio.create_task(self._beat(child))

    async def _beat(self, child: ChildProcess) -> None:
        sent = time.monotonic()
        try:
            reply = await self._backend.beat(await self._heartbeat(child))
        except Exception as error:  # noqa: BLE001  the next one is tried
            self._failed(error, f"could not renew the leases of process {child.pid}")
            return
        child.last_heartbeat = sent
        if not reply.fresh:
            child.liveness.beat_sent(sent)
        self._outage.answered("renew")

    async def _heartbeat(self, child: ChildProcess) -> Heartbeat:
        """It registers no worker: a child that has not begun, or has stopped, has none. While the event loop
        of the child is blocked it says so. A child that goes on says what is true then."""
        heartbeat = Heartbeat(worker=child.worker, lease=self._times.lease, registers=False)
        blocked_for = child.liveness.blocked_for() or 0.0
        if blocked_for <= BLOCKED * self._times.heartbeat or "listing" not in self._backend.capabilities:
            return heartbeat
        worker = Fleet(await self._backend.workers(), now := await self._backend.now()).find(child.worker)
        if worker is None or worker.info is None or worker.info.blocked_since is not None:
            return heartbeat
        if not child.is_blocked(BLOCKED * self._times.heartbeat):
            return heartbeat  # it has gone on meanwhile
        info = replace(worker.info, blocked_since=round(now - blocked_for, 3))
        return replace(heartbeat, info=encode_worker_info(info))

    def _failed(self, error: Exception, what: str) -> None:
        if is_outage(error):
            self._outage.failed(error, "renew")
        else:
            log_line(WARNING, f"{what}: {error_text(error)}")

    def free(self, child: ChildProcess, code: int) -> None:
        """Free the items of a child whose end is certain."""
        removal = asyncio.create_task(self._free(child, code))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _free(self, child: ChildProcess, code: int) -> None:
        if child.heartbeat is not None:
            # If it came after the removal, the store would believe that the worker lives.
            child.heartbeat.cancel()
            await asyncio.wait([child.heartbeat])
        try:
            leases = await self._running(child)
            freed: int | None = await self._backend.remove_worker(child.worker)
        except Exception as error:  # noqa: BLE001  the lease lapses
            log_line(WARNING, f"could not free the items of process {child.pid}: {error_text(error)}")
            freed = None
        else:
            if freed:
                log_line(WARNING, _died(child.pid, freed, leases))
                await self._wake()
        self._on_freed(child, code, freed)

    async def _running(self, child: ChildProcess) -> list[Lease]:
        """What a child was running when it died: those of its leases that have begun."""
        try:
            leases = await self._backend.unknown_leases(child.worker, ())
        except Exception:  # noqa: BLE001  the line is shorter then
            return []
        return [lease for lease in leases if lease.begun]

    async def _wake(self) -> None:
        try:
            await self._backend.publish(Wake(ready=True))
        except Exception as error:  # noqa: BLE001  others poll
            self._failed(error, "could not wake other workers")

    async def finish(self) -> None:
        """Wait until all items are freed, but not for a store that is away: the leases lapse."""
        if self._removals:
            _, late = await asyncio.wait(self._removals, timeout=self._times.stop)
            for removal in late:
                removal.cancel()


def _died(pid: int, freed: int, running: list[Lease]) -> str:
    """What a dead process leaves behind."""
    waiting = freed - len(running)
    line = f"process {pid} died; {freed} item(s) can be claimed again"
    if running:
        line += f". It was running {named_items(running)}"
    if waiting > 0 and running:
        line += f"; {waiting} had not begun"
    return line
