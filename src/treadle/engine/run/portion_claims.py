"""Portion claims: ask for portions of bulk actions while no doer has room.

A portion runs beside the doer, so a worker that is full takes one too. The claim is for the queue of the
portions alone: nothing else that waits is looked at. It is sent if a wake-up has named portions, if one is
due, and else at most once per poll. A worker with room asks for portions with everything else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

from msgspec.structs import replace

from treadle.base.timing import Clock
from treadle.bulk_action import BULK_QUEUE, BULK_TYPE
from treadle.engine.settings import WorkerSettings
from treadle.item import AvoidedLane, Claim, Demand

from .bound_types import BoundTypes
from .dispatch import Dispatcher


class PortionClaims:
    """every: seconds between two claims that no wake-up asks for.

    send: sends a claim, and takes what it hands out. None: it got nothing, and is to be made anew.
    """

    def __init__(
        self,
        worker: WorkerSettings,
        types: BoundTypes,
        dispatcher: Dispatcher,
        clock: Clock,
        every: float,
        send: Callable[[Demand], Awaitable[Claim | None]],
    ) -> None:
        self._types = types
        self._dispatcher = dispatcher
        self._monotonic = clock.monotonic
        self._every = every
        self._send = send
        self._portion = Demand(
            worker=worker.id,
            limit=1,
            types={BULK_TYPE: 1},
            queues=(BULK_QUEUE,),
            tenants=worker.tenants,
        )
        self._fairness: object = None
        self.named = 0
        """How many wake-ups have named portions."""
        self._asked = 0
        """`named` when the last claim was sent that left no portion it could have had."""
        self._at = self._monotonic() + every
        """When to ask without a wake-up."""

    async def run_once(self) -> float:
        """Claim a portion, if there is a reason. Returns the seconds until the next one is due: 0 to begin
        anew, infinity if none is due before the next poll."""
        sent, named = self._monotonic(), self.named
        if (named == self._asked and sent < self._at) or (demand := self._demand()) is None:
            return inf
        claim = await self._send(demand)
        if claim is None:
            return 0.0
        self._fairness = claim.fairness
        if claim.leases:
            self._at = sent  # others may be due: ask when this one is over
            return inf
        self._asked, self._at = named, sent + self._every
        if not claim.next_due or claim.next_due >= self._every:
            return inf
        self._at = sent + claim.next_due
        return max(self._at - self._monotonic(), 0.001)

    def _demand(self) -> Demand | None:
        """Ask for one portion. None: one is here, they are paused, or an item on trial keeps others away."""
        dispatcher, orders = self._dispatcher, self._dispatcher.orders
        if not self._types.runs_bulk or dispatcher.without_attempt.runs_bulk:
            return None
        if dispatcher.isolation.room() <= 0:
            return None
        types, avoid = {BULK_TYPE: 1}, dict[str, frozenset[AvoidedLane]]()
        orders.leave_out(types, avoid)
        if not types[BULK_TYPE]:
            return None
        return replace(
            self._portion, types=types, avoid=avoid, fairness=self._fairness, orders=orders.version
        )
