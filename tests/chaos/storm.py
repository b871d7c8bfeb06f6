"""A storm over one store: processes come and are killed; afterwards everything is counted."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.actors import SETTINGS, effect, pair
from tests.chaos.ledger import Ledger
from treadle import Client
from treadle.item import OPEN, Filter

PROJECT = Path(__file__).parents[2]


@dataclass
class Account:
    """What became of everything."""

    kills: int = 0
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list[str])
    not_successful: list[str] = field(default_factory=list[str])
    effects: Counter[str] = field(default_factory=Counter[str])
    expected: int = 0
    seconds: float = 0.0

    @property
    def doubled(self) -> list[str]:
        return [id for id, times in self.effects.items() if times > 1]

    def check(self) -> None:
        assert not self.lost, f"acknowledged and lost: {self.lost[:5]}"
        assert not self.not_successful, f"not successful: {self.not_successful[:5]}"
        assert not self.doubled, f"effects done twice: {self.doubled[:5]}"
        assert len(self.effects) == self.expected, (len(self.effects), self.expected)


class Storm:
    def __init__(self, url: str, directory: Path, *, seed: int, workers: int = 3) -> None:
        self._url = url
        self._ledger = directory / "ledger"
        self._rng = random.Random(seed)
        self._workers = workers
        self._running: dict[subprocess.Popen[bytes], str] = {}
        self.account = Account()

    async def blow(self, kills: int) -> Account:
        """Kill so many processes, one after the other, then let a last crew finish, and count."""
        started = time.monotonic()
        Ledger(self._ledger)
        try:
            for role in ("submit", *["work"] * self._workers):
                self._start(role)
            while self.account.kills < kills:
                await asyncio.sleep(self._rng.uniform(0.02, 0.4))
                self._kill_one_that_is_ready()
            await self._finish()
        finally:
            for process in self._running:
                process.kill()
                process.wait()
        self.account.seconds = time.monotonic() - started
        return self.account

    def _start(self, role: str) -> None:
        command = [sys.executable, "-m", "tests.chaos.actors", role, self._url, str(self._ledger)]
        self._running[subprocess.Popen(command, cwd=PROJECT)] = role

    def _kill_one_that_is_ready(self) -> None:
        """One that is still starting up would teach nothing."""
        ready = {line.split()[1] for line in Ledger(self._ledger).lines() if line.startswith("ready")}
        victims = [process for process in self._running if str(process.pid) in ready]
        if not victims:
            return
        victim = self._rng.choice(victims)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self._start(self._running.pop(victim))
        self.account.kills += 1

    async def _finish(self) -> None:
        for process, role in list(self._running.items()):
            if role == "submit":
                process.kill()
                process.wait()
                del self._running[process]
        client = Client(self._url, work=[effect, pair], **SETTINGS)
        async with client:
            await self._until_ended(client)
            await self._count(client)

    async def _until_ended(self, client: Client, patience: float = 60.0) -> None:
        deadline = time.monotonic() + patience
        while any(count.status in OPEN for count in await client.counts()):
            assert time.monotonic() < deadline, await client.counts()
            await asyncio.sleep(0.1)

    async def _count(self, client: Client) -> None:
        account = self.account
        for line in Ledger(self._ledger).lines():
            if line.startswith("ready"):
                continue
            account.acknowledged += 1
            (state,) = await client.get([line.split()[1]])
            if state is None:
                account.lost.append(line)
            elif state.status != "success":
                account.not_successful.append(f"{line} {state.status}")
        account.effects = Counter(await self._effects())
        account.expected = await self._successes(client)

    async def _successes(self, client: Client) -> int:
        """How many items of type `effect` succeeded: each must have left one row."""
        total, cursor = 0, None
        while True:
            where = Filter(type="effect", status=("success",))
            page = await client.backend.list(where, limit=1000, cursor=cursor)
            total, cursor = total + len(page.items), page.cursor
            if cursor is None:
                return total

    async def _effects(self) -> list[str]:
        return await effects(self._url)


async def prepare(url: str) -> None:
    """The user's own table. Without a unique key: a second row must be seen, not refused."""
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(path_of(url)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS effects (id TEXT NOT NULL)")
        connection.close()
        return
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute("create table if not exists effects (id text not null)")
    await connection.close()


async def effects(url: str) -> list[str]:
    if url.startswith("sqlite"):
        import sqlite3

        connection = sqlite3.connect(path_of(url))
        rows: list[Any] = connection.execute("SELECT id FROM effects").fetchall()
        connection.close()
        return [row[0] for row in rows]
    import asyncpg

    opened = await asyncpg.connect(url)
    found = await opened.fetch("select id from effects")
    await opened.close()
    return [row["id"] for row in found]


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")
