"""Fixtures that make apps on every native backend."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import memory_and_one_of
from treadle import Retry, Treadle
from treadle.backend import Backend
from treadle.engine import store_retry
from treadle.engine.run import claim, settle
from treadle.engine.schedule import entry, scheduler
from treadle.engine.submit import submitter
from treadle.retry import STORE_BACKOFF
from treadle.testing import Faults, FaultyBackend, ManualClock
from treadle.testing.contract.check import consistent

BACKENDS = memory_and_one_of("sqlite", "postgres", "redis")
"""The engine does the same on each, so a test is run in memory, and one of four on one of the others too.
Faults come from above the store: for them it holds too. Tests in which the stores differ, or which skip some
of them, are marked `every_store`. `make proof` runs the rest."""

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


@pytest.fixture(params=memory_and_one_of("sqlite"))
async def make_timed(
    request: pytest.FixtureRequest, quick_file: Path, clock: ManualClock
) -> AsyncGenerator[Callable[..., Treadle]]:
    """Make apps that share a store. App and store use `clock`. PostgreSQL is left out, because it has its
    own clock."""
    from tests.support.sqlite import empty_store
    from treadle.backends.memory import MemoryBackend
    from treadle.backends.sqlite import SqliteBackend

    shared, file = MemoryBackend(clock=clock), quick_file
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
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that the store does not answer are repeated as often as usual, but after shorter pauses."""
    for module in (store_retry, submitter):
        monkeypatch.setattr(module, "CALLER_RETRY", _shorter(store_retry.CALLER_RETRY))
    for module in (claim, scheduler, entry):
        monkeypatch.setattr(module, "STORE_BACKOFF", _shorter(STORE_BACKOFF))
    monkeypatch.setattr(settle, "BACKOFF", _shorter(settle.BACKOFF))


def _shorter(retry: Retry) -> Retry:
    return Retry(
        attempts=retry.attempts, base=retry.base / 10, factor=retry.factor, max=retry.max / 10, jitter=0.5
    )


@pytest.fixture
async def make_faulty(
    brief_pauses: None,
    sound: None,
    make_app: Callable[..., Treadle],
    store: Callable[[], Backend],
    faults: Faults,
) -> AsyncGenerator[Callable[..., Treadle]]:
    """Make apps on this test's store, as `make_app` does. Their calls to the store fail as `faults` says."""
    yield lambda *work, **settings: make_app(*work, backend=FaultyBackend(store(), faults), **settings)
    faults.clear()
