"""When a schedule is due, and which missed occurrences fire.

Pure arithmetic. All processes of a fleet must reach the same answer, so an occurrence is computed from the
one before it, never from the time of the call.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from treadle.base.callables import check_not_awaitable
from treadle.base.timing import Instant, instant
from treadle.define.cron import CronSchedule
from treadle.define.signature import module_name
from treadle.errors import ScheduleError

CatchUp: TypeAlias = Literal["none", "one", "all"]
CATCH_UPS: Final[tuple[str, ...]] = get_args(CatchUp)
NextFn: TypeAlias = Callable[[float], Instant | None]

MOST_CAUGHT_UP: Final = 100
"""`catch_up="all"` fires at most this many missed occurrences: the latest ones."""
MOST_STEPS: Final = 1000
"""Calls of a user's `next` in one go. A longer series is computed in several goes."""

Lateness: TypeAlias = Literal["due", "slept", "missed"]
"""Why an occurrence fires when it does.

due: on time, or late because the store did not answer.
slept: late because this process was suspended, as with its machine.
missed: late because no process was running.
"""


class Timing(Protocol):
    """When a schedule is due. `at` is always an occurrence of this timing."""

    def spec(self) -> dict[str, Any]:
        """The same in every process that has the same code; different if the timing changes."""
        ...

    def first(self, now: float) -> float | None:
        """The first occurrence of a schedule that is stored at `now`."""
        ...

    def first_from(self, start: float, now: float) -> float | None:
        """As `first`, without occurrences before `start`. One at `start` counts."""
        ...

    def after(self, at: float) -> float | None:
        """The occurrence that follows `at`. None: it was the last."""
        ...

    def first_after(self, at: float, until: float) -> float | None:
        """The first occurrence after `until`, counted from `at`. It may stop early: if the answer is not
        after `until`, call again with it as `at`."""
        ...

    def recent(self, at: float, until: float, count: int) -> float:
        """The occurrence from which at most `count` occurrences are left up to `until`."""
        ...


class Occurrence(NamedTuple):
    """What to do about one occurrence."""

    next_at: float | None
    """The occurrence after it."""
    fires: bool
    """False: skip it."""


def decide(timing: Timing, at: float, until: float, lateness: Lateness, catch_up: CatchUp) -> Occurrence:
    """Decide whether the occurrence `at` fires. Those up to `until` are late for the same reason."""
    if lateness == "due":
        return Occurrence(timing.after(at), fires=True)
    if catch_up == "all":
        start = timing.recent(at, until, MOST_CAUGHT_UP)
        return Occurrence(start, fires=False) if start > at else Occurrence(timing.after(at), fires=True)
    next_one = timing.first_after(at, until)
    if next_one is not None and next_one <= until:
        return Occurrence(next_one, fires=False)
    # A process that was suspended is late, but it was running: `none` is for times without any process.
    return Occurrence(next_one, fires=catch_up == "one" or lateness == "slept")


# ------------------------------------------------------------------------------------------------- timings


class CronTiming:
    """By a cron expression, in a time zone."""

    def __init__(self, expression: str, tz: str) -> None:
        self._schedule = CronSchedule(expression, tz)

    def spec(self) -> dict[str, Any]:
        return {"cron": self._schedule.expression, "tz": self._schedule.tz}

    def first(self, now: float) -> float | None:
        return self.after(now)

    def first_from(self, start: float, now: float) -> float | None:
        # Occurrences are at whole seconds: at most one lies between this instant and `start`.
        due = self.after(max(now, start - 0.001))
        return due if due is None or due >= start else self.after(due)

    def after(self, at: float) -> float | None:
        due = self._schedule.next_after(at)
        return None if due is None else due.timestamp()

    def first_after(self, at: float, until: float) -> float | None:
        return self.after(max(at, until))

    def recent(self, at: float, until: float, count: int) -> float:
        earlier = self._schedule.recent(until, count)
        # Where clocks change, searching backwards may not find quite the same instants as searching forwards.
        start = None if earlier is None else self.after(earlier - 1)
        return at if start is None else max(at, start)


class EveryTiming:
    """Every `seconds`, counted from the first occurrence."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def spec(self) -> dict[str, Any]:
        return {"every": self.seconds}

    def first(self, now: float) -> float:
        return now + self.seconds

    def first_from(self, start: float, now: float) -> float:
        """It counts from `start`, also if it is stored later."""
        return start if now <= start else self.first_after(start, now)

    def after(self, at: float) -> float:
        return at + self.seconds

    def first_after(self, at: float, until: float) -> float:
        next_one = at + (math.floor((until - at) / self.seconds) + 1) * self.seconds
        # Rounding may have led back to `until` or before it.
        return next_one if next_one > until else next_one + self.seconds

    def recent(self, at: float, until: float, count: int) -> float:
        return max(at, self.first_after(at, until) - count * self.seconds)


class NextTiming:
    """By a user's function: `next(now)` the first time, then `next(previous occurrence)`."""

    def __init__(self, fn: NextFn) -> None:
        self.fn = fn

    def spec(self) -> dict[str, Any]:
        name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
        return {"next": f"{module_name(self.fn.__module__)}.{name}"}

    def first(self, now: float) -> float | None:
        due = self._call(now)
        return None if due is None else instant(due, field="next")

    def first_from(self, start: float, now: float) -> float | None:
        due = self.first(max(now, start))
        for _ in range(MOST_STEPS):
            if due is None or due >= start:
                return due
            due = self.after(due)
        raise ScheduleError(
            f"next={self.spec()['next']} answered {MOST_STEPS} instants before start: ask it from start on",
            parameters=("next", "start"),
        )

    def _call(self, now: float) -> Instant | None:
        try:
            due = self.fn(now)
        except Exception:
            raise
        except BaseException as error:  # SystemExit would end the scheduler
            raise ScheduleError(f"next={self.spec()['next']} raised {error!r}") from error
        check_not_awaitable(due, "next")
        return due

    def after(self, at: float) -> float | None:
        due = self.first(at)
        if due is not None and due <= at:
            raise ScheduleError(
                f"next={self.spec()['next']} answered {due!r} for {at!r}: "
                "it must answer a later instant, or None to end the schedule",
                parameters=("next",),
            )
        return due

    def first_after(self, at: float, until: float) -> float | None:
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


class BoundedTiming:
    """Another timing, without its occurrences before `start` and after `end`."""

    def __init__(self, inner: Timing, start: float | None, end: float | None) -> None:
        self.inner = inner
        self._start = start
        self._end = math.inf if end is None else end

    def spec(self) -> dict[str, Any]:
        bounds = {"start": self._start, "end": None if self._end == math.inf else self._end}
        return self.inner.spec() | {name: value for name, value in bounds.items() if value is not None}

    def first(self, now: float) -> float | None:
        inner, start = self.inner, self._start
        return self._up_to_end(inner.first(now) if start is None else inner.first_from(start, now))

    def first_from(self, start: float, now: float) -> float | None:
        return self._up_to_end(self.inner.first_from(start, now))

    def after(self, at: float) -> float | None:
        return self._up_to_end(self.inner.after(at))

    def first_after(self, at: float, until: float) -> float | None:
        return self._up_to_end(self.inner.first_after(at, until))

    def recent(self, at: float, until: float, count: int) -> float:
        return self.inner.recent(at, min(until, self._end), count)

    def _up_to_end(self, due: float | None) -> float | None:
        return None if due is None or due > self._end else due


def interval(timing: Timing) -> float | None:
    """Seconds between two occurrences, if it is the same between any two."""
    inner = timing.inner if isinstance(timing, BoundedTiming) else timing
    return inner.seconds if isinstance(inner, EveryTiming) else None


def user_function(timing: Timing) -> NextFn | None:
    """The user's function that says when a schedule is due, if there is one."""
    inner = timing.inner if isinstance(timing, BoundedTiming) else timing
    return inner.fn if isinstance(inner, NextTiming) else None
