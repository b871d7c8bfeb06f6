"""Occurrences: when a schedule is due, and what becomes of those that were missed.

Pure arithmetic. All processes of a fleet have to come to the same answer, so an occurrence is computed from
the one before it, never from the time at which somebody happened to look.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from treadle.cron import CronSchedule
from treadle.errors import ScheduleError
from treadle.signature import module_name
from treadle.timing import Instant, instant

CatchUp: TypeAlias = Literal["none", "one", "all"]
CATCH_UPS: Final[tuple[str, ...]] = get_args(CatchUp)
NextFn: TypeAlias = Callable[[float], Instant | None]

MOST_CAUGHT_UP: Final = 100
"""So many missed occurrences are caught up with `catch_up="all"`: the latest ones."""
MOST_STEPS: Final = 1000
"""So many calls of a user's `next` in one go; a longer way is gone in several."""

Lateness: TypeAlias = Literal["due", "slept", "missed"]
"""How an occurrence comes to be carried out: in its time, or however late if that is the store's doing
(`due`); after this process, though alive, was held up, as by a suspended machine (`slept`); after a time in
which nothing ran (`missed`)."""


class Timing(Protocol):
    """When a schedule is due. `at` is always one of its own occurrences."""

    def spec(self) -> dict[str, Any]:
        """What says the same in every process that has the same code, and something else if it changes."""
        ...

    def first(self, now: float) -> float | None:
        """The first occurrence of a schedule that is stored at `now`."""
        ...

    def after(self, at: float) -> float | None:
        """The occurrence that follows `at`; None: it was the last."""
        ...

    def beyond(self, at: float, until: float) -> float | None:
        """The first occurrence after `until`. If it is not after it: as far as it got, go on from there."""
        ...

    def recent(self, at: float, until: float, count: int) -> float:
        """The occurrence to go on from, such that at most `count` of those up to `until` are left."""
        ...


class Occurrence(NamedTuple):
    """What to do about an occurrence: fire it or skip it, and then go on to the next."""

    next_at: float | None
    fires: bool


def decide(timing: Timing, at: float, until: float, lateness: Lateness, catch_up: CatchUp) -> Occurrence:
    """What to do about the occurrence `at`, and those behind it `until` then if they share its fate."""
    if lateness == "due":
        return Occurrence(timing.after(at), fires=True)
    if catch_up == "all":
        return _each(timing, at, until)
    beyond = timing.beyond(at, until)
    if beyond is not None and beyond <= until:
        return Occurrence(beyond, fires=False)
    # Who slept through some is late, but was there: `none` is about times in which nothing was.
    return Occurrence(beyond, fires=catch_up == "one" or lateness == "slept")


def _each(timing: Timing, at: float, until: float) -> Occurrence:
    start = timing.recent(at, until, MOST_CAUGHT_UP)
    return Occurrence(start, fires=False) if start > at else Occurrence(timing.after(at), fires=True)


# ------------------------------------------------------------------------------------------------- timings


class Cron:
    """By a cron expression, in a time zone."""

    def __init__(self, expression: str, tz: str) -> None:
        self._schedule = CronSchedule(expression, tz)

    def spec(self) -> dict[str, Any]:
        return {"cron": self._schedule.expression, "tz": self._schedule.tz}

    def first(self, now: float) -> float | None:
        return self.after(now)

    def after(self, at: float) -> float | None:
        due = self._schedule.next_after(at)
        return None if due is None else due.timestamp()

    def beyond(self, at: float, until: float) -> float | None:
        return self.after(max(at, until))

    def recent(self, at: float, until: float, count: int) -> float:
        earlier = self._schedule.recent(until, count)
        # Where clocks change, the way back may not lead past quite the same instants as the way forward.
        start = None if earlier is None else self.after(earlier - 1)
        return at if start is None else max(at, start)


class Every:
    """Each so many seconds, from the first occurrence on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def spec(self) -> dict[str, Any]:
        return {"every": self._seconds}

    def first(self, now: float) -> float:
        return now + self._seconds

    def after(self, at: float) -> float:
        return at + self._seconds

    def beyond(self, at: float, until: float) -> float:
        following = at + (math.floor((until - at) / self._seconds) + 1) * self._seconds
        # Rounding may have brought it back to where it was.
        return following if following > until else following + self._seconds

    def recent(self, at: float, until: float, count: int) -> float:
        return max(at, self.beyond(at, until) - count * self._seconds)


class Next:
    """By a function of the user's: `next(now)` the first time, then `next(occurrence before)`."""

    def __init__(self, fn: NextFn) -> None:
        self.fn = fn

    def spec(self) -> dict[str, Any]:
        name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
        return {"next": f"{module_name(self.fn.__module__)}.{name}"}

    def first(self, now: float) -> float | None:
        due = self.fn(now)
        return None if due is None else instant(due, field="next")

    def after(self, at: float) -> float | None:
        due = self.first(at)
        if due is not None and due <= at:
            raise ScheduleError(
                f"next={self.spec()['next']} answered {due!r} for {at!r}: "
                "it must answer a later instant, or None to end the schedule",
                parameters=("next",),
            )
        return due

    def beyond(self, at: float, until: float) -> float | None:
        due: float | None = at
        for _ in range(MOST_STEPS):
            if due is None or due > until:
                break
            due = self.after(due)
        return due

    def recent(self, at: float, until: float, count: int) -> float:
        left = deque([at], maxlen=count)
        for _ in range(MOST_STEPS):
            due = self.after(left[-1])
            if due is None or due > until:
                break
            left.append(due)
        return left[0]
