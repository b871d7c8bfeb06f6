"""`make soak MINUTES=30`: a mixed load for a long time, with regular samples of what must not grow.

It runs on SQLite, in one process, with everything on: retries, dependencies, groups, batches, schedules,
events, metrics. Ended items are pruned after a minute. Exits with 1 if a series grows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.support.records import record
from treadle import Context, Result, Retry, Treadle, WorkFailed, work
from treadle.events import Event, Started

KEEP = 60.0
"""Seconds that ended items are kept. After that, as many are pruned as are added."""
BARS = "▁▂▃▄▅▆▇█"


@work(name="value", retry=Retry(attempts=5, base=0.01))
async def value(n: int) -> int:
    if random.random() < 0.05:
        raise RuntimeError("one in twenty fails")
    return n


@work.batch(name="batched", size=20, max_wait=0.05)
async def batched(numbers: list[int]) -> list[int]:
    return numbers


@work(name="gathered")
async def gathered(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="family")
async def family(ctx: Context, size: int) -> Result[None, int]:
    return ctx.queue([value(n) for n in range(size)]).next(gathered())


class Latencies:
    """How long items took since the last sample, and how many have started."""

    def __init__(self) -> None:
        self._waits: list[float] = []
        self.count = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.count += 1

    def add(self, seconds: float) -> None:
        self._waits.append(seconds)

    def p99(self) -> float:
        waits, self._waits = sorted(self._waits), []
        return waits[int(0.99 * (len(waits) - 1))] * 1000 if waits else 0.0


class Series:
    """The samples of one quantity."""

    def __init__(self, name: str, unit: str, slack: float) -> None:
        self.name = name
        self.unit = unit
        self._slack = slack
        """A rise of at most this much is not growth."""
        self.values: list[float] = []

    @property
    def steady(self) -> Sequence[float]:
        """The samples without the first third, in which everything fills up."""
        return self.values[len(self.values) // 3 :]

    @property
    def growth(self) -> float:
        """The rise of a line fitted to the steady samples, from start to end."""
        values = self.steady
        if len(values) < 6:
            return 0.0
        return statistics.linear_regression(range(len(values)), values).slope * (len(values) - 1)

    @property
    def grows(self) -> bool:
        return self.growth > self._slack + 0.1 * statistics.median(self.steady or [0.0])

    def chart(self, width: int = 48) -> str:
        picked = [self.values[len(self.values) * n // width] for n in range(min(width, len(self.values)))]
        low, high = min(picked), max(picked)
        return "".join(BARS[int((each - low) / ((high - low) or 1) * (len(BARS) - 1))] for each in picked)


class Soak:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._rng = random.Random(1)
        self.latencies = Latencies()
        self.series = [
            Series("memory", "MB", 8.0),
            Series("tasks", "", 10.0),
            Series("open files", "", 5.0),
            Series("write-ahead log", "MB", 4.0),
            Series("an item, p99", "ms", 50.0),
        ]

    async def run(self, seconds: float, every: float) -> None:
        app = Treadle(
            f"sqlite:///{self._path}",
            work=[value, batched, gathered, family],
            on_event=self.latencies,
            keep=KEEP,
        )
        app.schedule("tick", every=1.0, run=lambda: value(0))
        bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        async with app, asyncio.TaskGroup() as group:
            load = [group.create_task(self._load(app)) for _ in range(4)]
            with bar:
                task = bar.add_task("soaking", total=seconds)
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    await asyncio.sleep(every)
                    self._sample()
                    bar.update(task, advance=every, description=f"{self.latencies.count:,} items")
            for each in load:
                each.cancel()

    async def _load(self, app: Treadle) -> None:
        while True:
            began = time.perf_counter()
            with suppress(WorkFailed):
                await self._submit_some(app)
            self.latencies.add(time.perf_counter() - began)
            await asyncio.sleep(0.01)

    async def _submit_some(self, app: Treadle) -> None:
        kind = self._rng.random()
        if kind < 0.2:
            await app.enqueue(family(self._rng.randrange(1, 20))).group()
        elif kind < 0.4:
            handles = await app.enqueue_many([batched(n) for n in range(10)])
            await asyncio.gather(*(handle.result() for handle in handles))
        elif kind < 0.5:
            first = await app.enqueue(value(1), delay=0.05)
            await app.enqueue(value(2), after=first).result()
        else:
            await app.tenant(f"t{self._rng.randrange(20)}").enqueue(value(1)).result()

    def _sample(self) -> None:
        wal = Path(f"{self._path}-wal")
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        found = (
            pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            len(asyncio.all_tasks()),
            len(list(Path("/proc/self/fd").iterdir())),
            wal.stat().st_size / 2**20 if wal.exists() else 0.0,
            self.latencies.p99(),
        )
        for series, each in zip(self.series, found, strict=True):
            series.values.append(each)


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    given = parser.parse_args()
    seconds = given.minutes * 60
    with tempfile.TemporaryDirectory() as directory:
        soak = Soak(Path(directory) / "soak.db")
        asyncio.run(soak.run(seconds, max(0.5, seconds / 240)))
    table = Table(
        "quantity", "over time", "least", "median", "most", "rise", title=f"{soak.latencies.count:,} items"
    )
    for series in soak.series:
        low, middle, high = min(series.values), statistics.median(series.values), max(series.values)
        slope = f"[red]{series.growth:+.1f}" if series.grows else f"{series.growth:+.1f}"
        name = f"{series.name}, {series.unit}".rstrip(", ")
        table.add_row(name, series.chart(), f"{low:.1f}", f"{middle:.1f}", f"{high:.1f}", slope)
    Console().print(table)
    grown = [series.name for series in soak.series if series.grows]
    record(
        "soak",
        f"make soak MINUTES={given.minutes:g}",
        items=soak.latencies.count,
        grows=", ".join(grown) or "nothing",
    )
    sys.exit(any(series.grows for series in soak.series))


if __name__ == "__main__":
    main()
