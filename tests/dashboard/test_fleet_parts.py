"""Parts of the pages of the fleet that need no store."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from treadle import Retry
from treadle.dashboard.payloads import shown_text
from treadle.dashboard.template_filters import estimate
from treadle.dashboard.throughput import throughput_of
from treadle.dashboard.views.limits import doer_words
from treadle.dashboard.views.schedules import next_of_cron, schedule_row
from treadle.dashboard.views.types import retry_words
from treadle.doers import balanced, concurrency, rate_limited, unlimited
from treadle.doers.limit_rules import LimitRule, Per, read_limit_name
from treadle.operate.schedule_state import ScheduleState
from treadle.records import ScheduleRun, Stat
from treadle.why import Reason

ODD = "a:slots:all:tenant:5:x:lane:é"
"""A name that looks like the parts of the name of a limit."""


@pytest.mark.parametrize("per", [None, "tenant", "lane"])
@pytest.mark.parametrize(("algorithm", "window"), [("slots", None), ("sliding_window", 60.0)])
def test_the_name_of_a_limit_is_read(per: Per, algorithm: Any, window: float | None) -> None:
    rule = LimitRule(3, 60.0, algorithm, per)
    read = read_limit_name(rule.limit_for("mail.send", ODD, ODD).name)
    assert read is not None
    assert (read.owner, read.window, read.per) == ("mail.send", window, per)
    assert (read.tenant, read.lane) == ("" if per is None else ODD, ODD if per == "lane" else "")


def test_names_of_other_origin_say_nothing() -> None:
    cut = LimitRule(3, 1.0, "slots", "lane").limit_for("mail.send", "t" * 200, "l" * 200).name
    for name in ("", "mine", "x:slots:lane:9999:a:b", "x:slots:lane:é", cut[:-80]):
        assert read_limit_name(name) is None


def test_doers_and_policies_in_words() -> None:
    assert doer_words(None) == "that of the worker"
    assert doer_words(unlimited()) == "unlimited"
    assert doer_words(balanced(4)) == "at most 4 at once in each worker"
    assert doer_words(concurrency(1, per="lane", strict=True)) == (
        "one item of each lane at a time, until it has ended"
    )
    assert doer_words(concurrency(2, on_full="drop")) == "at most 2 at once in the whole fleet, then drop"
    assert doer_words(rate_limited(100, 60, inner=balanced(2))) == (
        "100 starts every 1 min in the whole fleet (token bucket); inside: at most 2 at once in each worker"
    )
    assert (
        retry_words(Retry(attempts=None, base=1, factor=1, jitter=0))
        == "any number of attempts, waits from 1 s"
    )
    assert retry_words(Retry(backoff=lambda n: n)) == "3 attempts, waits by a function"


def test_a_death_without_an_attempt_is_no_failed_attempt() -> None:
    stat = Stat(at=0.0, type="", queue="", started=3, succeeded=1, failed=2, retried=1, dead=5)
    shown = throughput_of("1h", 0.0, 60.0, 60, [stat])
    assert shown.points[0].parts == (1, 1, 5)
    assert (shown.failed, shown.retried, shown.dead) == (2, 1, 5)


async def test_rates_are_over_the_time_in_which_there_were_statistics(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app = make_app(memory_store)
    await app.connect()
    minute = await app.backend.now() // 60 * 60
    long_ago = Stat(at=minute - 7200, type="t", queue="q", started=5)
    run = (0,) * 12 + (1,)
    await app.backend.add_stats(
        [Stat(at=minute - 600, type="t", queue="q", started=100, lost=3, run=run), long_ago]
    )
    page = await visitor(app).get("/types", headers={"accept": "application/json"})
    (rate,) = [each["rate"] for each in page.json()["types"]]
    assert 600 <= rate["over"] < 720
    assert 8 < rate["started"] <= 10
    assert (rate["run_max"], rate["wait_max"], rate["lost"]) == (30.0, None, 3)
    text = (await visitor(app).get("/types")).text
    assert re.search("rates and times of the last 1[01] min<", text)  # the minute that is running counts too
    assert "≤ 30 s" in text
    assert '<span class="status failed">3</span>' in text
    for path in ("/", "/types/t", "/queues/q"):
        assert 'lost attempts <span class="status failed">3</span>' in (await visitor(app).get(path)).text


def test_quantiles_are_estimates() -> None:
    shown = [estimate(each) for each in (None, 0.25, 400.0, 3600.0)]
    assert shown == ["–", "about 0.2 s", "about 7 min", "over 60 min"]
    assert [estimate(each, brief=True) for each in (0.25, 3600.0)] == ["0.2 s", "> 60 min"]


def state(**changes: Any) -> ScheduleState:
    given: dict[str, Any] = {"name": "s", "next_at": 1e9, "last_at": None, "paused": False, "orphaned": False}
    given |= {"timing": {"every": 60}, "seen_at": 0.0, "state": "active"}
    return ScheduleState(**{**given, **changes})


def test_the_next_occurrences_are_bounded() -> None:
    assert len(next_of_cron("0 3 * * 1-5", "Europe/Paris", 1e9)) == 5
    assert len(next_of_cron("0 0 29 2 */7", "UTC", 1078012800.0)) == 2  # decades apart: each takes long
    for expression, tz in (("nonsense", "UTC"), ("* * * * *", "Nowhere"), ("*/1," * 50 + "1 * * * *", "UTC")):
        assert next_of_cron(expression, tz, 1e9) == (1e9,)
    assert schedule_row(state(timing={"every": 60, "end": 1e9 + 90}), []).next == [1e9, 1e9 + 60]
    assert schedule_row(state(timing={"next": "shop.sunrise"}), []).next == [1e9]
    assert schedule_row(state(state="paused"), []).next == []
    assert schedule_row(state(next_at=None, state="ended"), []).next == []


def test_runs_of_a_schedule() -> None:
    runs = [
        ScheduleRun(name="s", at=3.0, fired_at=3.0, id="b", tenant="default", status="dead"),
        ScheduleRun(name="s", at=2.0, fired_at=3.0),
        ScheduleRun(name="s", at=1.0, fired_at=1.0, id="a", tenant="default"),
    ]
    row = schedule_row(state(timing={"cron": "*/5 * * * *", "tz": "UTC"}), runs)
    assert [run.word for run in row.runs] == ["missing", "skipped", "dead"]
    assert (row.words, row.expression, row.skipped) == ("every 5 min", "*/5 * * * *", 1)


def test_messages_of_errors_are_payloads() -> None:
    reasons = (
        Reason(kind="due_at", text="attempt 1 failed (ValueError: card 4711)"),
        Reason(kind="paused", text="queue mail is paused"),
    )

    def texts(payloads: bool) -> list[str]:
        visit: Any = SimpleNamespace(access=SimpleNamespace(payloads=payloads))
        return [shown_text(visit, each) for each in reasons]

    assert texts(True) == [each.text for each in reasons]
    assert texts(False) == ["it is due later (what was said is hidden)", "queue mail is paused"]
