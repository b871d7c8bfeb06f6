"""Claim: ask the store for work whenever there is room and reason to.

Reasons: a signal that something is ready, a slot that came free, an item that is due; the poll is the net.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from treadle.backend import Backend
from treadle.clock import Clock
from treadle.engine.hooks import Hooks
from treadle.engine.tasks import finish
from treadle.engine.timers import first_of
from treadle.item import Claim, Demand, Lease
from treadle.retry import Retry

BACKOFF = Retry(attempts=None, base=0.1, factor=2.0, max=5.0, jitter=0.5)
IDLE_AFTER = 3
"""So many empty claims in a row and the poll slows down: signals do the work."""
IDLE_FACTOR = 4.0
"""By so much: with a beat every other interval, and a look now and then for those who wait, an idle worker
asks the store less than once per interval in all."""

JITTER = 0.2
"""Polls come up to so much sooner, so that of several workers none is always the first to ask."""


class Room(Protocol):
    """What the claimer asks of the worker."""

    def demand(self) -> Demand | None:
        """What there is room for; None: for nothing, not even verdicts."""
        ...

    def take(self, leases: tuple[Lease, ...], sent: float) -> None: ...

    def lapsed(self) -> bool:
        """Whether this worker's lease is over, if nobody has renewed it: a claim would remove_worker it."""
        ...

    async def revive(self) -> None:
        """The store says, or would say, that this worker is dead: beat."""
        ...

    async def orphaned(self) -> bool:
        """An answer was lost: ask for what it handed out. False: that cannot be asked just now."""
        ...

    async def pause(self) -> float:
        """Seconds that back-pressure asks to wait, 0 for none."""
        ...


class Claimer:
    def __init__(
        self,
        backend: Backend,
        room: Room,
        clock: Clock,
        hooks: Hooks,
        draw: Callable[[], float],
        *,
        poll_interval: float,
        lease: float,
    ) -> None:
        self._backend = backend
        self._room = room
        self._clock = clock
        self._hooks = hooks
        self._draw = draw
        self._interval = poll_interval
        self._lease = lease
        self._wake = asyncio.Event()
        self._rotation: object = None
        self._empty = 0
        self._failures = 0
        self._adrift = False
        """The store may have handed something out that nobody here knows of."""
        self._ask_again: float | None = None
        """When to ask once more: the request whose answer was lost may have been late instead."""
        self.behind = False
        """Whether the last claim found as much as there was room for, or there was no room."""
        self._begun = 0
        self._nothing = 0
        """Which claim, counted from 1, was the last to find nothing."""
        self._found_nothing = asyncio.Event()

    def wake(self) -> None:
        self._empty = 0
        self._wake.set()

    @property
    def idle(self) -> bool:
        """The last claim found nothing, and nothing was heard of since."""
        return self._empty > 0

    async def empty(self) -> None:
        """Return when a claim made from now on has found nothing."""
        begun = self._begun
        self.wake()
        while self._nothing <= begun:
            self._found_nothing.clear()
            await self._found_nothing.wait()

    async def run(self) -> None:
        """Claim until cancelled."""
        while True:
            self._wake.clear()
            pause = await self._room.pause()
            if pause > 0:
                await self._clock.sleep(pause)
                continue
            wait = await self.run_once()
            if wait > 0:
                await first_of(self._wake, self._clock, wait)

    async def run_once(self) -> float:
        """One claim, if there is room. How long to wait for a wake before the next; 0 not at all."""
        try:
            await self._recover()
            return await self._claim()
        except Exception as error:  # noqa: BLE001  whatever it is, a worker that stops claiming is worse
            return await self._failed(error)

    def adrift(self) -> None:
        """Something was handed out to this worker, and the answer was lost."""
        self._adrift = True
        self._wake.set()

    async def _recover(self) -> None:
        """Ask for what nobody here knows of: after an answer was lost, and again a lease later."""
        now, lost = self._clock.monotonic(), self._adrift
        if not lost and (self._ask_again is None or now < self._ask_again):
            return
        self._adrift = True
        if await self._room.orphaned():
            self._adrift = False
            self._ask_again = now + self._lease if lost else None

    async def _claim(self) -> float:
        demand = self._room.demand()
        if demand is None:
            return self._interval
        self._begun += 1
        try:
            claim = await finish(self._claimed(demand))
        except BaseException:
            self._adrift = True
            raise
        self._failures = 0
        if not claim.alive:
            await self._room.revive()
            return 0.0
        return self._next(claim, demand)

    async def _claimed(self, demand: Demand) -> Claim:
        """The claim, and what it handed out in the worker's hands: a cancellation comes before or after."""
        while self._room.lapsed():
            # The machine was suspended, maybe during this beat: what runs is still ours if nobody claimed.
            await self._room.revive()
        sent = self._clock.monotonic()
        claim = await self._backend.claim(msgspec.structs.replace(demand, rotation=self._rotation))
        self._rotation = claim.rotation
        self._room.take(claim.leases, sent)
        return claim

    def _next(self, claim: Claim, demand: Demand) -> float:
        self.behind = (
            len(claim.leases) >= demand.limit
            and sum([lease.verdict is None for lease in claim.leases]) >= demand.limit
        )
        if claim.leases:
            self._empty = 0
            return 0.0
        self._empty += 1
        if demand.limit:
            self._nothing = self._begun
            self._found_nothing.set()
        idle = self._empty > IDLE_AFTER and not self._adrift
        wait = (self._interval * IDLE_FACTOR if idle else self._interval) * (1.0 - JITTER * self._draw())
        return wait if claim.next_due is None else min(wait, max(claim.next_due, 0.001))

    async def _failed(self, error: Exception) -> float:
        self._failures += 1
        self._hooks.report(error, "claim", "could not claim; trying again")
        await self._clock.sleep(BACKOFF.delay(self._failures, self._draw))
        return 0.0


async def resolved(answer: float | Awaitable[float | None] | None) -> float:
    """What a hook that may be sync or async answers, in seconds."""
    value = await answer if inspect.isawaitable(answer) else answer
    return float(value or 0.0)
