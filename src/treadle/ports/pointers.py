"""Pointers: the bodies in the queue. A pointer names an item that a worker has to look at.

A pointer says nothing about the item: what is to be done is in the store. Several pointers may name one item.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import msgspec

from treadle.item import Ref

from .async_ports import AsyncPorts
from .protocols import Pulled

REMEMBERED: Final = 10_000
"""How many due times of pushed pointers a process remembers."""


class ItemPointer(NamedTuple):
    tenant: str
    id: str


_decoder = msgspec.json.Decoder(ItemPointer)


def read_pointer(body: str) -> ItemPointer | None:
    """None: the body is not a pointer."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


class Pointers:
    """Pushes pointers, and keeps those that this process has popped, by the token of the item's lease."""

    def __init__(self, ports: AsyncPorts) -> None:
        self._ports = ports
        self._popped: dict[int, tuple[str, Pulled]] = {}
        """By token: the worker, and its popped pointer."""
        self._due_times: list[float] = []
        self.pushed = 0
        """How many pointers this process has pushed."""

    async def push(self, ref: Ref, due: float, now: float) -> None:
        """Have a worker look at an item when it is due."""
        await self._ports.push(msgspec.json.encode(ItemPointer(*ref)).decode(), due - now)
        self.pushed += 1
        if due > now and len(self._due_times) < REMEMBERED:
            heapq.heappush(self._due_times, due)

    def next_due(self, now: float) -> float | None:
        """Seconds until the next pointer is due, of those that this process has pushed."""
        while self._due_times and self._due_times[0] <= now:
            heapq.heappop(self._due_times)
        return self._due_times[0] - now if self._due_times else None

    # -- popped pointers -------------------------------------------------------------------------------

    def keep(self, token: int, worker: str, pulled: Pulled) -> None:
        self._popped[token] = (worker, pulled)

    async def heartbeat(self, worker: str, lease: float) -> None:
        """Extend the queue's leases of a worker's pointers."""
        for pulled in [pulled for owner, pulled in self._popped.values() if owner == worker]:
            await self._ports.heartbeat(pulled, lease)

    async def ack(self, token: int) -> None:
        """Remove a pointer. If another process has popped it, it comes back when its lease lapses there,
        and is removed then."""
        if (popped := self._popped.pop(token, None)) is not None:
            await self._ports.ack(popped[1])

    async def move_to_end(self, token: int, ref: Ref, due: float, now: float) -> None:
        """Push a new pointer, then remove the popped one."""
        await self.push(ref, due, now)
        await self.ack(token)

    async def put_back(self, token: int, ref: Ref, due: float, now: float) -> None:
        """Return a pointer to the queue, to its old place if the item is due."""
        if (popped := self._popped.pop(token, None)) is None:
            await self.push(ref, due, now)
        else:
            await self._ports.fail(popped[1], due - now)

    async def drop(self, token: int) -> None:
        """Another worker owns the item now. Return the pointer, so that a worker looks at the item again."""
        if (popped := self._popped.pop(token, None)) is not None:
            await self._ports.fail(popped[1])
