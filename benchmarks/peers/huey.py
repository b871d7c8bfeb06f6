"""Huey 3 on Valkey, on SQLite and in memory. It has no call for many at once, and takes a job without a trace
of who has it.

Tuned: one worker thread (a second one made it no faster), as its consumer starts by default
(https://huey.readthedocs.io/en/latest/consumer.html), or two worker processes; the polling delay lowered from
100 ms to 1 ms where it polls, no periodic tasks; SQLite as it comes: WAL, and `synchronous` at SQLite's own
default of FULL, as ours.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from huey import MemoryHuey, RedisHuey, SqliteHuey
from huey.api import Huey, chord

from benchmarks.peers.shared import URL, tick

TUNED = "1 worker thread or 2 worker processes, delays of 1 to 5 ms"
PACE = 20_000 if URL == "memory://" else 2_500


def _made() -> Huey:
    if URL == "memory://":
        return MemoryHuey("peers")
    if URL.startswith("redis"):
        return RedisHuey("peers", url=URL)
    return SqliteHuey("peers", filename=URL.removeprefix("sqlite:///"), fsync=None)


logging.getLogger("huey").setLevel(logging.ERROR)
huey = _made()


@huey.task()
def noop() -> None:
    tick()


@huey.task()
def add(i: int) -> int:
    return i + 1


@huey.task()
def total(values: list[int]) -> int:
    return sum(values)


def one(_: None, i: int) -> None:
    noop()


def awaited(_: None, n: int) -> None:
    results = [add(i) for i in range(n)]
    assert sum(each(blocking=True, timeout=40, max_delay=0.005) for each in results) == n * (n + 1) // 2


def fan_in(_: None, n: int) -> None:
    result = huey.enqueue(chord([add.s(i) for i in range(n)], total.s())).callback
    assert result.get(blocking=True, timeout=40, max_delay=0.005) == n * (n + 1) // 2


def commands(processes: int) -> list[list[str]]:
    kind = "thread" if processes == 1 else "process"
    program = [sys.executable, "-m", "huey.bin.huey_consumer", f"{__name__}.huey", "-k", kind]
    return [[*program, "-w", str(processes), "--quiet", "-d", "0.001", "-m", "0.005", "--no-periodic"]]


@asynccontextmanager
async def _inside(_: None) -> AsyncGenerator[None]:
    consumer = huey.create_consumer(workers=1, periodic=False, initial_delay=0.001, max_delay=0.005)
    consumer._set_signal_handlers = lambda: None
    consumer.start()
    yield
    consumer.stop(graceful=True)


if URL == "memory://":
    inside = _inside
