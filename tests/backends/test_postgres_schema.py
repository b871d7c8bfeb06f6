"""PostgreSQL: creating, checking and replacing the schema."""

import asyncio
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.backends.postgres_store import connected, opened
from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres.schema import VERSION
from treadle.errors import InputError, SchemaError, StoreUnavailable
from treadle.testing.contract.build import claim_answer, claim_one, item, items, status, submit


async def test_many_open_an_empty_database_at_once(postgres_url: str) -> None:
    """When many processes open it at once, the tables are created once, and all processes can work."""
    backends = [PostgresBackend(postgres_url) for _ in range(8)]
    await asyncio.gather(*(backend.open() for backend in backends))
    await asyncio.gather(*(submit(backend, *items(3)) for backend in backends))
    await asyncio.gather(*(backend.close() for backend in backends))
    async with connected(postgres_url) as admin:
        assert await admin.fetchval("select count(*) from treadle.item") == 24
        assert await admin.fetchval("select value from treadle.meta where name = 'version'") == str(VERSION)


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    """An older library must not use it."""
    async with opened(postgres_url), connected(postgres_url) as admin:
        await admin.execute("update treadle.meta set value = '999' where name = 'version'")
    with pytest.raises(SchemaError) as refusal:
        await PostgresBackend(postgres_url).open()
    assert (refusal.value.found, refusal.value.wanted) == (999, VERSION)


async def test_without_apply_schema_the_schema_must_exist(postgres_url: str) -> None:
    """`apply_schema=False`: another program migrates."""
    with pytest.raises(SchemaError) as refusal:
        await PostgresBackend(postgres_url, apply_schema=False).open()
    assert refusal.value.found is None
    async with opened(postgres_url), opened(postgres_url, apply_schema=False) as backend:
        await submit(backend, item("a"))


async def test_functions_of_another_version_are_replaced(postgres_url: str) -> None:
    """Also functions with another return type."""
    async with opened(postgres_url), connected(postgres_url) as admin:
        await admin.execute("drop function treadle.remove_worker(text)")
        await admin.execute(
            "create function treadle.remove_worker(who text) returns text language sql as 'select who'"
        )
        await admin.execute("update treadle.meta set value = 'old' where name = 'functions'")
    async with opened(postgres_url) as backend:
        assert await backend.remove_worker("unknown") == 0


async def test_a_migration_that_fails_leaves_nothing(postgres_url: str) -> None:
    """It is one transaction: the next process starts after the last migration that succeeded."""
    async with connected(postgres_url) as admin:
        await admin.execute("create schema treadle; create table treadle.ended_item (mine text)")
        with pytest.raises(Exception, match="already exists"):
            await PostgresBackend(postgres_url).open()
        assert await admin.fetchval("select to_regclass('treadle.item')") is None
        await admin.execute("drop table treadle.ended_item")
    async with opened(postgres_url) as backend:
        await submit(backend, item("a"))


async def test_two_schemas_in_one_database_are_separate(postgres_url: str) -> None:
    """Several apps share a database, each in its own schema."""
    async with opened(postgres_url) as one, opened(postgres_url, schema="Other_app") as other:
        await submit(one, item("a"))
        await submit(other, item("a", input=b"other"))
        assert (await claim_one(other)).input == b"other"
        assert await status(one, "a") == "ready"


@pytest.mark.parametrize("name", ["", "a b", 'x"; drop table item; --', "1st", "x" * 60, "a.b", "é"])
def test_odd_schema_names_are_refused(name: str) -> None:
    """The name is written into every statement."""
    with pytest.raises(InputError):
        PostgresBackend("postgresql://localhost/x", schema=name)


async def test_opening_without_a_server_fails() -> None:
    """It raises `StoreUnavailable` and leaves no connection behind."""
    backend = PostgresBackend("postgresql://localhost:1/none", connect_timeout=2)
    with pytest.raises(StoreUnavailable):
        await backend.open()
    await backend.close()


async def test_another_collation_changes_no_order(postgres_url: str) -> None:
    """Names are always compared by their bytes, also in a database with another collation."""
    parts = urlsplit(postgres_url)
    name = f"{parts.path[1:]}_icu"
    async with connected(postgres_url) as admin:
        try:
            await admin.execute(
                f"create database {name} template template0 locale_provider icu icu_locale 'en'"
            )
        except asyncpg.FeatureNotSupportedError:
            pytest.skip("this server knows no other order")
        try:
            async with opened(urlunsplit(parts._replace(path=f"/{name}"))) as backend:
                await _claim_from_lanes(backend)
        finally:
            await admin.execute(f"drop database {name} with (force)")


async def _claim_from_lanes(backend: PostgresBackend) -> None:
    lanes = ["a", "B", "_", "-", "Z", "é", "z", "10", "9", "aB", "Ab", "ß"]
    for lane in lanes:
        await submit(backend, *items(3, lane=lane))
    served: list[str] = []
    fairness: object = None
    for size in (5, 1, 7, 11, 12):
        claimed = await claim_answer(backend, size, fairness=fairness)
        served += [lease.lane for lease in claimed.leases]
        fairness = claimed.fairness
    assert [sorted(served[n : n + 12]) for n in (0, 12, 24)] == [sorted(lanes)] * 3
    assert served[:12] == sorted(lanes)
