"""Absurd 0.5: queues and workflows in SQL functions, which its `absurdctl` carries. It has no call for many.

Tuned: its async worker with `concurrency` and `batch_size` of 50 instead of 1, and a `poll_interval` of 10 ms
instead of 250, as it polls (AsyncAbsurd.start_worker in absurd_sdk); autocommit, as it connects by default.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from absurd_sdk import Absurd, AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers.shared import URL, tick

TUNED = "async worker, concurrency=50, batch_size=50, poll_interval=0.01"
PACKAGE = "absurd-sdk"
PACE = 600
LEFT = "select count(*) from absurd.t_default where state in ('pending', 'running', 'sleeping')"


@asynccontextmanager
async def client() -> AsyncGenerator[Absurd]:
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
    app = Absurd(URL)
    app.create_queue()
    yield app
    app.close()


def one(app: Absurd, i: int) -> None:
    app.spawn("noop", {"i": i}, queue="default")


def awaited(app: Absurd, n: int) -> None:
    ids = [app.spawn("add", {"i": i}, queue="default")["task_id"] for i in range(n)]
    assert sum(app.await_task_result(id, timeout=40).result for id in ids) == n * (n + 1) // 2


async def worker() -> None:
    app = AsyncAbsurd(URL)

    @app.register_task("noop")
    async def noop(given: Any, ctx: Any) -> None:
        tick()

    @app.register_task("add")
    async def add(given: Any, ctx: Any) -> int:
        return int(given["i"]) + 1

    await app.start_worker(concurrency=50, batch_size=50, poll_interval=0.01)
