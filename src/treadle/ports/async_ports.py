"""The three ports as coroutines, and the pointers in the queue. Every exception of a port becomes
`StoreUnavailable`."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, ParamSpec, TypeVar

import msgspec

from treadle.errors import StoreUnavailable, TreadleError
from treadle.item import Ref

from .protocols import Answer, PubSub, Pulled, Queue, Store

P = ParamSpec("P")
T = TypeVar("T")


class AsyncPorts:
    def __init__(self, queue: Queue, pubsub: PubSub, store: Store) -> None:
        self._queue, self._pubsub, self._store = queue, pubsub, store
        self._swap: Callable[[str, str | None, str | None], Answer[bool]] | None
        self._swap = getattr(store, "swap", None)
        self._dead_letter: Callable[[str, str], Answer[None]] | None = getattr(queue, "dead_letter", None)

    @property
    def has_swap(self) -> bool:
        return self._swap is not None

    @property
    def has_dead_letter(self) -> bool:
        return self._dead_letter is not None

    @property
    def is_sync(self) -> bool:
        """Whether none of the methods that a heartbeat needs is a coroutine function, bound to an event
        loop."""
        store, queue = self._store, self._queue
        methods = (store.get, store.set, store.set_if_absent, queue.heartbeat, self._swap)
        return not any(inspect.iscoroutinefunction(method) for method in methods)

    # -- store -----------------------------------------------------------------------------------------

    async def get(self, key: str) -> str | None:
        return await _call(self._store.get, key)

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        await _call(self._store.set, key, value, ttl=ttl)

    async def delete(self, key: str) -> None:
        await _call(self._store.delete, key)

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        return await _call(self._store.set_if_absent, key, value, ttl=ttl)

    async def increment(self, key: str, by: int) -> int:
        return await _call(self._store.increment, key, by)

    async def swap(self, key: str, old: str | None, new: str | None) -> bool:
        assert self._swap is not None
        return await _call(self._swap, key, old, new)

    # -- queue -----------------------------------------------------------------------------------------

    async def push(self, body: str, delay: float = 0.0) -> None:
        await _call(self._queue.push, body, delay=max(0.0, delay))

    async def pop(self, max: int, lease: float) -> Sequence[Pulled]:
        return await _call(self._queue.pop, max, lease)

    async def heartbeat(self, pulled: Pulled, lease: float) -> None:
        await _call(self._queue.heartbeat, pulled, lease)

    async def ack(self, pulled: Pulled) -> None:
        await _call(self._queue.ack, pulled)

    async def fail(self, pulled: Pulled, delay: float = 0.0) -> None:
        await _call(self._queue.fail, pulled, max(0.0, delay))

    async def dead_letter(self, body: str, error: str) -> None:
        if self._dead_letter is not None:
            await _call(self._dead_letter, body, error)

    # -- pubsub ----------------------------------------------------------------------------------------

    async def publish(self, message: str) -> None:
        await _call(self._pubsub.publish, message)

    async def subscribe(self, receive: Callable[[str], None]) -> Callable[[], Answer[None] | None]:
        return await _call(self._pubsub.subscribe, receive)


async def _call(method: Callable[P, Answer[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a method that is sync or async."""
    try:
        answer = method(*args, **kwargs)
        if inspect.isawaitable(answer):
            return await answer
    except TreadleError:
        raise
    except Exception as error:
        name = getattr(method, "__qualname__", repr(method))
        raise StoreUnavailable(f"{name}: {type(error).__name__}: {error}") from error
    return answer


MOST_DUE_TIMES: Final = 10_000
"""Limit on the due times of pushed pointers that a process remembers."""


class ItemPointer(NamedTuple):
    """The body of a message in the queue: an item that a worker has to look at. What is to be done is in the
    store. Several pointers may name one item."""

    tenant: str
    id: str


_decoder = msgspec.json.Decoder(ItemPointer)


def read_pointer(body: str) -> ItemPointer | None:
    """None: the body is not a pointer."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


class Pointers:
    """Pushes pointers, and keeps those that this process has popped, by the token of the item's lease."""

    def __init__(self, ports: AsyncPorts) -> None:
        self._ports = ports
        self._popped: dict[int, tuple[str, Pulled]] = {}
        """By token: the worker, and its popped pointer."""
        self._due_times: list[float] = []
        self.pushed = 0
        """How many pointers this process has pushed."""

    async def push(self, ref: Ref, due: float, now: float) -> None:
        """Have a worker look at an item when it is due."""
        await self._ports.push(msgspec.json.encode(ItemPointer(*ref)).decode(), due - now)
        self.pushed += 1
        if due > now and len(self._due_times) < MOST_DUE_TIMES:
            heapq.heappush(self._due_times, due)

    def next_due(self, now: float) -> float | None:
        """Seconds until the next pointer is due, of those that this process has pushed."""
        while self._due_times and self._due_times[0] <= now:
            heapq.heappop(self._due_times)
        return self._due_times[0] - now if self._due_times else None

    # -- popped pointers -------------------------------------------------------------------------------

    def keep(self, token: int, worker: str, pulled: Pulled) -> None:
        self._popped[token] = (worker, pulled)

    async def heartbeat(self, worker: str, lease: float) -> None:
        """Extend the queue's leases of a worker's pointers."""
        for pulled in [pulled for owner, pulled in self._popped.values() if owner == worker]:
            await self._ports.heartbeat(pulled, lease)

    async def ack(self, token: int) -> None:
        """Remove a pointer. If another process has popped it, it comes back when its lease lapses there,
        and is removed then."""
        if (popped := self._popped.pop(token, None)) is not None:
            await self._ports.ack(popped[1])

    async def move_to_end(self, token: int, ref: Ref, due: float, now: float) -> None:
        """Push a new pointer, then remove the popped one."""
        await self.push(ref, due, now)
        await self.ack(token)

    async def put_back(self, token: int, ref: Ref, due: float, now: float) -> None:
        """Return a pointer to the queue, to its old place if the item is due."""
        if (popped := self._popped.pop(token, None)) is None:
            await self.push(ref, due, now)
        else:
            await self._ports.fail(popped[1], due - now)

    async def drop(self, token: int) -> None:
        """Another worker owns the item now. Return the pointer, so that a worker looks at the item again."""
        if (popped := self._popped.pop(token, None)) is not None:
            await self._ports.fail(popped[1])
