"""Held: the leases that this worker holds, and the work types that it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from treadle.context import Context, InterruptReason
from treadle.doers.base import BaseDoer
from treadle.engine.registry import AnyType
from treadle.engine.settings import Settings
from treadle.engine.submit.build_item import ItemBuilder, ItemOptions
from treadle.engine.timers import Timer
from treadle.item import Lease
from treadle.metrics import TypeMetrics
from treadle.retry import Retry
from treadle.work_type import handler_of


class BoundType:
    __slots__ = (
        "doer",
        "fn",
        "is_async",
        "log_context",
        "metrics",
        "name",
        "on_failure",
        "own_doer",
        "retry",
        "run_in",
        "strict",
        "timeout",
        "type",
        "wants_context",
    )

    def __init__(
        self, type: AnyType, itemizer: ItemBuilder, settings: Settings, metrics: TypeMetrics, doer: BaseDoer
    ) -> None:
        handler = handler_of(type)
        base = itemizer.base(type)
        self.type = type
        self.name = type.name
        self.fn: Callable[..., Any] = handler.fn
        self.is_async = handler.is_async
        self.wants_context = handler.wants_context
        self.run_in = type.run_in
        self.retry: Retry = base.retry
        self.timeout = base.timeout
        self.strict: bool = type.options.get("strict_return", settings.strict_return)
        self.on_failure = type.options.get("on_failure") or settings.on_failure
        self.log_context = type.options.get("log_context")
        self.metrics = metrics
        self.doer = doer
        self.own_doer = "doer" in type.options


Stop: TypeAlias = InterruptReason | Literal["timeout"]
"""Why an attempt is being stopped."""

LOST: frozenset[Stop] = frozenset(("taken", "completed", "cancelled", "not_found"))
"""The item is no longer this worker's: there is nothing to settle."""


class HeldLease(msgspec.Struct, eq=False):
    """A struct and not a class with slots: it is made in a third of the time."""

    lease: Lease
    bound: BoundType
    input: dict[str, Any]
    stored: ItemOptions
    received: float
    """When its claim was sent, by the worker's monotonic clock: no later than `claimed_at`."""
    started: float = 0.0
    """When its handler began, by the same clock; 0 before."""
    bells: tuple[Timer, ...] = ()
    """Its timeout and its deadline, to be taken back when it is over."""
    task: asyncio.Task[Any] | None = None
    ctx: Context | None = None
    stop: Stop | None = None
    over: bool = False
    """Its decision has been handed over: what the handler still does no longer matters."""
    transaction: Any = None
    carrier: HeldLease | None = None
    """For a member of a batch: the attempt that stands for the whole call."""
    members: Sequence[HeldLease] = ()
    """For such a one: the items of the batch. It is itself settled never."""

    def store_time(self, monotonic: float) -> float:
        """The store's clock, as well as this worker can tell."""
        return self.lease.claimed_at + (monotonic - self.received)
