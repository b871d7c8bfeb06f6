"""Fire: carry out one occurrence of a schedule, once in the whole fleet.

1. A key named after the occurrence is claimed. One process gets it; the others look again a little later, in
   case that one does not live to see it through. This only spares `run` from being called everywhere.
2. It is decided whether it fires, and which occurrence is next; `run` is called for the work.
3. The store, in one step, submits the work and moves on to the next occurrence, if this one is still the one
   that is due. This is what makes it exactly once. If the answer is lost, the same is asked again.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.engine.hooks import LOGGER
from treadle.engine.submit.submitter import rejection
from treadle.engine.tasks import finish
from treadle.item import DEFAULT_TENANT, Fire, Item, Rejected, Submitted

from .entry import Recurrence, ScheduleEntry
from .occurrence import decide
from .store_clock import StoreClock

if TYPE_CHECKING:
    from treadle.engine.core import Core


class OccurrenceFirer:
    def __init__(self, core: Core, time: StoreClock) -> None:
        settings = core.settings
        self._core = core
        self._backend = core.backend
        self._time = time
        self._lease = settings.lease
        self._tolerance = max(settings.lease, 2 * settings.poll_interval)
        self._owner = settings.generate_id()

    @property
    def tolerance(self) -> float:
        """An occurrence that is no later than this was not missed, whatever happened."""
        return self._tolerance

    async def fire(self, entry: ScheduleEntry) -> bool:
        """Carry out the occurrence that is due. False: it is in other hands, or was; look at the store.

        Raises if the store, or the user's `next`, did. Then it is to be called again.
        """
        if entry.pending is None:
            entry.pending = await self._prepared(entry)
        if entry.pending is None:
            return False
        return await finish(self._carry_out(entry, entry.pending))

    async def _prepared(self, entry: ScheduleEntry) -> Fire | None:
        code, at = entry.recurrence, entry.next_at
        if at is None or not await self._is_ours(code.name, at):
            return None
        lateness, until = entry.lateness(at, self._time.now(), self._tolerance)
        next_at, fires = decide(code.timing, at, until, lateness, code.catch_up)
        if lateness == "missed":
            LOGGER.info("schedule %r was missed at %r; catch_up=%r", code.name, at, code.catch_up)
        items = await self._items(code) if fires else ()
        return Fire(name=code.name, at=at, next_at=next_at, items=items)

    async def _is_ours(self, name: str, at: float) -> bool:
        # A name may be as long as a key.
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        key = f"treadle:schedule:{digest}:{at!r}"
        return await self._backend.claim_key(key, self._owner, self._lease, tenant=DEFAULT_TENANT)

    async def _items(self, code: Recurrence) -> tuple[Item, ...]:
        try:
            work = await code.mint()
            if work is None:
                return ()
            return (self._core.item_builder.item(work, code.options, tenant=code.tenant),)
        except Exception as error:  # noqa: BLE001  the user's code: the schedule goes on without it
            self._report(error, f"run of schedule {code.name!r} failed: nothing is submitted this time")
            return ()

    async def _carry_out(self, entry: ScheduleEntry, fire: Fire) -> bool:
        try:
            answer = await self._backend.fire(fire)
            if answer is None and entry.unsure:
                answer = await self._done_before(fire)
        except Exception:
            entry.unsure = True
            raise
        entry.pending, entry.unsure = None, False
        if isinstance(answer, Rejected):
            self._report(rejection(answer), f"what run of schedule {fire.name!r} returned cannot be stored")
            entry.pending = replace(fire, items=())
            return True
        if answer is not None:
            self._follow(fire, answer)
        return self._moved(entry, fire) if answer is not None else False

    async def _done_before(self, fire: Fire) -> tuple[Submitted, ...] | None:
        """It was not fired now. Perhaps it was by an earlier call, whose answer was lost."""
        if not fire.items:
            return None
        ids, tenant = [item.id for item in fire.items], fire.items[0].tenant
        states = await self._backend.get(ids, tenant=tenant)
        found = [Submitted(state.id, status=state.status) for state in states if state is not None]
        return tuple(found) if len(found) == len(ids) else None

    def _follow(self, fire: Fire, answer: tuple[Submitted, ...]) -> None:
        """What follows once the work is in the store."""
        pairs = zip(fire.items, answer, strict=True)
        stored = [item for item, submitted in pairs if not submitted.existing]
        if stored:
            self._core.announcer.queued(stored)
            self._core.wakeups.ready()

    def _moved(self, entry: ScheduleEntry, fire: Fire) -> bool:
        if entry.stored is None or entry.stored.next_at != fire.at:
            return False
        entry.stored = replace(entry.stored, next_at=fire.next_at, last_at=fire.at)
        return True

    def _report(self, error: BaseException, message: str) -> None:
        self._core.hooks.report(error, "schedule", message)
