"""Schedules: when each is due, how its last runs went, and what keeps it from firing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from treadle.base.timing import iso
from treadle.dashboard.cron_words import MOST_CHARACTERS, timing_words
from treadle.dashboard.payloads import shown_text
from treadle.dashboard.views import Pages, View, page_of, pages_json
from treadle.dashboard.visit import Visit
from treadle.define.cron import CronSchedule
from treadle.errors import CronError
from treadle.item import Status
from treadle.operate.fleet_json import reason_json, schedule_json
from treadle.operate.schedule_state import ScheduleStanding, ScheduleState
from treadle.records import ScheduleRun
from treadle.why import Reason

PER_PAGE: Final = 50
MOST_RUNS: Final = 30
MOST_NEXT: Final = 5
FAR: Final = 5 * 366 * 86_400.0
"""Seconds. If occurrences are further apart, no more of them are looked for: each takes long."""
ORDER: Final[tuple[ScheduleStanding, ...]] = ("failing", "overdue", "orphaned", "active", "paused", "ended")


class RunDot(msgspec.Struct, frozen=True):
    """One occurrence that was fired or skipped."""

    at: float
    """When it was due."""
    fired_at: float
    id: str | None
    tenant: str | None
    status: Status | None
    """None: there is no item, or it is not kept any more."""
    error: str = ""
    """What `run` raised."""

    @property
    def word(self) -> str:
        if self.error:
            return "failed"
        if self.id is None:
            return "skipped"
        return self.status or "missing"


class ScheduleRow(msgspec.Struct, frozen=True):
    schedule: ScheduleState
    name: str
    state: ScheduleStanding
    words: str
    expression: str
    """The cron expression, where the words say something else. Else empty."""
    start: float | None
    end: float | None
    next: list[float]
    """The next occurrences, as far as the timing says them. Empty while it is paused or orphaned."""
    last_at: float | None
    runs: list[RunDot]
    """The oldest first."""
    failed: int
    """How many of these submitted nothing because `run` raised."""
    skipped: int
    """How many of these were skipped or missed."""
    reasons: list[Reason]
    here: bool = True
    """This process has its code: it can be run now."""


class SchedulesPage(msgspec.Struct, frozen=True):
    schedules: list[ScheduleRow]
    pages: Pages
    states: dict[ScheduleStanding, int]
    """How many schedules there are, on all pages."""
    runs_known: bool
    """False: the store keeps no runs, or they were not in time."""


async def read(visit: Visit) -> SchedulesPage:
    schedules = visit.client.schedules
    states, runs = await asyncio.gather(schedules.list(), _runs(visit))
    states.sort(key=lambda state: (ORDER.index(state.state), state.name))
    shown, pages = page_of(visit, states, PER_PAGE)
    return SchedulesPage(
        schedules=[
            schedule_row(
                _shown(visit, state), _shown_runs(visit, runs, state), here=schedules.has_code(state.name)
            )
            for state in shown
        ],
        pages=pages,
        states=dict(Counter(state.state for state in states)),
        runs_known=runs is not None,
    )


async def _runs(visit: Visit) -> dict[str, list[ScheduleRun]] | None:
    if "recording" not in visit.client.backend.capabilities:
        return None
    return await visit.in_time(visit.client.schedules.runs(MOST_RUNS))


HIDDEN: Final = "what was raised is hidden"


def _shown(visit: Visit, state: ScheduleState) -> ScheduleState:
    """What a visitor sees of it. An error is a payload."""
    if visit.access.payloads or not state.last_error:
        return state
    reasons = tuple(msgspec.structs.replace(each, text=shown_text(visit, each)) for each in state.reasons)
    return msgspec.structs.replace(state, last_error=HIDDEN, reasons=reasons)


def _shown_runs(
    visit: Visit, runs: Mapping[str, list[ScheduleRun]] | None, state: ScheduleState
) -> list[ScheduleRun]:
    found = (runs or {}).get(state.name, [])
    if visit.access.payloads:
        return found
    return [msgspec.structs.replace(run, error=HIDDEN) if run.error else run for run in found]


def schedule_row(state: ScheduleState, runs: list[ScheduleRun], *, here: bool = True) -> ScheduleRow:
    """A schedule, with its runs, newest first. here: this process has its code."""
    words, expression = timing_words(state.timing), str(state.timing.get("cron", ""))
    fires = state.state in ("active", "failing", "overdue")
    dots = [RunDot(run.at, run.fired_at, run.id, run.tenant, run.status, run.error) for run in reversed(runs)]
    return ScheduleRow(
        schedule=state,
        name=state.name,
        state=state.state,
        words=words,
        expression="" if words.startswith(expression) else expression,
        start=_instant(state.timing, "start"),
        end=_instant(state.timing, "end"),
        next=next_times(state) if fires else [],
        last_at=state.last_at,
        runs=dots,
        failed=sum(dot.word == "failed" for dot in dots),
        skipped=sum(dot.word == "skipped" for dot in dots),
        reasons=list(state.reasons),
        here=here,
    )


def next_times(state: ScheduleState) -> list[float]:
    """The next occurrences of a schedule, from the one that is stored on."""
    if state.next_at is None:
        return []
    timing, end = state.timing, _instant(state.timing, "end")
    every, expression = timing.get("every"), timing.get("cron")
    found: tuple[float, ...] = (state.next_at,)
    if isinstance(expression, str):
        found = next_of_cron(expression, str(timing.get("tz", "UTC")), state.next_at)
    elif isinstance(every, int | float):
        found = tuple(state.next_at + step * every for step in range(MOST_NEXT))
    return [at for at in found if end is None or at <= end]


def _instant(timing: Mapping[str, Any], name: str) -> float | None:
    value = timing.get(name)
    return float(value) if isinstance(value, int | float) else None


@lru_cache(maxsize=2000)
def next_of_cron(expression: str, tz: str, first: float) -> tuple[float, ...]:
    """The occurrences of a cron expression from `first` on, which is one. Those of today's code: the stored
    text is checked again, and it may be of any origin."""
    if len(expression) > MOST_CHARACTERS:
        return (first,)
    found = [first]
    try:
        schedule = CronSchedule(expression, tz)
        while len(found) < MOST_NEXT and found[-1] - first < FAR:
            due = schedule.next_after(found[-1])
            if due is None:
                break
            found.append(due.timestamp())
    except (CronError, ValueError, OverflowError):
        pass
    return tuple(found)


def to_json(visit: Visit, page: SchedulesPage) -> dict[str, Any]:
    """The schedules as `treadle schedules --json` has them, with their runs."""
    return {
        "schedules": [
            {
                **schedule_json(row.schedule),
                "words": row.words,
                "next": [iso(at) for at in row.next],
                "runs": [_run_json(each) for each in row.runs] if page.runs_known else None,
                "reasons": [reason_json(each) for each in row.reasons],
            }
            for row in page.schedules
        ],
        **pages_json(page.pages),
        "states": page.states,
    }


def _run_json(run: RunDot) -> dict[str, Any]:
    return {**msgspec.structs.asdict(run), "at": iso(run.at), "fired_at": iso(run.fired_at)}


VIEW = View(
    "/schedules",
    "schedules.html",
    read,
    "schedules",
    of_fleet=True,
    needs=frozenset(("schedules",)),
    to_json=to_json,
)
