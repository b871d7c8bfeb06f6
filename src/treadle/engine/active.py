"""Active: one attempt in this worker's hands, from claim until its settlement is in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

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


class Active:
    __slots__ = (
        "bells",
        "bound",
        "carrier",
        "ctx",
        "input",
        "lease",
        "members",
        "over",
        "received",
        "started",
        "stop",
        "stored",
        "task",
        "transaction",
    )

    def __init__(
        self, lease: Lease, bound: Bound, input: dict[str, Any], stored: Stored, received: float
    ) -> None:
        self.lease = lease
        self.bound = bound
        self.input = input
        self.stored = stored
        self.received = received
        """When its claim was sent, by the worker's monotonic clock: no later than `claimed_at`."""
        self.started = 0.0
        """When its handler began, by the same clock; 0 before."""
        self.bells: tuple[Bell, ...] = ()
        """Its timeout and its deadline, to be taken back when it is over."""
        self.task: asyncio.Task[Any] | None = None
        self.ctx: Context | None = None
        self.stop: Stop | None = None
        self.over = False
        """Its decision has been handed over: what the handler still does no longer matters."""
        self.transaction: Any = None
        self.carrier: Active | None = None
        """For a member of a batch: the attempt that stands for the whole call."""
        self.members: Sequence[Active] = ()
        """For such a one: the items of the batch. It is itself settled never."""

    def store_time(self, monotonic: float) -> float:
        """The store's clock, as well as this worker can tell."""
        return self.lease.claimed_at + (monotonic - self.received)
