"""The loop that fires schedules, and keeps them in step with the store.

The store holds when a schedule is due next (`treadle.item.Schedule`). Each process that has its code sleeps
until then, and fires (fire.py). Now and then it synchronizes with the store, since another process may have
fired, paused, changed or cancelled the schedule. The store's clock decides. Failures are reported and tried
again.

An occurrence that came while this process was running fires, however late. Occurrences that came while no
process was running are left to `catch_up` (occurrence.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from treadle.backend import Backend, missing_stores
from treadle.engine.hooks import Hooks
from treadle.engine.settings import Settings
from treadle.engine.tasks import Tasks
from treadle.engine.timers import StoreClock, first_of
from treadle.errors import BackendError, StoreUnavailable
from treadle.item import AuditNote, Fire, Schedule
from treadle.logs.lines import WARNING, log_line
from treadle.retry import STORE_BACKOFF
from treadle.store.fleet import Fleet

from .entry import EARLY, Recurrence, ScheduleEntry
from .fire import FiredItems, OccurrenceFirer, OnFired
from .occurrence import interval

SYNC_POLLS: Final = 10
"""Poll intervals between two synchronizations with the store."""
REFRESH: Final = 60.0
"""Seconds after which a process marks a schedule as seen again, and at most between two synchronizations."""
UNSEEN: Final = 3
"""After this many of them without a mark, no running process has the schedule's code."""


class Scheduler:
    """Fires the schedules of this process. All its workers share one; it runs while one of them does."""

    def __init__(
        self, backend: Backend, settings: Settings, hooks: Hooks, items: FiredItems, on_fired: OnFired
    ) -> None:
        self._backend = backend
        self._clock = settings.clock
        self._hooks = hooks
        self._draw = settings.random.random
        self._poll = settings.poll_interval
        self._store_clock = StoreClock(backend, settings.clock, every=REFRESH)
        self._sync = ScheduleSync(backend, settings, hooks, self._store_clock)
        self._entries = self._sync.entries
        self._firer = OccurrenceFirer(backend, settings, hooks, items, self._store_clock, on_fired)
        self._tasks = Tasks(self._task_died)
        self._workers: set[str] = set()
        self._wake, self._became_idle = asyncio.Event(), asyncio.Event()
        self.began = asyncio.Event()
        """Set when the schedules are stored, or the first try to store them has failed."""
        self._expected: float | None = None
        """When the loop should wake, by the store's clock, if it only sleeps until then."""
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
        """Whether it has to synchronize, or to fire, right now."""
        if not self._workers or not self._entries:
            return False
        now, monotonic = self._store_clock.now(), self._clock.monotonic()
        return (
            self._sync.under_way > 0
            or self._sync.wait() <= 0
            or any(entry.firing or entry.may_fire(now, monotonic) for entry in self._entries.values())
        )

    async def idle(self) -> None:
        """Return when it is not busy."""
        while self.busy:
            self._became_idle.clear()
            await self._became_idle.wait()

    def start(self, worker: str) -> None:
        """Run, on behalf of this worker."""
        if not self._workers:
            self._wake, self._became_idle, self.began = asyncio.Event(), asyncio.Event(), asyncio.Event()
            self._expected = None
            self._sync.reset()
            self._tasks.start(self.run(), "schedules")
        self._workers.add(worker)

    async def stop(self, worker: str) -> None:
        """Stop with the last worker. A write that is under way is finished."""
        self._workers.discard(worker)
        if not self._workers:
            await self._tasks.cancel()
            self._became_idle.set()
            self.began.set()

    def leave_dead_loop(self) -> None:
        """The event loop that it ran on is gone. The schedules stay."""
        self._workers.clear()
        self._tasks = Tasks(self._task_died)
        for entry in self._entries.values():
            entry.firing = False

    def _task_died(self, error: BaseException, name: str) -> None:
        self.began.set()
        self._hooks.report(error, "schedule", f"the {name} task ended")

    # -- what users do ---------------------------------------------------------------------------------

    def add(self, recurrence: Recurrence) -> ScheduleEntry:
        """Add a schedule, whose name no other one here has. It is stored at once, or when a worker starts."""
        entry = self._sync.add(recurrence)
        self._wake.set()
        return entry

    def store_again(self) -> None:
        """Store the schedules of this process again: there is another, new store."""
        self._sync.store_again()
        self._wake.set()

    async def cancel(self, name: str, note: AuditNote | None = None) -> bool:
        """Remove a schedule, here and in the store. False if the store has none of that name."""
        self._sync.forget(name)
        return await self._backend.drop_schedule(name, note=note)

    async def pause(self, name: str, paused: bool, note: AuditNote | None = None) -> bool:
        """Pause or resume a schedule. False if there is none of that name."""
        found = await self._backend.pause_schedule(name, paused, note=note)
        self._sync.request()
        self._wake.set()
        return found

    async def sync(self) -> None:
        """Synchronize with the store now."""
        try:
            await self._sync.run_once()
        except BaseException:
            self._sync.request()  # the loop does it
            raise
        finally:
            # The loop may sleep until the next synchronization: it does not know what was just stored.
            self._wake.set()

    # -- the loop --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fire what is due, until cancelled."""
        while True:
            self._wake.clear()
            wait = await self.run_once()
            self.began.set()
            if not self.busy:
                self._became_idle.set()
            if wait is None:
                await self._wake.wait()
            elif wait > 0:
                await first_of(self._wake, self._clock, wait)
            else:
                await self._clock.sleep(0)

    async def run_once(self) -> float | None:
        """Synchronize if it is time to, and start to fire what is due.

        Returns the seconds until it has to be called again. None: when there is a schedule.
        """
        if not self._entries:
            return None
        await self._sync_when_due()
        for entry in list(self._entries.values()):
            may_fire = entry.may_fire(self._store_clock.now(), self._clock.monotonic())
            if may_fire and not entry.firing:
                entry.firing = True
                self._tasks.start(self._fire(entry), "schedule")
        wait, now = self._wait(), self._store_clock.now()
        waiting = any(entry.firing or entry.is_due(now) for entry in self._entries.values())
        self._expected = None if waiting or self._failures else now + wait
        return wait

    async def _sync_when_due(self) -> None:
        """Refresh the store's clock and the schedules if it is time to. An error delays no firing."""
        woken = self._clock.monotonic()
        try:
            await self._store_clock.refresh()
            self._mark_slept(self._store_clock.at(woken))
            if self._sync.wait() <= 0:
                await self._sync.run_once()
        except Exception as error:  # noqa: BLE001  the loop goes on after any error
            self._failures += 1
            self._sync.request(after=STORE_BACKOFF.delay(self._failures, self._draw))
            self._hooks.report(error, "schedule", "could not read the schedules from the store; will retry")
        else:
            self._failures = 0

    def _mark_slept(self, woken_at: float) -> None:
        """If the loop woke much later than it asked to, note that the process was suspended."""
        if self._expected is not None and woken_at - self._expected > self._firer.tolerance:
            for entry in self._entries.values():
                entry.slept_until = woken_at
        self._expected = None

    def _wait(self) -> float:
        now, monotonic = self._store_clock.now(), self._clock.monotonic()
        waits = [
            max(at - now, entry.not_before - monotonic)
            for entry in self._entries.values()
            if not entry.firing and (at := entry.next_at) is not None
        ]
        return max(0.0, min([self._sync.wait(), *waits]))

    async def _fire(self, entry: ScheduleEntry) -> None:
        """Fire one schedule while it is due. Others do not wait for it: its `run` may take long."""
        try:
            while entry.is_due(self._store_clock.now()):
                if not await self._firer.fire(entry):
                    entry.not_before = self._clock.monotonic() + self._poll
                    self._sync.request_within(self._poll)
                    break
                entry.failures = 0
        except Exception as error:  # noqa: BLE001  the store's, or the user's `next`: it fires late
            entry.not_before = self._clock.monotonic() + entry.count_failure(self._draw)
            name = entry.recurrence.name
            self._hooks.report(error, "schedule", f"could not fire schedule {name!r}; will retry")
        finally:
            entry.firing = False
            self._wake.set()


class ScheduleSync:
    """Keeps the schedules of this process and those of the store in step."""

    def __init__(self, backend: Backend, settings: Settings, hooks: Hooks, store_clock: StoreClock) -> None:
        self._backend = backend
        self._clock = settings.clock
        self._hooks = hooks
        self._draw = settings.random.random
        self._interval = min(SYNC_POLLS * settings.poll_interval, REFRESH)
        self._store_clock = store_clock
        self._next_at = 0.0
        self.under_way = 0
        """Synchronizations that have not ended: what they read may be due."""
        self.entries: dict[str, ScheduleEntry] = {}

    def reset(self) -> None:
        """Forget what is known of the store."""
        self.request()
        now = self._clock.monotonic()
        for entry in self.entries.values():
            entry.reset(now)

    def add(self, recurrence: Recurrence) -> ScheduleEntry:
        entry = ScheduleEntry(recurrence, self._clock.monotonic())
        self.entries[recurrence.name] = entry
        self.request()
        return entry

    def forget(self, name: str) -> None:
        entry = self.entries.pop(name, None)
        if entry is not None:
            entry.cancelled = True

    def store_again(self) -> None:
        """The store is new: its schedules were not cancelled, they are lost."""
        for entry in self.entries.values():
            entry.stored = None
        self.request()

    def request(self, after: float = 0.0) -> None:
        """The next synchronization is due after this many seconds."""
        self._next_at = self._clock.monotonic() + after

    def request_within(self, seconds: float) -> None:
        """The next synchronization is due after this many seconds at the latest."""
        self._next_at = min(self._next_at, self._clock.monotonic() + seconds)

    def wait(self) -> float:
        """Seconds until the next synchronization is due."""
        return max(0.0, self._next_at - self._clock.monotonic())

    async def run_once(self) -> None:
        """Read the stored schedules, store those that are new, and mark those of this process as seen."""
        self.under_way += 1
        try:
            await self._run_round()
        finally:
            self.under_way -= 1

    async def _run_round(self) -> None:
        await self._store_clock.refresh()
        self.request(after=self._interval)
        before = {name: entry.stored for name, entry in self.entries.items()}
        with missing_stores() as missing:
            rows = {row.name: row for row in await self._backend.schedules()}
        away: StoreUnavailable | None = None
        for name, stored in before.items():
            entry, row = self.entries.get(name), rows.get(name)
            # An entry that has fired meanwhile is newer than the row. One that was stored in a store that
            # does not answer was not removed.
            if (
                entry is None
                or entry.stored is not stored
                or (missing and row is None and stored is not None)
            ):
                continue
            try:
                await self._sync_entry(entry, row)
            except StoreUnavailable as error:
                if not error.store:
                    raise
                away = error  # one of several: the others go on
        if away is not None:
            raise away

    async def _sync_entry(self, entry: ScheduleEntry, row: Schedule | None) -> None:
        if entry.waiting_since is None:
            entry.waiting_since = self._store_clock.at(entry.began)
        if entry.stored is None:
            await self._store_or_retry(entry, row)
        elif row is None:
            await self._put_again(entry, entry.stored)
        elif row.spec != entry.recurrence.spec and is_unseen(row, self._store_clock.now()):
            # The process that changed it is gone. Without this, the schedule would never fire again.
            await self._store_or_retry(entry, row)
        else:
            entry.stored = row
            await self._mark_seen(entry, row)
            await self._follow_clock(entry, row)
        if entry.stored is not None and entry.stored.paused:
            # A paused schedule is not waited for: occurrences during the pause are missed.
            entry.waiting_since = self._store_clock.now()

    async def _put_again(self, entry: ScheduleEntry, missed: Schedule) -> None:
        """The store does not have a schedule that it had. It was cancelled elsewhere; the entry stays, since
        another process may store the schedule again. Or the store has lost it, and gets it back."""
        if missed.next_at is None:
            return
        stored = await self._backend.put_schedule(replace(missed, tenant=entry.recurrence.tenant), again=True)
        if entry.stored is missed:
            entry.stored = stored
        if stored.next_at is not None:
            name = entry.recurrence.name
            log_line(WARNING, f"the store has lost schedule {name!r}: this process has stored it again")

    async def _store_or_retry(self, entry: ScheduleEntry, row: Schedule | None) -> None:
        try:
            await self._store(entry, row)
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001  the user's `next`
            self.request_within(entry.count_failure(self._draw))
            name = entry.recurrence.name
            self._hooks.report(error, "schedule", f"next of schedule {name!r} failed; will retry")

    async def _store(self, entry: ScheduleEntry, row: Schedule | None) -> None:
        recurrence = entry.recurrence
        continues = row is not None and row.spec == recurrence.spec
        now = self._store_clock.now()
        schedule = Schedule(
            name=recurrence.name,
            next_at=row.next_at if row is not None and continues else recurrence.timing.first(now),
            spec=recurrence.spec,
            paused=row is not None and row.paused,
            last_at=None if row is None else row.last_at,
            tenant=recurrence.tenant,
        )
        if row is not None and not continues and schedule.next_at is None:
            # The store keeps the old one rather than take one that has ended.
            await self._backend.drop_schedule(schedule.name)
        stored = await self._backend.put_schedule(schedule)
        if not entry.cancelled:
            entry.stored, entry.failures = stored, 0
        elif recurrence.name not in self.entries:
            await self._backend.drop_schedule(recurrence.name)

    async def _follow_clock(self, entry: ScheduleEntry, row: Schedule) -> None:
        """If the store's clock went back, do not wait until it shows the old time again. Only for intervals:
        an instant of a calendar that has fired does not fire again."""
        now, every = self._store_clock.now(), interval(entry.recurrence.timing)
        if every is None or row.next_at is None or row.last_at is None or row.last_at <= now + EARLY:
            return
        next_at = entry.recurrence.timing.first(now)
        if next_at is not None and next_at < row.next_at and row.spec == entry.recurrence.spec:
            await self._backend.fire(Fire(name=row.name, at=row.next_at, next_at=next_at))
            self.request()

    async def _mark_seen(self, entry: ScheduleEntry, row: Schedule) -> None:
        """Tell the store that a running process has the code, unless it was told lately."""
        since = self._store_clock.now() - row.seen_at  # negative if the clock went back
        if row.spec != entry.recurrence.spec or 0 <= since < REFRESH:
            return
        # Without next_at, so that a cancellation or a change at this very moment is not undone.
        stored = await self._backend.put_schedule(replace(row, next_at=None))
        if entry.stored is row and stored.next_at is not None:  # otherwise the next synchronization misses it
            entry.stored = stored


def is_unseen(schedule: Schedule, now: float) -> bool:
    """Whether no process has marked the schedule as seen for so long that none can have its code."""
    return now - schedule.seen_at > UNSEEN * REFRESH


LATE: Final = 5.0
"""Seconds after which a schedule that is due is overdue."""
SAID: Final = 15.0
"""Seconds between marking a schedule as seen and the heartbeat that says that the worker has it, at most."""

ScheduleStanding: TypeAlias = Literal["active", "failing", "overdue", "orphaned", "paused", "ended"]
"""`failing`: it fires, and its last run failed. `overdue`: it is due, and nothing has fired it. `orphaned`:
no live worker has its code."""


def standing_of(
    schedule: Schedule, fleet: Fleet | None, now: float, *, here: bool = False, error: str = ""
) -> ScheduleStanding:
    """How a schedule stands. fleet: None if the store cannot list workers. here: a worker of this process has
    its code. error: of its last run."""
    if schedule.next_at is None:
        return "ended"
    if schedule.paused:
        return "paused"
    if is_orphaned(schedule, fleet, now, here=here):
        return "orphaned"
    if now - schedule.next_at > LATE:
        return "overdue"
    return "failing" if error else "active"


def is_orphaned(schedule: Schedule, fleet: Fleet | None, now: float, *, here: bool = False) -> bool:
    """Whether no live worker has the code of a schedule.

    Workers say which schedules they have. One that does not say may have any that was marked as seen lately.
    """
    if here:
        return False
    if fleet is None:
        return is_unseen(schedule, now)
    said = [None if worker.info is None else worker.info.schedules for worker in fleet.taking]
    if not said:
        return True
    if any(names is not None and schedule.name in names for names in said):
        return False
    return is_unseen(schedule, now) if None in said else now - schedule.seen_at > SAID
