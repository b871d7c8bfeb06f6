"""DBOS 3, on PostgreSQL and on SQLite: queued workflows without a step inside, its cheapest case.

Tuned: the queue is polled every 20 ms instead of every second, up to 100 workflows in a process at once
(`polling_interval_sec`, `worker_concurrency` of DBOS.register_queue), async workflows, a pool of 20; many are
enqueued in one transaction (`enqueue_in_transaction`); results are asked for every 20 ms (`get_result`). Each
process has an executor id of its own: one that starts recovers, and so runs again, what is pending under its
id.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from dbos import DBOS, DBOSClient

from benchmarks.peers.shared import URL, WORKER, batches, tick

SQLITE = URL.startswith("sqlite")
DATABASE = URL.replace("postgresql://", "postgresql+psycopg://")
TUNED = "polling_interval_sec=0.02, worker_concurrency=100, async workflows, pool of 20"
PACE = 150 if SQLITE else 300
LEFT = (
    f"select count(*) from {'' if SQLITE else 'dbos.'}workflow_status where status in ('ENQUEUED', 'PENDING')"
)

DBOS(
    config={
        "name": "peers",
        "system_database_url": DATABASE,
        "application_version": "1",
        "executor_id": f"worker-{WORKER}",
        "log_level": "ERROR",
        "run_admin_server": False,
        "sys_db_pool_size": 20,
    }
)


@DBOS.workflow()
async def noop(i: int) -> None:
    tick()


@DBOS.workflow()
async def add(i: int) -> int:
    return i + 1


@DBOS.workflow()
async def parent(n: int) -> int:
    children = [await DBOS.enqueue_workflow_async("peers", add, i) for i in range(n)]
    return sum([await child.get_result(polling_interval_sec=0.02) for child in children])


def _options(workflow: str) -> dict[str, str]:
    return {"queue_name": "peers", "workflow_name": workflow, "app_version": "1"}


def _launch() -> None:
    DBOS.launch()
    DBOS.register_queue("peers", polling_interval_sec=0.02, worker_concurrency=100)


def setup() -> None:
    _launch()
    DBOS.destroy()


@asynccontextmanager
async def client() -> AsyncGenerator[DBOSClient]:
    yield DBOSClient(system_database_url=DATABASE)


def one(c: DBOSClient, i: int) -> None:
    c.enqueue(_options("noop"), i)


def many(c: DBOSClient, numbers: range) -> None:
    for part in batches(numbers, 500):
        with c._sys_db.engine.begin() as transaction:
            for i in part:
                c.enqueue_in_transaction(transaction, _options("noop"), i)


def awaited(c: DBOSClient, n: int) -> None:
    handles = [c.enqueue(_options("add"), i) for i in range(n)]
    assert sum(each.get_result(polling_interval_sec=0.02) for each in handles) == n * (n + 1) // 2


def fan_in(c: DBOSClient, n: int) -> None:
    parent = c.enqueue(_options("parent"), n)
    assert parent.get_result(polling_interval_sec=0.02) == n * (n + 1) // 2


def worker() -> None:
    _launch()
    while True:
        time.sleep(60)
