"""`make kills`: what a kill -9 costs: how many handlers finish twice, and how soon lost items run again.

Workers run with all defaults under `treadle worker --processes 2`, on a queue that never empties. At each
kill one child dies, or with `--tree` the supervisor and both children: then only the lease frees their items.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos import supervised_app as app
from tests.chaos.report import Runs, everything
from tests.chaos.supervised import SupervisedWorkers
from tests.support import postgres
from tests.support.records import record
from tests.support.run import Run
from treadle import Client
from treadle.item import OPEN

BACKLOG = 3000
"""Items that wait at least, so that every process is busy when it is killed."""
GOAL = 250
"""The most handlers per kill that may run to their end twice."""


@dataclass
class KillReport:
    """What a number of kills came to."""

    store: str
    kills: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """The processes that were killed, and when."""
    items: int = 0
    twice: int = 0
    lost: int = 0
    not_successful: int = 0
    recoveries: list[float] = field(default_factory=list[float])
    """For each item that was lost for the first time: how soon it ran again."""
    seconds: float = 0.0

    @property
    def twice_per_kill(self) -> float:
        return self.twice / max(1, len(self.kills))

    def recovery(self, share: float) -> float:
        ordered = sorted(self.recoveries)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class KillRun:
    """kills: how many. pause: seconds between two. tree: kill the supervisor too, with all its children."""

    def __init__(
        self,
        url: str,
        store: str,
        directory: Path,
        *,
        kills: int,
        pause: float,
        seconds: float,
        sync: bool,
        tree: bool,
    ) -> None:
        self._url = url
        self._kills = kills
        self._pause = pause
        self._tree = tree
        self._work = app.innocent_sync if sync else app.innocent
        self._workers = SupervisedWorkers(url, directory, seconds=seconds)
        self._rng = random.Random(1)
        self.report = KillReport(store)

    async def run(self) -> KillReport:
        began = time.monotonic()
        async with Client(self._url, work=[self._work]) as client:
            feeding = asyncio.ensure_future(self._feed(client))
            self._workers.start()
            try:
                while len(self.report.kills) < self._kills:
                    await self._kill_after(self._pause)
                feeding.cancel()
                await self._finish(client)
            finally:
                feeding.cancel()
                self._workers.kill_all()
            await self._count(client)
        self.report.seconds = time.monotonic() - began
        return self.report

    async def _feed(self, client: Client) -> None:
        while True:
            waiting = sum(count.count for count in await client.counts() if count.status == "ready")
            if waiting < BACKLOG:
                await client.enqueue_many([self._work() for _ in range(BACKLOG)])
            await asyncio.sleep(0.1)

    async def _kill_after(self, pause: float) -> None:
        """Kill a child that has been busy for so long."""
        ledger = self._workers.ledger
        before = len(ledger.lines("run"))
        await asyncio.sleep(pause)
        await until(lambda: len(ledger.lines("run")) > before)
        if self._tree:
            killed = self._workers.kill_all()
            self._workers.start()
        else:
            busy = {int(pid) for _, _, pid, _, _ in ledger.lines("run")[before:]}
            alive = sorted(busy.intersection(self._workers.children()))
            killed = [self._rng.choice(alive)] if alive else []
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        moment = time.monotonic()
        self.report.kills += [(pid, moment) for pid in killed]

    async def _finish(self, client: Client) -> None:
        while True:
            if not any(count.status in OPEN for count in await client.counts()):
                return
            await asyncio.sleep(0.2)

    async def _count(self, client: Client) -> None:
        report, ledger = self.report, self._workers.ledger
        async for state in everything(client):
            report.items += 1
            report.not_successful += state.status != "success"
        ends = Counter(id for _, id in ledger.lines("end"))
        report.twice = sum(times > 1 for times in ends.values())
        report.lost = len(ledger.lines("run")) - len({id for _, id, *_ in ledger.lines("run")})
        runs = Runs(ledger)
        report.recoveries = [seconds for pid, at in report.kills for seconds in runs.after(pid, at)]


async def until(truth: Callable[[], bool]) -> None:
    """Return when something that other processes do has happened."""
    while not truth():  # noqa: ASYNC110  a file has no event
        await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(prog="kills", description=__doc__)
    parser.add_argument("--on", choices=["sqlite", "postgres"], action="append", help="default: both")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between two kills")
    parser.add_argument("--seconds", type=float, default=0.05, help="how long an item takes")
    parser.add_argument("--sync", action="store_true", help="sync handlers, in threads")
    parser.add_argument("--tree", action="store_true", help="kill the supervisor too")
    given = parser.parse_args()
    options = {name: getattr(given, name) for name in ("kills", "pause", "seconds", "sync", "tree")}
    reports = [measure(store, options) for store in given.on or ["sqlite", "postgres"]]
    show(reports, options)
    command = f"make kills KILLS={given.kills}{' --sync' * given.sync}{' --tree' * given.tree}"
    for report in reports:
        record(
            f"cost of a kill on {report.store}",
            command,
            kills=len(report.kills),
            items=report.items,
            twice=round(report.twice_per_kill, 1),
            recovery=f"p50 {report.recovery(0.5):.2f} s, max {report.recovery(1.0):.2f} s",
        )
    sys.exit(any(each.not_successful or each.twice_per_kill > GOAL for each in reports))


def measure(store: str, options: dict[str, Any]) -> KillReport:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if store == "sqlite":
            return asyncio.run(
                KillRun(f"sqlite:///{directory / 'work.db'}", store, directory, **options).run()
            )
        run = Run.begin()
        try:
            url = postgres.start(run.directory, forgetful=False)
            return asyncio.run(KillRun(url, store, directory, **options).run())
        finally:
            run.end()


def show(reports: list[KillReport], options: dict[str, Any]) -> None:
    table = Table(
        "store", "kills", "items", "not successful", "ran again", "finished twice", "per kill",
        "recovery p50", "p99", "max", "seconds", title=str(options),
    )  # fmt: skip
    for each in reports:
        table.add_row(
            each.store,
            str(len(each.kills)),
            f"{each.items:,}",
            str(each.not_successful),
            f"{each.lost:,}",
            f"{each.twice:,}",
            f"{each.twice_per_kill:.0f}",
            *(f"{each.recovery(share):.2f} s" for share in (0.5, 0.99, 1.0)),
            f"{each.seconds:.0f}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
