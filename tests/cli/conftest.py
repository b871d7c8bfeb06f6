"""Fixtures for the commands that look at items."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cli import looked_at
from tests.cli.calling import Called, call
from treadle import Client, MemoryBackend, Treadle

T = TypeVar("T")

APP = "tests.cli.looked_at:app"


class Store:
    """A store, and the commands that look at it."""

    def __init__(self, url: str, backend: MemoryBackend | None = None) -> None:
        self.url = url
        self.backend = backend or url

    def app(self) -> Treadle:
        return Treadle(self.backend, work=looked_at.TYPES, poll_interval=0.05)

    def fill(self, fill: Callable[[Treadle], Awaitable[T]]) -> T:
        """Do something with a client of the store."""

        async def run() -> T:
            app = self.app()
            try:
                return await fill(app)
            finally:
                await app.close()

        return asyncio.run(run())

    def work_off(self, fill: Callable[[Treadle], Awaitable[T]]) -> T:
        """The same with a worker that runs meanwhile."""

        async def run() -> T:
            async with self.app() as app:
                return await fill(app)

        return asyncio.run(run())

    def call(self, *arguments: str, app: bool = True) -> Called:
        """Run a command with the app of the store. Without `app`, with the URL only."""
        return call(*arguments, *(("--app", APP) if app else ("--url", self.url)))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A new SQLite file with the tables, and the app of `APP` on it."""
    made = Store(f"sqlite:///{tmp_path / 'work.db'}")
    monkeypatch.setattr(looked_at, "app", made.app())
    made.fill(Client.connect)
    return made


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A new store in this process, and the app of `APP` on it."""
    made = Store("memory://", MemoryBackend())
    monkeypatch.setattr(looked_at, "app", made.app())
    return made
