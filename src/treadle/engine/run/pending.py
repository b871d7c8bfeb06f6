"""PendingSettlement: an attempt that is decided and not settled yet."""

from __future__ import annotations

import msgspec

from treadle.engine.guarded_telemetry import GuardedAttempt
from treadle.handler.result_plan import PlannedContribution
from treadle.item import Item, Lease, Outcome

from .decide import Decision, Die


class PendingSettlement(msgspec.Struct, eq=False, gc=False):
    """One attempt on its way through settling."""

    lease: Lease
    decision: Decision
    result: bytes | None = None
    """The item's own value, encoded."""
    children: tuple[Item, ...] = ()
    contributions: tuple[PlannedContribution, ...] = ()
    started: float = 0.0
    """When the attempt began, by the worker's monotonic clock; 0 if it did not."""
    held_since: float = 0.0
    """For a lease without a worker: when it was claimed, by the same clock."""
    outcome: Outcome | None = None
    """The store's final answer."""
    locked: bool = False
    """It waits for another transaction: it is settled apart from the others."""
    span: GuardedAttempt | None = None
    """The span of the attempt, if it is traced. What it queues comes from there."""
    childless: bool = False
    """The store has refused the compensation of the item: it dies without."""
    maybe_applied: PendingSettlement | None = None
    """The settlement that may have been applied instead, by a transaction whose commit was not confirmed."""

    @property
    def attempts_begun(self) -> int:
        """How many attempts of the item began, for an item that dies."""
        lease, decision = self.lease, self.decision
        lost = isinstance(decision, Die) and decision.reason == "lease_lost"
        began = self.started or self.held_since or lost or lease.verdict is not None
        return lease.attempt if began else lease.attempt - 1
