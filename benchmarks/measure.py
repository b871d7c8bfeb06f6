"""How figures are measured: interleaved rounds, medians with their spread, ratios within a round."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import psutil
from rich.progress import Progress


@dataclass
class Figure:
    """One quantity, measured in several rounds."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list[float])

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        return f"{shown(self.median)} ({shown(low)}-{shown(high)})"


def shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


Case = Callable[[], Awaitable[float]]


async def rounds(cases: Sequence[tuple[str, str, Case]], times: int, title: str) -> list[Figure]:
    """Run every case once per round, so that a slow minute of the machine affects all cases alike."""
    figures = [Figure(name, unit) for name, unit, _ in cases]
    with Progress(transient=True) as progress:
        task = progress.add_task(title, total=len(cases) * times)
        for _ in range(times):
            for figure, (_, _, case) in zip(figures, cases, strict=True):
                figure.values.append(await case())
                progress.advance(task)
    return figures


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, {memory:.0f} GB, {platform.system()} "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def ratio(top: Sequence[float], bottom: Sequence[float]) -> float:
    """The median of the ratios of two figures, each within one round."""
    return statistics.median(one / other for one, other in zip(top, bottom, strict=False))


class Stopwatch:
    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
