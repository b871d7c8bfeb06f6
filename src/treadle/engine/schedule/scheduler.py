"""Schedule: keep an eye on what recurs, and fire what is due.

What is stored of a schedule is when it is due next (`treadle.item.Schedule`). Each process that has its code
sleeps until then, and fires (fire.py). Now and then it looks at the store: others may have fired it, paused,
changed or cancelled it. The store's clock decides; whatever fails is reported and tried again.

An occurrence that came while this process was running is carried out, however late, each one. Those that came
while nothing ran are left to `catch_up` (occurrence.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from treadle.engine.tasks import Tasks
from treadle.engine.timers import first_of
from treadle.errors import BackendError
from treadle.item import Schedule
from treadle.retry import Retry

from .entry import Recurrence, ScheduleEntry
from .fire import OccurrenceFirer
from .occurrence import Next
from .store_clock import StoreClock

if TYPE_CHECKING:
    from treadle.engine.core import Core

BACKOFF: Final = Retry(attempts=None, base=0.1, factor=2.0, max=5.0, jitter=0.5)
LOOK: Final = 10
"""The store is looked at once in so many poll intervals."""
REFRESH: Final = 60.0
"""Seconds between signs that a schedule's code is there, and at most between two looks."""
UNSEEN: Final = 3
"""After so many of them without a sign, no running process has the code."""
EARLY: Final = 0.001
"""Less than this before its time an occurrence is due: no sleep is more exact."""


class Scheduler:
    """One for all workers of a process: it runs while one of them does."""

    def __init__(self, core: Core) -> None:
        settings = core.settings
        self._backend = core.backend
        self._clock = settings.clock
        self._hooks = core.hooks
        self._draw = settings.random.random
        self._poll = settings.poll_interval
        self._look_every = min(LOOK * settings.poll_interval, REFRESH)
        self._time = StoreClock(core.backend, settings.clock, every=REFRESH)
        self._firer = OccurrenceFirer(core, self._time)
        self._tasks = Tasks(self._died)
        self._entries: dict[str, ScheduleEntry] = {}
        self._workers: set[str] = set()
        self._wake, self._calm = asyncio.Event(), asyncio.Event()
        self._look_at = 0.0
        self._expected: float | None = None
        """When it should wake, by the store's clock, if it had nothing to do but sleep."""
        self._failures = 0

    # -- life ------------------------------------------------------------------------------------------

    @property
    def entries(self) -> Mapping[str, ScheduleEntry]:
        """The schedules whose code is in this process."""
        return MappingProxyType(self._entries)

    @property
    def workers(self) -> frozenset[str]:
        """The workers of this process that it runs for."""
        return frozenset(self._workers)

    @property
    def busy(self) -> bool:
        """It has something to do right now: to look, or to fire what is due and not held back."""
        if not self._workers or not self._entries:
            return False
        return self._until_look() <= 0 or any(e.firing or self._is_ripe(e) for e in self._entries.values())

    async def idle(self) -> None:
        """Return when it is not busy."""
        while self.busy:
            self._calm.clear()
            await self._calm.wait()

    def start(self, worker: str) -> None:
        """Run, on behalf of this worker."""
        if not self._workers:
            self._begin()
            self._tasks.start(self.run(), "schedules")
        self._workers.add(worker)

    def _begin(self) -> None:
        born = self._clock.monotonic()
        self._wake, self._calm = asyncio.Event(), asyncio.Event()
        self._look_at = born
        self._expected = None
        for entry in self._entries.values():
            entry.begin(born)

    async def stop(self, worker: str) -> None:
        """End with the last worker. What is being written is written."""
        self._workers.discard(worker)
        if not self._workers:
            await self._tasks.cancel()
            self._calm.set()

    def _died(self, error: BaseException, name: str) -> None:
        self._hooks.report(error, "schedule", f"the {name} task ended")

    # -- what the user does ----------------------------------------------------------------------------

    def add(self, recurrence: Recurrence) -> ScheduleEntry:
        """From now on. It is stored at once, or when a worker starts."""
        known = self._forget(recurrence.name)
        anew = known is not None and _differ(known, recurrence)
        entry = self._entries[recurrence.name] = ScheduleEntry(recurrence, self._clock.monotonic(), anew=anew)
        self.look_again()
        return entry

    async def cancel(self, name: str) -> bool:
        """Remove it, here and in the store. False if the store had none of that name."""
        self._forget(name)
        return await self._backend.drop_schedule(name)

    async def pause(self, name: str, paused: bool) -> bool:
        """False if there is none of that name."""
        found = await self._backend.pause_schedule(name, paused)
        self.look_again()
        return found

    def look_again(self) -> None:
        """Something was changed: do not wait for the time to look."""
        self._look_at = self._clock.monotonic()
        self._wake.set()

    def _forget(self, name: str) -> ScheduleEntry | None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry.cancelled = True
        return entry

    # -- the loop --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fire what is due, until cancelled."""
        while True:
            self._wake.clear()
            wait = await self.run_once()
            if not self.busy:
                self._calm.set()
            if wait is None:
                await self._wake.wait()
            elif wait > 0:
                await first_of(self._wake, self._clock, wait)
            else:
                await self._clock.sleep(0)

    async def run_once(self) -> float | None:
        """Look at the store if it is time to, and begin to fire what is due. Seconds until there is reason to
        do it again; None: until there is a schedule."""
        if not self._entries:
            return None
        await self._attend()
        if not self._time.known:
            return self._until_look()
        for entry in list(self._entries.values()):
            if self._is_ripe(entry) and not entry.firing:
                entry.firing = True
                self._tasks.start(self._fire(entry), "schedule")
        wait = self._wait()
        waiting = any(entry.firing or self._is_due(entry) for entry in self._entries.values())
        self._expected = None if waiting or self._failures else self._time.now() + wait
        return wait

    async def _attend(self) -> None:
        """Look at the clock and the schedules of the store, when it is time to. What is due fires without."""
        woken = self._clock.monotonic()
        try:
            await self._time.refresh()
            self._notice_sleep(woken)
            if self._look_at <= self._clock.monotonic():
                await self.look()
        except Exception as error:  # noqa: BLE001  whatever it is, schedules go on
            self._failures += 1
            self._look_at = self._clock.monotonic() + BACKOFF.delay(self._failures, self._draw)
            self._hooks.report(error, "schedule", "could not look at the schedules; will again")
        else:
            self._failures = 0

    def _notice_sleep(self, woken: float) -> None:
        """After a sleep much longer than was asked for, what came during it was slept through."""
        woken_at = self._time.at(woken)
        if self._expected is not None and woken_at - self._expected > self._firer.tolerance:
            for entry in self._entries.values():
                entry.awake = woken_at
        self._expected = None

    def _is_due(self, entry: ScheduleEntry) -> bool:
        at = entry.next_at
        return at is not None and self._time.known and at <= self._time.now() + EARLY

    def _is_ripe(self, entry: ScheduleEntry) -> bool:
        return self._is_due(entry) and entry.hold <= self._clock.monotonic()

    def _wait(self) -> float:
        now, monotonic = self._time.now(), self._clock.monotonic()
        waits = [
            max(at - now, entry.hold - monotonic)
            for entry in self._entries.values()
            if not entry.firing and (at := entry.next_at) is not None
        ]
        return max(0.0, min([self._until_look(), *waits]))

    def _until_look(self) -> float:
        return max(0.0, self._look_at - self._clock.monotonic())

    async def _fire(self, entry: ScheduleEntry) -> None:
        """Fire one schedule for as long as it is due. Others do not wait for it: its `run` may take long."""
        try:
            while self._is_due(entry):
                if not await self._firer.fire(entry):
                    entry.hold = self._clock.monotonic() + self._poll
                    self._look_at = min(self._look_at, entry.hold)
                    break
                entry.failures = 0
        except Exception as error:  # noqa: BLE001  the store's, or the user's `next`: late, not lost
            self._hold_back(entry, error)
        finally:
            entry.firing = False
            self._wake.set()

    def _hold_back(self, entry: ScheduleEntry, error: Exception) -> None:
        entry.failures += 1
        entry.hold = self._clock.monotonic() + BACKOFF.delay(entry.failures, self._draw)
        name = entry.recurrence.name
        self._hooks.report(error, "schedule", f"could not fire schedule {name!r}; will again")

    # -- the store -------------------------------------------------------------------------------------

    async def look(self) -> None:
        """See how schedules stand, store those that are new, and say that their code is here."""
        await self._time.refresh()
        self._look_at = self._clock.monotonic() + self._look_every
        before = {name: entry.stored for name, entry in self._entries.items()}
        rows = {row.name: row for row in await self._backend.schedules()}
        for name, stored in before.items():
            entry = self._entries.get(name)
            # One that has fired meanwhile knows better.
            if entry is not None and entry.stored is stored:
                await self._meet(entry, rows.get(name))

    async def _meet(self, entry: ScheduleEntry, row: Schedule | None) -> None:
        if entry.since is None:
            entry.since = self._time.at(entry.born)
        if entry.stored is None:
            await self._store_safely(entry, row)
        elif row is None:
            entry.stored = _over(entry.stored)
        elif row.spec != entry.recurrence.spec and is_unseen(row, self._time.now()):
            # Whoever changed it is gone, and so would the schedule be.
            await self._store_safely(entry, row)
        else:
            entry.stored = row
            await self._show(entry, row)
        if entry.stored is not None and entry.stored.paused:
            # While it is paused it is not waited for: what comes then is missed.
            entry.since = self._time.now()

    async def _store_safely(self, entry: ScheduleEntry, row: Schedule | None) -> None:
        try:
            await self._store(entry, row)
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001  the user's `next`
            entry.failures += 1
            delay = BACKOFF.delay(entry.failures, self._draw)
            self._look_at = min(self._look_at, self._clock.monotonic() + delay)
            self._hooks.report(error, "schedule", f"next of {entry.recurrence.name!r} failed; will ask again")

    async def _store(self, entry: ScheduleEntry, row: Schedule | None) -> None:
        code = entry.recurrence
        goes_on = row is not None and row.spec == code.spec and not entry.anew
        given = Schedule(
            name=code.name,
            next_at=row.next_at if row is not None and goes_on else code.timing.first(self._time.now()),
            spec=code.spec,
            paused=row is not None and row.paused,
            last_at=None if row is None else row.last_at,
        )
        if entry.anew:
            await self._make_way(given)
        stored = await self._backend.put_schedule(given)
        if not entry.cancelled:
            entry.stored, entry.anew, entry.failures = stored, False, 0
        elif code.name not in self._entries:
            await self._backend.drop_schedule(code.name)

    async def _make_way(self, given: Schedule) -> None:
        """For one that looks the same in the store but is not: what is stored would stay."""
        if given.next_at is None:
            await self._backend.drop_schedule(given.name)
        else:
            # Not dropped: to others that would look like a cancellation.
            await self._backend.put_schedule(replace(given, spec=b""))

    async def _show(self, entry: ScheduleEntry, row: Schedule) -> None:
        """Say that its code is here, unless somebody has lately."""
        if row.spec != entry.recurrence.spec or self._time.now() - row.seen_at < REFRESH:
            return
        # With no next time: if it was cancelled or changed this very moment, that shall stand.
        stored = await self._backend.put_schedule(replace(row, next_at=None))
        if entry.stored is row:
            entry.stored = stored


def is_unseen(schedule: Schedule, now: float) -> bool:
    """Whether nobody who has its code has said so for long."""
    return now - schedule.seen_at > UNSEEN * REFRESH


def _over(schedule: Schedule) -> Schedule:
    """One that somebody cancelled. It stays known: somebody may store it again."""
    return schedule if schedule.next_at is None else replace(schedule, next_at=None)


def _differ(known: ScheduleEntry, new: Recurrence) -> bool:
    """Whether two that look the same in the store are not: functions may share a name, as lambdas do."""
    old = known.recurrence.timing
    return isinstance(old, Next) and isinstance(new.timing, Next) and old.fn is not new.timing.fn
