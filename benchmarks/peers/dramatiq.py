"""Dramatiq 2 on Valkey. For many it has no call of its own, only groups, which enqueue one after the other.

Tuned: its program's defaults for a process: 8 threads, twice as many messages fetched ahead (QUEUE_PREFETCH
in dramatiq/worker.py); results only where they are wanted.
"""

from __future__ import annotations

import sys

import dramatiq
from dramatiq import group
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as Counters
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.shared import URL, tick

TUNED = "8 threads, no results for no-ops"
PACE = 1_800

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
broker.add_middleware(GroupCallbacks(Counters(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor
def noop() -> None:
    tick()


@dramatiq.actor(store_results=True)
def add(i: int) -> int:
    return i + 1


@dramatiq.actor(store_results=True)
def after() -> int:
    return 1


def one(_: None, i: int) -> None:
    noop.send()


def awaited(_: None, n: int) -> None:
    found = group(add.message(i) for i in range(n)).run().get_results(block=True, timeout=40_000)
    assert sum(found) == n * (n + 1) // 2


def fan_in(_: None, n: int) -> None:
    """A work after a group learns that the group ended, but gets no values."""
    children, last = group(add.message(i) for i in range(n)), after.message()
    children.add_completion_callback(last)
    children.run()
    assert last.get_result(block=True, timeout=40_000) == 1


def commands(processes: int) -> list[list[str]]:
    program = [sys.executable, "-m", "dramatiq", __name__, "-p", str(processes), "-t", "8"]
    return [[*program, "--skip-logging"]]
