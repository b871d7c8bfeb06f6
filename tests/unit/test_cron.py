from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from treadle.define.cron import CronSchedule, next_after
from treadle.errors import CronError, InputError

PARIS = "Europe/Paris"
NEW_YORK = "America/New_York"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "after", "due"),
    [
        ("*/15 * * * *", "2026-05-04T10:07:00", "2026-05-04T10:15:00"),
        ("*/15 * * * *", "2026-05-04T10:15:00", "2026-05-04T10:30:00"),
        ("*/15 * * * *", "2026-05-04T10:14:59.999999", "2026-05-04T10:15:00"),
        ("*/15 * * * *", "2026-05-04T10:15:00.000001", "2026-05-04T10:30:00"),
        ("5/15 * * * *", "2026-05-04T10:06:00", "2026-05-04T10:20:00"),
        ("0 3 * * *", "2026-05-04T10:00:00", "2026-05-05T03:00:00"),
        ("0 0 1 1 *", "2026-05-04T10:00:00", "2027-01-01T00:00:00"),
        ("0 0 29 2 *", "2026-05-04T10:00:00", "2028-02-29T00:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
        ("0 0 31 * *", "2026-03-31T00:00:00", "2026-05-31T00:00:00"),
        ("0 0 L * *", "2026-02-01T00:00:00", "2026-02-28T00:00:00"),
        ("0 9 * * MON", "2026-05-04T09:00:00", "2026-05-11T09:00:00"),
        ("0 9 * * 1-5", "2026-05-08T09:00:00", "2026-05-11T09:00:00"),
        ("0 0 * * 7", "2026-05-04T00:00:00", "2026-05-10T00:00:00"),
        ("0 0 13 * FRI", "2026-05-04T00:00:00", "2026-05-08T00:00:00"),
        ("0 0 * * MON#2", "2026-05-04T00:00:00", "2026-05-11T00:00:00"),
        ("0 0 * 2 MON#5", "2026-05-04T00:00:00", "2044-02-29T00:00:00"),
        ("0 0 * jan,jul mon", "2026-05-04T00:00:00", "2026-07-06T00:00:00"),
        ("*/10 * * * * *", "2026-05-04T10:00:05", "2026-05-04T10:00:10"),
        ("  0   3  * * * ", "2026-05-04T10:00:00", "2026-05-05T03:00:00"),
    ],
)
def test_next_after_gives_the_next_instant(expression: str, after: str, due: str) -> None:
    assert next_after(expression, utc(after)) == utc(due)


@pytest.mark.parametrize(
    ("expression", "tz", "after", "due"),
    [
        # Clocks go forward: 2026-03-29 02:00 -> 03:00 in Paris, 2026-03-08 in New York.
        ("30 2 * * *", PARIS, "2026-03-28T12:00:00", "2026-03-29T01:00:00"),
        ("30 2 * * *", PARIS, "2026-03-29T01:00:00", "2026-03-30T00:30:00"),
        ("0 3 * * *", PARIS, "2026-03-28T12:00:00", "2026-03-29T01:00:00"),
        ("*/30 * * * *", PARIS, "2026-03-29T00:30:00", "2026-03-29T01:00:00"),
        ("0 * * * *", PARIS, "2026-03-29T00:00:00", "2026-03-29T01:00:00"),
        ("30 2 * * *", NEW_YORK, "2026-03-08T05:00:00", "2026-03-08T07:00:00"),
        ("30 2 * * *", NEW_YORK, "2026-03-08T07:00:00", "2026-03-09T06:30:00"),
        # Clocks go back: 2026-10-25 03:00 -> 02:00 in Paris, 2026-11-01 02:00 -> 01:00 in New York.
        ("30 2 * * *", PARIS, "2026-10-24T12:00:00", "2026-10-25T00:30:00"),
        ("30 2 * * *", PARIS, "2026-10-25T00:30:00", "2026-10-26T01:30:00"),
        ("30 2 * * *", PARIS, "2026-10-25T01:10:00", "2026-10-26T01:30:00"),
        ("*/30 * * * *", PARIS, "2026-10-25T00:30:00", "2026-10-25T01:00:00"),
        ("*/30 * * * *", PARIS, "2026-10-25T01:00:00", "2026-10-25T01:30:00"),
        ("30 1 * * *", NEW_YORK, "2026-11-01T00:00:00", "2026-11-01T05:30:00"),
        ("30 1 * * *", NEW_YORK, "2026-11-01T05:30:00", "2026-11-02T06:30:00"),
        ("30 1 * * *", NEW_YORK, "2026-11-01T06:10:00", "2026-11-02T06:30:00"),
        ("0 * * * *", NEW_YORK, "2026-11-01T05:00:00", "2026-11-01T06:00:00"),
        # Zones of half and quarter hours.
        ("0 0 * * *", "Asia/Kathmandu", "2026-05-04T00:00:00", "2026-05-04T18:15:00"),
        ("0 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00", "2026-10-03T15:30:00"),
    ],
)
def test_next_after_through_daylight_saving_changes(expression: str, tz: str, after: str, due: str) -> None:
    # Compare timestamps: to Python a time that occurs twice is unequal to any time of another zone.
    assert next_after(expression, utc(after).timestamp(), tz) == utc(due).timestamp()


@pytest.mark.parametrize("window", [("2026-03-06", "2026-04-07"), ("2026-10-01", "2026-11-03")])
@pytest.mark.parametrize("tz", [PARIS, NEW_YORK, "Australia/Lord_Howe", "Africa/Casablanca"])
@pytest.mark.parametrize(
    "expression", ["30 2 * * *", "30 1 * * *", "*/30 * * * *", "0 */2 * * *", "15 1-3 * * *"]
)
def test_instants_only_go_forward_through_daylight_saving_changes(
    tz: str, expression: str, window: tuple[str, str]
) -> None:
    schedule = CronSchedule(expression, tz)
    moment, seen = utc(window[0]), list[float]()
    while moment < utc(window[1]):
        due = schedule.next_after(moment)
        assert due is not None
        seen.append(due.timestamp())
        moment = due
    assert all(earlier < later for earlier, later in pairwise(seen))


def test_a_daily_expression_is_due_once_a_day_the_whole_year() -> None:
    schedule, moment, days = CronSchedule("30 2 * * *", PARIS), utc("2025-12-31T12:00:00"), set[str]()
    for _ in range(365):
        due = schedule.next_after(moment)
        assert due is not None
        days.add(f"{due:%m-%d}")
        moment = due
    assert len(days) == 365


def test_next_after_returns_the_type_that_it_got() -> None:
    moment = utc("2026-05-04T10:00:00")
    due = next_after("0 3 * * *", moment, PARIS)
    assert due == utc("2026-05-05T01:00:00")
    assert due is not None
    assert due.tzinfo == ZoneInfo(PARIS)
    assert next_after("0 3 * * *", moment.timestamp(), PARIS) == due.timestamp()
    assert next_after("0 3 * * *", int(moment.timestamp()), PARIS) == due.timestamp()


def test_the_zone_of_the_given_datetime_does_not_matter() -> None:
    moment = utc("2026-05-04T10:07:00")
    elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert next_after("0 12 * * *", elsewhere) == next_after("0 12 * * *", moment)


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(InputError, match="no time zone"):
        next_after("0 3 * * *", datetime(2026, 5, 4))  # noqa: DTZ001  the test needs a naive datetime


@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=UTC, microsecond=0), 253_402_300_000.0])
def test_next_after_returns_none_at_the_end_of_the_calendar(moment: datetime | float) -> None:
    assert next_after("0 0 1 1 *", moment) is None
    assert next_after("0 0 1 1 *", moment, PARIS) is None


@pytest.mark.parametrize(
    ("expression", "field", "problem"),
    [
        ("* * * *", "fields", "got 4"),
        ("", "fields", "got 0"),
        ("* * * * * * *", "fields", "got 7"),
        ("60 * * * *", "minute", "'60' is not within 0-59"),
        ("*/0 * * * *", "minute", "'*/0'"),
        ("5-3 * * * *", "minute", "'5-3'"),
        ("1,, * * * *", "minute", "'1,,'"),
        ("x * * * *", "minute", "'x'"),
        ("-1 * * * *", "minute", "'-1'"),
        ("1-5-9 * * * *", "minute", "'1-5-9'"),
        ("0 24 * * *", "hour", "'24' is not within 0-23"),
        ("0 0 0 * *", "day-of-month", "'0' is not within 1-31"),
        ("0 0 32 * *", "day-of-month", "'32' is not within 1-31"),
        ("0 0 30 2 *", "day-of-month", "'30' is a day that month '2' never has"),
        ("0 0 31 2,4 *", "day-of-month", "'31' is a day that month '2,4' never has"),
        ("0 0 */31 * MON#5", "day-of-month", "never falls on such a day of the week"),
        ("0 0 * 13 *", "month", "'13'"),
        ("0 0 * FOO *", "month", "'FOO'"),
        ("0 0 * * 8", "day-of-week", "'8'"),
        ("0 0 * * MON#6", "day-of-week", "'MON#6'"),
        ("0 0 * * MON#2/2", "day-of-week", "'MON#2/2'"),
        ("60 * * * * *", "second", "'60'"),
        ("daily", "fields", "got 1"),
        ("9" * 200 + " * * * *", "minute", "999"),
        ("1," * 200 + "1 * * * *", "expression", "over 255"),
    ],
)
def test_a_bad_expression_is_refused_by_field(expression: str, field: str, problem: str) -> None:
    with pytest.raises(CronError) as caught:
        CronSchedule(expression)
    assert caught.value.field == field
    assert problem in str(caught.value)
    assert caught.value.expression[:70] == expression[:70]
    with pytest.raises(CronError):
        next_after(expression, utc("2026-05-04T10:00:00"))


@pytest.mark.parametrize("tz", ["Mars/Olympus", "", "/etc/passwd", "../UTC", "Europe", "\x00"])
def test_a_bad_zone_is_refused(tz: str) -> None:
    with pytest.raises(CronError, match="no time zone is named") as caught:
        next_after("0 3 * * *", 0, tz)
    assert caught.value.field == "tz"


def test_cron_schedules_compare_by_value() -> None:
    assert CronSchedule("0 3 * * *", PARIS) == CronSchedule("0 3 * * *", PARIS)
    assert CronSchedule("0 3 * * *", PARIS) != CronSchedule("0 3 * * *")
    assert repr(CronSchedule("0 3 * * *")) == "CronSchedule(expression='0 3 * * *', tz='UTC')"


@settings(max_examples=examples(200), deadline=None)
@given(st.text(st.sampled_from("0123456789*/,-#LWMONJAFEB \t")) | st.text(max_size=30))
def test_arbitrary_text_raises_nothing_but_cron_error(text: str) -> None:
    try:
        next_after(text, 1_750_000_000.0)
    except CronError as error:
        str(error).encode(errors="surrogatepass")


@pytest.mark.parametrize(
    ("nickname", "due"),
    [
        ("@hourly", "2026-05-04T11:00:00"),
        ("@daily", "2026-05-05T00:00:00"),
        ("@midnight", "2026-05-05T00:00:00"),
        ("@weekly", "2026-05-10T00:00:00"),
        ("@monthly", "2026-06-01T00:00:00"),
        ("@yearly", "2027-01-01T00:00:00"),
        ("@annually", "2027-01-01T00:00:00"),
    ],
)
def test_a_nickname_stands_for_an_expression(nickname: str, due: str) -> None:
    assert next_after(nickname, utc("2026-05-04T10:07:00")) == utc(due)
    schedule = CronSchedule(nickname)
    assert schedule.expression == nickname
    assert schedule.recent(utc(due).timestamp(), 1) == utc(due).timestamp()


def test_a_nickname_follows_the_time_zone() -> None:
    assert next_after("@daily", utc("2026-05-04T10:00:00"), PARIS) == utc("2026-05-04T22:00:00")


@pytest.mark.parametrize("nickname", ["@reboot", "@every 5m", "@", "@Daily", "@daily "])
def test_an_unknown_nickname_is_refused_with_those_that_exist(nickname: str) -> None:
    with pytest.raises(CronError, match="@hourly, @daily"):
        CronSchedule(nickname)
