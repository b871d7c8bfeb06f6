"""The options that select items."""

from __future__ import annotations

import pytest

from treadle.cli.filters import ItemFilters
from treadle.errors import InputError
from treadle.item import Filter
from treadle.operate.filters import read_duration, read_start, read_time

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("45s", 45.0),
        ("10m", 600.0),
        ("5min", 300.0),
        ("1h30m", 5400.0),
        ("2D", 172_800.0),
        ("1w", 604_800.0),
        ("250ms", 0.25),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert read_duration(text, "--since") == seconds


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2h", NOW - 7200),
        ("1700000000", 1_700_000_000.0),
        ("1700000000.5", 1_700_000_000.5),
        ("1970-01-02", 86400.0),
        ("1970-01-01T01:00", 3600.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("1970-01-01T00:00:01.500000Z", 1.5),
    ],
)
def test_times(text: str, instant: float) -> None:
    assert read_time(text, NOW, "--since") == instant
    ahead = NOW + (NOW - instant) if text == "2h" else instant
    assert read_start(text, NOW, "--run-at") == ahead


@pytest.mark.parametrize("text", ["yesterday", "", "-2h", "2026-13-01", "2x", "999999w99999999999999d"])
def test_what_is_no_time_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(InputError, match="--since"):
        ItemFilters(since=text)


def test_all_options_reach_the_store() -> None:
    filters = ItemFilters(
        status=["dead,ready"],
        type="t",
        queue="q",
        workflow="w",
        group="g",
        key="k",
        reason="expired",
        mark="m",
        since="1h",
        until="1m",
    )
    assert filters.filter(tenant="acme", now=NOW) == Filter(
        tenant="acme",
        status=("dead", "ready"),
        type="t",
        queue="q",
        workflow="w",
        group_id="g",
        key="k",
        reason="expired",
        mark="m",
        since=NOW - 3600,
        until=NOW - 60,
    )
    assert filters.needs_clock
    assert not filters.is_empty
    assert ItemFilters().is_empty


def test_words_for_several_statuses() -> None:
    assert ItemFilters(status=["open"]).filter(tenant=None, now=NOW).status == (
        "blocked",
        "scheduled",
        "ready",
        "running",
    )
    assert ItemFilters(status=["ended", "dead"]).filter(tenant=None, now=NOW).status == (
        "success",
        "dead",
        "cancelled",
    )


@pytest.mark.parametrize(
    ("option", "value"), [("status", ["deid"]), ("reason", "bored"), ("type", "a\nb"), ("group", "a b")]
)
def test_a_wrong_value_is_refused_and_named(option: str, value: object) -> None:
    with pytest.raises(InputError, match=f"--{option}"):
        ItemFilters(**{option: value})  # type: ignore[arg-type]
