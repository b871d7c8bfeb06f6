"""More than anybody should ask for: it takes a while, and nothing is lost or doubled."""

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

CHILDREN = int(os.environ.get("TREADLE_CHILDREN", "20000"))
"""`make proof` has 100,000."""
GATES = 10_000


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
async def test_very_many_children_of_one_handler() -> None:
    """One settlement with all of them, then what waits for all of them."""
    async with Treadle(MemoryBackend(), work=[leaf, gathered, crowd]) as app:
        assert await app.enqueue(crowd(CHILDREN)).group() == CHILDREN
        counted = {(each.type, each.status): each.count for each in await app.counts(ended=True)}
        assert counted[("leaf", "success")] == CHILDREN


async def test_many_children_in_a_file(tmp_path: Path) -> None:
    async with Treadle(SqliteBackend(tmp_path / "work.db"), work=[leaf, gathered, crowd]) as app:
        assert await app.enqueue(crowd(GATES)).group(PATIENCE) == GATES


async def test_ten_thousand_gates_on_one_item(make_app: MakeApp) -> None:
    """All are released by the settlement of the one that they wait for."""
    app = make_app(leaf)
    first = await app.enqueue(leaf(-1), delay=3600)
    gates = await app.enqueue_many([leaf(n) for n in range(GATES)], after=first)
    counted: dict[Any, int] = {each.status: each.count for each in await app.counts()}
    assert counted == {"scheduled": 1, "blocked": GATES}
    async with app:
        await app.trigger(first)
        assert await gates[-1].result(PATIENCE) == GATES - 1
        await app.worker.drain()
    counted = {each.status: each.count for each in await app.counts(ended=True)}
    assert counted == {"success": GATES + 1}
    await consistent(app._core.backend)


def forked() -> int:
    """What a library may do behind a handler's back: the child goes on with everything that was open."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]


@work(name="forking")
def forking() -> int:
    return forked()


@pytest.mark.filterwarnings("ignore:This process")
async def test_a_handler_that_forks(make_app: MakeApp) -> None:
    """What the child inherits, it leaves alone."""
    async with make_app(forking, leaf) as app:
        assert await app.enqueue(forking()).result(PATIENCE) == 0
        handles = await app.enqueue_many([leaf(n) for n in range(20)])
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(20))
