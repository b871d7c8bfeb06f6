"""The types of arrays that connections to PostgreSQL use: known without a query, or looked up."""

from typing import Any
from unittest.mock import patch

import asyncpg
import pytest

from tests.backends.postgres_store import connected, opened
from treadle.backends.postgres import connector
from treadle.item import Contribution, Demand, Heartbeat, Item, Limit, PermitRequest, Settlement, Submission


async def use(url: str) -> None:
    """Call verbs whose statements have arrays of every type."""
    async with opened(url) as backend:
        await backend.beat(Heartbeat(worker="w", lease=60.0))
        await backend.submit([Submission((Item(id="x", type="work", input=b"1", after=("y",)),))])
        await backend.submit([Submission((Item(id="y", type="work", input=b"2"),))])
        (lease,) = (await backend.claim(Demand(worker="w", limit=1))).leases
        await backend.settle([Settlement(lease=lease, kind="success", contribution=Contribution(value=b"3"))])
        await backend.take_permits([PermitRequest((Limit("k", 1),))])
        await backend.get(["x", "y"])
        await backend.cancel(["x"])
        async with connected(url) as connection, connection.transaction():
            await backend.submit([Submission((Item(id="z", type="work", input=b"4"),))], tx=connection)


def lookups() -> Any:
    return patch.object(asyncpg.Connection, "_introspect_types", autospec=True)


async def test_the_numbers_of_array_types_are_those_of_the_server(warm_url: str) -> None:
    async with connected(warm_url) as connection:
        rows = await connection.fetch(
            "select e.typname, a.oid::int, e.oid::int from pg_type a join pg_type e on e.oid = a.typelem"
            " where a.typdelim = ',' and a.typname = '_' || e.typname"
        )
    found = {name: (array, element) for name, array, element in rows}
    assert {name: found[name] for name in connector.ARRAYS} == connector.ARRAYS


async def test_no_type_is_looked_up(warm_url: str) -> None:
    with lookups() as lookup:
        lookup.side_effect = AssertionError("a type was looked up")
        await use(warm_url)


async def test_types_that_cannot_be_registered_are_looked_up(
    warm_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "ROWS", [{}])
    original = asyncpg.Connection._introspect_types
    with lookups() as lookup:
        lookup.side_effect = original
        await use(warm_url)
    assert lookup.called
