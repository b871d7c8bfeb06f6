"""Ports: the small contract for bringing another engine, and the three ports in memory.

    Treadle(PortsBackend(queue, pubsub, store), work=[...])

`base` says what each port has to do. `treadle.testing` has a contract suite for each, docs/ports.md shows a
queue of one's own, `treadle.backends.ports` makes a backend of any three.
"""

from .base import Answer, PubSub, Pulled, Queue, Store
from .memory import (
    DeadLetter,
    MemoryPubSub,
    MemoryQueue,
    MemoryStore,
    memory_pubsub,
    memory_queue,
    memory_store,
)

__all__ = [
    "Answer",
    "DeadLetter",
    "MemoryPubSub",
    "MemoryQueue",
    "MemoryStore",
    "PubSub",
    "Pulled",
    "Queue",
    "Store",
    "memory_pubsub",
    "memory_queue",
    "memory_store",
]
