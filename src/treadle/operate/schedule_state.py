"""Schedules as they are stored, and how they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from treadle.engine.core import Core
from treadle.engine.schedule.scheduler import ScheduleStanding as ScheduleStanding
from treadle.engine.schedule.scheduler import is_orphaned, standing_of
from treadle.item import Schedule
from treadle.store.fleet import Fleet
from treadle.why import Reason, Why

HIDDEN: Final = "treadle.problems."
"""How the names of schedules begin that are not those of users: see `treadle.operate.tell`."""


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored. Instants are epoch seconds."""

    name: str
    next_at: float | None
    """When it is due next. None: it has ended."""
    last_at: float | None
    """The last occurrence that fired or was skipped."""
    paused: bool
    orphaned: bool
    """No live worker has its code, so it does not fire."""
    timing: Mapping[str, Any]
    """`{"cron": ..., "tz": ...}`, `{"every": seconds}`, or `{"next": name of the function}`, with `start` and
    `end` if they were given."""
    seen_at: float
    """When a process that has its code last marked it as seen."""
    state: ScheduleStanding
    """All of this in a word: `active`, `failing`, `overdue`, `orphaned`, `paused` or `ended`. Overdue: it is
    due, and no process has fired it."""
    reasons: tuple[Reason, ...] = ()
    """Unless it is active or has ended: why it does not fire, or what failed, as `why` says it."""
    last_error: str = ""
    """Why its last run submitted nothing: what `run` raised. Empty: it did not fail, or the store keeps no
    runs."""

    @property
    def ended(self) -> bool:
        """Whether no further occurrence comes."""
        return self.next_at is None


class StoredSchedules:
    """Reads the schedules of one tenant, or of all."""

    def __init__(self, core: Core, tenant: str | None) -> None:
        self._core = core
        self._tenant = tenant
        self._scheduler = core.scheduler
        # Quoted, so that no name of one tenant can be read as a name of another.
        self.prefix = "" if tenant is None else f"{tenant.replace('%', '%25').replace('/', '%2F')}/"

    async def rows(self) -> Sequence[Schedule]:
        await self._core.connect()
        if self._scheduler.workers and any(e.stored is None for e in self._scheduler.entries.values()):
            await self._scheduler.sync()
        rows = await self._core.backend.schedules()
        return [row for row in rows if row.name.startswith(self.prefix) and not row.name.startswith(HIDDEN)]

    async def errors(self, rows: Sequence[Schedule]) -> dict[str, str]:
        """By full name: what the last run of a schedule raised. Without those that did not fail."""
        backend = self._core.backend
        if "recording" not in backend.capabilities or all(row.last_at is None for row in rows):
            return {}
        return {run.name: run.error for run in await backend.schedule_runs(count=1) if run.error}

    def is_here(self, full: str) -> bool:
        """Whether a worker of this process has the code of a schedule."""
        return full in self._scheduler.entries and bool(self._scheduler.workers)

    def states(
        self, rows: Sequence[Schedule], fleet: Fleet | None, now: float, errors: Mapping[str, str]
    ) -> list[ScheduleState]:
        return [self._state(row, fleet, now, errors.get(row.name, "")) for row in rows]

    def _state(self, row: Schedule, fleet: Fleet | None, now: float, error: str) -> ScheduleState:
        here, name = self.is_here(row.name), row.name.removeprefix(self.prefix)
        state = standing_of(row, fleet, now, here=here, error=error)
        fires = state in ("active", "ended")
        return ScheduleState(
            name=name,
            next_at=row.next_at,
            last_at=row.last_at,
            paused=row.paused,
            orphaned=is_orphaned(row, fleet, now, here=here),
            timing=_read_spec(row.spec),
            seen_at=row.seen_at,
            state=state,
            reasons=() if fires else self.why(name, row, fleet, now, error).reasons,
            last_error=error,
        )

    def why(
        self,
        name: str,
        row: Schedule | None,
        fleet: Fleet | None,
        now: float,
        error: str = "",
        names: tuple[str, ...] = (),
    ) -> Why:
        """Why a schedule has not fired. error: of its last run. names: those of all schedules, to propose one
        if it is unknown."""
        here = row is not None and self.is_here(row.name)
        from .why import ScheduleFacts, why_schedule  # few programs need it

        facts = ScheduleFacts(
            name=name,
            tenant=self._tenant,
            now=now,
            stored=row,
            state="unknown" if row is None else standing_of(row, fleet, now, here=here, error=error),
            error=error,
            orphaned=row is not None and is_orphaned(row, fleet, now, here=here),
            taking=0 if fleet is None else len(fleet.taking),
            names=names,
        )
        return why_schedule(facts)


def _read_spec(spec: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(spec, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
