"""The contract of each port, for whoever brings one. Subclass it with one fixture that yields an empty port.

    class TestMyQueue(QueueContract):
        @pytest.fixture
        def queue(self, tmp_path):
            return DirectoryQueue(tmp_path)

Time is waited for, a few ticks at a time: `tick` is as short as the port can tell apart.
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


async def told(answer: Answer[Any]) -> Any:
    """What a method answers that may be sync or async."""
    return await answer if inspect.isawaitable(answer) else answer


class PortTiming:
    tick: float = 0.1

    async def wait(self, ticks: float) -> None:
        """Let time pass for the port."""
        await asyncio.sleep(ticks * self.tick)


@pytest.mark.asyncio
class QueueContract(PortTiming):
    """Fixture: `queue`, a Queue with nothing in it."""

    async def _push(self, queue: Queue, *bodies: str) -> None:
        for body in bodies:
            await told(queue.push(body))

    async def _pop(self, queue: Queue, max: int = 10, lease: float = LONG) -> list[Pulled]:
        return list(await told(queue.pop(max, lease)))

    async def _bodies(self, queue: Queue) -> list[str]:
        return [pulled.body for pulled in await self._pop(queue)]

    async def test_first_in_first_out(self, queue: Queue) -> None:
        """Bodies come in the order in which they were pushed, delivered for the first time."""
        await self._push(queue, "a", "b", "c")
        popped = await self._pop(queue)
        assert [(pulled.body, pulled.attempt) for pulled in popped] == [("a", 1), ("b", 1), ("c", 1)]

    async def test_nothing_is_given_at_once(self, queue: Queue) -> None:
        """An empty queue does not make anybody wait."""
        async with asyncio.timeout(PATIENCE):
            assert await self._pop(queue) == []

    @pytest.mark.parametrize("body", TEXTS[1:], ids=["short", "unicode", "marks", "long"])
    async def test_a_body_is_any_text(self, queue: Queue, body: str) -> None:
        """What is popped is what was pushed."""
        await self._push(queue, body)
        assert only(await self._pop(queue)).body == body

    async def test_no_more_than_asked_for(self, queue: Queue) -> None:
        """The rest stays for the next."""
        await self._push(queue, "a", "b", "c")
        first = await self._pop(queue, 2)
        assert len(first) <= 2
        rest = await self._pop(queue)
        assert [pulled.body for pulled in first + rest] == ["a", "b", "c"]

    async def test_the_same_body_twice(self, queue: Queue) -> None:
        """Two pushes are two deliveries."""
        await self._push(queue, "a", "a")
        first, second = await self._pop(queue)
        await told(queue.ack(first))
        await told(queue.fail(second))
        assert await self._bodies(queue) == ["a"]

    async def test_what_is_leased_is_not_given_again(self, queue: Queue) -> None:
        """Nobody else gets it while the lease lasts."""
        await self._push(queue, "a")
        assert await self._bodies(queue) == ["a"]
        assert await self._bodies(queue) == []

    async def test_what_is_acked_is_gone(self, queue: Queue) -> None:
        """Also after its lease would have lapsed; twice is once."""
        await self._push(queue, "a")
        pulled = only(await self._pop(queue, lease=2 * self.tick))
        await told(queue.ack(pulled))
        await told(queue.ack(pulled))
        await self.wait(4)
        assert await self._bodies(queue) == []

    async def test_a_lapsed_lease_is_reclaimed(self, queue: Queue) -> None:
        """Whoever popped it died: it is delivered again, and says that it was."""
        await self._push(queue, "a")
        await self._pop(queue, lease=2 * self.tick)
        await self.wait(4)
        again = only(await self._pop(queue))
        assert (again.body, again.attempt) == ("a", 2)

    async def test_a_stale_lease_changes_nothing(self, queue: Queue) -> None:
        """Somebody else has it: ack, fail and heartbeat of the first do nothing, and are no errors."""
        await self._push(queue, "a")
        stale = only(await self._pop(queue, lease=2 * self.tick))
        await self.wait(4)
        held = only(await self._pop(queue))
        await told(queue.heartbeat(stale, 2 * self.tick))
        await told(queue.fail(stale))
        await told(queue.ack(stale))
        await self.wait(4)
        assert await self._bodies(queue) == []
        await told(queue.fail(held))
        assert await self._bodies(queue) == ["a"]

    async def test_a_heartbeat_keeps_the_lease(self, queue: Queue) -> None:
        """For so long from then on."""
        await self._push(queue, "a")
        pulled = only(await self._pop(queue, lease=3 * self.tick))
        await told(queue.heartbeat(pulled, LONG))
        await self.wait(5)
        assert await self._bodies(queue) == []
        await told(queue.ack(pulled))

    async def test_a_delay(self, queue: Queue) -> None:
        """Not before it is over (a queue with capped delays may show it sooner); then it is there."""
        await told(queue.push("later", delay=4 * self.tick))
        await self._push(queue, "now")
        assert await self._bodies(queue) == ["now"]
        await self.wait(6)
        assert await self._bodies(queue) == ["later"]

    async def test_failed_it_is_there_again(self, queue: Queue) -> None:
        """At once, and giving it back was not a delivery."""
        await self._push(queue, "a")
        await told(queue.fail(only(await self._pop(queue))))
        again = only(await self._pop(queue))
        assert (again.body, again.attempt) == ("a", 1)

    async def test_failed_for_a_while(self, queue: Queue) -> None:
        """After the delay."""
        await self._push(queue, "a")
        await told(queue.fail(only(await self._pop(queue)), 4 * self.tick))
        assert await self._bodies(queue) == []
        await self.wait(6)
        assert await self._bodies(queue) == ["a"]

    async def test_each_is_given_to_one(self, queue: Queue) -> None:
        """However many ask at once."""
        await self._push(queue, *(f"b{n}" for n in range(40)))
        found = await asyncio.gather(*(self._pop(queue, 5) for _ in range(20)))
        bodies = [pulled.body for some in found for pulled in some] + await self._bodies(queue)
        assert sorted(bodies) == sorted(f"b{n}" for n in range(40))

    async def test_a_dedupe_key(self, queue: Queue) -> None:
        """Where the queue knows how to: nothing is added while a body with the same key is there."""
        for body, key in (("a", "k"), ("b", "k"), ("c", "l")):
            await told(queue.push(body, dedupe_key=key))
        popped = await self._pop(queue)
        assert [pulled.body for pulled in popped] in (["a", "c"], ["a", "b", "c"])
        for pulled in popped:
            await told(queue.ack(pulled))
        await told(queue.push("d", dedupe_key="k"))
        assert await self._bodies(queue) == ["d"]

    async def test_dead_letters_are_not_delivered(self, queue: Queue) -> None:
        """`dead_letter`, where there is one, is for the record."""
        record = getattr(queue, "dead_letter", None)
        if record is None:
            pytest.skip("keeps no dead letters")
        await told(record("body", "error"))
        assert await self._bodies(queue) == []

    async def test_the_size(self, queue: Queue) -> None:
        """`size`, where there is one: leased or not, until it is acked."""
        size = getattr(queue, "size", None)
        if size is None:
            pytest.skip("does not know its size")
        await self._push(queue, "a", "b")
        await told(queue.push("c", delay=LONG))
        first = (await self._pop(queue))[0]
        assert await told(size()) == 3
        await told(queue.ack(first))
        assert await told(size()) == 2


@pytest.mark.asyncio
class PubSubContract:
    """Fixture: `pubsub`, a PubSub that nobody has subscribed to."""

    async def test_every_subscriber_hears(self, pubsub: PubSub) -> None:
        """What was published, as it was."""
        ears = [Ear(), Ear()]
        for ear in ears:
            await told(pubsub.subscribe(ear))
        for message in TEXTS[1:]:
            await told(pubsub.publish(message))
        for ear in ears:
            await ear.hears(*TEXTS[1:])

    async def test_nobody_has_to_listen(self, pubsub: PubSub) -> None:
        """Publishing without subscribers is fine."""
        await told(pubsub.publish("x"))

    async def test_whoever_has_ended_hears_nothing(self, pubsub: PubSub) -> None:
        """The function that `subscribe` gives ends it, and may be called twice."""
        gone, stays = Ear(), Ear()
        end = await told(pubsub.subscribe(gone))
        await told(pubsub.subscribe(stays))
        await told(end())
        await told(end())
        await told(pubsub.publish("x"))
        await stays.hears("x")
        assert gone.heard == []


class Ear:
    """Hears, from any thread, and can be waited for."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def __call__(self, message: str) -> None:
        self.heard.append(message)
        self._loop.call_soon_threadsafe(self._changed.set)

    async def hears(self, *messages: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not set(messages) <= set(self.heard):
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.asyncio
class StoreContract(PortTiming):
    """Fixture: `store`, a Store with nothing in it."""

    async def test_what_is_set_is_there(self, store: Store) -> None:
        """Until it is set anew; what was never set is None."""
        assert await told(store.get("k")) is None
        for value in ("a", "b"):
            await told(store.set("k", value))
            assert await told(store.get("k")) == value

    @pytest.mark.parametrize("text", TEXTS, ids=["empty", "short", "unicode", "marks", "long"])
    async def test_a_value_is_any_text(self, store: Store, text: str) -> None:
        """Also none at all, which is not the same as nothing."""
        await told(store.set("k", text))
        assert await told(store.get("k")) == text
        assert not await told(store.set_if_absent("k", "other"))

    async def test_keys_are_told_apart(self, store: Store) -> None:
        """Printable ASCII, up to a thousand characters of it."""
        keys = ["k", "K", "k:", "k:a", "k:a@1", "k%3Aa", "../k", "k/a", "k a", "*", "k" * 1000]
        for key in keys:
            await told(store.set(key, f"value of {key}"))
        assert [await told(store.get(key)) for key in keys] == [f"value of {key}" for key in keys]

    async def test_what_is_deleted_is_gone(self, store: Store) -> None:
        """No error if it was not there."""
        await told(store.set("k", "a"))
        await told(store.delete("k"))
        await told(store.delete("k"))
        assert await told(store.get("k")) is None
        assert await told(store.set_if_absent("k", "b"))

    async def test_only_if_absent(self, store: Store) -> None:
        """The first has it, and it stays as it is."""
        assert await told(store.set_if_absent("k", "a"))
        assert not await told(store.set_if_absent("k", "b"))
        assert await told(store.get("k")) == "a"

    async def test_fifty_at_once_and_one_has_it(self, store: Store) -> None:
        """One atomic step."""
        answers = await asyncio.gather(*(told(store.set_if_absent("k", str(n))) for n in range(50)))
        assert sum(answers) == 1
        assert await told(store.get("k")) == str(answers.index(True))

    async def test_numbers_add_up(self, store: Store) -> None:
        """From 0; also down."""
        assert [await told(store.increment("n", by)) for by in (1, 5, -8)] == [1, 6, -2]
        assert await told(store.increment("n")) == -1
        assert await told(store.increment("other")) == 1

    async def test_fifty_numbers_at_once(self, store: Store) -> None:
        """Each gets a number of its own."""
        numbers = await asyncio.gather(*(told(store.increment("n")) for _ in range(50)))
        assert sorted(numbers) == list(range(1, 51))

    async def test_after_its_time(self, store: Store) -> None:
        """As if it had never been: for `get`, `set_if_absent` and `increment`."""
        ttl = 4 * self.tick
        await told(store.set("a", "x", ttl=ttl))
        assert await told(store.set_if_absent("b", "x", ttl=ttl))
        await told(store.increment("c", 7, ttl=ttl))
        assert await told(store.get("a")) == "x"
        await self.wait(6)
        assert await told(store.get("a")) is None
        assert await told(store.set_if_absent("b", "y"))
        assert await told(store.increment("c")) == 1

    async def test_a_write_without_an_end_lasts(self, store: Store) -> None:
        """A later write decides how long."""
        await told(store.set("k", "a", ttl=2 * self.tick))
        await told(store.set("k", "b"))
        await self.wait(4)
        assert await told(store.get("k")) == "b"

    async def test_swapping(self, store: Store) -> None:
        """`swap`, where there is one: exactly what was there; None for nothing."""
        swap = _swap(store)
        assert await told(swap("k", None, "a"))
        assert not await told(swap("k", None, "b"))
        assert not await told(swap("k", "x", "b"))
        assert await told(swap("k", "a", "b"))
        assert await told(store.get("k")) == "b"
        assert await told(swap("k", "b", None))
        assert await told(store.get("k")) is None
        assert not await told(swap("k", "b", "c"))

    async def test_fifty_swap_at_once(self, store: Store) -> None:
        """One of them does."""
        swap = _swap(store)
        await told(store.set("k", "old"))
        answers = await asyncio.gather(*(told(swap("k", "old", str(n))) for n in range(50)))
        assert sum(answers) == 1
        assert await told(store.get("k")) == str(answers.index(True))

    async def test_what_was_swapped_lasts(self, store: Store) -> None:
        """An end that it had before is gone."""
        swap = _swap(store)
        await told(store.set("k", "a", ttl=2 * self.tick))
        assert await told(swap("k", "a", "b"))
        await self.wait(4)
        assert await told(store.get("k")) == "b"


def _swap(store: Store) -> Any:
    swap = getattr(store, "swap", None)
    if swap is None:
        pytest.skip("has no swap")
    return swap
