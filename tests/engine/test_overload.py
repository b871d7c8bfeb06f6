"""Very many items at once. It takes a while, and nothing is lost or doubled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp
from treadle import Context, Result, Treadle, work
from treadle.backends.memory import MemoryBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.testing.contract.check import consistent

CHILDREN = int(os.environ.get("TREADLE_CHILDREN", "5000"))
"""`make proof` uses 100,000."""
DEPENDENTS = 1500
LONG_PATIENCE = 8 * PATIENCE
"""Seconds. A busy machine needs more than `PATIENCE` for these items."""


@work(name="leaf")
async def leaf(n: int) -> int:
    return n


@work(name="gathered")
async def gathered(ctx: Context) -> int:
    return len(ctx.dependencies)


@work(name="crowd")
async def crowd(ctx: Context, count: int) -> Result[None, int]:
    return ctx.queue([leaf(n) for n in range(count)]).next(gathered())


@pytest.mark.timeout(240)
async def test_very_many_children_in_one_settlement() -> None:
    """Then the work that waits for all of them."""
    async with Treadle(MemoryBackend(), work=[leaf, gathered, crowd]) as app:
        assert await app.enqueue(crowd(CHILDREN)).group() == CHILDREN
        counted = {(each.type, each.status): each.count for each in await app.counts(ended=True)}
        assert counted[("leaf", "success")] == CHILDREN


@pytest.mark.timeout(240)
async def test_many_children_on_sqlite(quick_file: Path) -> None:
    async with Treadle(SqliteBackend(quick_file), work=[leaf, gathered, crowd]) as app:
        assert await app.enqueue(crowd(DEPENDENTS)).group(LONG_PATIENCE) == DEPENDENTS


@pytest.mark.timeout(240)
async def test_thousands_of_items_wait_for_one(make_app: MakeApp) -> None:
    """The settlement of that item releases all of them."""
    app = make_app(leaf)
    first = await app.enqueue(leaf(-1), delay=3600)
    dependents = await app.enqueue_many([leaf(n) for n in range(DEPENDENTS)], after=first)
    counted: dict[Any, int] = {each.status: each.count for each in await app.counts()}
    assert counted == {"scheduled": 1, "blocked": DEPENDENTS}
    async with app:
        await app.trigger(first)
        assert await dependents[-1].result(LONG_PATIENCE) == DEPENDENTS - 1
        await app.worker.drain()
    counted = {each.status: each.count for each in await app.counts(ended=True)}
    assert counted == {"success": DEPENDENTS + 1}
    await consistent(app._core.backend)


def forked() -> int:
    """A fork inside a handler, as a library may do it. The child has all open files and connections of the
    parent."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]


@work(name="forking")
def forking() -> int:
    return forked()


@pytest.mark.every_store
@pytest.mark.usefixtures("processes")
@pytest.mark.filterwarnings("ignore:This process")
async def test_a_handler_may_fork(make_app: MakeApp) -> None:
    """The child does not use the connections that it inherits."""
    async with make_app(forking, leaf) as app:
        assert await app.enqueue(forking()).result(PATIENCE) == 0
        handles = await app.enqueue_many([leaf(n) for n in range(20)])
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(20))
