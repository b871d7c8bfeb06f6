"""Schedules as they are stored, and how they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from treadle.engine.core import Core
from treadle.engine.schedule.scheduler import ScheduleStanding as ScheduleStanding
from treadle.engine.schedule.scheduler import is_orphaned, standing_of
from treadle.item import OPEN, TELL_NAMES, Schedule
from treadle.records import ScheduleRun
from treadle.store.fleet import Fleet
from treadle.why import Reason, Why

DYING: Final = 2
"""Runs of a schedule in a row that died, from which on it is a problem."""


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
        return [
            row for row in rows if row.name.startswith(self.prefix) and not row.name.startswith(TELL_NAMES)
        ]

    async def errors(self, rows: Sequence[Schedule]) -> dict[str, str]:
        """By full name: what the last run of a schedule raised. Without those that did not fail."""
        runs = await self.runs(rows, 1)
        return {name: those[0].error for name, those in runs.items() if those[0].error}

    async def runs(self, rows: Sequence[Schedule], count: int) -> dict[str, list[ScheduleRun]]:
        """By full name: the last runs, newest first."""
        backend, found = self._core.backend, dict[str, list[ScheduleRun]]()
        if "recording" not in backend.capabilities or all(row.last_at is None for row in rows):
            return {}
        for run in await backend.schedule_runs(count=count):
            found.setdefault(run.name, []).append(run)
        return found

    def dying(
        self, states: Sequence[ScheduleState], runs: Mapping[str, Sequence[ScheduleRun]]
    ) -> list[ScheduleRun]:
        """Of each active schedule whose last runs have died, the newest of them. A run that submitted
        nothing, or that has not ended, says nothing."""
        found: list[ScheduleRun] = []
        for state in states:
            last = [
                run
                for run in runs.get(f"{self.prefix}{state.name}", ())
                if run.id is not None and run.status not in OPEN
            ][:DYING]
            if state.state == "active" and len(last) == DYING and {run.status for run in last} == {"dead"}:
                found.append(msgspec.structs.replace(last[0], name=state.name))
        return found

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
