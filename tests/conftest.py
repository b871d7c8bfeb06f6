"""Fixtures for every test: real servers, and a fresh database for each test that asks for one."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.keeper import start_postgres
from tests.support.run import Run

if TYPE_CHECKING:
    from tests.support.databases import Postgres, Prepared

RUN = pytest.StashKey[Run]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run. The workers of pytest-xdist are told of it, and have none of their own."""
    for name in ("CI", "BUILD_NUMBER"):
        # With these set pytest looks for the whole difference of what is not equal. For two histories of a
        # thousand answers that takes minutes, outlasts the test's time limit, and ends the run.
        os.environ.pop(name, None)
    if not hasattr(config, "workerinput"):
        run = config.stash[RUN] = Run.begin()
        os.environ["TREADLE_TEST_RUN"] = str(run.directory)


def pytest_collection_finish() -> None:
    """What thousands of tests consist of stays until the end: the garbage collector need not look at it again
    and again. It takes a third of a second to."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run, if this process began it."""
    if RUN in config.stash:
        config.stash[RUN].end()


@pytest.fixture(scope="session")
def run_directory() -> Path:
    """Where the servers of this run live. It disappears when the run ends."""
    return Path(os.environ["TREADLE_TEST_RUN"])


@pytest.fixture(scope="session")
def postgres(run_directory: Path) -> "Iterator[Postgres]":
    """A PostgreSQL server: the one of `TREADLE_TEST_POSTGRES`, or one that the whole run shares."""
    from tests.support.databases import Postgres  # a driver that few tests need

    url = os.environ.get("TREADLE_TEST_POSTGRES")
    server = Postgres(url) if url else Postgres.throwaway(start_postgres(run_directory))
    with server:
        yield server


@pytest.fixture
def postgres_url(postgres: "Postgres") -> Iterator[str]:
    """The URL of an empty PostgreSQL database that is this test's own."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def prepared(postgres: "Postgres") -> "Iterator[Prepared]":
    """PostgreSQL databases that have the tables already."""
    import psycopg

    from tests.support.databases import Prepared
    from treadle.backends.postgres import schema_sql

    with postgres.database() as url:
        # Not by opening a backend: whoever asks first may be within an event loop.
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(schema_sql())
        made = Prepared(postgres, url)
        yield made
        made.close()


@pytest.fixture
def prepared_url(prepared: "Prepared") -> Iterator[str]:
    """The URL of such a database, with nothing in its tables, that is this test's own."""
    with prepared.database() as url:
        yield url
