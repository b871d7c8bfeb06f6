"""The contract of each port. Subclass it with one fixture that yields an empty port.

    class TestMyQueue(QueueContract):
        @pytest.fixture
        def queue(self, tmp_path):
            return DirectoryQueue(tmp_path)

The cases wait a few ticks of real time. `tick` is the shortest time that the port can tell apart, in seconds.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from treadle.ports import Answer, PubSub, Pulled, Queue, Store

from .build import only

TEXTS = ("", "x", "ü 🜂 \u202e", "'\"\\\n\t{}[]%:@ ", "x" * 100_000)
LONG = 60.0
"""Longer than any case lasts."""
PATIENCE = 10.0


async def resolve(answer: Answer[Any]) -> Any:
    """The answer of a method that may be sync or async."""
    return await answer if inspect.isawaitable(answer) else answer


class PortTiming:
    """How a case lets time pass. A port with a clock of its own overrides `wait`."""

    tick: float = 0.1

    async def wait(self, ticks: float) -> None:
        """Let that many ticks pass for the port."""
        await asyncio.sleep(ticks * self.tick)


@pytest.mark.asyncio
class QueueContract(PortTiming):
    """Fixture: `queue`, a Queue with nothing in it."""

    async def _push(self, queue: Queue, *bodies: str) -> None:
        for body in bodies:
            await resolve(queue.push(body))

    async def _pop(self, queue: Queue, max: int = 10, lease: float = LONG) -> list[Pulled]:
        return list(await resolve(queue.pop(max, lease)))

    async def _bodies(self, queue: Queue) -> list[str]:
        return [pulled.body for pulled in await self._pop(queue)]

    async def test_bodies_are_popped_in_the_order_pushed(self, queue: Queue) -> None:
        """Each is on its first delivery."""
        await self._push(queue, "a", "b", "c")
        popped = await self._pop(queue)
        assert [(pulled.body, pulled.attempt) for pulled in popped] == [("a", 1), ("b", 1), ("c", 1)]

    async def test_pop_of_an_empty_queue_returns_at_once(self, queue: Queue) -> None:
        """It does not wait for a body."""
        async with asyncio.timeout(PATIENCE):
            assert await self._pop(queue) == []

    @pytest.mark.parametrize("body", TEXTS[1:], ids=["short", "unicode", "marks", "long"])
    async def test_a_body_may_be_any_text(self, queue: Queue, body: str) -> None:
        """It is popped as it was pushed."""
        await self._push(queue, body)
        assert only(await self._pop(queue)).body == body

    async def test_pop_returns_at_most_max_bodies(self, queue: Queue) -> None:
        """The rest stays for the next pop."""
        await self._push(queue, "a", "b", "c")
        first = await self._pop(queue, 2)
        assert len(first) <= 2
        rest = await self._pop(queue)
        assert [pulled.body for pulled in first + rest] == ["a", "b", "c"]

    async def test_the_same_body_pushed_twice_is_delivered_twice(self, queue: Queue) -> None:
        """Two pushes are two deliveries."""
        await self._push(queue, "a", "a")
        first, second = await self._pop(queue)
        await resolve(queue.ack(first))
        await resolve(queue.fail(second))
        assert await self._bodies(queue) == ["a"]

    async def test_a_leased_body_is_not_popped_again(self, queue: Queue) -> None:
        """Until its lease lapses."""
        await self._push(queue, "a")
        assert await self._bodies(queue) == ["a"]
        assert await self._bodies(queue) == []

    async def test_an_acked_body_is_gone(self, queue: Queue) -> None:
        """Also after its lease would have lapsed. A second ack is harmless."""
        await self._push(queue, "a")
        pulled = only(await self._pop(queue, lease=2 * self.tick))
        await resolve(queue.ack(pulled))
        await resolve(queue.ack(pulled))
        await self.wait(4)
        assert await self._bodies(queue) == []

    async def test_a_body_with_a_lapsed_lease_is_popped_again(self, queue: Queue) -> None:
        """`attempt` shows the second delivery."""
        await self._push(queue, "a")
        await self._pop(queue, lease=2 * self.tick)
        await self.wait(4)
        again = only(await self._pop(queue))
        assert (again.body, again.attempt) == ("a", 2)

    async def test_a_stale_lease_changes_nothing(self, queue: Queue) -> None:
        """Another consumer has the body: ack, fail and heartbeat of the first have no effect."""
        await self._push(queue, "a")
        stale = only(await self._pop(queue, lease=2 * self.tick))
        await self.wait(4)
        held = only(await self._pop(queue))
        await resolve(queue.heartbeat(stale, 2 * self.tick))
        await resolve(queue.fail(stale))
        await resolve(queue.ack(stale))
        await self.wait(4)
        assert await self._bodies(queue) == []
        await resolve(queue.fail(held))
        assert await self._bodies(queue) == ["a"]

    async def test_a_heartbeat_extends_the_lease(self, queue: Queue) -> None:
        """It lasts for the given time from now on."""
        await self._push(queue, "a")
        pulled = only(await self._pop(queue, lease=3 * self.tick))
        await resolve(queue.heartbeat(pulled, LONG))
        await self.wait(5)
        assert await self._bodies(queue) == []
        await resolve(queue.ack(pulled))

    async def test_a_delayed_body_is_popped_when_it_is_due(self, queue: Queue) -> None:
        """A queue with capped delays may return it earlier."""
        await resolve(queue.push("later", delay=4 * self.tick))
        await self._push(queue, "now")
        assert await self._bodies(queue) == ["now"]
        await self.wait(6)
        assert await self._bodies(queue) == ["later"]

    async def test_a_failed_body_is_popped_again_at_once(self, queue: Queue) -> None:
        """Giving it back does not count as a delivery."""
        await self._push(queue, "a")
        await resolve(queue.fail(only(await self._pop(queue))))
        again = only(await self._pop(queue))
        assert (again.body, again.attempt) == ("a", 1)

    async def test_a_body_failed_with_a_delay_is_popped_after_it(self, queue: Queue) -> None:
        """`fail` with a delay."""
        await self._push(queue, "a")
        await resolve(queue.fail(only(await self._pop(queue)), 4 * self.tick))
        assert await self._bodies(queue) == []
        await self.wait(6)
        assert await self._bodies(queue) == ["a"]

    async def test_concurrent_pops_return_each_body_once(self, queue: Queue) -> None:
        """Twenty pops run at once."""
        await self._push(queue, *(f"b{n}" for n in range(40)))
        found = await asyncio.gather(*(self._pop(queue, 5) for _ in range(20)))
        bodies = [pulled.body for some in found for pulled in some] + await self._bodies(queue)
        assert sorted(bodies) == sorted(f"b{n}" for n in range(40))

    async def test_a_dedupe_key_may_suppress_duplicates(self, queue: Queue) -> None:
        """A queue that supports it adds nothing while a body with the same key is in the queue."""
        for body, key in (("a", "k"), ("b", "k"), ("c", "l")):
            await resolve(queue.push(body, dedupe_key=key))
        popped = await self._pop(queue)
        assert [pulled.body for pulled in popped] in (["a", "c"], ["a", "b", "c"])
        for pulled in popped:
            await resolve(queue.ack(pulled))
        await resolve(queue.push("d", dedupe_key="k"))
        assert await self._bodies(queue) == ["d"]

    async def test_dead_letters_are_not_delivered(self, queue: Queue) -> None:
        """`dead_letter` is optional and only keeps a record."""
        record = getattr(queue, "dead_letter", None)
        if record is None:
            pytest.skip("the queue has no `dead_letter`, which is optional")
        await resolve(record("body", "error"))
        assert await self._bodies(queue) == []

    async def test_size_counts_bodies_until_they_are_acked(self, queue: Queue) -> None:
        """`size` is optional. It includes leased and delayed bodies."""
        size = getattr(queue, "size", None)
        if size is None:
            pytest.skip("the queue has no `size`, which is optional")
        await self._push(queue, "a", "b")
        await resolve(queue.push("c", delay=LONG))
        first = (await self._pop(queue))[0]
        assert await resolve(size()) == 3
        await resolve(queue.ack(first))
        assert await resolve(size()) == 2


@pytest.mark.asyncio
class PubSubContract:
    """Fixture: `pubsub`, a PubSub without subscribers."""

    async def test_every_subscriber_gets_every_message(self, pubsub: PubSub) -> None:
        """Each message arrives unchanged."""
        recorders = [MessageRecorder(), MessageRecorder()]
        for recorder in recorders:
            await resolve(pubsub.subscribe(recorder))
        for message in TEXTS[1:]:
            await resolve(pubsub.publish(message))
        for recorder in recorders:
            await recorder.wait_for(*TEXTS[1:])

    async def test_publishing_without_subscribers_is_accepted(self, pubsub: PubSub) -> None:
        """It raises nothing."""
        await resolve(pubsub.publish("x"))

    async def test_an_unsubscribed_receiver_gets_no_messages(self, pubsub: PubSub) -> None:
        """`subscribe` returns the function that unsubscribes. It may be called twice."""
        gone, stays = MessageRecorder(), MessageRecorder()
        end = await resolve(pubsub.subscribe(gone))
        await resolve(pubsub.subscribe(stays))
        await resolve(end())
        await resolve(end())
        await resolve(pubsub.publish("x"))
        await stays.wait_for("x")
        assert gone.messages == []


class MessageRecorder:
    """A receiver that records messages, from any thread, until the expected ones have arrived."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def __call__(self, message: str) -> None:
        self.messages.append(message)
        self._loop.call_soon_threadsafe(self._changed.set)

    async def wait_for(self, *expected: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not set(expected) <= set(self.messages):
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.asyncio
class StoreContract(PortTiming):
    """Fixture: `store`, a Store with nothing in it."""

    async def test_get_returns_the_value_that_was_set(self, store: Store) -> None:
        """None if the key was never set. A second set replaces the value."""
        assert await resolve(store.get("k")) is None
        for value in ("a", "b"):
            await resolve(store.set("k", value))
            assert await resolve(store.get("k")) == value

    @pytest.mark.parametrize("text", TEXTS, ids=["empty", "short", "unicode", "marks", "long"])
    async def test_a_value_may_be_any_text(self, store: Store, text: str) -> None:
        """An empty text is a value: it is not the same as an absent key."""
        await resolve(store.set("k", text))
        assert await resolve(store.get("k")) == text
        assert not await resolve(store.set_if_absent("k", "other"))

    async def test_keys_are_distinct(self, store: Store) -> None:
        """A key is printable ASCII of up to a thousand characters."""
        keys = ["k", "K", "k:", "k:a", "k:a@1", "k%3Aa", "../k", "k/a", "k a", "*", "k" * 1000]
        for key in keys:
            await resolve(store.set(key, f"value of {key}"))
        assert [await resolve(store.get(key)) for key in keys] == [f"value of {key}" for key in keys]

    async def test_a_deleted_key_is_absent(self, store: Store) -> None:
        """Deleting an absent key is not an error."""
        await resolve(store.set("k", "a"))
        await resolve(store.delete("k"))
        await resolve(store.delete("k"))
        assert await resolve(store.get("k")) is None
        assert await resolve(store.set_if_absent("k", "b"))

    async def test_set_if_absent_keeps_an_existing_value(self, store: Store) -> None:
        """It returns False and changes nothing."""
        assert await resolve(store.set_if_absent("k", "a"))
        assert not await resolve(store.set_if_absent("k", "b"))
        assert await resolve(store.get("k")) == "a"

    async def test_fifty_concurrent_set_if_absent_calls_set_one_value(self, store: Store) -> None:
        """It is one atomic step."""
        answers = await asyncio.gather(*(resolve(store.set_if_absent("k", str(n))) for n in range(50)))
        assert sum(answers) == 1
        assert await resolve(store.get("k")) == str(answers.index(True))

    async def test_increment_adds_to_a_counter(self, store: Store) -> None:
        """It starts from 0 and accepts negative numbers."""
        assert [await resolve(store.increment("n", by)) for by in (1, 5, -8)] == [1, 6, -2]
        assert await resolve(store.increment("n")) == -1
        assert await resolve(store.increment("other")) == 1

    async def test_fifty_concurrent_increments_return_distinct_numbers(self, store: Store) -> None:
        """No two calls return the same number."""
        numbers = await asyncio.gather(*(resolve(store.increment("n")) for _ in range(50)))
        assert sorted(numbers) == list(range(1, 51))

    async def test_a_value_is_absent_after_its_ttl(self, store: Store) -> None:
        """For `get`, `set_if_absent` and `increment`."""
        ttl = 4 * self.tick
        await resolve(store.set("a", "x", ttl=ttl))
        assert await resolve(store.set_if_absent("b", "x", ttl=ttl))
        await resolve(store.increment("c", 7, ttl=ttl))
        assert await resolve(store.get("a")) == "x"
        await self.wait(6)
        assert await resolve(store.get("a")) is None
        assert await resolve(store.set_if_absent("b", "y"))
        assert await resolve(store.increment("c")) == 1

    async def test_a_write_without_a_ttl_removes_the_earlier_ttl(self, store: Store) -> None:
        """A later write decides how long."""
        await resolve(store.set("k", "a", ttl=2 * self.tick))
        await resolve(store.set("k", "b"))
        await self.wait(4)
        assert await resolve(store.get("k")) == "b"

    async def test_swap_replaces_only_the_expected_value(self, store: Store) -> None:
        """`swap` is optional. None means an absent key."""
        swap = _swap(store)
        assert await resolve(swap("k", None, "a"))
        assert not await resolve(swap("k", None, "b"))
        assert not await resolve(swap("k", "x", "b"))
        assert await resolve(swap("k", "a", "b"))
        assert await resolve(store.get("k")) == "b"
        assert await resolve(swap("k", "b", None))
        assert await resolve(store.get("k")) is None
        assert not await resolve(swap("k", "b", "c"))

    async def test_fifty_concurrent_swaps_replace_the_value_once(self, store: Store) -> None:
        """One of them does."""
        swap = _swap(store)
        await resolve(store.set("k", "old"))
        answers = await asyncio.gather(*(resolve(swap("k", "old", str(n))) for n in range(50)))
        assert sum(answers) == 1
        assert await resolve(store.get("k")) == str(answers.index(True))

    async def test_swap_removes_the_ttl(self, store: Store) -> None:
        """The earlier value had a ttl."""
        swap = _swap(store)
        await resolve(store.set("k", "a", ttl=2 * self.tick))
        assert await resolve(swap("k", "a", "b"))
        await self.wait(4)
        assert await resolve(store.get("k")) == "b"


def _swap(store: Store) -> Any:
    swap = getattr(store, "swap", None)
    if swap is None:
        pytest.skip("the store has no `swap`, which is optional")
    return swap
