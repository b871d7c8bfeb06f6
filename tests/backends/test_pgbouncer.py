"""PostgreSQL behind the real PgBouncer in transaction mode. Skipped where it is not installed.

`make pgbouncer` runs the whole contract there."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.backends.postgres_store import connected, opened
from tests.backends.test_postgres import PostgresSubject, shared_database, shared_url
from tests.backends.test_postgres_pooler import run_two_apps
from tests.support.pgbouncer import installed, pgbouncer
from treadle.backends.postgres import PostgresBackend
from treadle.testing.contract import BackendContract
from treadle.testing.contract.check import consistent

__all__ = ["shared_database", "shared_url"]

pytestmark = pytest.mark.skipif(installed() is None, reason="PgBouncer is not installed")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="treadle-pgbouncer-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


async def test_the_engine_behind_pgbouncer(prepared_url: str, directory: Path) -> None:
    """Groups, dependencies, transactions of handlers and waiting, with 3 server connections for two apps."""
    async with connected(prepared_url) as admin:
        await admin.execute("create table mine (n int)")
        with pgbouncer(prepared_url, directory) as url:
            await run_two_apps(url, prepared_url)
        assert await admin.fetchval("select count(*) from mine") == 6 * 21
        async with opened(prepared_url) as backend:
            await consistent(backend)


class PgBouncerSubject(PostgresSubject):
    """Connects through PgBouncer."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url)
        self._directory = directory
        self._through: str | None = None

    async def another(self) -> PostgresBackend:
        if self._through is None:  # not earlier: emptying the database ends all connections
            self._through = self._stack.enter_context(pgbouncer(self._url, self._directory, servers=6))
        backend = PostgresBackend(self._through, prepare=False, listen_url=self._url)
        await backend.open()
        self._stack.push_async_callback(backend.close)
        return backend


if os.environ.get("TREADLE_TEST_PGBOUNCER"):

    class TestPgBouncerContract(BackendContract):
        @pytest.fixture
        async def subject(self, shared_url: str, directory: Path) -> AsyncIterator[PgBouncerSubject]:
            async with PgBouncerSubject(shared_url, directory) as subject:
                yield subject
