"""Run treadle on an engine of your own: a queue, publish/subscribe and a key-value store.

    Treadle(PortsBackend(queue, pubsub, store), work=[...])

`Queue`, `PubSub` and `Store` are protocols. Their docstrings say what each method has to do.
`memory_queue()`, `memory_pubsub()` and `memory_store()` are the reference implementations.
`treadle.testing` has a contract suite for each protocol. docs/ports.md shows a complete queue.
"""

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

__all__ = [
    "Answer",
    "DeadLetter",
    "MemoryPubSub",
    "MemoryQueue",
    "MemoryStore",
    "PortsBackend",
    "PubSub",
    "Pulled",
    "Queue",
    "Store",
    "memory_pubsub",
    "memory_queue",
    "memory_store",
]
