"""Run treadle on an engine of your own: a queue, publish/subscribe and a key-value store.

    Treadle(PortsBackend(queue, pubsub, store), work=[...])

`Queue`, `PubSub` and `Store` are protocols. Their docstrings say what each method has to do.
`memory_queue()`, `memory_pubsub()` and `memory_store()` are the reference implementations.
`RedisPubSub` and `NatsPubSub` are a `PubSub` on a server, also for `Treadle("postgresql://...", notify=...)`.
`treadle.testing` has a contract suite for each protocol. docs/ports.md shows a complete queue.

    protocols, memory          the protocols; the reference implementations
    backend                    `PortsBackend`; submit, claim, settle, groups, dependencies, read, operate,
                               limits, schedules, workers and wakeups are as in `treadle.backends`
    records                    what the store holds, under which keys, and how it is replaced
    async_ports                the three ports as coroutines; their errors; pointers in the queue
    pubsub_link                one connection of a pub/sub, opened again when it is lost
    redis_pubsub, nats_pubsub  a `PubSub` on a server
"""

from typing import TYPE_CHECKING

from .backend import PortsBackend
from .memory import (
    DeadLetter,
    MemoryPubSub,
    MemoryQueue,
    MemoryStore,
    memory_pubsub,
    memory_queue,
    memory_store,
)
from .protocols import Answer, PubSub, Pulled, Queue, Store

if TYPE_CHECKING:
    from .nats_pubsub import NatsPubSub
    from .redis_pubsub import RedisPubSub

__all__ = [
    "Answer",
    "DeadLetter",
    "MemoryPubSub",
    "MemoryQueue",
    "MemoryStore",
    "NatsPubSub",
    "PortsBackend",
    "PubSub",
    "Pulled",
    "Queue",
    "RedisPubSub",
    "Store",
    "memory_pubsub",
    "memory_queue",
    "memory_store",
]


def __getattr__(name: str) -> object:
    # Imported on first use: each needs its driver.
    if name == "NatsPubSub":
        from .nats_pubsub import NatsPubSub

        return NatsPubSub
    if name == "RedisPubSub":
        from .redis_pubsub import RedisPubSub

        return RedisPubSub
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
