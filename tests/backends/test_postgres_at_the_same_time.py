"""PostgreSQL: claims and reads at the same time as other calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.backends.postgres_store import connected, opened
from tests.backends.test_tenant_moves import TENANT, frozen_for_a_move, leave
from treadle.backends.postgres import PostgresBackend
from treadle.item import Demand, Ended, Heartbeat, Settlement
from treadle.testing.contract.build import item, submit

CLAIM = """
select * from treadle.claim($1, $2, jsonb_populate_record(null::treadle.demand, $3::jsonb), $4, null)
"""


@pytest.fixture
async def backend(warm_url: str) -> AsyncGenerator[PostgresBackend]:
    """A store with a worker of type one and a worker of type two."""
    async with opened(warm_url) as backend:
        await backend.beat(Heartbeat(worker="a", lease=60, types=("one",)))
        await backend.beat(Heartbeat(worker="b", lease=60, types=("two",)))
        yield backend


async def _claimed(backend: PostgresBackend) -> int:
    return len((await backend.claim(Demand(worker="b", limit=5, types={"two": 5}))).leases)


@pytest.mark.parametrize(
    ("limit", "rooms", "grace"),
    [
        (5, {"one": 5}, None),
        (5, {"one": 5, "two": 0}, None),
        (0, {"one": 0, "two": 0}, 30.0),
        (5, {"one": 5}, 30.0),
    ],
    ids=["another type", "no room for the type", "a full worker", "unknown types are looked for"],
)
async def test_a_claim_does_not_lock_what_it_does_not_take(
    backend: PostgresBackend, warm_url: str, limit: int, rooms: dict[str, int], grace: float | None
) -> None:
    await submit(backend, item("x", type="two"))
    demand = json.dumps({"types": list(rooms), "rooms": list(rooms.values())})
    async with connected(warm_url) as connection, connection.transaction():
        (answer,) = await connection.fetch(CLAIM, "a", limit, demand, grace)
        assert (answer["picks"], answer["left_types"]) == ([], [])
        assert await _claimed(backend) == 1


async def test_a_claim_over_several_lanes_locks_what_it_takes(
    backend: PostgresBackend, warm_url: str
) -> None:
    """Three lanes with two items each, and room for four."""
    await backend.beat(Heartbeat(worker="a", lease=60, types=("two",)))
    await submit(backend, *(item(f"x{n}", type="two", lane=f"lane{n % 3}") for n in range(6)))
    demand = json.dumps({"types": ["two"], "rooms": [4]})
    async with connected(warm_url) as connection, connection.transaction():
        answers = await connection.fetch(CLAIM, "a", 4, demand, None)
        assert len(answers) == 5
        assert await _claimed(backend) == 2


async def test_a_claim_names_the_types_that_it_parked(backend: PostgresBackend) -> None:
    """Once: the next claim does not touch them."""
    await submit(backend, *(item(f"x{n}", type="two") for n in range(50)))
    demand = Demand(worker="a", limit=5, types={"one": 5})
    claims = [await backend.claim(demand) for _ in range(2)]
    assert [claim.left for claim in claims] == [("two",), ()]
    assert await _claimed(backend) == 5


async def test_a_claim_names_the_types_that_became_due(backend: PostgresBackend) -> None:
    await submit(backend, item("x", type="two", delay=0.001), item("y", type="one", delay=0.001))
    claim = await backend.claim(Demand(worker="a", limit=5, types={"one": 5}))
    assert ([lease.id for lease in claim.leases], claim.left) == (["y"], ("two",))


async def test_a_claim_names_the_types_that_it_freed(backend: PostgresBackend, warm_url: str) -> None:
    """Of a worker whose lease lapsed."""
    await submit(backend, item("x", type="two"))
    assert await _claimed(backend) == 1
    async with connected(warm_url) as connection:
        await connection.execute("update treadle.worker set until = 0 where id = 'b'")
    claim = await backend.claim(Demand(worker="a", limit=5, types={"one": 5}))
    assert set(claim.left) == {"two"}


async def test_a_group_that_is_requeued_while_it_is_read_has_not_ended(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ended` finds groups with the items, and reads them then."""
    await submit(backend, item("x", type="two"))
    (lease,) = (await backend.claim(Demand(worker="b", limit=5, types={"two": 5}))).leases
    await backend.settle([Settlement(lease=lease, kind="dead", reason="exhausted")])
    refs = [("default", "x")]
    ended = await backend.ended(refs, refs)
    assert (ended.items[refs[0]].status, ended.groups[refs[0]].deaths) == ("dead", (ended.items[refs[0]],))
    find = backend._calls.rows

    async def find_then_requeue(*arguments: Any, **options: Any) -> Any:
        found = await find(*arguments, **options)
        monkeypatch.undo()
        await backend.requeue(["x"])
        return found

    monkeypatch.setattr(backend._calls, "rows", find_then_requeue)
    assert (await backend.ended(refs, refs)).groups == {}
    assert await backend.ended(refs, refs) == Ended({}, {})


@pytest.mark.parametrize(
    "has",
    ["select from treadle.open_item for update", "lock table treadle.worker in row exclusive mode"],
)
async def test_a_freeze_gives_way_to_a_transaction_that_wants_more(
    backend: PostgresBackend, warm_url: str, has: str
) -> None:
    """It has what the freeze waits for, and wants what the freeze has: PostgreSQL would end one of the
    two after a second."""
    await submit(backend, item("x", tenant=TENANT))
    mark = await frozen_for_a_move(backend)
    async with connected(warm_url) as watching, connected(warm_url) as connection:
        async with connection.transaction():
            await connection.execute(has)
            leaving = asyncio.create_task(leave(backend, mark))
            waits = "select exists (select 1 from pg_catalog.pg_locks where not granted)"
            while not await watching.fetchval(waits):  # noqa: ASYNC110  the server has no event for it
                await asyncio.sleep(0.01)
            await connection.execute("update treadle.open_item set no = no")
        await leaving


async def test_what_follows_a_freeze_has_its_patience(backend: PostgresBackend, warm_url: str) -> None:
    """Another transaction that reads may hold up what removes a table, for longer than the freeze waited."""
    store = backend.tenant_moves._store
    async with store.connection() as connection:
        await store.begin(connection)
        await store.freeze(connection, 7)
        assert await connection.fetchval("select current_setting('lock_timeout')") == "7s"
