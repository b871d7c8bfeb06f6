"""Orders: what operators have ordered for the whole fleet, as one worker obeys it.

The store obeys pauses of queues and tenants. A worker asks for no items of a paused type, and for permits of
the limits in force. It learns of a change with its next claim, which then gets nothing: see `Backend.claim`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from treadle.bulk_action import BULK_TYPE
from treadle.engine.core import Core
from treadle.item import AvoidedLane, Limit, Order, Orders
from treadle.store.rules.orders import paused_types

from .bound_types import BoundTypes
from .held import BoundType, HeldLease, HeldLeases


class WorkerOrders:
    def __init__(self, core: Core, types: BoundTypes, held: HeldLeases) -> None:
        self._backend = core.backend
        self._monotonic = core.settings.clock.monotonic
        self._types = types
        self._held = held
        self.known = Orders()
        self.version = self.known.version if "operating" in core.backend.capabilities else None
        """Of those that are known, for a claim. None: the store has no orders."""
        self._read_at = 0.0
        """When they were read, by the monotonic clock."""
        self.ends = inf
        """When the next order ends by itself, by the monotonic clock."""
        self.pauses: Sequence[Order] = ()
        """The pauses of types that are in force."""
        self.adopted: dict[int, Callable[[], None]] = {}
        """By token: attempts that hold permits which they have not asked for, and what returns these."""

    async def read(self) -> None:
        """Read the orders. Then they are to be applied."""
        self.known = await self._backend.orders()
        self.version = self.known.version
        self._read_at = self._monotonic()

    def apply(self) -> None:
        """Obey the orders that are in force now."""
        now = self.known.now + self._monotonic() - self._read_at
        orders = [each for each in self.known.orders if each.until is None or each.until > now]
        ends = [each.until - self.known.now for each in orders if each.until is not None]
        self.ends = self._read_at + min(ends, default=inf)
        self.pauses = [each for each in orders if each.kind == "pause" and each.type is not None]
        for bound, limit in self._types.obey(tuple(each for each in orders if each.kind == "limit")):
            self._adopt(bound, limit)

    def leave_out(self, rooms: dict[str, int], avoid: dict[str, frozenset[AvoidedLane]]) -> None:
        """Ask for nothing that a pause of a type holds. Its names are looked up each time: a worker may learn
        the type later."""
        paused, avoided = paused_types(self.pauses, self._names)
        rooms |= dict.fromkeys(paused, 0)
        avoid |= {name: avoid.get(name, frozenset()) | lanes for name, lanes in avoided.items()}

    def _names(self, type: str) -> Sequence[str]:
        bound = self._types.by_name.get(type)
        if bound is not None:
            return bound.names
        return (BULK_TYPE,) if type == BULK_TYPE and self._types.runs_bulk else ()

    def may_start(self, bound: BoundType, tenant: str) -> bool:
        """Whether no pause of a type holds items of this type and tenant."""
        held = (each for each in self.pauses if each.type in bound.names)
        return all(each.tenant not in (None, tenant) for each in held)

    # -- what ran before a limit was ordered -----------------------------------------------------------

    def _adopt(self, bound: BoundType, limit: Limit) -> None:
        """Count what runs of a type without a permit of this limit."""
        running = {_call(held): held for held in self._held.by_token.values() if _runs(held, bound)}
        doer = self._types.limited(bound)
        count = max(0, len(running) - doer.held(limit))
        if not count:
            return
        newest = list(running.values())[-count:]
        release = doer.adopt(limit, count)
        self.adopted |= {held.lease.token: release for held in newest}
        self._types.permits.adopt(limit, count)

    def release_ended(self) -> None:
        """Return the permits of attempts that have not asked for them, and have ended."""
        for token in [token for token in self.adopted if token not in self._held.by_token]:
            self.adopted.pop(token)()


def _runs(held: HeldLease, bound: BoundType) -> bool:
    return held.bound is bound and held.started > 0 and not held.over


def _call(held: HeldLease) -> int:
    """The items of a batch run in one call."""
    return id(held if held.batch is None else held.batch)
