"""PostgreSQL: many connections work on the same groups, dependencies and keys at once. `make hammer` does it
for longer, with processes."""

import asyncio
import time
from collections import Counter

from tests.backends.hammer import HammerWorker, check, drain
from tests.backends.postgres_store import opened
from treadle.backends.postgres import PostgresBackend

SECONDS = 4.0
CONNECTIONS = 8


async def test_many_hammer_the_same_items(prepared_url: str) -> None:
    """Claims, settlements with children and folds, suspends and signals, cancels, requeues, deletes and lost
    workers, all on a few items: the server never has to break a deadlock, and every counter is right in the
    end."""
    tally: Counter[str] = Counter()
    async with opened(prepared_url) as first:
        backends = [PostgresBackend(prepared_url, pool_size=3, reserved=1) for _ in range(CONNECTIONS - 1)]
        await asyncio.gather(*(backend.open() for backend in backends))
        until = time.monotonic() + SECONDS
        workers = [HammerWorker(backend, f"h{n}", n, tally) for n, backend in enumerate([first, *backends])]
        await asyncio.gather(*(worker.work(until) for worker in workers))
        await asyncio.gather(*(backend.close() for backend in backends))
        await drain(first)
        await check(prepared_url, first)
    assert min(tally[verb] for verb in ("_submit", "_run", "_cancel", "_remove", "_signal", "applied")) > 0, (
        tally
    )
