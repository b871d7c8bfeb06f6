"""Items whose stored arguments this worker cannot decode: left to other workers for a while, then dead.

During a deployment, workers with old and new code run side by side: what one cannot decode another can. Such
an item is given back, with a growing delay, until a worker decodes it or `undecodable_grace` is over.

That time counts from the first time that any worker could not decode it. Two claimed keys remember it in the
store, so it does not begin again with another worker or after a restart: one exists for the grace, and its
owner names the instant at which that is over; the other exists long after it. Their names contain the instant
of the item's last failed attempt, so a requeued item gets the full time again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from treadle.base.wording import duration, one_line
from treadle.engine.core import Core
from treadle.errors import message_of
from treadle.item import Lease, Ref
from treadle.logs.lines import WARNING, Seldom, item_fields, log_line, named, repeated
from treadle.retry import Retry
from treadle.worker_info import UndecodableType

from .decide import Decision, GiveBack, PendingSettlement, undecodable

BACKOFF = Retry(attempts=None, base=0.25, factor=2.0, max=15.0, jitter=0.5)
"""The delays before such an item can be claimed again."""
REMEMBERED = 30 * 86400.0
"""Seconds for which the store remembers that an item was undecodable, besides the grace."""
MOST_KNOWN = 10_000
"""How many such items a worker remembers, for the delays and the log."""
LATELY = 60.0
"""Seconds for which a worker says that it could not decode an item. More than the longest delay."""
MOST_ERROR = 200
"""Characters of an error that a worker says."""
MOMENT = 0.1
"""Seconds that are left at least, until the store says that the time is over."""
YIELD = 0.1
"""Seconds by which a worker that gave such an item back lets others go first when items are due."""


class _Known(NamedTuple):
    """An item that this worker could not decode. Times are by the monotonic clock."""

    type: str
    until: float
    """When its time is over."""
    last_at: float
    times: int
    error: str


class UndecodableItems:
    def __init__(self, core: Core) -> None:
        self._backend = core.backend
        self._hooks = core.hooks
        self._clock = core.settings.clock
        self._draw = core.settings.random.random
        self._grace = core.settings.undecodable_grace
        self._store_clock = core.store_clock
        self._known: dict[Ref, _Known] = {}
        """The items that this worker could not decode. Those that it had last come last."""
        self._yields_until = 0.0
        self._seldom = Seldom(monotonic=self._clock.monotonic)

    def yields(self) -> float:
        """Seconds to wait, in addition, before this worker claims items that become due."""
        return YIELD if self._known and self._clock.monotonic() < self._yields_until else 0.0

    async def decide(self, lease: Lease, error: BaseException) -> Decision:
        """What to do with an item that cannot be decoded, because of `error`."""
        if not self._grace:
            return undecodable(error)
        ref, now = (lease.tenant, lease.id), self._clock.monotonic()
        left = await self.time_left(lease)
        before = self._known.pop(ref, None)
        if left <= 0:
            return undecodable(error)
        until, times = (now + left, 0) if before is None else (before.until, before.times)
        text = one_line(message_of(error), most=MOST_ERROR)
        self._known[ref] = _Known(lease.type, until, now, times + 1, text)
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._yields_until = now + 2 * BACKOFF.max
        self._log(lease, error, duration(max(0.0, until - now)))
        return GiveBack(BACKOFF.delay(times + 1, self._draw))

    def by_type(self, store_time: Callable[[float], float]) -> dict[str, UndecodableType]:
        """What this worker could not decode in the last minute. store_time: an instant of the monotonic clock
        by the store's clock."""
        found: dict[str, UndecodableType] = {}
        since = self._clock.monotonic() - LATELY
        for known in reversed(self._known.values()):
            if known.last_at < since:
                break
            # Not exact to the last digit: the same instant has to look the same in the next heartbeat.
            until = round(store_time(known.until), 1)
            last = found.get(known.type)
            if last is None:
                found[known.type] = UndecodableType(1, known.error, until)
            else:
                found[known.type] = UndecodableType(last.count + 1, last.error, min(last.until, until))
        return found

    def _log(self, lease: Lease, error: BaseException, left: str) -> None:
        """Log it once for each type, then once a minute as long as there are such items."""
        left_out = self._seldom.occurrence(lease.type)
        if left_out is not None:
            log_line(
                WARNING,
                f"the arguments of {named(lease)} do not fit the code of this worker "
                f"({one_line(message_of(error))}): it is left to others and tried again for at most "
                f"{left}, then it is dead: undecodable{repeated(left_out)}",
                item_fields(lease),
            )

    async def settle(
        self, lease: Lease, error: BaseException, add: Callable[[PendingSettlement], None]
    ) -> None:
        """Decide, and hand the settlement to `add`."""
        add(PendingSettlement(lease, await self.decide(lease, error)))

    async def time_left(self, lease: Lease) -> float:
        """Seconds for which this item is tried. 0: they are over. The whole grace if the store does not
        answer."""
        try:
            key, now = await self._key(lease), self._store_clock.now()
            # The token differs from claim to claim: a key that exists is never this lease's own.
            owner = f"{lease.token} {now + self._grace:.3f}"
            # A free key: no worker had the item until now, or the time is over.
            if await self._claim(f"{key}:grace", lease, owner, self._grace):
                first = await self._claim(f"{key}:seen", lease, owner, self._grace + REMEMBERED)
                return self._grace if first else 0.0
            if (lease.tenant, lease.id) in self._known:
                return self._grace
            return await self._read_left(f"{key}:grace", lease, now)
        except Exception as error:  # noqa: BLE001  it is tried again later
            self._hooks.report(error, "claim", f"could not ask how long {lease.id} has been undecodable")
            return self._grace

    async def _read_left(self, key: str, lease: Lease, now: float) -> float:
        """What is left of the time, as the worker has written that was the first to have the item."""
        _, _, until = (await self._backend.key_owner(key, tenant=lease.tenant) or "").partition(" ")
        left = float(until) - now if until else 0.0
        return min(max(left, MOMENT), self._grace)

    async def _claim(self, key: str, lease: Lease, owner: str, ttl: float) -> bool:
        return await self._backend.claim_key(key, owner, ttl, tenant=lease.tenant)

    async def _key(self, lease: Lease) -> str:
        (state,) = await self._backend.get([lease.id], tenant=lease.tenant)
        failed_at = state.history[-1].at if state is not None and state.history else 0.0
        digest = hashlib.sha256(f"{lease.id} {failed_at!r}".encode()).hexdigest()[:32]
        return f"treadle:undecodable:{digest}"
