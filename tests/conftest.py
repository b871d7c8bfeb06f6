"""Fixtures for every test: real servers, and a fresh database for each test that asks for one."""

import gc
import os
import sys
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.keeper import start_postgres
from tests.support.run import Run

if TYPE_CHECKING:
    from tests.support.databases import Postgres, Prepared

RUN = pytest.StashKey[Run]()
TRIED_AGAIN = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run. The workers of pytest-xdist are told of it, and have none of their own."""
    if not hasattr(config, "workerinput"):
        run = config.stash[RUN] = Run.begin()
        os.environ["TREADLE_TEST_RUN"] = str(run.directory)


def pytest_collection_finish() -> None:
    """What thousands of tests consist of stays until the end: the garbage collector need not look at it again
    and again. It takes a third of a second to."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """What goes wrong around a test, and not within it (an alarm between two phases, a plugin's connection),
    would end the process that runs it, and so the whole run. It is shown, and the test is tried once more.
    """
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise
    except BaseException:  # a timeout, or a task's cancellation, is not an Exception
        if TRIED_AGAIN in item.stash:
            raise
        print(f"\n{item.nodeid}: an error around it\n{traceback.format_exc()}", file=sys.__stderr__)
    item.stash[TRIED_AGAIN] = True
    # Its own set-up, should it stand, ends.
    item.session._setupstate.teardown_exact(item.parent)
    return item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)


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
