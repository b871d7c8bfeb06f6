"""A storm over one store: processes come and are killed; afterwards everything is counted."""

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

from tests.chaos.account import Account, Runs, settle_accounts
from tests.chaos.actors import SETTINGS, effect, pair
from tests.chaos.ledger import Ledger
from tests.chaos.stores import Ground
from treadle import Client, StoreUnavailable
from treadle.item import OPEN

PROJECT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds without any progress after which something is stuck."""
SUSPENDED = (1.2, 2.0)
"""For how many leases a process is suspended: always for longer than one."""


class Storm:
    """
    workers: how many processes work, beside the one that submits.
    items: how many are submitted, at least, the kills spread over them; None: for as long as there are kills.
    calm: the shortest and the longest time between two blows, in seconds.
    """

    def __init__(
        self,
        ground: Ground,
        directory: Path,
        *,
        seed: int,
        workers: int = 4,
        items: int | None = None,
        calm: tuple[float, float] = (0.02, 0.4),
    ) -> None:
        self._ground = ground
        self._ledger = Ledger(directory / "ledger")
        self._rng = random.Random(seed)
        self._workers = workers
        self._items = items
        self._calm = calm
        self._running: dict[subprocess.Popen[bytes], str] = {}
        self._killed: list[tuple[int, float]] = []
        self._suspended: dict[int, float] = {}
        self._resumed: list[tuple[int, float, float]] = []
        self._resuming: set[asyncio.Task[None]] = set()
        self.account = Account()

    async def blow(self, kills: int) -> Account:
        """Kill so many processes, one after the other, then let a last crew finish, and count."""
        started = time.monotonic()
        try:
            for role in ("submit", *["work"] * self._workers):
                self._start(role)
            while self.account.kills < kills or not self._submitted():
                await asyncio.sleep(self._rng.uniform(*self._calm))
                self._look_after()
                if self.account.kills < kills and self._worked_enough(kills):
                    await self._strike(kills)
            await asyncio.gather(*self._resuming)
            await self._finish()
        finally:
            for process in self._running:
                process.kill()
                process.wait()
        self.account.seconds = time.monotonic() - started
        return self.account

    def _look_after(self) -> None:
        """A process that ends without having been killed is a failure of its own."""
        for process, role in self._running.items():
            assert process.poll() is None, f"a process that was to {role} ended by itself"

    def _worked_enough(self, kills: int) -> bool:
        """Whether what was done since the last blow is worth another one."""
        return (
            self._items is None or len(self._ledger.lines("run")) >= self._items * self.account.kills / kills
        )

    def _submitted(self) -> bool:
        return self._items is None or self._ledger.items() >= self._items

    def _start(self, role: str) -> None:
        items = sys.maxsize if self._items is None else self._items
        command = [sys.executable, "-m", "tests.chaos.actors", role, self._ground.url]
        command += [str(self._ledger.path), str(items)]
        self._running[subprocess.Popen(command, cwd=PROJECT)] = role

    # -- what strikes ------------------------------------------------------------------------------------

    async def _strike(self, kills: int) -> None:
        """Mostly a kill. The server crashes after a third of them, and is stopped in order after another;
        processes are suspended all along."""
        account, share = self.account, self.account.kills / kills
        if self._ground.restarts and account.restarts < 2 and share >= (account.restarts + 1) / 3:
            account.restarts += 1
            await self._ground.restart(crash=account.restarts == 1)
        elif account.pauses < share * max(4, kills // 10):
            self._suspend_one()
        (blow,) = self._rng.choices([self._kill_one, self._cut], [8, 1])
        await blow()

    def _ready(self, *roles: str) -> list[subprocess.Popen[bytes]]:
        """One that is still starting up would teach nothing, and one that is suspended has its own lesson."""
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
            self.account.kills += 1

    def _suspend_one(self) -> None:
        """It cannot know that it was: its leases lapse meanwhile, and what it then says must be refused."""
        victims = self._ready("work")
        if victims and not self._suspended:
            victim = self._rng.choice(victims)
            victim.send_signal(signal.SIGSTOP)
            self.account.pauses += 1
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
            self.account.cuts += await self._ground.cut(self._rng)

    # -- afterwards --------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        for process, role in list(self._running.items()):
            if role == "submit":
                process.kill()
                process.wait()
                del self._running[process]
        async with Client(self._ground.url, work=[effect, pair], **SETTINGS) as client:
            await self._until_ended(client)
            await settle_accounts(self.account, client, self._ground, self._ledger)
        runs = Runs(self._ledger)
        self.account.recoveries = [s for pid, at in self._killed for s in runs.after(pid, at)]
        self.account.overtaken = sum(
            again < until - since for pid, since, until in self._resumed for again in runs.after(pid, since)
        )

    async def _until_ended(self, client: Client) -> None:
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
