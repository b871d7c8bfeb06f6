"""How many Python calls an item takes. They are what a worker's processor time goes into, and a busy machine
does not change their number."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from treadle import Client, Treadle, work

ITEMS = 1000
MOST_CALLS = 42.0
"""Per no-op that a worker claims, runs and settles in memory. It takes 39."""
MOST_CALLS_OF_A_WORK = 3.5
"""Per Work that is made. It takes 3."""
MOST_CALLS_OF_MANY = 20.0
"""Per item of a submission, in memory. It takes 18, and 17 of them are the store's."""
ENQUEUED = 200


@work(name="noop")
async def noop(n: int) -> int:
    return n


class Calls:
    count = 0


@contextmanager
def counted() -> Generator[Calls]:
    """Count the calls of this thread, and of those that are started meanwhile."""
    calls = Calls()

    def count(frame: object, event: str, arg: object) -> None:
        calls.count += event == "call"

    before = sys.getprofile()
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(before)  # type: ignore[arg-type]


async def test_an_item_takes_few_python_calls() -> None:
    async with Treadle("memory://", work=[noop]) as first:
        await (await first.enqueue(noop(0))).result()  # a first worker imports modules, which are calls too
    app = Treadle("memory://", work=[noop])
    await app.enqueue_many([noop(n) for n in range(ITEMS)])
    with counted() as calls:
        await app.start()
        await app.worker.drain()
    await app.stop()
    assert app.metrics.of("noop").succeeded == ITEMS
    assert calls.count / ITEMS < MOST_CALLS


@pytest.mark.parametrize(("store", "most"), [("memory", 60.0), ("sqlite", 165.0)])
async def test_an_enqueue_takes_few_python_calls(tmp_path: Path, store: str, most: float) -> None:
    """One at a time. It takes 53 in memory. On SQLite 115, and 33 in the thread that writes."""
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'work.db'}"
    client = Client(url, work=[noop])
    with counted() as calls:
        await client.connect()
        await client.enqueue(noop(0))
        before = calls.count
        for n in range(ENQUEUED):
            await client.enqueue(noop(n))
        taken = calls.count - before
    await client.close()
    assert taken / ENQUEUED < most


async def test_an_item_among_many_takes_few_python_calls() -> None:
    async with Client("memory://", work=[noop]) as client:
        await client.enqueue_many([noop(n) for n in range(ITEMS)])
        with counted() as calls:
            works = [noop(n) for n in range(ITEMS)]
        assert calls.count / ITEMS < MOST_CALLS_OF_A_WORK
        with counted() as calls:
            await client.enqueue_many(works)
    assert calls.count / ITEMS < MOST_CALLS_OF_MANY
