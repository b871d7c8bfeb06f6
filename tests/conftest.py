"""Fixtures for every test: real servers, and a new database for each test that needs one."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

import pytest

from tests.support import jobs
from tests.support.budget import Budget
from tests.support.keeper import start_postgres, start_server
from tests.support.run import OWN, Run
from tests.support.tiers import (
    TIERS,
    NoProcesses,
    chosen,
    is_class_left_out,
    is_room_left_out,
    race_less,
    runs_in,
)
from tests.support.valkey import database

if TYPE_CHECKING:
    from tests.support.databases import Postgres, Prepared

RUN = pytest.StashKey[Run]()
BUDGET = pytest.StashKey[Budget]()


NO_PROCESSES = NoProcesses()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=sorted(TIERS), help="which tests to run: see tests/support/tiers.py")
    parser.addoption("--jobs", type=int, default=1, help="the number of processes that run the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run."""
    for name in ("CI", "BUILD_NUMBER"):
        # With these set pytest shows the whole difference of unequal values. For two histories of a
        # thousand answers that takes minutes, exceeds the test's time limit, and ends the run.
        os.environ.pop(name, None)
    _forget_main()
    # A shell starts background jobs with SIGINT ignored, and the processes of tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = config.stash[RUN] = Run.begin(in_memory=True)
    os.environ["TREADLE_TEST_RUN"] = str(run.directory)
    os.environ["TREADLE_TEST_CHOICE"] = chosen(config)
    config.stash[BUDGET] = Budget(run.directory, config.option.jobs)
    NO_PROCESSES.install()
    config.pluginmanager.register(NO_PROCESSES)


def _forget_main() -> None:
    """A process that `multiprocessing` spawns imports the main module of its parent. Here that is pytest,
    which takes as long as treadle itself, and no test needs it there."""
    main = sys.modules["__main__"]
    main.__spec__ = None
    vars(main).pop("__file__", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not look into directories that have no test of this choice."""
    return True if is_room_left_out(collection_path, chosen(config)) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, obj: object
) -> list[pytest.Item] | None:
    """Do not collect classes of other tiers: there are thousands of cases in them."""
    if isinstance(obj, type) and is_class_left_out(obj, chosen(collector.config)):
        return []
    return None


def pytest_collection() -> None:
    """Collect tests without garbage collection, which would look at them again and again."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other tiers."""
    choice = chosen(config)
    race_less(choice)
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if runs_in(item, choice) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection. They live until the end, and each look at them
    takes a third of a second."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    return jobs.run(session, session.config.stash[BUDGET])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """While a test runs, with its fixtures: watch for processes, and measure."""
    NO_PROCESSES.item = item
    try:
        with item.config.stash[BUDGET].measured(item):
            return (yield)
    finally:
        NO_PROCESSES.item = None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run with a test that took far too long has failed."""
    overruns = session.config.stash[BUDGET].overruns()
    if session.exitstatus == 0 and any(overrun.fails for overrun in overruns):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run, if this process began it."""
    if RUN in config.stash:
        config.stash[RUN].end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests took too long, and which were left out in a browser and with other libraries."""
    for overrun in config.stash[BUDGET].overruns():
        color = {"red" if overrun.fails else "yellow": True}
        terminalreporter.write_line(f"{overrun} (tests/budget.toml)", **color)
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


@pytest.fixture
def fresh_url(prepared: "Prepared") -> Iterator[str]:
    """The URL of a database with empty tables that were never used: for plans, and for many rows."""
    with prepared.fresh() as url:
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


@pytest.fixture
def processes() -> None:
    """Lets a test start processes. Without it, starting one is an error."""


@pytest.fixture
def checks_tests() -> None:
    """The test checks other tests. `make proof` runs it."""


@pytest.fixture
def another_form() -> None:
    """The store of a test takes another way than the usual one to the same results. `make proof` runs it."""


@pytest.fixture
def long_load() -> None:
    """A test repeats its calls for long. `make proof` runs it."""


@pytest.fixture
def deployment() -> None:
    """A whole program, set up as an operator would, with its server and its worker. `make proof` runs it."""


@pytest.fixture
def type_checkers() -> None:
    """Both type checkers. `make check` has run them on the library before. `make proof` runs it."""


@pytest.fixture
def random_examples() -> None:
    """A test makes random examples by itself: few of them, and many in `make proof`."""
