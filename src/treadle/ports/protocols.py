"""What each port has to do. A `Queue` delivers, a `PubSub` wakes, a `Store` remembers.

Each method may be sync or async, whichever suits what is behind it. `memory_queue`, `memory_pubsub` and
`memory_store` are the reference: they do what is said here, no more.

Whatever a port raises is taken for "it may or may not have happened": the caller tries again. So a port does
not have to retry, and should not: repeating an `increment` or a `set_if_absent` whose answer was lost counts
twice, or tells the winner that it lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Answer: TypeAlias = T | Awaitable[T]
"""What a method that may be sync or async gives."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """Something that was popped, and the right to decide what becomes of it."""

    body: str
    handle: object
    """The queue's own: which body, and which lease of it. Handed back as it is."""
    attempt: int = 1
    """How often this body has been delivered, this time included."""


class Queue(Protocol):
    """Delivers bodies at least once, in the order in which they became visible.

    What was popped is leased: nobody else gets it until it is failed, or the lease lapses. `heartbeat`, `ack`
    and `fail` are gated by the lease: once it has lapsed and the body was popped again, they do nothing, and
    that is not an error.

    Two methods are optional. `dead_letter(body, error)` is told of items that ended dead, for the record
    (`body` describes the item; it is not to be pushed again). `size()` is how many bodies it has, leased or
    not, as far as that is known.
    """

    def push(self, body: str, *, delay: float = 0, dedupe_key: str | None = None) -> Answer[None]:
        """Add a body, visible after `delay` seconds. A queue whose delays are capped may show it sooner: it
        is pushed again until it is due. While a body with the same `dedupe_key` is in the queue, nothing is
        added, if the queue knows how to."""
        ...

    def pop(self, max: int, lease: float, /) -> Answer[Sequence[Pulled]]:
        """Lease up to `max` visible bodies for `lease` seconds: first those whose lease has lapsed, with
        their `attempt` raised by one. None visible: none are given, at once. Fewer than `max` may be given
        although more are visible."""
        ...

    def heartbeat(self, pulled: Pulled, lease: float, /) -> Answer[None]:
        """Keep the lease for `lease` seconds from now."""
        ...

    def ack(self, pulled: Pulled, /) -> Answer[None]:
        """Remove the body for good."""
        ...

    def fail(self, pulled: Pulled, delay: float = 0, /) -> Answer[None]:
        """Give the lease back: visible again after `delay` seconds, with the same attempt. Without a delay,
        best in its old place."""
        ...


class PubSub(Protocol):
    """Tells every subscriber, in every process, what was published. May lose messages: that costs time, never
    work."""

    def publish(self, message: str, /) -> Answer[None]: ...

    def subscribe(self, receive: Callable[[str], None], /) -> Answer[Callable[[], Answer[None] | None]]:
        """Call `receive`, from any thread, for each message from now on. Gives the function that ends it."""
        ...


class Store(Protocol):
    """Remembers text by key. Every method is one atomic step, and reads see the last write (linearizable).

    A `ttl` is in seconds: after it, the key is as if it had never been. A write without one lasts.

    One method is optional, and makes everything cheaper: `swap(key, old, new) -> bool` sets the key to `new`
    if it holds exactly `old`, and says whether it did. None is "nothing there", for both. A `ttl` the key
    had is gone then.
    """

    def get(self, key: str, /) -> Answer[str | None]: ...

    def set(self, key: str, value: str, /, ttl: float | None = None) -> Answer[None]: ...

    def delete(self, key: str, /) -> Answer[None]:
        """Forget the key. No error if there is none."""
        ...

    def set_if_absent(self, key: str, value: str, /, ttl: float | None = None) -> Answer[bool]:
        """Set it if there is nothing. Whether there was nothing."""
        ...

    def increment(self, key: str, by: int = 1, /, ttl: float | None = None) -> Answer[int]:
        """Add to a number, which is 0 if there is none. The new number."""
        ...
