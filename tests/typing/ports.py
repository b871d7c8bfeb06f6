"""Ports may be sync or async, as whoever writes them likes."""

from collections.abc import Awaitable, Callable, Sequence
from typing import assert_type

from treadle import Treadle
from treadle.backend import Backend
from treadle.ports import (
    MemoryQueue,
    PortsBackend,
    PubSub,
    Pulled,
    Queue,
    Store,
    memory_pubsub,
    memory_queue,
    memory_store,
)


class AsyncQueue:
    async def push(self, body: str, *, delay: float = 0, dedupe_key: str | None = None) -> None: ...

    async def pop(self, max: int, lease: float) -> Sequence[Pulled]:
        return []

    async def heartbeat(self, pulled: Pulled, lease: float) -> None: ...

    async def ack(self, pulled: Pulled) -> None: ...

    async def fail(self, pulled: Pulled, delay: float = 0) -> None: ...


class AsyncPubSub:
    async def publish(self, message: str) -> None: ...

    async def subscribe(self, receive: Callable[[str], None]) -> Callable[[], Awaitable[None]]:
        async def unsubscribe() -> None: ...

        return unsubscribe


class SyncStore:
    def get(self, key: str) -> str | None:
        return None

    def set(self, key: str, value: str, ttl: float | None = None) -> None: ...

    def delete(self, key: str) -> None: ...

    def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        return True

    def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        return by


queue: Queue = AsyncQueue()
pubsub: PubSub = AsyncPubSub()
store: Store = SyncStore()
backend: Backend = PortsBackend(queue, pubsub, store)
app = Treadle(PortsBackend(memory_queue(), memory_pubsub(), memory_store()))

assert_type(memory_queue(), MemoryQueue)
assert_type(memory_queue().size(), int)
