"""Claim: ask the store for work whenever there is room and a reason to ask.

Reasons: a wake-up says that something is ready, a lease was freed, an item is due. The poll catches wake-ups
that were lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from treadle.backend import answers_at_once
from treadle.base.timing import seconds
from treadle.bulk_action import BULK_TYPE
from treadle.engine.core import Core
from treadle.engine.guarded_telemetry import NOTHING
from treadle.engine.settings import WorkerSettings
from treadle.engine.tasks import finish
from treadle.engine.timers import first_of
from treadle.flow_control import BackpressureInfo
from treadle.item import Claim, Demand, Lease, Wake
from treadle.logs.lines import WARNING, log_line, named_items
from treadle.retry import STORE_BACKOFF
from treadle.store.rules import MOST_DOOMED

from .bound_types import BoundTypes
from .dispatch import Dispatcher
from .heartbeat import HeartbeatLoop
from .held import HeldLeases
from .portion_claims import PortionClaims
from .worker_report import WorkerReport

IDLE_AFTER = 3
"""Empty claims in a row, after which the poll slows down: wake-ups announce new work."""
IDLE_FACTOR = 4.0
"""The poll interval is multiplied by this. In four intervals an idle worker then makes one claim and two
heartbeats: less than one call per interval."""
LATEST_CLAIM = 64
"""Lease durations after which a claim that was sent can arrive: its leases are asked for until then."""
JITTER = 0.2
"""Polls come earlier by up to this share, so that no worker is always the first to ask."""


class Claimer:
    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        types: BoundTypes,
        held: HeldLeases,
        dispatcher: Dispatcher,
        heartbeat: HeartbeatLoop,
        report: WorkerReport,
    ) -> None:
        settings = core.settings
        self._core = core
        self._backend = core.backend
        self._worker = worker.id
        self._queues = worker.queues
        self._types = types
        self._backpressure = worker.backpressure
        self._held = held
        self._dispatcher = dispatcher
        self._heartbeat = heartbeat
        self._report = report
        self._permits = types.permits
        self._clock = settings.clock
        self._draw = settings.random.random
        self._interval = settings.poll_interval
        self._lease = settings.lease
        self._wake = asyncio.Event()
        self._fairness: object = None
        self._empty = 0
        self._failures = 0
        self._at_once = answers_at_once(core.backend, "claim")
        self._answer_lost = False
        """The store may have leased items to this worker that it does not know of."""
        self._has_unknown = False
        """The store has leases of this worker that it does not know."""
        self._ask_again: float | None = None
        """When to ask for unknown leases once more: the call whose answer was lost may arrive late."""
        self._ask_wait = 0.0
        """How long after the last question. It doubles, up to `LATEST_CLAIM` lease durations."""
        self.recovering = False
        """Unknown leases are being asked for. Nothing may be leased to this worker meanwhile."""
        self.behind = False
        """Whether the last claim found as much as there was room for, or there was no room."""
        self.idle = False
        """Whether the last claim left nothing that it could have had, and no wake-up has come since."""
        self._short_of_room = True
        """Whether the last claim may have left items because there was no room for them."""
        self._wakes = 0
        self._filled_at = -1
        """`_wakes` when the last claim was sent, if it filled the room that it asked for."""
        self._begun = 0
        self._nothing = 0
        """The number, counted from 1, of the last claim that found nothing."""
        self._claimed = asyncio.Event()
        self._emptying = 0
        """Callers that wait until a claim has found nothing."""
        every = settings.poll_interval * (1.0 - JITTER)  # no poll comes earlier
        self._portions = PortionClaims(worker, types, dispatcher, settings.clock, every, self._send)

    def receive(self, wake: Wake) -> None:
        """Claim, if this worker could run what the wake-up tells of."""
        if wake.everything or (wake.ready and _could_run(wake, self._queues, self._types)):
            if BULK_TYPE in wake.types:
                self._portions.named += 1
            self.wake()

    def wake(self) -> None:
        self._wakes += 1
        self._empty = 0
        self.idle = False
        self._wake.set()

    def freed(self) -> None:
        """Leases were freed, so there is more room. Claim, if the last claim was short of it."""
        if self._short_of_room:
            self.wake()

    async def until_empty(self) -> None:
        """Return when a claim made from now on has found nothing."""
        begun = self._begun
        self._emptying += 1
        try:
            while self._nothing <= begun:
                self.wake()
                self._claimed.clear()
                await self._claimed.wait()
        finally:
            self._emptying -= 1

    async def run(self) -> None:
        """Claim until cancelled."""
        while True:
            self._wake.clear()
            if self._backpressure is not None and (pause := await self._pause()) > 0:
                await self._rest(pause)
                continue
            wait = await self.run_once()
            if wait > 0:
                await first_of(self._wake, self._clock, wait)
            else:
                await asyncio.sleep(0)  # the store may have answered without a turn of the event loop

    async def _pause(self) -> float:
        """Seconds that the `backpressure` hook asks to wait."""
        assert self._backpressure is not None
        info = BackpressureInfo(self._core.metrics, len(self._held.by_token))
        ask = self._core.hooks.ask
        return await ask(self._backpressure, "backpressure", info, _pause_of, otherwise=self._interval)

    async def _rest(self, seconds: float) -> None:
        """Claim nothing for so long. What the store has forgotten meanwhile is put right all the same."""
        self._report.press(seconds)
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            try:
                await self._agree()
            except Exception as error:  # noqa: BLE001  as for a claim
                await self._failed(error)
            await self._clock.sleep(min(left, self._lease / 2))

    async def _agree(self) -> None:
        """Agree with the store on what this worker holds, if an answer or a heartbeat has left doubt."""
        if self._answer_lost or self._has_unknown or self._ask_again is not None:
            await self.ask_unknown_leases()
        if self._permits.differs:
            await self._permits.correct()

    async def run_once(self) -> float:
        """Claim once, if there is room. Returns the seconds to wait for a wake-up before the next claim."""
        try:
            await self._agree()
            return await self._claim()
        except Exception as error:  # noqa: BLE001  a worker must not stop claiming
            return await self._failed(error)

    def recover_leases(self) -> None:
        """An answer that leased items to this worker was lost. Ask for them before the next claim."""
        self._answer_lost = True
        self._wake.set()

    def ask_soon(self) -> None:
        """The store has leases of this worker that it does not know. Ask for them before the next claim."""
        self._has_unknown = True
        self._wake.set()

    async def ask_unknown_leases(self) -> None:
        """Ask for leases that this worker does not know of: after a lost answer, one lease duration later,
        and again at growing intervals; and when a heartbeat has named some."""
        # Leases whose answer is under way would look unknown: then it asks before the next claim.
        if not self._must_ask() or self._core.submitter.leasing:
            return
        sent, lost, due = self._clock.monotonic(), self._answer_lost, self._ask_is_due()
        self.recovering = True
        try:
            leases = await self._backend.unknown_leases(self._worker, self._held.tokens())
        finally:
            self.recovering = False
        if self._has_unknown and leases and not lost:
            _log_unknown(self._core.hooks.outage.name, leases)
        self._dispatcher.take(tuple(leases), sent)
        self._answer_lost = self._has_unknown = False
        if not lost and not due:
            return
        self._ask_wait = self._lease if lost else 2 * self._ask_wait
        self._ask_again = sent + self._ask_wait if self._ask_wait <= LATEST_CLAIM * self._lease else None

    def _must_ask(self) -> bool:
        """Whether unknown leases must be asked for before the next claim."""
        return self._answer_lost or self._has_unknown or self._ask_is_due()

    def _ask_is_due(self) -> bool:
        return self._ask_again is not None and self._clock.monotonic() >= self._ask_again

    async def _claim(self) -> float:
        orders = self._dispatcher.orders
        if orders.adopted:
            orders.release_ended()
        if self._clock.monotonic() >= orders.ends:
            self._dispatcher.obey()
        demand = self._dispatcher.demand(self._fairness)
        if demand is None:
            self._short_of_room = True
            return self._interval
        portion_due, wakes = inf, self._wakes
        if not demand.limit:
            portion_due = await self._portions.run_once()
            if not portion_due or self._wakes != wakes:
                return 0.0  # there may be room by now
            if self._filled_at == wakes:
                self._filled_at = -1  # without room there is nothing to ask for that the last claim has not
                return min(self._interval, portion_due)
        self._begun += 1
        if self._emptying:
            demand = replace(demand, thorough=True)
        sent = self._clock.monotonic()
        claim = await self._send(demand)
        if claim is None:
            return 0.0
        self._fairness = claim.fairness
        return min(portion_due, self._wait_after(claim, demand, sent, wakes))

    async def _send(self, demand: Demand) -> Claim | None:
        """Claim, and take what was handed out. None: it got nothing, and is to be made anew."""
        try:
            claim = await finish(self._claim_and_take(demand), at_once=self._at_once)
        except BaseException:
            self._answer_lost = True
            raise
        self._failures = 0
        if self._core.hooks.outage.since is not None:
            self._core.hooks.outage.answered("claim")
        if not claim.alive:
            await self._heartbeat.beat()
            return None
        if claim.orders is not None:
            await self._dispatcher.orders.read()
            self._dispatcher.obey()
            return None
        return claim

    async def _claim_and_take(self, demand: Demand) -> Claim:
        """Claim, and hand the leases over in the same task: a cancellation cannot come in between."""
        sent = self._clock.monotonic()
        while sent - self._heartbeat.last_beat > self._lease:
            # The machine was suspended, perhaps during this very beat. The claim would remove this worker;
            # after a heartbeat it still owns what no other worker has claimed.
            await self._heartbeat.beat()
            sent = self._clock.monotonic()
        calls = self._core.store_calls
        with calls.traced("claim", tuple, demand.limit) if calls.are_traced else NOTHING:
            claim = await self._backend.claim(demand)
        self._core.metrics.process.called("claim", self._clock.monotonic() - sent, len(claim.leases))
        if claim.leases:
            self._dispatcher.take(claim.leases, sent)
        if claim.left:
            self._core.wakeups.ready((type, "") for type in claim.left)
        return claim

    def _wait_after(self, claim: Claim, demand: Demand, sent: float, wakes: int) -> float:
        """Seconds to wait for a wake-up before the next claim. `sent`: when this one was sent. `wakes`: how
        many wake-ups had come by then."""
        found = len(claim.leases)
        runs = sum([lease.verdict is None for lease in claim.leases]) if found else 0
        self.behind = runs >= demand.limit
        self._short_of_room = self.behind or bool(demand.avoid) or _fills_a_room(demand, claim)
        self._claimed.set()
        self.idle = False
        self._filled_at = -1
        if found:
            self._empty = 0
            if found - runs >= MOST_DOOMED or claim.next_due == 0:
                return 0.0  # there may be more
            if 0 < demand.limit <= runs:
                self._filled_at = wakes
                return 0.0  # there may be more, and room for it
        else:
            self._empty += 1
            if demand.limit:
                self._nothing = self._begun
        self.idle = True
        slow = self._empty > IDLE_AFTER and not self._must_ask() and not _leaves_items(demand)
        wait = (self._interval * IDLE_FACTOR if slow else self._interval) * (1.0 - JITTER * self._draw())
        wait = min(wait, max(0.0, self._dispatcher.orders.ends - self._clock.monotonic()))
        if claim.next_due is None:
            return wait
        if 0 < claim.next_due <= self._clock.monotonic() - sent:
            return 0.0  # it is due by now
        return min(wait, max(claim.next_due, 0.001) + self._dispatcher.yields())

    async def _failed(self, error: Exception) -> float:
        self._failures += 1
        self._core.hooks.report(error, "claim", "could not claim; trying again")
        await self._clock.sleep(STORE_BACKOFF.delay(self._failures, self._draw))
        return 0.0


def _log_unknown(store: str, leases: Sequence[Lease]) -> None:
    log_line(
        WARNING,
        f"{store} says that {len(leases)} item(s) run here that do not: "
        f"{named_items(list(leases))}. It has forgotten how they ended: it was restored, "
        "or a replica that was behind took over. They run again",
    )


def _could_run(wake: Wake, queues: Sequence[str] | None, types: BoundTypes) -> bool:
    """Whether a worker with these queues and types could run what is ready."""
    if wake.queues and queues is not None and not any(queue in queues for queue in wake.queues):
        return False
    named = wake.types
    if not named or not types.by_name.keys().isdisjoint(named):
        return True
    return not types.built_in.keys().isdisjoint(named)


def _leaves_items(demand: Demand) -> bool:
    """Whether items may wait that it did not ask for: a doer is full, or a limit is reached. No wake-up tells
    when they expire."""
    return bool(demand.avoid) or (demand.types is not None and 0 in demand.types.values())


def _fills_a_room(demand: Demand, claim: Claim) -> bool:
    """Whether the leases fill the room of a type, or one that types share."""
    if demand.types is None:
        return False
    used = Counter([lease.type for lease in claim.leases if lease.verdict is None])
    return any(used[type] >= room for type, room in demand.types.items() if room < demand.limit) or any(
        sum(used[type] for type in shared.types) >= shared.room for shared in demand.shared
    )


def _pause_of(answer: Any) -> float:
    """The seconds that `backpressure` answered."""
    return 0.0 if answer is None else seconds(answer, field="the answer of backpressure")
