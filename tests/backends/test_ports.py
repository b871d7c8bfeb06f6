"""PortsBackend: the contract cases of its capabilities, on the ports in memory; with `swap` and without."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.backends.ports import MemoryStore, PortsBackend, memory_pubsub, memory_queue, memory_store
from treadle.testing import BackendContract, ManualClock


class PlainStore:
    """A store that has no `swap`."""

    def __init__(self, store: MemoryStore) -> None:
        self.get, self.set, self.delete = store.get, store.set, store.delete
        self.set_if_absent, self.increment = store.set_if_absent, store.increment


class PortsSubject:
    def __init__(self, *, swap: bool) -> None:
        self.clock = ManualClock()
        store = memory_store(self.clock)
        self._store = store if swap else PlainStore(store)
        self._queue, self._pubsub = memory_queue(self.clock), memory_pubsub()
        self.backend = self._backend()

    def _backend(self) -> PortsBackend:
        return PortsBackend(self._queue, self._pubsub, self._store, clock=self.clock)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def another(self) -> Backend:
        return self._backend()


class TestContract(BackendContract):
    @pytest.fixture
    def subject(self) -> PortsSubject:
        return PortsSubject(swap=True)


class TestContractWithoutSwap(BackendContract):
    @pytest.fixture
    def subject(self) -> PortsSubject:
        return PortsSubject(swap=False)
