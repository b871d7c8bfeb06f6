"""A poison run under `treadle worker`: one item kills each process that runs it, beside innocent ones."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import supervised_app as app
from tests.chaos.report import everything
from tests.chaos.supervised import SupervisedWorkers
from treadle import Client
from treadle.item import OPEN

PATIENCE = 600.0


@dataclass
class PoisonReport:
    innocents: int
    seconds: float = 0.0
    """Until everything had ended."""
    innocent_seconds: float = 0.0
    """Until the last innocent item had ended."""
    deaths: int = 0
    runs: int = 0
    most_attempts: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    """How many innocent items ended in which way."""
    poison: str = ""

    def check(self) -> None:
        """Assert that every innocent item succeeded, and that the poison was found."""
        assert self.ends == {"success": self.innocents}, self.ends
        assert self.poison == "dead lease_lost", self.poison

    def __str__(self) -> str:
        return (
            f"{self.innocents:,} innocent items: {dict(self.ends)} after {self.innocent_seconds:.1f} s;"
            f" the poison: {self.poison} after {self.seconds:.1f} s and {self.deaths} process deaths;"
            f" {self.runs - self.innocents:,} attempts more than items, at most {self.most_attempts} of one"
        )


class PoisonRun:
    """
    innocents: how many innocent items.
    sync: run all items in threads.
    workers: options of `SupervisedWorkers`.
    """

    def __init__(
        self, url: str, directory: Path, *, innocents: int, sync: bool = False, **workers: Any
    ) -> None:
        self._url = url
        self._workers = SupervisedWorkers(url, directory, **workers)
        self._innocent = app.innocent_sync if sync else app.innocent
        self._poison = app.poison_sync if sync else app.poison
        self.report = PoisonReport(innocents)

    async def run(self) -> PoisonReport:
        async with Client(self._url, work=[self._innocent, self._poison]) as client:
            await self._submit(client)
            self._workers.start()
            try:
                await self._wait(client, time.monotonic())
            finally:
                self._workers.kill_all()
            await self._count(client)
        return self.report

    async def _submit(self, client: Client) -> None:
        """The poison is in the middle of the line."""
        half = self.report.innocents // 2
        await client.enqueue_many([self._innocent() for _ in range(half)])
        self._id = (await client.enqueue(self._poison())).id
        await client.enqueue_many([self._innocent() for _ in range(self.report.innocents - half)])

    async def _wait(self, client: Client, began: float) -> None:
        while True:
            counts = await client.counts()
            left = {count.type: count.count for count in counts if count.status in OPEN}
            now = time.monotonic() - began
            if not left.get(self._innocent.name) and not self.report.innocent_seconds:
                self.report.innocent_seconds = now
            if not left:
                self.report.seconds = now
                return
            assert now < PATIENCE, f"after {now:.0f} s: {left}; {self._workers.errors()}"
            await asyncio.sleep(0.1)

    async def _count(self, client: Client) -> None:
        report = self.report
        async for state in everything(client):
            end = f"{state.status} {state.reason or ''}".strip()
            if state.id == self._id:
                report.poison = end
            else:
                report.ends[end] += 1
                report.most_attempts = max(report.most_attempts, state.attempt)
        report.deaths = len(self._workers.ledger.lines("killed"))
        report.runs = len(self._workers.ledger.lines("run"))
