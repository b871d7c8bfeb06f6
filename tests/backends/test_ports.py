"""PortsBackend passes the contract cases of its capabilities, with `swap` and without."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.errors import UnsupportedError
from treadle.item import (
    GROUP_MARK,
    Contribution,
    Demand,
    ErrorInfo,
    Heartbeat,
    Item,
    Lease,
    Settlement,
    Submission,
)
from treadle.ports import MemoryStore, PortsBackend, memory_pubsub, memory_queue, memory_store
from treadle.testing import BackendContract, ManualClock


class PlainStore:
    """A store that has no `swap`."""

    def __init__(self, store: MemoryStore) -> None:
        self.get, self.set, self.delete = store.get, store.set, store.delete
        self.set_if_absent, self.increment = store.set_if_absent, store.increment


class Yielding:
    """A port whose methods are async and let other tasks run before each call."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return method(*args, **kwargs)

        return call


class PortsSubject:
    def __init__(self, *, swap: bool, yielding: bool = False) -> None:
        self.clock = ManualClock()
        store = memory_store(self.clock)
        around: Any = Yielding if yielding else lambda port: port
        self._store: Any = around(store if swap else PlainStore(store))
        self._queue, self._pubsub = around(memory_queue(self.clock)), around(memory_pubsub())
        self.backend = self._backend()

    def _backend(self) -> PortsBackend:
        return PortsBackend(self._queue, self._pubsub, self._store, clock=self.clock)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def set_back(self, seconds: float) -> None:
        await self.clock.set(self.clock.now() - seconds)

    async def another(self) -> Backend:
        return self._backend()


class TestContract(BackendContract):
    @pytest.fixture
    def subject(self) -> PortsSubject:
        return PortsSubject(swap=True)


@pytest.mark.usefixtures("another_form")
class TestContractOnAsyncPorts(BackendContract):
    """Without `swap`. Other tasks may run between any two calls of a port."""

    @pytest.fixture
    def subject(self) -> PortsSubject:
        return PortsSubject(swap=False, yielding=True)


async def test_ended_items_leave_nothing_in_the_store() -> None:
    """Every record of an item has a time to live."""
    clock = ManualClock()
    store = memory_store(clock)
    queue = memory_queue(clock)
    backend = PortsBackend(queue, memory_pubsub(), store, clock=clock)
    await backend.beat(Heartbeat(worker="w", lease=1000))
    before = len(store)
    for n in range(20):
        root, tenant = item(f"root {n}", tenant="acme"), "acme"
        outside = item(f"outside {n}", tenant=tenant, after=(f"child {n}",), need=1)
        await backend.submit([Submission((root, outside))])
        for _ in range(6):
            for lease in (await backend.claim(Demand(worker="w", limit=10))).leases:
                await backend.settle([settled(lease)])
        clock.advance(1)
    assert queue.size() == 0
    assert len(store) > before + 60
    clock.advance(86400)
    await backend.remove_worker("w")
    # The last token and the roster are left.
    assert len(store) <= 2


def item(id: str, **fields: Any) -> Item:
    return Item(id=id, type="work", input=b"", keep=3600, keep_dead=3600, **fields)


def settled(lease: Lease) -> Settlement:
    if lease.attempt == 1:
        return Settlement(lease=lease, kind="retry", failure=ErrorInfo("Oops", "once"))
    if lease.id.startswith("root"):
        children = (item(lease.id.replace("root", "child")),)
        return Settlement(lease=lease, kind="success", contribution=Contribution(b"1"), children=children)
    kind: Any = "dead" if lease.id.startswith("outside") else "success"
    return Settlement(lease=lease, kind=kind, result=b"1")


async def test_an_item_that_waits_for_a_whole_group_is_refused() -> None:
    """Three ports cannot count the end of a group and of an item in one step. Nothing is stored."""
    backend = PortsSubject(swap=True).backend
    assert "nested" not in backend.capabilities
    waiting = Item(id="a", type="t", input=b"", after=(GROUP_MARK + "b",), need=1)
    with pytest.raises(UnsupportedError, match="nested"):
        await backend.submit([Submission((waiting,))])
    assert list(await backend.get(["a"])) == [None]
