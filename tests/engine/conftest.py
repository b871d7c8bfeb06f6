"""Fixtures that make apps on every native backend."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import Treadle
from treadle.backend import Backend
from treadle.testing import Faults, FaultyBackend, ManualClock
from treadle.testing.contract.check import consistent

ON_REDIS = pytest.param("redis", marks=pytest.mark.sample(8))
"""One test of eight; all with `make redis-engine`."""
ON_SQLITE = pytest.param("sqlite", marks=pytest.mark.either("sqlite", "postgres"))
ON_POSTGRES = pytest.param("postgres", marks=pytest.mark.either("postgres", "sqlite"))
"""The engine does the same on both, so a test is run on one of them. Modules in which the stores differ are
marked `every_store`; `make stores` runs all tests on all."""
BACKENDS = ["memory", ON_SQLITE, ON_POSTGRES, ON_REDIS]

FAST: dict[str, Any] = {"poll_interval": 0.05, "lease": 5.0}


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest) -> Callable[[], Backend]:
    """A function that makes backends. They share one store, which belongs to this test, as backends of
    several processes do."""
    if request.param == "memory":
        from treadle.backends.memory import MemoryBackend

        shared = MemoryBackend()
        return lambda: shared
    if request.param == "sqlite":
        from tests.support.sqlite import empty_store
        from treadle.backends.sqlite import SqliteBackend

        file = empty_store(request.getfixturevalue("quick_file"))
        return lambda: SqliteBackend(file)
    if request.param == "redis":
        from treadle.backends.redis import RedisBackend

        place = request.getfixturevalue("valkey_url")
        return lambda: RedisBackend(place)
    from treadle.backends.postgres import PostgresBackend

    url = request.getfixturevalue("warm_url")
    return lambda: PostgresBackend(url)


@pytest.fixture
async def make_app(store: Callable[[], Backend]) -> AsyncGenerator[Callable[..., Treadle]]:
    """Make apps on this test's store, and stop them at the end of the test."""
    apps: list[Treadle] = []

    def make(*work: Any, **settings: Any) -> Treadle:
        app = Treadle(settings.pop("backend", None) or store(), work=work, **{**FAST, **settings})
        apps.append(app)
        return app

    yield make
    for app in apps:
        await app.stop(drain=0)


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `make_timed` apps. It moves only when the test moves it."""
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def make_timed(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncGenerator[Callable[..., Treadle]]:
    """Make apps that share a store. App and store use `clock`. PostgreSQL is left out, because it has its
    own clock."""
    from tests.support.sqlite import empty_store
    from treadle.backends.memory import MemoryBackend
    from treadle.backends.sqlite import SqliteBackend

    shared, file = MemoryBackend(clock=clock), tmp_path / "work.db"
    if request.param == "sqlite":
        empty_store(file)
    apps: list[Treadle] = []

    def make(*work: Any, **settings: Any) -> Treadle:
        backend = shared if request.param == "memory" else SqliteBackend(file, clock=clock)
        apps.append(Treadle(backend, work=work, clock=clock, **settings))
        return apps[-1]

    yield make
    for app in apps:
        await app.stop(drain=0)


@pytest.fixture
async def sound(store: Callable[[], Backend]) -> AsyncGenerator[None]:
    """After the test, check that the event loop lost no exception and that the store is consistent."""
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    yield
    gc.collect()
    gc.freeze()  # the next collection skips these objects, which saves 0.1 s per test
    assert lost == []
    backend = store()
    await backend.open()
    await consistent(backend)
    await backend.close()


@pytest.fixture
def faults() -> Faults:
    """The faults that this test puts into its store."""
    return Faults()


@pytest.fixture
async def make_faulty(
    sound: None, make_app: Callable[..., Treadle], store: Callable[[], Backend], faults: Faults
) -> AsyncGenerator[Callable[..., Treadle]]:
    """Make apps on this test's store, as `make_app` does. Their calls to the store fail as `faults` says."""
    yield lambda *work, **settings: make_app(*work, backend=FaultyBackend(store(), faults), **settings)
    faults.clear()
