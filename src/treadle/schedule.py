"""Schedules: work that recurs. `app.schedule(...)` or `Schedule` makes one, `app.schedules` operates on all.

A schedule has one name in the whole fleet. The store keeps when it is due next, so it survives restarts. The
code that makes the work stays in the processes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace
from typing_extensions import Unpack

from treadle.backend import check_capable
from treadle.base.callables import check_plain
from treadle.base.ids import check_name
from treadle.base.timing import Duration, Instant, instant, seconds
from treadle.define.work_type import needed_arguments
from treadle.doers.base import check_whole
from treadle.engine.core import Core
from treadle.engine.open_transaction import refuse_in_transaction
from treadle.engine.schedule.entry import Recurrence, ScheduleEntry
from treadle.engine.schedule.entry import RunFn as RunFn
from treadle.engine.schedule.occurrence import (
    CATCH_UPS,
    BoundedTiming,
    CronTiming,
    EveryTiming,
    NextTiming,
    Timing,
    user_function,
)
from treadle.engine.schedule.occurrence import CatchUp as CatchUp
from treadle.engine.schedule.occurrence import NextFn as NextFn
from treadle.errors import InputError, NotFound, ScheduleError
from treadle.handle import EnqueueCall, Handle
from treadle.item import DEFAULT_TENANT, AuditNote
from treadle.operate.observer import begin_read
from treadle.operate.schedule_state import ScheduleState as ScheduleState
from treadle.operate.schedule_state import StoredSchedules
from treadle.options import QUEUE_OPTIONS, Options, check_options
from treadle.records import ScheduleRun
from treadle.store.audit_note import check_recording, log_change, noted_for
from treadle.store.fleet import Fleet
from treadle.why import Why

LEAST_EVERY: Final = 0.001

_encoder = msgspec.json.Encoder(order="deterministic")


class Schedule:
    """Work that recurs, as a value: `Treadle(schedules=[Schedule("report", every=60, run=report)])`. Several
    apps may have it, as that of a program and those of its tests."""

    __slots__ = ("_catch_up", "_options", "_run", "_timing", "name")

    def __init__(
        self,
        name: str,
        *,
        run: RunFn,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        next: NextFn | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        catch_up: CatchUp = "none",
        **options: Unpack[Options],
    ) -> None:
        """As for `app.schedule`, which checks them in the same way."""
        self.name = check_name(name, field="name")
        self._timing = timing_of(cron, tz, every, next, start, end)
        self._run = _checked_run(run)
        if catch_up not in CATCH_UPS:
            raise InputError.of("catch_up", catch_up, "must be 'none', 'one' or 'all'")
        self._catch_up: CatchUp = catch_up
        self._options = check_options(options, "schedule", QUEUE_OPTIONS)

    def recurrence(self, name: str, tenant: str) -> Recurrence:
        """What recurs, under its full name, for the engine."""
        return Recurrence(
            name=name,
            tenant=tenant,
            timing=self._timing,
            run=self._run,
            catch_up=self._catch_up,
            options=self._options,
            spec=_encoder.encode(self._timing.spec()),
        )

    def __repr__(self) -> str:
        return f"<Schedule {self.name}>"


class ScheduleHandle:
    """One schedule of this process: what `app.schedule(...)` returns."""

    __slots__ = ("_entry", "_preview", "_schedules", "name")

    def __init__(self, schedules: Schedules, name: str, entry: ScheduleEntry, preview: float | None) -> None:
        self._schedules = schedules
        self._entry = entry
        self._preview = preview
        self.name = name

    @property
    def next_at(self) -> float | None:
        """When it is due next, in epoch seconds, as this process last saw it in the store.

        Before it is stored: counted from its creation. None: it has ended, or its `next` was not called yet.
        """
        if self._entry.cancelled:
            return None
        stored = self._entry.stored
        return self._preview if stored is None else stored.next_at

    async def cancel(self) -> None:
        """End it, in the whole fleet. Items that it has submitted go on. Idempotent."""
        await self._schedules.remove(self.name)

    async def pause(self) -> None:
        """Pause it, in the whole fleet, until it is resumed. Occurrences in between count as missed."""
        await self._schedules.pause(self.name)

    async def resume(self) -> None:
        """Resume it, in the whole fleet."""
        await self._schedules.resume(self.name)

    async def trigger(self) -> Handle[Any, Any] | None:
        """Run it now, in addition to its times, even if it is paused. None if `run` returned None."""
        return await self._schedules.run_now(self._entry.recurrence)

    def __repr__(self) -> str:
        return f"<ScheduleHandle {self.name}>"


class Schedules:
    """The schedules of a store, for operators: `app.schedules`.

    A client that is bound to a tenant sees only the schedules of that tenant. Other clients see all of them,
    those of a tenant under the name `tenant/name`.
    """

    def __init__(self, core: Core, tenant: str | None, note: AuditNote | None = None) -> None:
        self._core = core
        self._note = noted_for(note, tenant)
        self._scheduler = core.scheduler
        self._tenant = tenant
        self._stored = StoredSchedules(core, tenant)
        self._prefix = self._stored.prefix

    def add(self, schedule: Schedule) -> ScheduleHandle:
        """Let this app fire a schedule. It is stored at once if the app runs, otherwise when it starts.

        `ScheduleError` if the app has a schedule of that name already.
        """
        core = self._core
        check_capable(core.backend, "schedules")
        if not isinstance(schedule, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.of("schedules", schedule, "must be a Schedule, as Schedule(...) makes one")
        name, full = schedule.name, self._full(schedule.name)
        if full in self._scheduler.entries:
            raise ScheduleError(
                f"this app has a schedule {name!r} already: choose another name, or end the first one "
                f"before, with `await app.schedules.cancel({name!r})`",
                parameters=("name",),
            )
        made = schedule.recurrence(full, DEFAULT_TENANT if self._tenant is None else self._tenant)
        known = user_function(made.timing) is None
        preview = made.timing.first(core.settings.clock.now()) if known else None
        return ScheduleHandle(self, name, self._scheduler.add(made), preview)

    async def runs(self, count: int = 30) -> dict[str, list[ScheduleRun]]:
        """The last runs of each schedule, by its name, newest first: up to `count` of the 50 that are kept.
        A run is an occurrence that was fired, with the first item that it submitted and the status of that
        item now. A schedule that has not run is left out."""
        check_whole(count, "count")
        await begin_read(self._core, "recording")
        found: dict[str, list[ScheduleRun]] = {}
        for run in await self._core.backend.schedule_runs(count=count):
            if run.name.startswith(self._prefix):
                name = run.name.removeprefix(self._prefix)
                found.setdefault(name, []).append(msgspec.structs.replace(run, name=name))
        return found

    async def list(self) -> list[ScheduleState]:
        """All schedules, by name."""
        rows = await self._stored.rows()
        errors = await self._stored.errors(rows)
        now, fleet = await self._fleet()
        return self._stored.states(rows, fleet, now, errors)

    def has_code(self, name: str) -> bool:
        """Whether this process has the code of a schedule, so that `trigger` can run it."""
        return self._full(name) in self._scheduler.entries

    async def why(self, name: str) -> Why:
        """Say why a schedule has not fired, and when it will."""
        full = self._full(name)
        rows = await self._stored.rows()
        row = next((row for row in rows if row.name == full), None)
        error = "" if row is None else (await self._stored.errors([row])).get(full, "")
        now, fleet = await self._fleet()
        names = tuple(row.name.removeprefix(self._prefix) for row in rows)
        return self._stored.why(name, row, fleet, now, error, names)

    async def pause(self, name: str) -> None:
        """Pause it, in the whole fleet, until it is resumed. Occurrences in between count as missed.

        `NotFound` if there is none of that name.
        """
        await self._set_paused(name, True)

    async def resume(self, name: str) -> None:
        """Resume it, in the whole fleet. `NotFound` if there is none of that name."""
        await self._set_paused(name, False)

    async def trigger(self, name: str) -> Handle[Any, Any] | None:
        """Run it now, in addition to its times, even if it is paused. None if `run` returned None.

        `NotFound` if there is none of that name; `ScheduleError` if its code is not in this process.
        """
        entry = self._scheduler.entries.get(self._full(name))
        if entry is not None:
            return await self.run_now(entry.recurrence)
        await self._core.connect()
        if not any(row.name == self._full(name) for row in await self._core.backend.schedules()):
            raise NotFound(name, "schedule")
        raise ScheduleError(
            f"the code of schedule {name!r} is not in this process: trigger it where app.schedule is called",
            parameters=("name",),
        )

    async def cancel(self, name: str) -> None:
        """End it, in the whole fleet. Items that it has submitted go on. `NotFound` if there is none.

        Remove the code as well: a process that calls `app.schedule` for it, as at its start, brings it back.
        """
        if not await self.remove(name):
            raise NotFound(name, "schedule")

    async def remove(self, name: str) -> bool:
        """As `cancel`, but False if there is none of that name."""
        refuse_in_transaction(self._core.backend, "schedules.cancel()")
        await self._core.connect()
        entry = self._scheduler.entries.get(self._full(name))
        self._check_note()
        dropped = await self._scheduler.cancel(self._full(name), self._note)
        self._log("cancel_schedule", name, dropped)
        return dropped or (entry is not None and entry.stored is None)

    async def run_now(self, recurrence: Recurrence) -> Handle[Any, Any] | None:
        work = await recurrence.make_work()
        if work is None:
            return None
        note = None
        if self._note is not None:
            note = replace(self._note, verb="trigger_schedule", about=recurrence.name)
        return await EnqueueCall(self._core, recurrence.tenant, work, dict(recurrence.options), note)

    def _full(self, name: str) -> str:
        return check_name(self._prefix + check_name(name, field="name"), field="name")

    async def _set_paused(self, name: str, paused: bool) -> None:
        refuse_in_transaction(self._core.backend, "schedules.pause() or resume()")
        await self._core.connect()
        full = self._full(name)
        entry = self._scheduler.entries.get(full)
        if entry is not None and entry.stored is None:
            await self._scheduler.sync()
        self._check_note()
        found = await self._scheduler.pause(full, paused, self._note)
        self._log("pause_schedule" if paused else "resume_schedule", name, found)
        if not found:
            raise NotFound(name, "schedule")

    def _check_note(self) -> None:
        if self._note is not None:
            check_recording(self._core.backend)

    def _log(self, verb: str, name: str, changed: bool) -> None:
        log_change(self._note, verb, [self._full(name)], int(changed), self._tenant)

    async def _fleet(self) -> tuple[float, Fleet | None]:
        """The time, and the workers. None: the store cannot list them."""
        backend = self._core.backend
        now = await backend.now()
        return now, Fleet(await backend.workers(), now) if "listing" in backend.capabilities else None


def _checked_run(run: RunFn) -> RunFn:
    if not callable(run):
        raise InputError.of("run", run, "must be a function that returns a Work, as in run=lambda: report()")
    if missing := needed_arguments(run):
        raise InputError.of(
            "run", run, f"is called without arguments, and needs {missing}: use run=lambda: ..."
        )
    return run


def timing_of(
    cron: str | None,
    tz: str | None,
    every: Duration | None,
    next: NextFn | None,
    start: Instant | None = None,
    end: Instant | None = None,
) -> Timing:
    """The timing that the arguments of `app.schedule` give. `ScheduleError` unless there is exactly one, and
    if `end` is before `start`."""
    timing = _timing(cron, tz, every, next)
    first = None if start is None else instant(start, field="start")
    last = None if end is None else instant(end, field="end")
    if first is not None and last is not None and last < first:
        raise ScheduleError(
            f"end={end!r} is before start={start!r}: it would never occur", parameters=("start", "end")
        )
    return timing if first is None and last is None else BoundedTiming(timing, first, last)


def _timing(cron: str | None, tz: str | None, every: Duration | None, next: NextFn | None) -> Timing:
    given = [name for name, value in (("cron", cron), ("every", every), ("next", next)) if value is not None]
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        raise ScheduleError(f"a schedule takes one of cron=, every= and next=, not {said}", parameters=given)
    if tz is not None and cron is None:
        raise ScheduleError(f"tz= goes with cron=, not with {given[0]}=", parameters=("tz",))
    if cron is not None:
        if not isinstance(cron, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.of("cron", cron, "must be text, as in cron='0 3 * * *'")
        return CronTiming(cron, "UTC" if tz is None else tz)
    if every is not None:
        number = seconds(every, field="every")
        if number < LEAST_EVERY:
            raise InputError.of("every", every, "must be a millisecond or more")
        return EveryTiming(number)
    return NextTiming(check_plain(next, "next"))


def stored_name(schedules: Schedules, name: str) -> str:
    """Return the name of a schedule in the store, for the modules of this package."""
    return schedules._full(name)  # pyright: ignore[reportPrivateUsage]
