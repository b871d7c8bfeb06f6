"""Active: one attempt in this worker's hands, from claim until its settlement is in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from treadle.context import Context
from treadle.interrupt import InterruptReason
from treadle.item import Lease

from .alarm import Bell
from .bound import Bound
from .itemize import Stored

Stop: TypeAlias = InterruptReason | Literal["timeout"]
"""Why an attempt is being stopped."""

LOST: frozenset[Stop] = frozenset(("taken", "completed", "cancelled", "not_found"))
"""The item is no longer this worker's: there is nothing to settle."""


class Active(msgspec.Struct, eq=False):
    """A struct and not a class with slots: it is made in a third of the time."""

    lease: Lease
    bound: Bound
    input: dict[str, Any]
    stored: Stored
    received: float
    """When its claim was sent, by the worker's monotonic clock: no later than `claimed_at`."""
    started: float = 0.0
    """When its handler began, by the same clock; 0 before."""
    bells: tuple[Bell, ...] = ()
    """Its timeout and its deadline, to be taken back when it is over."""
    task: asyncio.Task[Any] | None = None
    ctx: Context | None = None
    stop: Stop | None = None
    over: bool = False
    """Its decision has been handed over: what the handler still does no longer matters."""
    transaction: Any = None
    carrier: Active | None = None
    """For a member of a batch: the attempt that stands for the whole call."""
    members: Sequence[Active] = ()
    """For such a one: the items of the batch. It is itself settled never."""

    def store_time(self, monotonic: float) -> float:
        """The store's clock, as well as this worker can tell."""
        return self.lease.claimed_at + (monotonic - self.received)
