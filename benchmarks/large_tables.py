"""A large PostgreSQL database: how long verbs take beside millions of ended items, and after much churn."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import asyncpg

from benchmarks.measure import Stopwatch, percentile
from benchmarks.stores import Stores, backend
from benchmarks.verbs import alive, demand, items, submit, success
from treadle.backend import Backend
from treadle.item import Filter, Settlement, Submission

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
EXPIRED = DONE.replace("1e10", "1.7e9 + 1")
"""May be pruned."""
PRUNED = 1000
EXPIRED_PORTIONS = 50

T = TypeVar("T")


async def fill(url: str, count: int, rows: str) -> None:
    """Items, with rows in `open_item` or `ended_item`: by the server, quicker than by `submit`."""
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


Times = tuple[float, float]
"""p50 and p95 in milliseconds."""


async def verb_times(store: Backend, url: str, seconds: float, least: int = 100) -> dict[str, Times]:
    """How long each verb takes. As many items are ready afterwards as before."""
    taken: defaultdict[str, list[float]] = defaultdict(list)

    async def timed(name: str, call: Awaitable[T]) -> T:
        with Stopwatch() as watch:
            found = await call
        taken[name].append(watch.seconds * 1000)
        return found

    fairness: object = None
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(taken["claim of 100"]) < least:
        claim = await timed("claim of 100", store.claim(demand(100, fairness=fairness)))
        assert len(claim.leases) == 100
        fairness = claim.fairness
        await timed("settle of 100", store.settle([success(lease) for lease in claim.leases]))
        new = [item for lane in range(LANES) for item in items(100 // LANES, lane=f"lane{lane}")]
        await timed("submit of 100", store.submit([Submission((item,)) for item in new]))
        await timed("show", store.get([claim.leases[0].id]))
    for _ in range(least):
        await timed("list, the newest 100", store.list(Filter()))
        await timed("list, 100 ready ones", store.list(Filter(status=("ready",))))
        await timed("list, 100 ended ones", store.list(Filter(status=("success",))))
        await timed("status", store.overview())
    await fill(url, EXPIRED_PORTIONS * PRUNED, EXPIRED)
    for _ in range(EXPIRED_PORTIONS):
        assert await timed("prune of 1,000", store.prune(PRUNED)) == PRUNED
    return {name: (statistics.median(each), percentile(each, 0.95)) for name, each in taken.items()}


async def depth(
    stores: Stores, ready: Sequence[int], finished: int, seconds: float
) -> dict[str, dict[str, Times]]:
    """The times of each verb by the number of ready items, without and with ended items in the store."""
    figures: dict[str, dict[str, Times]] = {}
    async with stores.fresh("postgres") as url:
        store = backend(url)
        await store.open()
        await alive(store)
        await fill(url, ready[0], READY)
        figures[f"{ready[0]:,} ready"] = await verb_times(store, url, seconds)
        await fill(url, finished, DONE)
        waiting = ready[0]
        for size in ready:
            if size > waiting:
                await fill(url, size - waiting, READY)
            waiting = size
            await alive(store)
            figures[f"{size:,} ready, {finished:,} ended"] = await verb_times(store, url, seconds)
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
