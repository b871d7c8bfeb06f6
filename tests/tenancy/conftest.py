"""Empty stores that begin at the same instant. Their clocks move only when a test advances them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.model.conftest import ManualClockPostgres, ManualClockRedis, clocked_postgres, clocked_redis
from tests.support.sqlite import empty_store
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.testing import ManualClock

__all__ = ["clocked_postgres", "clocked_redis"]  # the fixtures for servers


class EmptyStore:
    """An empty store with its clock."""

    def __init__(
        self,
        backend: Backend,
        clock: ManualClock,
        server: ManualClockPostgres | ManualClockRedis | None = None,
    ) -> None:
        self.backend = backend
        self.clock = clock
        self._server = server

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        if self._server is not None:
            await self._server.set(self.clock.now())


NewStore: TypeAlias = Callable[[], AbstractAsyncContextManager[EmptyStore]]


@asynccontextmanager
async def in_memory() -> AsyncGenerator[EmptyStore]:
    clock = ManualClock()
    yield EmptyStore(MemoryBackend(clock), clock)


@asynccontextmanager
async def in_sqlite(directory: Path) -> AsyncGenerator[EmptyStore]:
    clock = ManualClock()
    file = empty_store(Path(tempfile.mkdtemp(dir=directory)) / "work.db")
    backend = SqliteBackend(file, clock=clock, durability="normal")
    await backend.open()
    yield EmptyStore(backend, clock)
    await backend.close()


@asynccontextmanager
async def on_server(server: ManualClockPostgres | ManualClockRedis) -> AsyncGenerator[EmptyStore]:
    clock = ManualClock()
    backend = await server.open(clock)
    yield EmptyStore(backend, clock, server)
    await server.close(backend)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    if request.param == "memory":
        return in_memory
    if request.param == "sqlite":
        return lambda: in_sqlite(tmp_path)
    server: Any = request.getfixturevalue(f"clocked_{request.param}")
    return lambda: on_server(server)
