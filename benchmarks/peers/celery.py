"""Celery 5 on Valkey.

Tuned as its guide advises for many short tasks (https://docs.celeryq.dev/en/stable/userguide/optimizing.html):
a prefetch multiplier of 128 instead of 4, no results for tasks that need none (`ignore_result`); no gossip,
mingling, heartbeats between workers, no events. Its default pool, prefork. For many it has no call of its
own; a producer that is kept spares the look into the pool (`producer=` of apply_async).
"""

from __future__ import annotations

import sys

from celery import Celery, chord, group

from benchmarks.peers.shared import URL, tick

TUNED = "prefork, worker_prefetch_multiplier=128, ignore_result for no-ops, no gossip, mingle, heartbeat"
PACE = 600

app = Celery("peers", broker=URL, backend=URL)
app.conf.update(
    worker_prefetch_multiplier=128,
    task_default_queue="peers",
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    task_send_sent_event=False,
)


@app.task(ignore_result=True)
def noop() -> None:
    tick()


@app.task
def add(i: int) -> int:
    return i + 1


@app.task
def total(values: list[int]) -> int:
    return sum(values)


def one(_: None, i: int) -> None:
    noop.delay()


def many(_: None, numbers: range) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for _ in numbers:
            noop.apply_async(producer=producer)


def awaited(_: None, n: int) -> None:
    assert sum(group(add.s(i) for i in range(n)).apply_async().get(timeout=40)) == n * (n + 1) // 2


def fan_in(_: None, n: int) -> None:
    assert chord([add.s(i) for i in range(n)])(total.s()).get(timeout=40) == n * (n + 1) // 2


def commands(processes: int) -> list[list[str]]:
    alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    program = [sys.executable, "-m", "celery", "-A", __name__, "worker", "-P", "prefork"]
    return [[*program, "-c", str(processes), "-Q", "peers", "-l", "ERROR", *alone]]
