"""A chaos run on one store: processes are started and killed, then everything is counted."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg

from tests.chaos.ledger import Ledger
from tests.chaos.processes import SETTINGS, effect, pair
from tests.chaos.report import ChaosReport, Runs, fill_report
from tests.chaos.stores import DurableStore
from treadle import Client, StoreUnavailable
from treadle.item import OPEN

PROJECT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds without progress after which the run has failed."""
SUSPENDED = (1.2, 2.0)
"""The shortest and longest suspension, in leases: always more than one."""


class ChaosRun:
    """
    workers: the number of processes that work, besides the one that submits.
    items: the least number of items to submit, with the kills spread over them. None: until the last kill.
    interval: the shortest and the longest time between two faults, in seconds.
    server_kills: how often the server is killed, where there is one. Then it is restarted in order once.
    """

    def __init__(
        self,
        store: DurableStore,
        directory: Path,
        *,
        seed: int,
        workers: int = 4,
        items: int | None = None,
        interval: tuple[float, float] = (0.02, 0.4),
        server_kills: int = 1,
    ) -> None:
        self._store = store
        self._ledger = Ledger(directory / "ledger")
        self._rng = random.Random(seed)
        self._workers = workers
        self._items = items
        self._interval = interval
        self._restarts = server_kills + 1 if store.restarts else 0
        self._running: dict[subprocess.Popen[bytes], str] = {}
        self._killed: list[tuple[int, float]] = []
        self._suspended: dict[int, float] = {}
        self._resumed: list[tuple[int, float, float]] = []
        self._resuming: set[asyncio.Task[None]] = set()
        self.report = ChaosReport()

    async def run(self, kills: int) -> ChaosReport:
        """Kill that many processes, one after the other. Then let the workers finish, and count."""
        started = time.monotonic()
        try:
            for role in ("submit", *["work"] * self._workers):
                self._start(role)
            while self.report.kills < kills or not self._submitted():
                await asyncio.sleep(self._rng.uniform(*self._interval))
                self._check_processes()
                if self.report.kills < kills and self._did_enough_work(kills):
                    await self._disturb(kills)
            await asyncio.gather(*self._resuming)
            await self._finish()
        finally:
            for process in self._running:
                process.kill()
                process.wait()
        self.report.seconds = time.monotonic() - started
        return self.report

    def _check_processes(self) -> None:
        """A process must not end unless it was killed."""
        for process, role in self._running.items():
            assert process.poll() is None, f"the process with the role {role!r} ended without being killed"

    def _did_enough_work(self, kills: int) -> bool:
        """Whether enough work was done since the last fault for another one."""
        return (
            self._items is None or len(self._ledger.lines("run")) >= self._items * self.report.kills / kills
        )

    def _submitted(self) -> bool:
        return self._items is None or self._ledger.items() >= self._items

    def _start(self, role: str) -> None:
        items = sys.maxsize if self._items is None else self._items
        command = [sys.executable, "-m", "tests.chaos.processes", role, self._store.url]
        command += [str(self._ledger.path), str(items)]
        self._running[subprocess.Popen(command, cwd=PROJECT)] = role

    # -- faults ------------------------------------------------------------------------------------------

    async def _disturb(self, kills: int) -> None:
        """Cause one fault, mostly a kill. The restarts of the server are spread over the kills: it is killed,
        and the last time it is stopped in order. Processes are suspended throughout."""
        report, share = self.report, self.report.kills / kills
        if report.restarts < self._restarts and share >= (report.restarts + 1) / (self._restarts + 1):
            report.restarts += 1
            await self._store.restart(crash=report.restarts < self._restarts)
        elif report.pauses < share * max(4, kills // 10):
            self._suspend_one()
        (disturb,) = self._rng.choices([self._kill_one, self._cut], [8, 1])
        await disturb()

    def _ready(self, *roles: str) -> list[subprocess.Popen[bytes]]:
        """The processes with these roles that have started and are not suspended."""
        able = self._ledger.ready() - self._suspended.keys()
        return [process for process, role in self._running.items() if process.pid in able and role in roles]

    async def _kill_one(self) -> None:
        victims = self._ready("submit", "work")
        if victims:
            victim = self._rng.choice(victims)
            self._killed.append((victim.pid, time.monotonic()))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            self._start(self._running.pop(victim))
            self.report.kills += 1

    def _suspend_one(self) -> None:
        """Suspend a worker for longer than its lease. Its settlements afterwards must be refused."""
        victims = self._ready("work")
        if victims and not self._suspended:
            victim = self._rng.choice(victims)
            victim.send_signal(signal.SIGSTOP)
            self.report.pauses += 1
            seconds = SETTINGS["lease"] * self._rng.uniform(*SUSPENDED)
            self._suspended[victim.pid] = time.monotonic()
            task = asyncio.create_task(self._resume(victim, seconds))
            self._resuming.add(task)
            task.add_done_callback(self._resuming.discard)

    async def _resume(self, victim: subprocess.Popen[bytes], seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._resumed.append((victim.pid, self._suspended.pop(victim.pid), time.monotonic()))
        victim.send_signal(signal.SIGCONT)

    async def _cut(self) -> None:
        with suppress(OSError, asyncpg.PostgresError):
            self.report.cuts += await self._store.cut(self._rng)

    # -- the end -----------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        for process, role in list(self._running.items()):
            if role == "submit":
                process.kill()
                process.wait()
                del self._running[process]
        async with Client(self._store.url, work=[effect, pair], **SETTINGS) as client:
            await self._wait_until_ended(client)
            await fill_report(self.report, client, self._store, self._ledger)
        runs = Runs(self._ledger)
        self.report.recoveries = [s for pid, at in self._killed for s in runs.after(pid, at)]
        self.report.overtaken = sum(
            again < until - since for pid, since, until in self._resumed for again in runs.after(pid, since)
        )

    async def _wait_until_ended(self, client: Client) -> None:
        counts: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(StoreUnavailable):
                before, counts = counts, list(await client.counts())
                if not any(count.status in OPEN for count in counts):
                    return
                if before != counts:
                    deadline = time.monotonic() + PATIENCE
            assert time.monotonic() < deadline, counts
            await asyncio.sleep(0.1)
