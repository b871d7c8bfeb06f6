"""Calls: the three ports as coroutines that raise `StoreUnavailable`, whatever they are and raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from treadle.errors import StoreUnavailable, TreadleError

from .protocols import Answer, PubSub, Pulled, Queue, Store

P = ParamSpec("P")
T = TypeVar("T")


async def answered(method: Callable[P, Answer[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a port answers, now or later."""
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


class Ports:
    def __init__(self, queue: Queue, pubsub: PubSub, store: Store) -> None:
        self.queue, self.pubsub, self.store = queue, pubsub, store
        self.swaps: Callable[[str, str | None, str | None], Answer[bool]] | None
        self.swaps = getattr(store, "swap", None)
        self._dead_letter: Callable[[str, str], Answer[None]] | None = getattr(queue, "dead_letter", None)

    @property
    def keeps_dead(self) -> bool:
        """Whether the queue wants to hear of items that ended dead."""
        return self._dead_letter is not None

    @property
    def is_sync(self) -> bool:
        """Whether none of the methods that a beat needs is a coroutine function, tied to an event loop."""
        methods = (self.store.get, self.store.set, self.store.set_if_absent, self.queue.heartbeat, self.swaps)
        return not any(inspect.iscoroutinefunction(method) for method in methods)

    # -- store -----------------------------------------------------------------------------------------

    async def get(self, key: str) -> str | None:
        return await answered(self.store.get, key)

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        await answered(self.store.set, key, value, ttl=ttl)

    async def delete(self, key: str) -> None:
        await answered(self.store.delete, key)

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        return await answered(self.store.set_if_absent, key, value, ttl=ttl)

    async def increment(self, key: str, by: int) -> int:
        return await answered(self.store.increment, key, by)

    async def swap(self, key: str, old: str | None, new: str | None) -> bool:
        assert self.swaps is not None
        return await answered(self.swaps, key, old, new)

    # -- queue -----------------------------------------------------------------------------------------

    async def push(self, body: str, delay: float = 0.0) -> None:
        await answered(self.queue.push, body, delay=max(0.0, delay))

    async def pop(self, max: int, lease: float) -> Sequence[Pulled]:
        return await answered(self.queue.pop, max, lease)

    async def heartbeat(self, pulled: Pulled, lease: float) -> None:
        await answered(self.queue.heartbeat, pulled, lease)

    async def ack(self, pulled: Pulled) -> None:
        await answered(self.queue.ack, pulled)

    async def fail(self, pulled: Pulled, delay: float = 0.0) -> None:
        await answered(self.queue.fail, pulled, max(0.0, delay))

    async def dead_letter(self, body: str, error: str) -> None:
        if self._dead_letter is not None:
            await answered(self._dead_letter, body, error)
