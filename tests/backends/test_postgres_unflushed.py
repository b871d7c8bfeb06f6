"""PostgreSQL: claims and heartbeats that do not wait for the disk, and a server that is killed before it has
written them."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.postgres_store import WRONG, connected, opened
from tests.chaos.outage import own_home
from tests.support import postgres
from treadle import Client, InputError, StoreUnavailable
from treadle.backends.postgres import PostgresBackend
from treadle.testing.contract.build import apply, claim, items, settle, start, submit, succeed

SLOW_TO_WRITE = {"synchronous_commit": "on", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
"""What no commit has waited for is written after ten seconds."""
MANY = 50
"""More tokens than the server takes from a sequence at once (32): without a random part some would repeat."""
UNWRITTEN = "select pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()"


class Server:
    """A server of its own that can be killed."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.url = postgres.start(home, forgetful=False, settings=SLOW_TO_WRITE)

    def stop(self) -> None:
        postgres.stop(self._home)

    async def kill(self) -> None:
        """With -9, and start it again."""
        await asyncio.to_thread(postgres.restart, self._home, crash=True)


@pytest.fixture
def server(run_directory: Path, processes: None) -> Iterator[Server]:
    server = Server(own_home(run_directory))
    yield server
    server.stop()


@asynccontextmanager
async def with_items(url: str, count: int, **options: Any) -> AsyncGenerator[PostgresBackend]:
    """A backend with items that are on the disk, and a worker that is known."""
    async with opened(url, **options) as backend:
        await start_and_end_one(backend)
        await submit(backend, *items(count))
        yield backend


async def start_and_end_one(backend: PostgresBackend) -> None:
    await apply(backend, *map(succeed, await start(backend, *items(1))))


async def is_unwritten(url: str) -> bool:
    async with connected(url) as connection:
        return bool(await connection.fetchval(UNWRITTEN))


async def running(backend: PostgresBackend) -> int:
    """After a restart: the old connections are gone."""
    async with asyncio.timeout(20):
        while True:
            try:
                counts = await backend.counts()
            except StoreUnavailable:
                continue
            return sum(count.count for count in counts if count.status == "running")


@pytest.mark.parametrize("prepare", [True, False], ids=["prepared", "as for a pooler"])
async def test_what_a_killed_server_has_forgotten_is_claimed_again(server: Server, prepare: bool) -> None:
    """With other tokens. The first worker's outcomes are refused, and nothing ends twice."""
    async with with_items(server.url, MANY, prepare=prepare) as backend:
        first = await claim(backend, worker="a")
        assert len(first) == MANY
        assert await is_unwritten(server.url)
        await server.kill()
        assert await running(backend) == 0
        second = await claim(backend, worker="b")
        assert {lease.id for lease in second} == {lease.id for lease in first}
        assert not {lease.token for lease in second} & {lease.token for lease in first}
        late = await settle(backend, *map(succeed, first))
        assert {outcome.verb for outcome in late.outcomes} == {"stale"}
        await apply(backend, *map(succeed, second))
    async with connected(server.url) as connection:
        assert {
            wrong: found for wrong, query in WRONG.items() if (found := await connection.fetch(query))
        } == {}


async def test_a_settlement_takes_all_claims_before_it_to_the_disk(server: Server) -> None:
    async with with_items(server.url, MANY) as backend:
        done, *others = await claim(backend)
        await apply(backend, succeed(done))
        assert not await is_unwritten(server.url)
        await server.kill()
        assert await running(backend) == MANY - 1
        await apply(backend, *map(succeed, others))


@pytest.mark.parametrize("by", ["option", "url"])
async def test_claims_that_must_survive_wait_for_the_disk(server: Server, by: str) -> None:
    """Heartbeats too."""
    async with with_items(server.url, MANY) as backend:
        other: Any = (
            PostgresBackend(server.url, durable_claims=True)
            if by == "option"
            else Client(f"{server.url}&durable_claims=1").backend
        )
        await other.open()
        leases = await claim(other, worker="a")
        assert not await is_unwritten(server.url)
        await other.close()
        await server.kill()
        assert await running(backend) == MANY
        await apply(backend, *map(succeed, leases))


async def test_what_a_role_has_set_holds_for_all_else(server: Server) -> None:
    """A claim changes the setting of its transaction only, and a handler's transaction is not touched."""
    async with connected(server.url) as connection:
        await connection.execute("alter role postgres set synchronous_commit = 'remote_write'")
    async with with_items(server.url, 1, pool_size=1, reserved=0) as backend:
        (lease,) = await claim(backend)
        async with backend.transaction() as transaction:
            assert await transaction.connection.fetchval("show synchronous_commit") == "remote_write"
            await transaction.settle([succeed(lease)])
        assert not await is_unwritten(server.url)


@pytest.mark.parametrize(
    "query", ["durable_claims=yes", "durable_claims=", "durable_claims=1&durable_claims=0"]
)
def test_another_value_is_refused(query: str) -> None:
    with pytest.raises(InputError, match="durable_claims= is 1 if claims must wait for the disk, else 0"):
        Client(f"postgresql://me:secret@host/shop?{query}")


@pytest.mark.parametrize(
    "query", ["durable_claims=0", "host=%2Frun%2Fpg&durable_claims=1&port=6000", "port=6000"]
)
def test_the_rest_of_the_url_stays(query: str) -> None:
    backend: Any = Client(f"postgresql://me@host/shop?{query}").backend
    assert "durable_claims" not in backend.address
    assert ("port=6000" in backend.address) == ("port" in query)
