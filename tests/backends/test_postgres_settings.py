"""PostgreSQL: settings of a role that get in the way. A URL can bring them, as a role can."""

import asyncpg
import pytest

from tests.backends.postgres_store import connected, opened
from treadle.backends.postgres.errors import translated
from treadle.errors import StoreUnavailable
from treadle.testing.contract.build import item, submit


async def test_a_read_only_role(prepared_url: str) -> None:
    """The error says what is in the way: the server did answer."""
    async with opened(f"{prepared_url}&default_transaction_read_only=on") as backend:
        assert await backend.now() > 0
        with pytest.raises(StoreUnavailable, match="PostgreSQL is read-only here"):
            await submit(backend, item("a"))


async def test_no_connection_is_left(prepared_url: str) -> None:
    async with connected(prepared_url) as admin:
        await admin.execute("create role few login connection limit 0")
        try:
            with pytest.raises(StoreUnavailable, match="PostgreSQL has no connection left"):
                async with opened(prepared_url.replace("postgres@", "few@")):
                    pass
        finally:
            await admin.execute("drop role few")


def test_a_pooler_in_statement_mode() -> None:
    """PgBouncer closes the connection, and the driver tells why."""
    closed = asyncpg.ConnectionDoesNotExistError(
        "connection was closed in the middle of operation: transaction blocks not allowed in statement "
        "pooling mode"
    )
    assert "needs a pooler in transaction mode or in session mode" in str(translated(closed))


@pytest.mark.parametrize(
    "setting",
    ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"],
)
async def test_a_schema_is_made_without_timeouts(postgres_url: str, setting: str) -> None:
    """It is one transaction, which may take long."""
    async with connected(postgres_url) as admin:
        if not await admin.fetchval("select count(*) from pg_settings where name = $1", setting):
            pytest.skip(f"this server has no {setting}")
    async with opened(f"{postgres_url}&{setting}=100") as backend:
        assert await backend.now() > 0
