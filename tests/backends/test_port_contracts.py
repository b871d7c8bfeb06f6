"""The contract of each port: on the ports in memory, and on the queue that the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from treadle.ports import (
    MemoryPubSub,
    MemoryQueue,
    MemoryStore,
    Pulled,
    Queue,
    memory_pubsub,
    memory_queue,
    memory_store,
)
from treadle.testing import Faults, FaultyPort, ManualClock, PubSubContract, QueueContract, StoreContract

DOCUMENT = Path(__file__).parents[2] / "docs" / "ports.md"


class Manual:
    """Time that is not waited for."""

    tick = 1.0
    clock: ManualClock

    @pytest.fixture(autouse=True)
    def _clock(self) -> None:
        self.clock = ManualClock()

    async def wait(self, ticks: float) -> None:
        await self.clock.advance(ticks * self.tick)


class TestMemoryQueue(Manual, QueueContract):
    @pytest.fixture
    def queue(self) -> MemoryQueue:
        return memory_queue(self.clock)


class TestAsyncQueue(Manual, QueueContract):
    """The same, with methods that are coroutines."""

    @pytest.fixture
    def queue(self) -> Any:
        return FaultyPort(memory_queue(self.clock), Faults())


class TestMemoryPubSub(PubSubContract):
    @pytest.fixture
    def pubsub(self) -> MemoryPubSub:
        return memory_pubsub()


class TestMemoryStore(Manual, StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return memory_store(self.clock)


class TestDirectoryQueue(QueueContract):
    """The example of docs/ports.md, as it stands there."""

    tick = 0.05

    @pytest.fixture
    def queue(self, tmp_path: Path) -> Queue:
        names: dict[str, Any] = {"__name__": "docs_ports"}
        exec(shown(), names)
        made: Queue = names["DirectoryQueue"](tmp_path / "queue")
        return made


def shown() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if "class DirectoryQueue" in block]
    return block


def test_the_queue_of_the_documentation_is_short() -> None:
    assert len(shown().splitlines()) < 100


# -------------------------------------------------------------------------------- what is memory's own


def test_dead_letters_are_kept() -> None:
    queue = memory_queue()
    queue.dead_letter("body", "why")
    assert [(letter.body, letter.error) for letter in queue.dead] == [("body", "why")]


def test_a_dedupe_key_drops_what_comes_after() -> None:
    """While any body holds it, leased or not."""
    queue = memory_queue()
    queue.push("a", dedupe_key="k")
    (pulled,) = queue.pop(1, 10)
    queue.push("b", dedupe_key="k")
    assert queue.size() == 1
    queue.ack(pulled)
    queue.push("c", dedupe_key="k")
    assert [pulled.body for pulled in queue.pop(9, 10)] == ["c"]


def test_failed_without_a_delay_it_keeps_its_place() -> None:
    queue = memory_queue()
    queue.push("a")
    queue.push("b")
    (pulled,) = queue.pop(1, 10)
    queue.fail(pulled)
    assert [pulled.body for pulled in queue.pop(9, 10)] == ["a", "b"]


def test_what_is_not_the_queues_own_changes_nothing() -> None:
    queue = memory_queue()
    queue.push("a")
    for handle in (None, (), (1, 2), "x"):
        queue.ack(Pulled("a", handle))
    assert queue.size() == 1


def test_a_receiver_that_raises_changes_nothing() -> None:
    def broken(message: str) -> None:
        raise ValueError(message)

    pubsub = memory_pubsub()
    heard: list[str] = []
    pubsub.subscribe(broken)
    pubsub.subscribe(heard.append)
    pubsub.publish("x")
    assert heard == ["x"]


def test_what_has_ended_takes_no_room() -> None:
    """Also what nobody asks for again."""
    clock = ManualClock()
    store = memory_store(clock)
    for n in range(100):
        store.set(f"k{n}", "x", ttl=10)
    clock.advance(11)
    store.set("last", "x", ttl=10)
    assert len(store) == 1
