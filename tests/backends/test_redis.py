"""RedisBackend passes the contract on a real Valkey."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.backends.redis_store import RedisSubject
from treadle.testing import BackendContract


class TestRedis(BackendContract):
    @pytest.fixture
    async def subject(self, valkey_url: str) -> AsyncIterator[RedisSubject]:
        subject = RedisSubject(valkey_url)
        await subject.backend.open()
        yield subject
        await subject.close()
        assert subject.audit() == []
