"""Fixtures for every test: real servers, and a new database for each test that needs one."""

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from tests.support.keeper import start_postgres, start_server
from tests.support.run import OWN, Run
from tests.support.valkey import database

if TYPE_CHECKING:
    from tests.support.databases import Postgres, Prepared

RUN = pytest.StashKey[Run]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run. The workers of pytest-xdist use the run of their parent."""
    for name in ("CI", "BUILD_NUMBER"):
        # With these set pytest shows the whole difference of unequal values. For two histories of a
        # thousand answers that takes minutes, exceeds the test's time limit, and ends the run.
        os.environ.pop(name, None)
    if not hasattr(config, "workerinput"):
        run = config.stash[RUN] = Run.begin()
        os.environ["TREADLE_TEST_RUN"] = str(run.directory)


def pytest_collection() -> None:
    """Collect tests without garbage collection, which would look at them again and again."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most tests of what is marked `sample(n)`: one of n is run, the same ones each time. Of a test
    on two stores that are marked `either(name, other)`, leave out one, the same each time. With
    `TREADLE_ALL=1` all are run."""
    if os.environ.get("TREADLE_ALL"):
        return
    left_out = [each for each in items if is_left_out(each)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if not is_left_out(each)]


def is_left_out(item: pytest.Item) -> bool:
    sample, either = item.get_closest_marker("sample"), item.get_closest_marker("either")
    if sample is not None and crc32(item.nodeid.encode()) % sample.args[0] != 0:
        return True
    if either is None or item.get_closest_marker("every_store"):
        return False
    name, other = either.args
    names = sorted((item.nodeid, other.join(item.nodeid.rsplit(name, 1))))
    return names[crc32("".join(names).encode()) % 2] != item.nodeid


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection. They live until the end, and each look at them
    takes a third of a second."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run, if this process began it."""
    if RUN in config.stash:
        config.stash[RUN].end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests were left out, and why: those in a browser, and those with other libraries."""
    skipped = terminalreporter.stats.get("skipped", [])
    for kind in ("browser", "moving"):
        reasons = Counter(each.longrepr[2] for each in skipped if f"tests/{kind}/" in each.nodeid)
        for reason, count in reasons.items():
            why = reason.removeprefix("Skipped: ")
            terminalreporter.write_line(f"{count} {kind} tests were left out: {why}", yellow=True)


@pytest.fixture(scope="session")
def run_directory() -> Path:
    """The directory of the servers of this run. It is removed when the run ends."""
    return Path(os.environ["TREADLE_TEST_RUN"])


@pytest.fixture(scope="session")
def quick_directory() -> Iterator[Path]:
    """A directory in memory, where the machine has one: for files of tests that do not depend on a disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.fixture
def quick_file(quick_directory: Path) -> Iterator[Path]:
    """The path of a SQLite file in memory, for this test only."""
    with TemporaryDirectory(dir=quick_directory, ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "work.db"


@pytest.fixture(scope="session")
def postgres(run_directory: Path) -> "Iterator[Postgres]":
    """A PostgreSQL server: the one of `TREADLE_TEST_POSTGRES`, or one that the whole run shares."""
    from tests.support.databases import Postgres  # imports a driver that few tests need

    url = os.environ.get("TREADLE_TEST_POSTGRES")
    server = Postgres(url) if url else Postgres.throwaway(start_postgres(run_directory))
    with server:
        yield server


@pytest.fixture
def postgres_url(postgres: "Postgres") -> Iterator[str]:
    """The URL of an empty PostgreSQL database for this test only."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def prepared(postgres: "Postgres") -> "Iterator[Prepared]":
    """PostgreSQL databases that already have the tables."""
    import psycopg

    from tests.support.databases import Prepared
    from treadle.backends.postgres import schema_sql

    with postgres.database() as url:
        # Without a backend, because the first test that needs it may run in an event loop.
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(schema_sql())
        made = Prepared(postgres, url)
        yield made
        made.close()


@pytest.fixture
def prepared_url(prepared: "Prepared") -> Iterator[str]:
    """The URL of a database with empty tables, for this test only."""
    with prepared.database() as url:
        yield url


@pytest.fixture(scope="session")
def kept_sessions(postgres: "Postgres", run_directory: Path) -> Iterator[Callable[[str], str]]:
    """Turn the URL of a database into one by way of a pooler that keeps sessions for the next test. With
    `TREADLE_TEST_PG_COLD=1`, and on a server without a unix socket, every session is new."""
    from tests.support.sessions import Sessions

    if os.environ.get("TREADLE_TEST_PG_COLD") or "host=/" not in postgres.url:
        yield lambda url: url
        return
    with Sessions(postgres.url, run_directory) as sessions:
        yield sessions.through


@pytest.fixture
def warm_url(prepared_url: str, kept_sessions: Callable[[str], str]) -> str:
    """The URL of `prepared_url`, with sessions that tests before this one have used."""
    return kept_sessions(prepared_url)


@pytest.fixture(scope="session")
def valkey(run_directory: Path) -> str:
    """The URL of a Valkey server: the one of `TREADLE_TEST_REDIS`, or one that the whole run shares."""
    return os.environ.get("TREADLE_TEST_REDIS") or start_server(run_directory, "valkey")


@pytest.fixture
def valkey_url(valkey: str) -> Iterator[str]:
    """The URL of an empty Redis database for this test only."""
    with database(valkey) as url:
        yield url


@pytest.fixture(scope="module")
def valkey_home(run_directory: Path) -> Path:
    """A directory for the Valkey servers of one module. They are stopped with the run at the latest."""
    return Path(mkdtemp(prefix=OWN, dir=run_directory))


@pytest.fixture(scope="session")
def nats_url(run_directory: Path) -> str:
    """The URL of a NATS server: the one of `TREADLE_TEST_NATS`, or one that the whole run shares."""
    return os.environ.get("TREADLE_TEST_NATS") or start_server(run_directory, "nats")
