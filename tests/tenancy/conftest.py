"""Stores that begin empty, at the same instant, as often as they are asked to; their time stands still."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.model.conftest import StillPostgres, shared_clock
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.testing import ManualClock

__all__ = ["shared_clock"]  # a database for PostgreSQL


class Place:
    """An empty store, and its clock."""

    def __init__(self, backend: Backend, clock: ManualClock, server: StillPostgres | None = None) -> None:
        self.backend = backend
        self.clock = clock
        self._server = server

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        if self._server is not None:
            await self._server.set(self.clock.now())


NewPlace: TypeAlias = Callable[[], AbstractAsyncContextManager[Place]]


@asynccontextmanager
async def in_memory() -> AsyncGenerator[Place]:
    clock = ManualClock()
    yield Place(MemoryBackend(clock), clock)


@asynccontextmanager
async def in_a_file(directory: Path) -> AsyncGenerator[Place]:
    clock = ManualClock()
    backend = SqliteBackend(
        Path(tempfile.mkdtemp(dir=directory)) / "work.db", clock=clock, durability="normal"
    )
    await backend.open()
    yield Place(backend, clock)
    await backend.close()


@asynccontextmanager
async def on_a_server(server: StillPostgres) -> AsyncGenerator[Place]:
    clock = ManualClock()
    backend = await server.open(clock)
    yield Place(backend, clock, server)
    await server.close(backend)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> NewPlace:
    if request.param == "memory":
        return in_memory
    if request.param == "sqlite":
        return lambda: in_a_file(tmp_path)
    server: Any = request.getfixturevalue("shared_clock")
    return lambda: on_a_server(server)
