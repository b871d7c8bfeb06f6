"""Cron expressions in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.dashboard.cron_words import cron_words, timing_words

SAID = {
    "* * * * *": "every minute",
    "*/5 * * * *": "every 5 min",
    "*/7 * * * *": "*/7 * * * * Europe/Paris",  # the last step of an hour is shorter
    "*/10 * * * * *": "every 10 s",
    "0 */5 * * * *": "every 5 min",
    "@hourly": "every hour",
    "15 * * * *": "every hour at :15",
    "0,30 * * * *": "every hour at :00 and :30",
    "0 */2 * * *": "every 2 h Europe/Paris",
    "@daily": "every day at 0:00 Europe/Paris",
    "0 3 * * *": "every day at 3:00 Europe/Paris",
    "30 9,17 * * *": "every day at 9:30 and 17:30 Europe/Paris",
    "0 3 * * 1-5": "weekdays at 3:00 Europe/Paris",
    "0 3 * * MON-FRI": "weekdays at 3:00 Europe/Paris",
    "5 0 * * 6,0": "weekends at 0:05 Europe/Paris",
    "0 3 * * 0": "Sundays at 3:00 Europe/Paris",
    "0 3 * * 7": "Sundays at 3:00 Europe/Paris",
    "0 3 * * mon,wed,fri": "Mondays, Wednesdays and Fridays at 3:00 Europe/Paris",
    "0 9-17 * * 1-5": "weekdays, every hour from 9:00 to 17:00 Europe/Paris",
    "*/15 9-17 * * *": "every 15 min from 9:00 to 17:45 Europe/Paris",
    "*/15 * * * 1-5": "every 15 min, weekdays Europe/Paris",
    "@monthly": "on day 1 of the month at 0:00 Europe/Paris",
    "0 6 1,15 * *": "on days 1 and 15 of the month at 6:00 Europe/Paris",
    "0 6 L * *": "on the last day of the month at 6:00 Europe/Paris",
    "0 6 LW * *": "on the last working day of the month at 6:00 Europe/Paris",
    "0 6 * * MON#2": "on the second Monday of the month at 6:00 Europe/Paris",
    "0 6 * * 5L": "on the last Friday of the month at 6:00 Europe/Paris",
    "@yearly": "on January 1 at 0:00 Europe/Paris",
    "0 6 * JUN-AUG *": "every day in June, July and August at 6:00 Europe/Paris",
    "0 6 * 1,7 MON": "Mondays in January and July at 6:00 Europe/Paris",
    "0 6 13 * FRI": "0 6 13 * FRI Europe/Paris",  # either of them counts
    "0 6 */2 * *": "0 6 */2 * * Europe/Paris",
    "17 0-10,12 * * *": "17 0-10,12 * * * Europe/Paris",
    "60 25 * * *": "60 25 * * * Europe/Paris",
    "nonsense": "nonsense Europe/Paris",
}


@pytest.mark.parametrize("expression", SAID)
def test_what_an_expression_is_called(expression: str) -> None:
    assert cron_words(expression, "Europe/Paris") == SAID[expression]


def test_other_timings() -> None:
    assert timing_words({"every": 300.0}) == "every 5 min"
    assert timing_words({"every": 90, "start": 1.0}) == "every 1 min 30 s"
    assert timing_words({"next": "shop.jobs.sunrise"}) == "as shop.jobs.sunrise says"
    assert timing_words({"cron": "0 3 * * *"}) == "every day at 3:00 UTC"
    assert timing_words({}) == "not known"


FIELD = st.text("0123456789*/,-#L?MONFRIJA \x00é٣", max_size=12)


@given(st.one_of(st.lists(FIELD, min_size=4, max_size=7).map(" ".join), st.text(max_size=300)))
def test_anything_else_is_shown_as_it_is(expression: str) -> None:
    assert cron_words(expression)
