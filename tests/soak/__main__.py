"""`make soak MINUTES=30 RATE=5000 ON=postgres`: a mixed load for long, and samples of what must not grow.

One process submits and works, with everything on: retries, dependencies, groups, batches, limits, schedules,
events, metrics, many tenants. Ended items are pruned after `--keep` seconds. Every 5 s it samples memory,
files, connections, the write-ahead log and the tables. It writes them as JSON and as a chart, and exits with
1 if a series still grows in the second half of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.soak.load import TICK, TYPES, Load, Starts, value
from tests.soak.series import Series, svg
from tests.soak.stores import MeasuredStore, measured_store
from tests.support.records import RECORDS, record
from treadle import Treadle

NICE = 5
"""It yields to other processes of the machine."""


class Soak:
    """keep: seconds that ended items are kept. every: seconds between two samples."""

    def __init__(self, store: MeasuredStore, *, rate: float, keep: float, every: float) -> None:
        self._store = store
        self._rate = rate
        self._keep = keep
        self._every = every
        self.starts = Starts()
        self._waiting = 0
        self._last = (0, time.monotonic(), time.process_time())
        """At the last sample: starts, the time, and the processor time."""
        kept = rate * every
        self.series = {
            series.name: series
            for series in (
                Series("memory", "MB", 8.0),
                Series("tasks", "", 50.0),
                Series("open files", "", 5.0),
                Series("connections", "", 2.0),
                Series("write-ahead log", "MB", 64.0),
                Series("tables", "MB", 16.0),
                Series("database", "MB", 16.0),
                Series("items in the store", "", kept),
                Series("dead rows", "", kept),
                Series("items that wait", "", kept),
                Series("an item, p99", "ms", 250.0),
                Series("items started", "per second", may_grow=True),
                Series("processor", "% of a core", may_grow=True),
            )
        }

    async def run(self, seconds: float) -> None:
        app = Treadle(self._store.url, work=TYPES, on_event=self.starts, keep=self._keep)
        app.schedule("tick", every=1.0, run=lambda: value(0))
        bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        async with app:
            self.load = Load(app, self._rate, lambda: self._waiting)
            loading = asyncio.ensure_future(self.load.run())
            try:
                with bar:
                    task = bar.add_task("soaking", total=seconds)
                    until = time.monotonic() + seconds
                    while time.monotonic() < until and not loading.done():
                        await asyncio.sleep(self._every)
                        await self._sample(app)
                        bar.update(task, advance=self._every, description=f"{self.starts.count:,} items")
                if loading.done():
                    loading.result()
            finally:
                loading.cancel()

    async def _sample(self, app: Treadle) -> None:
        counts = await app.counts()
        self._waiting = sum(each.count for each in counts if each.status == "ready")
        process = psutil.Process()
        sample = {
            "memory": process.memory_info().rss / 2**20,
            "tasks": len(asyncio.all_tasks()),
            "open files": process.num_fds(),
            "items that wait": self._waiting,
            "an item, p99": self.load.p99(),
            **self._rates(),
            **await self._store.sizes(),
        }
        for name, each in sample.items():
            self.series[name].values.append(float(each))

    def _rates(self) -> dict[str, float]:
        """What was done per second since the last sample."""
        now, used = time.monotonic(), time.process_time()
        starts, at, processor = self._last
        self._last = (self.starts.count, now, used)
        passed = max(now - at, 0.001)
        return {
            "items started": (self.starts.count - starts) / passed,
            "processor": 100 * (used - processor) / passed,
        }

    @property
    def measured(self) -> list[Series]:
        return [series for series in self.series.values() if series.values]


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=5000.0, help="items per second")
    parser.add_argument("--on", choices=["sqlite", "postgres"], default="postgres")
    parser.add_argument("--keep", type=float, default=60.0, help="seconds that ended items are kept")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--out", type=Path, default=RECORDS, help="the directory for the JSON and the chart")
    given = parser.parse_args()
    os.nice(NICE)
    seconds = given.minutes * 60
    with tempfile.TemporaryDirectory() as directory, measured_store(given.on, Path(directory)) as store:
        soak = Soak(store, rate=given.rate, keep=given.keep, every=given.every)
        asyncio.run(soak.run(seconds))
    sys.exit(not report(soak, given, seconds))


def report(soak: Soak, given: argparse.Namespace, seconds: float) -> bool:
    """Print, store and draw the series. Whether none of them grows."""
    started, held_back = soak.starts.count, f"{soak.load.held_back * TICK:.0f} s"
    title = (
        f"{started:,} items on {given.on} in {given.minutes:g} minutes, {started / seconds:,.0f} per second "
        f"({given.rate:,.0f} wanted, held back for {held_back}), kept for {given.keep:g} s"
    )
    table = Table("quantity", "least", "median", "most", "second half", title=title)
    for series in soak.measured:
        low, middle, high = min(series.values), statistics.median(series.values), max(series.values)
        rise = f"[red]{series.growth:+,.1f}" if series.grows else f"{series.growth:+,.1f}"
        table.add_row(
            f"{series.name}, {series.unit}".rstrip(", "),
            f"{low:,.1f}",
            f"{middle:,.1f}",
            f"{high:,.1f}",
            rise,
        )
    Console(width=120).print(table)
    grown = [series.name for series in soak.measured if series.grows]
    given.out.mkdir(parents=True, exist_ok=True)
    written = given.out / f"soak-{given.on}"
    samples = {"title": title, "every": given.every, "series": [series.row() for series in soak.measured]}
    written.with_suffix(".samples.json").write_text(json.dumps(samples, indent=1))
    written.with_suffix(".svg").write_text(svg(title, soak.measured, seconds))
    Console(width=120).print(f"grows: {', '.join(grown) or 'nothing'}; chart: {written.with_suffix('.svg')}")
    record(
        f"soak on {given.on}",
        f"make soak MINUTES={given.minutes:g} RATE={given.rate:g} ON={given.on}",
        items=started,
        rate=round(started / seconds),
        held_back=held_back,
        grows=", ".join(grown) or "nothing",
    )
    return not grown


if __name__ == "__main__":
    main()
