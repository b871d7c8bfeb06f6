"""A large PostgreSQL database: claim times beside millions of ended items, and after much churn."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

import asyncpg

from benchmarks.measure import Stopwatch, percentile
from benchmarks.stores import Stores, backend
from benchmarks.verbs import alive, demand, items, submit, success
from treadle.backend import Backend
from treadle.item import Settlement

LANES = 10
NUMBERS = "select setval('treadle.number', (select last_value from treadle.number) + $1)"
ITEMS = f"""
insert into treadle.item (no, queued, due, keep, priority, attempts, need, id, tenant, type, queue, lane,
    input, options)
  select n, 1.7e9, 1.7e9, 86400, 0, 3, 0, md5(n::text), 'default', 'noop', 'default', 'lane' || n % {LANES},
    '{{"i":123456}}', '' from generate_series($1::bigint, $2) n
"""
READY = f"""
insert into treadle.open_item (no, seq, due, ready_since, status, priority, queue, tenant, lane, type)
  select n, n, 1.7e9, 1.7e9, 2, 0, 'default', 'default', 'lane' || n % {LANES}, 'noop'
  from generate_series($1::bigint, $2) n
"""
DONE = """
insert into treadle.ended_item (no, ended, started, due, prune_at, token, attempt, outcome, worker, result)
  select n, 1.7e9, 1.7e9, 1.7e9, 1e10, n, 1, 6, 'bench', '123456' from generate_series($1::bigint, $2) n
"""


async def fill(url: str, count: int, rows: str) -> None:
    """So many items, with rows in `open_item` or `ended_item`: by the server, quicker than by `submit`."""
    connection = await asyncpg.connect(url)
    try:
        for start in range(0, count, 500_000):
            some = min(500_000, count - start)
            last = await connection.fetchval(NUMBERS, some)
            await connection.execute(ITEMS, last - some + 1, last)
            await connection.execute(rows, last - some + 1, last)
        # As autovacuum does it, sooner.
        await connection.execute("vacuum analyze treadle.item, treadle.open_item, treadle.ended_item")
    finally:
        await connection.close()


async def claim_times(store: Backend, seconds: float = 10.0, least: int = 200) -> tuple[float, float]:
    """Claim 100 items and release them at once: p50 and p95 in milliseconds."""
    taken: list[float] = []
    fairness: object = None
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(taken) < least:
        with Stopwatch() as watch:
            claim = await store.claim(demand(100, fairness=fairness))
        assert len(claim.leases) == 100
        fairness = claim.fairness
        taken.append(watch.seconds * 1000)
        await store.settle([Settlement(lease=lease, kind="release") for lease in claim.leases])
    return statistics.median(taken), percentile(taken, 0.95)


async def depth(
    stores: Stores, ready: Sequence[int], finished: int, seconds: float
) -> dict[str, tuple[float, float]]:
    """Claim times by the number of ready items, without and with ended items in the store."""
    figures: dict[str, tuple[float, float]] = {}
    async with stores.fresh("postgres") as url:
        store = backend(url)
        await store.open()
        await alive(store)
        await fill(url, ready[0], READY)
        figures[f"{ready[0]:,} ready"] = await claim_times(store, seconds)
        await fill(url, finished, DONE)
        waiting = ready[0]
        for size in ready:
            if size > waiting:
                await fill(url, size - waiting, READY)
            waiting = size
            await alive(store)
            figures[f"{size:,} ready, {finished:,} finished"] = await claim_times(store, seconds)
        await store.close()
    return figures


async def churn(stores: Stores, seconds: float, window: float, backlog: int = 10_000) -> list[dict[str, Any]]:
    """Submit, claim and settle for this many seconds, with a backlog at all times. Claim times per window."""
    windows: list[dict[str, Any]] = []
    async with stores.fresh("postgres") as url:
        store = backend(url)
        await store.open()
        await submit(store, items(backlog))
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            await alive(store)
            windows.append(await _window(store, window))
        await store.close()
    return windows


async def _window(store: Backend, seconds: float) -> dict[str, Any]:
    taken: list[float] = []
    settling: asyncio.Task[Any] | None = None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with Stopwatch() as watch:
            claim = await store.claim(demand(100))
        taken.append(watch.seconds * 1000)
        if settling is not None:
            await settling
        settling = asyncio.create_task(_replace(store, [success(lease) for lease in claim.leases]))
    if settling is not None:
        await settling
    p50, p95 = statistics.median(taken), percentile(taken, 0.95)
    return {"p50": p50, "p95": p95, "items/s": 100 * len(taken) / seconds}


async def _replace(store: Backend, settlements: list[Settlement]) -> None:
    """Settle these items and submit as many new ones."""
    await store.settle(settlements)
    await submit(store, items(len(settlements)))
