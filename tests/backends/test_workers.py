"""WorkerContract on every backend: the engine, end to end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.backends.redis_store import RedisSubject
from tests.backends.test_memory import MemorySubject
from tests.backends.test_ports import PortsSubject
from tests.backends.test_postgres import PostgresSubject, shared_database, shared_url
from tests.backends.test_sqlite import FileSubject
from tests.support.sqlite import empty_store
from treadle.testing import WorkerContract

__all__ = ["shared_database", "shared_url"]


class TestMemory(WorkerContract):
    @pytest.fixture
    def subject(self) -> MemorySubject:
        return MemorySubject()


class TestSqlite(WorkerContract):
    @pytest.fixture
    async def subject(self, quick_file: Path) -> AsyncIterator[FileSubject]:
        subject = FileSubject(empty_store(quick_file))
        await subject.backend.open()
        yield subject
        await subject.close()


class TestPostgres(WorkerContract):
    @pytest.fixture
    async def subject(self, shared_url: str) -> AsyncIterator[PostgresSubject]:
        async with PostgresSubject(shared_url) as subject:
            yield subject


class TestRedis(WorkerContract):
    @pytest.fixture
    async def subject(self, valkey_url: str) -> AsyncIterator[RedisSubject]:
        subject = RedisSubject(valkey_url)
        await subject.backend.open()
        yield subject
        await subject.close()


class TestPorts(WorkerContract):
    """The cases that need no more than three ports can do."""

    @pytest.fixture
    def subject(self) -> PortsSubject:
        return PortsSubject(swap=True)
