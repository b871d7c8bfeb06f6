"""The ports in memory, and the queue of docs/ports.md, pass the contracts of the ports."""

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
    """A clock that the tests move."""

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
    """The same queue with async methods."""

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
    """The example of docs/ports.md."""

    tick = 0.05

    @pytest.fixture
    def queue(self, tmp_path: Path) -> Queue:
        names: dict[str, Any] = {"__name__": "docs_ports"}
        exec(example(), names)
        made: Queue = names["DirectoryQueue"](tmp_path / "queue")
        return made


def example() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if "class DirectoryQueue" in block]
    return block


def test_the_queue_of_the_documentation_is_short() -> None:
    assert len(example().splitlines()) < 100


# ------------------------------------------------------------------------------------ the ports in memory


def test_dead_letters_are_kept() -> None:
    queue = memory_queue()
    queue.dead_letter("body", "why")
    assert [(letter.body, letter.error) for letter in queue.dead] == [("body", "why")]


def test_a_dedupe_key_drops_later_bodies() -> None:
    """As long as a body with the key is in the queue, leased or not."""
    queue = memory_queue()
    queue.push("a", dedupe_key="k")
    (pulled,) = queue.pop(1, 10)
    queue.push("b", dedupe_key="k")
    assert queue.size() == 1
    queue.ack(pulled)
    queue.push("c", dedupe_key="k")
    assert [pulled.body for pulled in queue.pop(9, 10)] == ["c"]


def test_a_failed_body_without_a_delay_keeps_its_place() -> None:
    queue = memory_queue()
    queue.push("a")
    queue.push("b")
    (pulled,) = queue.pop(1, 10)
    queue.fail(pulled)
    assert [pulled.body for pulled in queue.pop(9, 10)] == ["a", "b"]


def test_an_unknown_handle_changes_nothing() -> None:
    queue = memory_queue()
    queue.push("a")
    for handle in (None, (), (1, 2), "x"):
        queue.ack(Pulled("a", handle))
    assert queue.size() == 1


def test_a_subscriber_that_raises_does_not_affect_others() -> None:
    def broken(message: str) -> None:
        raise ValueError(message)

    pubsub = memory_pubsub()
    received: list[str] = []
    pubsub.subscribe(broken)
    pubsub.subscribe(received.append)
    pubsub.publish("x")
    assert received == ["x"]


def test_expired_keys_take_no_room() -> None:
    """Even if they are never read again."""
    clock = ManualClock()
    store = memory_store(clock)
    for n in range(100):
        store.set(f"k{n}", "x", ttl=10)
    clock.advance(11)
    store.set("last", "x", ttl=10)
    assert len(store) == 1
