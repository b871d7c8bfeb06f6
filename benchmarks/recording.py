"""The cost of statistics: a drain of no-ops in 10 queues, with statistics and without, in turn.

Workers send what they counted every 0.2 seconds here, 50 times as often as usual. So each drain has some, and
what they cost is overstated. The drains are short and many: a machine that gets slower and faster does so for
both of a pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import quantiles

from benchmarks.engine import noop
from benchmarks.measure import Figure, Stopwatch
from benchmarks.stores import Stores
from benchmarks.tracing import ProcessorTime
from treadle import Treadle
from treadle.engine.upkeep import statistics as sending

INTERVAL = 0.2
QUEUES = 10
MOST = 1.03
"""What a drain with statistics may take, of one without."""

Drain = tuple[float, float]
"""Seconds, and seconds of processor time."""


@contextmanager
def short_interval() -> Iterator[None]:
    usual, sending.INTERVAL = sending.INTERVAL, INTERVAL
    try:
        yield
    finally:
        sending.INTERVAL = usual


async def drain(stores: Stores, kind: str, count: int, *, statistics: bool) -> Drain:
    async with stores.fresh(kind) as url:
        app = Treadle(url, work=[noop], statistics=statistics)
        for start in range(0, count, 1000):
            works = [noop(n) for n in range(start, min(start + 1000, count))]
            await app.enqueue_many(works, queue=f"queue-{start // 1000 % QUEUES}")
        with Stopwatch() as watch, ProcessorTime() as processor:
            await app.start()
            await app.worker.drain()
        await app.stop()
        return watch.seconds, processor.seconds


async def statistics_cost(stores: Stores, kind: str, count: int, times: int) -> list[Figure]:
    """Seconds and seconds of processor time of each drain: with statistics, without, and their ratios. Each
    round begins with the other one."""
    with short_interval():
        await drain(stores, kind, count, statistics=True)  # warm up
        found: dict[bool, list[Drain]] = {True: [], False: []}
        for n in range(times):
            for on in (True, False) if n % 2 else (False, True):
                found[on].append(await drain(stores, kind, count, statistics=on))
    return [
        Figure(f"{name}, statistics {'on' if on else 'off'}", "s", [each[index] for each in found[on]])
        for index, name in enumerate(("drain", "processor time"))
        for on in (True, False)
    ]


def ratios(on: Sequence[float], off: Sequence[float]) -> tuple[float, float, float]:
    """Of the pairs: the lower quartile, the median, the upper quartile."""
    low, middle, high = quantiles([one / other for one, other in zip(on, off, strict=True)], n=4)
    return low, middle, high
