"""Bugs in timeouts, schedules, deployments and the times of events: each names the tests that find it."""

from __future__ import annotations

from typing import Any

from tests.mutants.kit import Patch, mutant
from treadle.engine.run import attempt
from treadle.engine.run.undecodable import UndecodableItems
from treadle.engine.schedule.occurrence import BoundedTiming
from treadle.engine.schedule.scheduler import Scheduler
from treadle.engine.wait.announce import Announcer

TIMEOUTS = "tests/engine/test_timeouts.py"
SCHEDULES = "tests/engine/test_schedules.py"
DEPLOYS = "tests/engine/test_deploys.py"
EVENT_TIMES = "tests/engine/test_event_times.py"


@mutant("a result in the grace of a timeout does not count", tests=TIMEOUTS)
def grace_ignored(patch: Patch) -> None:
    real = attempt.overrides

    def overrides(stop: Any, error: Any, *, cancelled: bool) -> bool:
        return real(stop, error, cancelled=True)

    patch(attempt, "overrides", overrides)


@mutant("a list of schedules does not wake the loop that fires them", tests=SCHEDULES)
def list_wakes_nothing(patch: Patch) -> None:
    async def sync(self: Any) -> None:
        await self._sync.run_once()

    patch(Scheduler, "sync", sync)


@mutant("a schedule goes on after its end", tests=SCHEDULES)
def end_ignored(patch: Patch) -> None:
    def after(self: Any, at: float) -> Any:
        return self.inner.after(at)

    patch(BoundedTiming, "after", after)


@mutant("an undecodable item is tried for ever", tests=DEPLOYS)
def undecodable_for_ever(patch: Patch) -> None:
    async def time_left(self: Any, lease: Any) -> float:
        return 600.0

    patch(UndecodableItems, "time_left", time_left)


@mutant("an undecodable item is dead at once", tests=DEPLOYS)
def undecodable_at_once(patch: Patch) -> None:
    async def time_left(self: Any, lease: Any) -> float:
        return 0.0

    patch(UndecodableItems, "time_left", time_left)


@mutant("queued items have the time of the process that stored them", tests=EVENT_TIMES)
def queued_by_wall_clock(patch: Patch) -> None:
    real = Announcer.queued

    def queued(self: Any, items: Any, at: float, existing: Any = None, parent: Any = None) -> None:
        real(self, items, 0.0, existing, parent)

    patch(Announcer, "queued", queued)
