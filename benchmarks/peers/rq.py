"""RQ 2 on Valkey.

Tuned: SimpleWorker, which runs jobs in the worker's own process. Its default forks for each job; its notes on
performance (https://github.com/rq/rq/blob/master/docs/benchmark.md) name this one as six times as fast, for
jobs as short as these; no result kept of no-ops (`result_ttl=0`), no timer for each job
(`default_timeout=-1`), few log lines; `enqueue_many` for many.
"""

from __future__ import annotations

from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import Dependency, Job

from benchmarks.peers.shared import URL, tick

TUNED = "SimpleWorker, result_ttl=0 for no-ops, no job timeout"
PACE = 280

connection = Redis.from_url(URL)
queue = Queue(connection=connection, default_timeout=-1)


def noop() -> None:
    tick()


def add(i: int) -> int:
    return i + 1


def after() -> int:
    return 1


def one(_: None, i: int) -> None:
    queue.enqueue(noop, result_ttl=0)


def many(_: None, numbers: range) -> None:
    queue.enqueue_many([Queue.prepare_data(noop, result_ttl=0) for _ in numbers])


def _adds(n: int) -> list[Job]:
    return queue.enqueue_many([Queue.prepare_data(add, (i,)) for i in range(n)])


def _result(job: Job) -> Any:
    """Wait with RQ's own blocking call."""
    found = job.latest_result(timeout=40)
    assert found is not None
    return found.return_value


def awaited(_: None, n: int) -> None:
    assert sum(_result(job) for job in _adds(n)) == n * (n + 1) // 2


def fan_in(_: None, n: int) -> None:
    assert _result(queue.enqueue(after, depends_on=Dependency(jobs=list(_adds(n))))) == 1


def worker() -> None:
    SimpleWorker([queue], connection=connection).work(logging_level="WARNING")
