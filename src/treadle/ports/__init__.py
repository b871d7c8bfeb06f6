"""Ports: the small contract for bringing another engine, and the three ports in memory.

    Treadle(PortsBackend(queue, pubsub, store), work=[...])

`protocols` says what each port has to do. `treadle.testing` has a contract suite for each. docs/ports.md
shows a queue of your own. `PortsBackend` makes a backend of any three.
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
