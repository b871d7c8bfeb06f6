"""The three ports in memory: the reference implementations, for tests and for a fleet in one process.

They can be used from several threads. Time comes from a clock.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from treadle.base.timing import Clock, SystemClock

from .protocols import Pulled

log = logging.getLogger("treadle")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The arguments of one call of `dead_letter`."""

    body: str
    error: str


@dataclass(slots=True, eq=False)
class _QueuedBody:
    body: str
    place: tuple[float, int]
    """When it becomes visible, and its number: the order of the queue."""
    dedupe_key: str | None
    attempt: int = 1
    lease: int = 0
    """The number of the lease in force; 0: none."""
    until: float = 0.0


class MemoryQueue:
    """A `Queue`. Without a delay, `fail` gives a body its old place back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._waiting: list[tuple[tuple[float, int], _QueuedBody]] = []
        self._leases: list[tuple[float, int, _QueuedBody]] = []
        """Every lease that was given or extended, by its end. Outdated ones are skipped."""
        self._keys: set[str] = set()
        self._size = 0
        self.dead: list[DeadLetter] = []
        """The calls of `dead_letter`."""

    def size(self) -> int:
        return self._size

    def push(self, body: str, *, delay: float = 0, dedupe_key: str | None = None) -> None:
        with self._lock:
            if dedupe_key is not None:
                if dedupe_key in self._keys:
                    return
                self._keys.add(dedupe_key)
            self._size += 1
            self._add(_QueuedBody(body, (self._clock.now() + delay, next(self._numbers)), dedupe_key))

    def pop(self, max: int, lease: float, /) -> list[Pulled]:
        now = self._clock.now()
        with self._lock:
            self._reclaim(now)
            popped: list[Pulled] = []
            while len(popped) < max and self._waiting and self._waiting[0][0][0] <= now:
                popped.append(self._lease(heapq.heappop(self._waiting)[1], now + lease))
            return popped

    def heartbeat(self, pulled: Pulled, lease: float, /) -> None:
        with self._lock:
            if (queued := self._find(pulled)) is not None:
                self._set_end(queued, self._clock.now() + lease)

    def ack(self, pulled: Pulled, /) -> None:
        with self._lock:
            if (queued := self._find(pulled)) is not None:
                queued.lease = 0
                self._size -= 1
                self._keys.discard(queued.dedupe_key or "")

    def fail(self, pulled: Pulled, delay: float = 0, /) -> None:
        with self._lock:
            if (queued := self._find(pulled)) is not None:
                queued.attempt = pulled.attempt
                if delay > 0:
                    queued.place = (self._clock.now() + delay, next(self._numbers))
                self._add(queued)

    def dead_letter(self, body: str, error: str, /) -> None:
        self.dead.append(DeadLetter(body, error))

    # -- with the lock held ----------------------------------------------------------------------------

    def _add(self, queued: _QueuedBody) -> None:
        queued.lease = 0
        heapq.heappush(self._waiting, (queued.place, queued))

    def _lease(self, queued: _QueuedBody, until: float) -> Pulled:
        queued.lease = next(self._numbers)
        self._set_end(queued, until)
        return Pulled(queued.body, (queued, queued.lease), queued.attempt)

    def _set_end(self, queued: _QueuedBody, until: float) -> None:
        queued.until = until
        heapq.heappush(self._leases, (until, next(self._numbers), queued))

    def _find(self, pulled: Pulled) -> _QueuedBody | None:
        """None: the lease is no longer in force."""
        match pulled.handle:
            case (_QueuedBody() as queued, int() as lease) if queued.lease == lease:
                return queued
            case _:
                return None

    def _reclaim(self, now: float) -> None:
        while self._leases and self._leases[0][0] <= now:
            until, _, queued = heapq.heappop(self._leases)
            if queued.lease and queued.until == until:
                queued.attempt += 1
                self._add(queued)


class MemoryStore:
    """A `Store` with `swap`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, tuple[str, float | None]] = {}
        self._expiries: list[tuple[float, str]] = []

    def __len__(self) -> int:
        with self._lock:
            self._sweep()
            return len(self._values)

    def get(self, key: str, /) -> str | None:
        with self._lock:
            return self._get(key)

    def set(self, key: str, value: str, /, ttl: float | None = None) -> None:
        with self._lock:
            self._set(key, value, ttl)

    def delete(self, key: str, /) -> None:
        with self._lock:
            self._values.pop(key, None)

    def set_if_absent(self, key: str, value: str, /, ttl: float | None = None) -> bool:
        with self._lock:
            if self._get(key) is not None:
                return False
            self._set(key, value, ttl)
            return True

    def increment(self, key: str, by: int = 1, /, ttl: float | None = None) -> int:
        with self._lock:
            total = int(self._get(key) or 0) + by
            self._set(key, str(total), ttl)
            return total

    def swap(self, key: str, old: str | None, new: str | None, /) -> bool:
        with self._lock:
            if self._get(key) != old:
                return False
            if new is None:
                self._values.pop(key, None)
            else:
                self._set(key, new, None)
            return True

    # -- with the lock held ----------------------------------------------------------------------------

    def _get(self, key: str) -> str | None:
        value, until = self._values.get(key, (None, None))
        return value if until is None or self._clock.now() < until else None

    def _set(self, key: str, value: str, ttl: float | None) -> None:
        until = None if ttl is None else self._clock.now() + ttl
        self._values[key] = (value, until)
        if until is not None:
            heapq.heappush(self._expiries, (until, key))
            self._sweep()

    def _sweep(self) -> None:
        """Remove expired keys, so that keys that are never read again do not pile up."""
        now = self._clock.now()
        while self._expiries and self._expiries[0][0] <= now:
            until, key = heapq.heappop(self._expiries)
            if self._values.get(key, (None, None))[1] == until:
                del self._values[key]


class MemoryPubSub:
    """A `PubSub` in one process."""

    def __init__(self) -> None:
        self._receivers: dict[object, Callable[[str], None]] = {}

    def publish(self, message: str, /) -> None:
        for receive in list(self._receivers.values()):
            try:
                receive(message)
            except Exception:
                log.exception("a subscriber of MemoryPubSub failed")

    def subscribe(self, receive: Callable[[str], None], /) -> Callable[[], None]:
        key = object()
        self._receivers[key] = receive

        def unsubscribe() -> None:
            self._receivers.pop(key, None)

        return unsubscribe


def memory_queue(clock: Clock | None = None) -> MemoryQueue:
    return MemoryQueue(clock or SystemClock())


def memory_pubsub() -> MemoryPubSub:
    return MemoryPubSub()


def memory_store(clock: Clock | None = None) -> MemoryStore:
    return MemoryStore(clock or SystemClock())
