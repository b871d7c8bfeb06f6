"""When schedules are due, and what happens to missed occurrences. Pure arithmetic."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import InputError
from treadle.engine.schedule.occurrence import (
    MOST_CAUGHT_UP,
    MOST_STEPS,
    CronTiming,
    EveryTiming,
    NextTiming,
    Occurrence,
    Timing,
    decide,
)
from treadle.errors import CronError, ScheduleError
from treadle.schedule import timing_of

NOW = 1_700_000_000.0


def occurrences(timing: Timing, at: float, count: int) -> list[float]:
    """The occurrence at this instant, and those that follow it."""
    found = [at]
    while len(found) < count:
        following = timing.after(found[-1])
        assert following is not None
        found.append(following)
    return found


def utc(*instants: str) -> list[float]:
    return [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in instants]


# ---------------------------------------------------------------------------------------------------- timings


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"cron": "* * * * *", "every": 60},
        {"every": 60, "next": lambda now: now + 1},
        {"cron": "* * * * *", "every": 60, "next": lambda now: now + 1},
        {"every": 60, "tz": "Europe/Paris"},
    ],
)
def test_a_schedule_needs_exactly_one_timing(given: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError):
        timing_of(**{"cron": None, "tz": None, "every": None, "next": None, **given})


@pytest.mark.parametrize(
    ("expression", "tz", "field"),
    [
        ("61 * * * *", None, "minute"),
        ("* 24 * * *", None, "hour"),
        ("0 0 30 2 *", None, "day-of-month"),
        ("0 0 31 4,6 *", None, "day-of-month"),
        ("* * * 13 *", None, "month"),
        ("* * * * 8", None, "day-of-week"),
        ("* * * *", None, "fields"),
        ("* * * * *", "Mars/Olympus", "tz"),
    ],
)
def test_a_bad_expression_names_the_field(expression: str, tz: str | None, field: str) -> None:
    with pytest.raises(CronError) as caught:
        timing_of(expression, tz, None, None)
    assert caught.value.field == field


@pytest.mark.parametrize("every", [0, -1, 1e-6, float("nan"), True, "60"])
def test_a_bad_interval_is_refused(every: Any) -> None:
    with pytest.raises(InputError):
        timing_of(None, None, every, None)


async def test_next_must_be_a_sync_function() -> None:
    async def later(now: float) -> float:
        return now + 1

    with pytest.raises(InputError):
        timing_of(None, None, None, later)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        timing_of(None, None, None, 60)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ occurrences


def test_daylight_saving_in_paris() -> None:
    """03:00 is 02:00 UTC in winter, 01:00 in summer. 02:30 is skipped in March, and comes once in October."""
    nightly = CronTiming("0 3 * * *", "Europe/Paris")
    (start,) = utc("2024-03-30T02:00")
    assert occurrences(nightly, start, 3) == utc("2024-03-30T02:00", "2024-03-31T01:00", "2024-04-01T01:00")
    (start,) = utc("2024-10-26T01:00")
    assert occurrences(nightly, start, 3) == utc("2024-10-26T01:00", "2024-10-27T02:00", "2024-10-28T02:00")
    skipped = CronTiming("30 2 * * *", "Europe/Paris")
    (start,) = utc("2024-03-30T01:30")
    assert occurrences(skipped, start, 3) == utc("2024-03-30T01:30", "2024-03-31T01:00", "2024-04-01T00:30")
    (start,) = utc("2024-10-26T00:30")
    assert occurrences(skipped, start, 3) == utc("2024-10-26T00:30", "2024-10-27T00:30", "2024-10-28T01:30")


def test_daylight_saving_in_new_york() -> None:
    early = CronTiming("30 1 * * *", "America/New_York")
    (start,) = utc("2024-11-02T05:30")
    assert occurrences(early, start, 3) == utc("2024-11-02T05:30", "2024-11-03T05:30", "2024-11-04T06:30")
    skipped = CronTiming("30 2 * * *", "America/New_York")
    (start,) = utc("2024-03-09T07:30")
    assert occurrences(skipped, start, 3) == utc("2024-03-09T07:30", "2024-03-10T07:00", "2024-03-11T06:30")


def test_leap_days() -> None:
    leap = CronTiming("0 0 29 2 *", "UTC")
    (start,) = utc("2024-02-29T00:00")
    assert occurrences(leap, start, 3) == utc("2024-02-29T00:00", "2028-02-29T00:00", "2032-02-29T00:00")


def test_every_is_anchored_to_its_first_time() -> None:
    timing = EveryTiming(60)
    assert timing.first(NOW) == NOW + 60
    assert timing.after(NOW + 60) == NOW + 120


def test_next_is_called_with_the_previous_occurrence() -> None:
    asked: list[float] = []

    def later(now: float) -> float:
        asked.append(now)
        return now + 10

    assert occurrences(NextTiming(later), NOW, 3) == [NOW, NOW + 10, NOW + 20]
    assert asked == [NOW, NOW + 10]


def test_next_may_answer_a_datetime_or_end_it() -> None:
    assert NextTiming(lambda now: datetime.fromtimestamp(now + 5, UTC)).after(NOW) == NOW + 5
    assert NextTiming(lambda now: None).after(NOW) is None


@pytest.mark.parametrize("answer", [NOW, NOW - 1, "soon", float("inf"), datetime(2030, 1, 1)])  # noqa: DTZ001
def test_next_must_return_a_later_instant(answer: Any) -> None:
    with pytest.raises(InputError):
        NextTiming(lambda now: answer).after(NOW)


def test_specs_tell_timings_apart() -> None:
    assert CronTiming("0 3 * * *", "UTC").spec() == CronTiming("0 3 * * *", "UTC").spec()
    assert CronTiming("0 3 * * *", "UTC").spec() != CronTiming("0 3 * * *", "Europe/Paris").spec()
    assert EveryTiming(60).spec() == {"every": 60}
    assert NextTiming(utc).spec() == {"next": f"{__name__}.utc"}  # type: ignore[arg-type]


def test_a_function_has_the_same_spec_in_a_script_and_when_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of two processes would replace the other's schedule."""
    main = ModuleType("__main__")
    main.__file__ = "/srv/app/billing.py"
    monkeypatch.setitem(sys.modules, "__main__", main)

    def due(now: float) -> float:
        return now + 60

    due.__module__, imported = "__main__", due.__qualname__
    assert NextTiming(due).spec() == {"next": f"billing.{imported}"}


# ------------------------------------------------------------------------------------------------ catching up


@pytest.mark.parametrize(
    "timing", [EveryTiming(60), CronTiming("* * * * *", "UTC"), NextTiming(lambda now: now + 60)]
)
def test_catching_up(timing: Timing) -> None:
    at = 1_700_000_040.0
    now = at + 9 * 60 + 30
    following = at + 600
    assert decide(timing, at, now, "due", "none") == Occurrence(at + 60, fires=True)
    assert decide(timing, at, now, "missed", "none") == Occurrence(following, fires=False)
    assert decide(timing, at, now, "missed", "one") == Occurrence(following, fires=True)
    assert decide(timing, at, now, "missed", "all") == Occurrence(at + 60, fires=True)
    assert decide(timing, at, now, "slept", "none") == Occurrence(following, fires=True)


@pytest.mark.parametrize(
    "timing", [EveryTiming(60), CronTiming("* * * * *", "UTC"), NextTiming(lambda now: now + 60)]
)
@pytest.mark.parametrize("missed", [99, 100, 101, 150, 5000])
@pytest.mark.parametrize("past", [0.0, 30.0])
def test_catch_up_all_is_capped(timing: Timing, missed: int, past: float) -> None:
    """The latest occurrences fire."""
    at: float | None = 1_700_000_040.0
    now = at + (missed - 1) * 60 + past  # type: ignore[operator]
    fired: list[float] = []
    steps = 0
    while at is not None and at <= now:
        next_at, fires = decide(timing, at, now, "missed", "all")
        fired += [at] if fires else []
        at = next_at
        steps += 1
    assert len(fired) == min(missed, MOST_CAUGHT_UP)
    assert fired[-1] == now - past
    assert steps <= len(fired) + 1 + missed // MOST_STEPS


@pytest.mark.parametrize("catch_up", ["none", "one"])
def test_a_long_series_is_computed_in_portions(catch_up: Any) -> None:
    """A user's function is not asked a million times in one go; and what is skipped does not fire."""
    timing, at, now = NextTiming(lambda now: now + 1), NOW, NOW + 2.5 * MOST_STEPS
    fired = 0
    while at <= now:
        next_at, fires = decide(timing, at, now, "missed", catch_up)
        assert next_at is not None
        at = next_at
        fired += fires
    assert at == NOW + 2.5 * MOST_STEPS + 1
    assert fired == (catch_up == "one")


def test_the_end_of_a_function_while_nothing_ran() -> None:
    timing = NextTiming(lambda now: now + 60 if now < NOW + 120 else None)
    assert decide(timing, NOW, NOW + 1000, "missed", "none") == Occurrence(None, fires=False)
    assert decide(timing, NOW, NOW + 1000, "missed", "one") == Occurrence(None, fires=True)


@given(
    seconds=st.floats(0.001, 1e6),
    late=st.floats(0, 1e8),
)
def test_every_goes_on_after_now(seconds: float, late: float) -> None:
    timing = EveryTiming(seconds)
    following = timing.first_after(NOW, NOW + late)
    assert NOW + late < following
    assert following - (NOW + late) <= seconds * 2 + 1e-6


@given(
    minutes=st.integers(0, 3 * 366 * 24 * 60), tz=st.sampled_from(["UTC", "Europe/Paris", "America/New_York"])
)
def test_the_latest_of_a_cron_are_its_own(minutes: int, tz: str) -> None:
    """Found backwards, but met on the way forward, whatever clocks do in between."""
    timing = CronTiming("30 2 * * *", tz)
    now = NOW + minutes * 60
    start = timing.recent(0.0, now, 10)
    assert timing.after(start - 1) == start
    left = 0
    at: float | None = start
    while at is not None and at <= now:
        left += 1
        at = timing.after(at)
    assert left == 10


# ----------------------------------------------------------------------------------------- start= and end=


def bounded(start: float | None = None, end: float | None = None, **given: Any) -> Timing:
    return timing_of(**{"cron": None, "tz": None, "every": None, "next": None, **given}, start=start, end=end)


def test_every_counts_from_start() -> None:
    """The first occurrence is at `start`; stored later, it keeps that rhythm."""
    timing = bounded(start=NOW + 1000, every=60)
    assert timing.first(NOW) == NOW + 1000
    assert timing.first(NOW + 1000) == NOW + 1000
    assert timing.first(NOW + 1001) == NOW + 1060
    assert timing.after(NOW + 1000) == NOW + 1060


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("2026-05-04T10:00:00", "2026-05-04T10:00:00"),
        ("2026-05-04T10:00:00.000500", "2026-05-04T11:00:00"),
        ("2026-05-04T10:00:01", "2026-05-04T11:00:00"),
        ("2026-05-04T09:59:59.999999", "2026-05-04T10:00:00"),
    ],
)
def test_cron_occurs_at_start_and_not_before(start: str, first: str) -> None:
    (begin, due), (now, later) = utc(start, first), utc("2026-05-01T00:00:00", "2026-05-05T00:30:00")
    timing = bounded(start=begin, cron="0 * * * *")
    assert timing.first(now) == due
    assert timing.first(later) == utc("2026-05-05T01:00:00")[0]


def test_next_is_asked_from_start_on() -> None:
    assert bounded(start=NOW + 100, next=lambda now: now + 10).first(NOW) == NOW + 110
    # One that does not look at what it is asked is asked on.
    fixed = iter([NOW + 1, NOW + 50, NOW + 120])
    assert bounded(start=NOW + 100, next=lambda now: next(fixed)).first(NOW) == NOW + 120
    with pytest.raises(ScheduleError, match="before start"):
        bounded(start=NOW + 1e6, next=lambda now: NOW + 1 if now > NOW + 2000 else now + 1).first(NOW)


def test_nothing_occurs_after_end() -> None:
    """An occurrence at `end` counts."""
    timing = bounded(start=NOW, end=NOW + 120, every=60)
    assert timing.after(NOW) == NOW + 60
    assert timing.after(NOW + 60) == NOW + 120
    assert timing.after(NOW + 120) is None
    assert timing.first(NOW + 121) is None
    assert timing.first_after(NOW, NOW + 500) is None
    assert bounded(end=NOW - 1, every=60).first(NOW) is None


@pytest.mark.parametrize(
    ("catch_up", "fires"), [("none", []), ("one", [NOW]), ("all", [NOW, NOW + 60, NOW + 120])]
)
def test_missed_occurrences_of_an_ended_schedule(catch_up: Any, fires: list[float]) -> None:
    timing = bounded(start=NOW, end=NOW + 130, every=60)
    at: float | None = NOW
    fired: list[float] = []
    while at is not None:
        next_at, does_fire = decide(timing, at, NOW + 1000, "missed", catch_up)
        fired += [at] if does_fire else []
        at = next_at
    assert fired == fires


def test_bounds_are_a_part_of_the_timing() -> None:
    assert bounded(start=1.0, end=2.0, every=60).spec() == {"every": 60.0, "start": 1.0, "end": 2.0}
    assert bounded(end=2.0, every=60).spec() == {"every": 60.0, "end": 2.0}
    assert bounded(every=60).spec() == {"every": 60.0}


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(ScheduleError, match="before start"):
        bounded(start=2.0, end=1.0, every=60)
    with pytest.raises(InputError, match="start"):
        bounded(start="monday", every=60)  # type: ignore[arg-type]
