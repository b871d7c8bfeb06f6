import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from treadle.base.timing import MAX_DURATION, MAX_INSTANT, MIN_INSTANT, instant, seconds, to_datetime
from treadle.errors import InputError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0.0),
        (5, 5.0),
        (0.25, 0.25),
        (timedelta(minutes=2, milliseconds=500), 120.5),
        (MAX_DURATION, MAX_DURATION),
    ],
)
def test_durations_become_seconds(given: Any, expected: float) -> None:
    assert seconds(given) == expected
    assert type(seconds(given)) is float


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (-1, "negative"),
        (-0.001, "negative"),
        (timedelta(seconds=-1), "negative"),
        (math.nan, "finite"),
        (math.inf, "finite"),
        (-math.inf, "finite"),
        (1e18, "8,000 years"),
        (timedelta.max, "8,000 years"),
        (10**400, "too large"),
        pytest.param(10**5000, "too large", id="5000 digits"),
        (True, "seconds or a timedelta"),
        ("5", "seconds or a timedelta"),
        (None, "seconds or a timedelta"),
        (Decimal(5), "seconds or a timedelta"),
        (datetime.now(UTC), "seconds or a timedelta"),
    ],
)
def test_a_bad_duration_is_refused_by_name(given: Any, problem: str) -> None:
    with pytest.raises(InputError, match=rf"^expires_in=.*{problem}") as caught:
        seconds(given, field="expires_in")
    assert caught.value.parameters == ("expires_in",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0.0),
        (-1, -1.0),
        (1_700_000_000.5, 1_700_000_000.5),
        (MIN_INSTANT, MIN_INSTANT),
        (MAX_INSTANT, MAX_INSTANT),
        (datetime(1970, 1, 1, 0, 1, tzinfo=UTC), 60.0),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0.0),
        (datetime.max.replace(tzinfo=UTC, microsecond=0), MAX_INSTANT),
        (datetime.min.replace(tzinfo=UTC), MIN_INSTANT),
    ],
)
def test_instants_become_epoch_seconds(given: Any, expected: float) -> None:
    assert instant(given) == expected
    assert type(instant(given)) is float


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001  the test needs a naive datetime
        (math.nan, "finite"),
        (math.inf, "finite"),
        (1e15, "years 1 to 9999"),  # milliseconds by mistake are not caught, microseconds are
        (-1e12, "years 1 to 9999"),
        (10**400, "too large"),
        (False, "epoch seconds or an aware datetime"),
        ("2026-01-01", "epoch seconds or an aware datetime"),
        (timedelta(1), "epoch seconds or an aware datetime"),
    ],
)
def test_a_bad_instant_is_refused_by_name(given: Any, problem: str) -> None:
    with pytest.raises(InputError, match=rf"^run_at=.*{problem}") as caught:
        instant(given, field="run_at")
    assert caught.value.parameters == ("run_at",)


def test_a_datetime_comes_back_as_the_same_instant() -> None:
    moment = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert to_datetime(instant(moment)) == moment
    assert to_datetime(0).tzinfo is UTC
