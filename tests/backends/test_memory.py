"""MemoryBackend: the contract, and what is its own."""

from collections.abc import Iterator

import pytest

from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend, audit
from treadle.testing import BackendContract, ManualClock


class MemorySubject:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = MemoryBackend(self.clock)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def another(self) -> Backend:
        return self.backend


class TestMemory(BackendContract):
    @pytest.fixture
    def subject(self) -> Iterator[MemorySubject]:
        subject = MemorySubject()
        yield subject
        assert audit(subject.backend) == []
