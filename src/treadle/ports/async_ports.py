"""The three ports as coroutines. Every exception of a port becomes `StoreUnavailable`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from treadle.errors import StoreUnavailable, TreadleError

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
