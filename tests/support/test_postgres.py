"""The PostgreSQL server that the other tests use."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psutil
import psycopg
import pytest
import sqlalchemy

from tests.support.databases import Postgres, Prepared
from tests.support.keeper import PROJECT
from tests.support.process import ended, wait_until_ended
from tests.support.run import memory

# A separate run, in a process that can be killed: it prints its directory, then waits.
OTHER_RUN = """
import sys
from tests.support.keeper import start_postgres
from tests.support.run import Run

run = Run.begin()
if "postgres" in sys.argv:
    start_postgres(run.directory)
print(run.directory, flush=True)
sys.stdin.read()
run.end()
"""


class OtherRun:
    """The run above, in its own directory, so that no other run removes it."""

    def __init__(self, home: Path, *servers: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER_RUN, *servers],
            cwd=PROJECT,
            env={**os.environ, "TMPDIR": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.directory = Path(self.process.stdout.readline().strip())
        assert self.directory.parent == home

    def end(self) -> None:
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def pid(self, file: str) -> int:
        return int((self.directory / file).read_text().split()[0])


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that the server can reach, with a short name for its socket. `tmp_path` is neither."""
    with tempfile.TemporaryDirectory(prefix="treadle-home-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_a_database_is_empty_and_usable(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
        await connection.execute("CREATE TABLE mark (id int)")
    finally:
        await connection.close()


@pytest.mark.parametrize("number", [1, 2])
def test_no_test_sees_the_database_of_another(postgres_url: str, number: int) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mark AS SELECT %s AS number", [number])


def test_two_databases_are_different(postgres: Postgres, postgres_url: str) -> None:
    with postgres.database() as other, psycopg.connect(other) as connection:
        assert other != postgres_url
        found = connection.execute("SELECT current_database()").fetchone()
        assert found == (urlsplit(other).path[1:],)


def test_a_database_is_dropped_although_a_client_is_connected(postgres: Postgres) -> None:
    with postgres.database() as url:
        connection = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_database_can_be_copied(postgres: Postgres, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mark AS SELECT 7 AS value")
    with (
        postgres.database(template=urlsplit(postgres_url).path[1:]) as copy,
        psycopg.connect(copy) as connection,
    ):
        assert connection.execute("SELECT value FROM mark").fetchone() == (7,)


def test_a_prepared_database_is_emptied_and_reused(prepared: Prepared) -> None:
    with prepared.database() as first:
        connection = psycopg.connect(first, autocommit=True)
        connection.execute("INSERT INTO treadle.orders VALUES ('x', 'queue', '', NULL, 0, '')")
        assert connection.execute("SELECT nextval('treadle.token')").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    with prepared.database() as second, psycopg.connect(second) as connection:
        assert second == first
        assert connection.execute("SELECT count(*) FROM treadle.pause").fetchone() == (0,)
        assert connection.execute("SELECT nextval('treadle.token')").fetchone() == (1,)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE VIEW mark AS SELECT 1",
        "DROP INDEX treadle.key_no",
        "ALTER TABLE treadle.meta ADD mark int",
        "CREATE OR REPLACE FUNCTION treadle.clock() RETURNS float8 LANGUAGE sql AS 'select 1.0::float8'",
        "DELETE FROM treadle.meta",
        "ALTER DATABASE {database} SET jit = off",
    ],
)
def test_a_prepared_database_whose_tables_changed_is_not_reused(prepared: Prepared, change: str) -> None:
    with prepared.database() as first, psycopg.connect(first, autocommit=True) as connection:
        connection.execute(change.format(database=urlsplit(first).path[1:]))
    with prepared.database() as second:
        assert second != first


def test_tables_that_a_test_has_made_are_dropped(prepared: Prepared) -> None:
    """Also those that refer to each other. A new database takes much longer."""
    with prepared.database() as first, psycopg.connect(first, autocommit=True) as connection:
        connection.execute('CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE "my B" (id int REFERENCES a)')
    with prepared.database() as second, psycopg.connect(second) as connection:
        assert second == first
        assert connection.execute("SELECT * FROM pg_tables WHERE schemaname = 'public'").fetchall() == []


def test_a_fresh_database_is_used_once(prepared: Prepared) -> None:
    with prepared.fresh() as first, psycopg.connect(first) as connection:
        assert connection.execute("SELECT count(*) FROM treadle.item").fetchone() == (0,)
    with prepared.fresh() as second, prepared.database() as reused:
        assert len({first, second, reused}) == 3


def test_sqlalchemy_accepts_the_url(postgres_url: str) -> None:
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    engine.dispose()


@pytest.mark.usefixtures("processes")
def test_a_run_that_needs_no_server_starts_none(home: Path) -> None:
    run = OtherRun(home)
    assert [path.name for path in run.directory.iterdir()] == ["alive"]
    run.end()
    assert not run.directory.exists()


@pytest.mark.usefixtures("processes")
def test_a_run_that_ends_leaves_nothing_behind(home: Path) -> None:
    run = OtherRun(home, "postgres")
    server = psutil.Process(run.pid("postgres/postmaster.pid"))
    run.end()
    assert ended(server)
    assert not run.directory.exists()


@pytest.mark.usefixtures("processes")
def test_a_run_that_is_killed_leaves_nothing_behind(home: Path) -> None:
    run = OtherRun(home, "postgres")
    server = psutil.Process(run.pid("postgres/postmaster.pid"))
    keeper = psutil.Process(run.pid("keeper.pid"))
    run.kill()
    wait_until_ended(server)
    wait_until_ended(keeper)
    assert not run.directory.exists()


@pytest.mark.usefixtures("processes")
def test_a_run_killed_with_its_keeper_is_removed_by_the_next_run(home: Path) -> None:
    run, living = OtherRun(home, "postgres"), OtherRun(home)
    server = psutil.Process(run.pid("postgres/postmaster.pid"))
    psutil.Process(run.pid("keeper.pid")).kill()
    run.kill()
    assert not ended(server)
    OtherRun(home).end()
    assert ended(server)
    assert not run.directory.exists()
    assert living.directory.exists()
    living.end()


def test_a_run_is_in_memory_only_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where the servers are to write to a disk, or programs cannot be run."""
    monkeypatch.delenv("TREADLE_TEST_PG_FSYNC", raising=False)
    monkeypatch.setattr("tests.support.run.reachable", lambda path: True)
    monkeypatch.setattr("tests.support.run.MEMORY", tmp_path)
    for room, home in ((0, tmp_path), (1 << 60, None)):
        monkeypatch.setattr("tests.support.run.ROOM", room)
        assert memory() == home
    monkeypatch.setattr("tests.support.run.ROOM", 0)
    monkeypatch.setenv("TREADLE_TEST_PG_FSYNC", "1")
    assert memory() is None
    monkeypatch.delenv("TREADLE_TEST_PG_FSYNC")
    monkeypatch.setattr("tests.support.run.MEMORY", tmp_path / "none")
    assert memory() is None
