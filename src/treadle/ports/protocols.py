"""The three ports as protocols. A `Queue` delivers, a `PubSub` wakes, a `Store` remembers.

Each method may be sync or async. `memory_queue`, `memory_pubsub` and `memory_store` are the reference: they
do what the docstrings here say, and no more.

An exception from a port means "it may or may not have happened". The caller tries again. A port must not
retry: if the answer of an `increment` or a `set_if_absent` was lost, repeating the call counts twice, or
tells the winner that it lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from treadle.store.wakeups import Answer, PubSub

__all__ = ["Answer", "PubSub", "Pulled", "Queue", "Store"]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A body that was popped. Its handle identifies the lease."""

    body: str
    handle: object
    """Belongs to the queue: it identifies the body and the lease. Passed back unchanged."""
    attempt: int = 1
    """How often this body has been delivered, including this time."""


class Queue(Protocol):
    """Delivers bodies at least once, in the order in which they became visible.

    A popped body is leased: it is not popped again until it is failed or its lease lapses. `heartbeat`,
    `ack` and `fail` apply only while the lease is in force. Once it has lapsed and the body was popped
    again, they do nothing and raise nothing.

    Two methods are optional. `dead_letter(body, error)` is called for each item that ended dead, so that
    the queue can record it. That `body` describes the item and must not be pushed again. `size()` returns
    the number of bodies, leased or not, as far as the queue knows it.
    """

    def push(self, body: str, *, delay: float = 0, dedupe_key: str | None = None) -> Answer[None]:
        """Add a body that becomes visible after `delay` seconds. A queue with a maximum delay may show it
        sooner: it is then pushed again until it is due. While a body with the same `dedupe_key` is in the
        queue, add nothing, if the queue supports that."""
        ...

    def pop(self, max: int, lease: float, /) -> Answer[Sequence[Pulled]]:
        """Lease up to `max` visible bodies for `lease` seconds. Bodies whose lease has lapsed come first,
        with `attempt` raised by one. If none is visible, return an empty sequence at once. The queue may
        return fewer than `max` although more are visible."""
        ...

    def heartbeat(self, pulled: Pulled, lease: float, /) -> Answer[None]:
        """Extend the lease to `lease` seconds from now."""
        ...

    def ack(self, pulled: Pulled, /) -> Answer[None]:
        """Remove the body for good."""
        ...

    def fail(self, pulled: Pulled, delay: float = 0, /) -> Answer[None]:
        """End the lease. The body is visible again after `delay` seconds, with the same attempt. Without a
        delay it should get its old place back."""
        ...


class Store(Protocol):
    """Stores text by key. Every method is one atomic step, and a read sees the last write (linearizable).

    A `ttl` is in seconds. When it has passed, the key no longer exists. A write without a ttl lasts.

    One method is optional and makes everything cheaper: `swap(key, old, new) -> bool` sets the key to `new`
    if it holds exactly `old`, and returns whether it did. None stands for "no key", in both places. `swap`
    removes the ttl that the key had.
    """

    def get(self, key: str, /) -> Answer[str | None]: ...

    def set(self, key: str, value: str, /, ttl: float | None = None) -> Answer[None]: ...

    def delete(self, key: str, /) -> Answer[None]:
        """Remove the key. A missing key is not an error."""
        ...

    def set_if_absent(self, key: str, value: str, /, ttl: float | None = None) -> Answer[bool]:
        """Set the key if it does not exist. Return whether it was set."""
        ...

    def increment(self, key: str, by: int = 1, /, ttl: float | None = None) -> Answer[int]:
        """Add to a number and return the new number. A missing key counts as 0."""
        ...
