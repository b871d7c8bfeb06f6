"""A user's own transaction: only what depends on it waits, and a refusal leaves it as it was."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.backends.postgres_store import connected
from tests.engine.kit import PATIENCE, Barrier
from treadle import Client, Context, NotFound, Result, StoreUnavailable, Treadle, WaitTimeout, work
from treadle.backends.postgres import PostgresBackend

pytestmark = pytest.mark.every_store

AT_ONCE = 3.0
"""Seconds. What does not depend on the transaction takes less, also on a busy machine."""


@work(name="step")
async def step(n: int) -> int:
    return n


async def test_enqueues_of_other_keys_do_not_wait_for_a_key(warm_url: str) -> None:
    """They were made in the same moment as those that have to wait."""
    async with Treadle(warm_url, work=[step]) as app, connected(warm_url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        first = await app.enqueue(step(1), key="taken", delay=3600, tx=connection)
        began = time.monotonic()
        waiting = [asyncio.ensure_future(_enqueue(app, step(n), key="taken")) for n in range(20)]
        others = [asyncio.ensure_future(_enqueue(app, step(n), key=f"free {n}")) for n in range(20)]
        plain = [asyncio.ensure_future(_enqueue(app, step(n))) for n in range(20)]
        handles = await asyncio.gather(*others, *plain)
        assert [await handle.result(PATIENCE) for handle in handles] == [*range(20), *range(20)]
        for n in range(5):
            assert await app.enqueue(step(n), key=f"later {n}").result(PATIENCE) == n
        assert time.monotonic() - began < AT_ONCE
        assert not any(task.done() for task in waiting)
        await transaction.commit()
        assert {handle.id for handle in await asyncio.gather(*waiting)} == {first.id}


async def _enqueue(app: Treadle, work: Any, **options: Any) -> Any:
    return await app.enqueue(work, **options)


async def test_other_items_do_not_wait_for_one_that_is_waited_for(warm_url: str) -> None:
    """The transaction waits for a running item. That item ends after the transaction, all others before. A
    ready item that the transaction waits for starts at once."""
    barrier = Barrier()
    started = asyncio.Event()

    @work(name="slow")
    async def slow() -> str:
        await barrier.wait()
        return "slow"

    @work(name="ready")
    async def ready() -> None:
        started.set()

    async with (
        Treadle(warm_url, work=[step, slow, ready], poll_interval=0.1) as app,
        connected(warm_url) as connection,
    ):
        running = await app.enqueue(slow())
        await barrier.reached()
        transaction = connection.transaction()
        await transaction.start()
        waiting = await app.enqueue(ready(), delay=0.2)
        dependent = await app.enqueue(step(7), after=[running, waiting], tx=connection)
        began = time.monotonic()
        barrier.go.set()
        handles = await app.enqueue_many([step(n) for n in range(20)])
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(20))
        await asyncio.wait_for(started.wait(), AT_ONCE)
        for n in range(5):
            assert await app.enqueue(step(n)).result(PATIENCE) == n
        assert time.monotonic() - began < AT_ONCE
        assert [(await handle.state()).status for handle in (running, waiting)] == ["running"] * 2
        await transaction.commit()
        assert await running.result(PATIENCE) == "slow"
        assert await dependent.result(PATIENCE) == 7


async def test_other_items_do_not_wait_for_one_whose_child_has_a_key(warm_url: str) -> None:
    """The settlement whose child has the key waits for the transaction. Its neighbours do not."""

    @work(name="parent")
    async def parent(ctx: Context) -> Result[None, int]:
        return ctx.queue(step(9), key="taken")

    async with Treadle(warm_url, work=[step, parent]) as app, connected(warm_url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        first = await app.enqueue(step(1), key="taken", tx=connection)
        began = time.monotonic()
        handle, *others = await app.enqueue_many([parent(), *(step(n) for n in range(20))])
        assert [await other.result(PATIENCE) for other in others] == list(range(20))
        for n in range(5):
            assert await app.enqueue(step(n)).result(PATIENCE) == n
        assert time.monotonic() - began < AT_ONCE
        assert (await handle.state()).status == "running"
        await transaction.commit()
        await handle.group(PATIENCE)
        assert await first.result(PATIENCE) == 1


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_serialization_failure_is_for_the_user(warm_url: str, isolation: Any) -> None:
    """Another item took the key after the transaction had begun. The whole transaction is done again."""
    async with Treadle(warm_url, work=[step]) as app, connected(warm_url) as connection:
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.fetchval("select count(*) from treadle.key")
        first = await app.enqueue(step(1), key="taken", delay=3600)
        with pytest.raises(asyncpg.SerializationError):
            await app.enqueue(step(2), key="taken", tx=connection)
        await transaction.rollback()
        async with connection.transaction(isolation=isolation):
            again = await app.enqueue(step(2), key="taken", tx=connection)
        assert (again.id, again.existing) == (first.id, True)


async def test_after_a_handle_of_what_is_gone_leaves_the_transaction(warm_url: str) -> None:
    """`NotFound`, and what was done before in the transaction commits."""
    async with Treadle(warm_url, work=[step]) as app, connected(warm_url) as connection:
        gone = await app.enqueue(step(1))
        await gone.result(PATIENCE)
        await app.delete(gone)
        async with connection.transaction():
            first = await app.enqueue(step(2), tx=connection)
            with pytest.raises(NotFound, match=gone.id):
                await app.enqueue(step(3), after=[first, gone], tx=connection)
            second = await app.enqueue(step(4), after=first, tx=connection)
        assert await second.result(PATIENCE) == 4


async def test_after_a_handle_of_what_is_gone_leaves_the_transaction_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    async with Treadle(f"sqlite:///{path}", work=[step]) as app:
        gone = await app.enqueue(step(1))
        await gone.result(PATIENCE)
        await app.delete(gone)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            first = await app.enqueue(step(2), tx=connection)
            with pytest.raises(NotFound, match=gone.id):
                await app.enqueue(step(3), after=[first, gone], tx=connection)
            second = await app.enqueue(step(4), after=first, tx=connection)
            connection.execute("COMMIT")
        assert await second.result(PATIENCE) == 4


async def test_submits_behind_one_another_wait_for_a_locked_table_only_once(warm_url: str) -> None:
    backend = PostgresBackend(warm_url, patience=1.5)
    async with Client(backend, work=[step]) as client, connected(warm_url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("lock table treadle.open_item in access exclusive mode")
        ends = [asyncio.ensure_future(_end_of_refused(client))]
        await asyncio.sleep(0.1)
        ends += [asyncio.ensure_future(_end_of_refused(client)) for _ in range(3)]
        first, *others = await asyncio.gather(*ends)
        assert max(others) - first < 1.0
        await transaction.rollback()
        assert not (await client.enqueue(step(1))).existing


async def _end_of_refused(client: Client) -> float:
    with pytest.raises(StoreUnavailable):
        await client.enqueue(step(1))
    return time.monotonic()


@pytest.mark.parametrize("wait", ["result", "group"])
async def test_the_timeout_of_a_result_covers_the_submit(tmp_path: Path, wait: str) -> None:
    path = tmp_path / "work.db"
    async with Client(f"sqlite:///{path}", work=[step]) as client:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            call = client.enqueue(step(1))
            with pytest.raises(WaitTimeout) as late:
                await (call.result(timeout=0.2) if wait == "result" else call.group(timeout=0.2))
            connection.execute("ROLLBACK")
        async with asyncio.timeout(PATIENCE):
            while await client.get(late.value.id) == [None]:  # noqa: ASYNC110  the submit goes on
                await asyncio.sleep(0.01)


async def test_a_timeout_names_the_earlier_item_with_the_same_key(tmp_path: Path) -> None:
    async with Client(f"sqlite:///{tmp_path / 'work.db'}", work=[step]) as client:
        first = await client.enqueue(step(1), key="k")
        with pytest.raises(WaitTimeout) as late:
            await client.enqueue(step(1), key="k").result(timeout=0.1)
        assert late.value.id == first.id
