"""Huey 3, on SQLite and in memory. It has no call for many at once.

Tuned: one worker thread (a second one made it no faster), as its consumer starts by default
(https://huey.readthedocs.io/en/latest/consumer.html), the polling delay lowered from 100 ms to 1 ms, no
periodic tasks; SQLite as it comes: WAL, and `synchronous` at SQLite's own default of FULL, as ours.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from huey import MemoryHuey, SqliteHuey

from benchmarks.measure import Stopwatch

TUNED = "1 worker thread, delays of 1 to 5 ms"
SMALL = 2


def _huey(url: str) -> Any:
    logging.getLogger("huey").setLevel(logging.ERROR)
    if url == "memory://":
        return MemoryHuey("peers")
    return SqliteHuey("peers", filename=url.removeprefix("sqlite:///"), fsync=None)


def _noop(huey: Any) -> Any:
    @huey.task(name="noop")
    def noop(i: int) -> int:
        return i

    return noop


def _consumer(huey: Any) -> Any:
    consumer = huey.create_consumer(workers=1, periodic=False, initial_delay=0.001, max_delay=0.005)
    consumer._set_signal_handlers = lambda: None
    return consumer


async def one_by_one(url: str, n: int) -> float:
    noop = _noop(_huey(url))
    with Stopwatch() as watch:
        for i in range(n):
            noop(i)
    return n / watch.seconds


async def drain(url: str, n: int) -> float:
    return await asyncio.to_thread(_drain, url, n)


def _drain(url: str, n: int) -> float:
    huey = _huey(url)
    noop = _noop(huey)
    last = [noop(i) for i in range(n)][-1]
    consumer = _consumer(huey)
    with Stopwatch() as watch:
        consumer.start()
        assert last.get(blocking=True, timeout=120, max_delay=0.005) == n - 1
    consumer.stop(graceful=True)
    return n / watch.seconds


async def awaited(url: str, n: int) -> float:
    return await asyncio.to_thread(_awaited, url, n)


def _awaited(url: str, n: int) -> float:
    huey = _huey(url)
    noop = _noop(huey)
    consumer = _consumer(huey)
    consumer.start()
    time.sleep(0.2)
    with Stopwatch() as watch:
        results = [noop(i) for i in range(n)]
        assert sum(each(blocking=True, timeout=60, max_delay=0.005) for each in results) == sum(range(n))
    consumer.stop(graceful=True)
    return n / watch.seconds
