"""Retention: whether pruning keeps up with a steady load, so that the tables stop growing.

Items are submitted at a fixed rate, workers in processes of their own run them, and keep each for `keep`
seconds. As always, the workers remove what has expired. Every few seconds the size of the tables is read.

`python -m benchmarks.retention URL KEEP` runs such a worker, until it is ended.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import asyncpg
import psutil

from benchmarks.engine import noop
from benchmarks.stores import Stores
from treadle import Client, Treadle

PORTION = 500
"""How many items are submitted in one call."""
WORKERS = 2
TABLES = ("item", "open_item", "ended_item")
ROWS = """
select (select count(*) from treadle.open_item) as open,
  (select count(*) from treadle.ended_item) as ended,
  (select coalesce(treadle.clock() - min(prune_at), 0) from treadle.ended_item) as late
"""
SIZES = """
select sum(pg_total_relation_size(c.oid)) / 1e6 as megabytes, sum(s.n_dead_tup) as dead
from pg_class c join pg_namespace n on n.oid = c.relnamespace
  join pg_stat_user_tables s on s.relid = c.oid
where n.nspname = 'treadle' and c.relname = any($1)
"""


async def retention(
    stores: Stores, rate: float, keep: float, seconds: float, every: float
) -> list[dict[str, Any]]:
    """A row of figures, at an interval in seconds."""
    async with stores.fresh("postgres") as url, Client(url, work=[noop], keep=keep) as client:
        workers = [await _start(url, keep) for _ in range(WORKERS)]
        try:
            return await _measured(client, url, rate, seconds, every)
        finally:
            for worker in workers:
                worker.kill()
                await worker.wait()


async def _measured(
    client: Client, url: str, rate: float, seconds: float, every: float
) -> list[dict[str, Any]]:
    looking = await asyncpg.connect(url)
    began = time.monotonic()
    submitted = 0
    found: list[dict[str, Any]] = []
    try:
        while (passed := time.monotonic() - began) < seconds:
            if passed >= (len(found) + 1) * every:
                found.append({"seconds": passed, "submitted": submitted, **await _sizes(looking)})
            due = int(passed * rate) - submitted
            if due < PORTION:
                await asyncio.sleep((PORTION - due) / rate)
                continue
            await client.enqueue_many([noop(n) for n in range(PORTION)])
            submitted += PORTION
    finally:
        await looking.close()
    return found


async def _sizes(looking: asyncpg.Connection[Any]) -> dict[str, Any]:
    rows, sizes = await looking.fetchrow(ROWS), await looking.fetchrow(SIZES, list(TABLES))
    assert rows is not None
    assert sizes is not None
    return {name: float(value or 0) for name, value in (*rows.items(), *sizes.items())}


def growth(found: list[dict[str, Any]], keep: float, settling: float = 60.0) -> float | None:
    """The size at the end, of that when retention had begun to work. None: it has not run for long enough.

    settling: seconds after `keep` until the first are pruned, and the space that they leave is used again.
    """
    steady = [each["megabytes"] for each in found if each["seconds"] > keep + settling]
    return steady[-1] / steady[0] if len(steady) > 1 else None


async def _start(url: str, keep: float) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.retention", url, str(keep), stdin=asyncio.subprocess.DEVNULL
    )


async def _work(url: str, keep: float) -> None:
    parent = psutil.Process().parent()
    async with Treadle(url, work=[noop], keep=keep):
        while parent is not None and parent.is_running():  # noqa: ASYNC110  it may be killed at any time
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], float(sys.argv[2])))
