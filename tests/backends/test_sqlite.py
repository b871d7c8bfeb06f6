"""SqliteBackend: the contract, and what only a file on a disk can go wrong with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.backends.sqlite import SqliteBackend
from treadle.testing import ManualClock
from treadle.testing.contract import BackendContract


class FileSubject:
    """An empty file of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = ManualClock()
        self._others: list[SqliteBackend] = []
        self.backend = self._new()

    def _new(self) -> SqliteBackend:
        return SqliteBackend(self._path, clock=self._clock, durability="normal")

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def another(self) -> SqliteBackend:
        other = self._new()
        await other.open()
        self._others.append(other)
        return other

    async def close(self) -> None:
        for backend in (self.backend, *self._others):
            await backend.close()


class TestContract(BackendContract):
    @pytest.fixture
    async def subject(self, tmp_path: Path) -> AsyncIterator[FileSubject]:
        subject = FileSubject(tmp_path / "work.db")
        await subject.backend.open()
        yield subject
        await subject.close()
