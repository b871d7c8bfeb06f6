"""An outage of the store is logged once, then once a minute, whatever fails."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest

from treadle.engine.hooks import Hooks
from treadle.errors import BackendError, LongTransaction, StoreUnavailable
from treadle.logs.lines import Seldom
from treadle.store.outage import StoreOutage

AWAY = StoreUnavailable("PostgreSQL did not answer: ConnectionRefusedError")


class Outage(StoreOutage):
    """With a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(lambda: self.now)
        self.store = "postgresql://shop:***@db/shop"


@pytest.fixture
def outage(caplog: pytest.LogCaptureFixture) -> Generator[Outage]:
    with caplog.at_level(logging.INFO, "treadle"):
        yield Outage()


def test_one_line_at_the_begin_and_one_at_the_end(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(100):
        outage.now += 0.3
        outage.failed(AWAY, ("claim", "settle", "renew", "schedule", "signal", "watchdog")[n % 6])
    outage.answered("claim")
    outage.answered("renew")
    outage.answered("settle")
    first, last = [record.getMessage() for record in caplog.records]
    assert first == (
        "the store postgresql://shop:***@db/shop is unavailable, trying again: "
        "PostgreSQL did not answer: ConnectionRefusedError."
    )
    assert (
        last == "the store postgresql://shop:***@db/shop is available again after 30 s: 100 calls had failed"
    )
    assert not any(record.exc_info for record in caplog.records)


def test_a_blocked_event_loop_is_no_outage(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    """What fails just after it is told once, with the cause. What fails later is an outage."""
    outage.note_lag(0.2)
    outage.note_lag(12.0)
    for _ in range(29):
        outage.now += 0.1
        outage.failed(AWAY, "claim")
    outage.answered("claim")
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop of this process was blocked for 12 s, so calls to the store "
        "postgresql://shop:***@db/shop took too long; trying again: "
        "PostgreSQL did not answer: ConnectionRefusedError"
    ]
    assert outage.since is None
    outage.now += 5.0
    outage.failed(AWAY, "claim")
    assert "is unavailable, trying again" in caplog.records[-1].getMessage()


def test_a_line_a_minute_while_it_lasts(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(600):
        outage.now += 0.5
        outage.failed(AWAY, "claim")
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 5
    assert "has been unavailable for 1 min: 121 calls failed" in texts[1]


def test_it_lasts_until_every_loop_that_failed_got_an_answer(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed(AWAY, "claim")
    outage.failed(AWAY, "settle")
    outage.answered("renew")
    outage.answered("claim")
    assert len(caplog.records) == 1
    outage.now += 20  # nothing is settled any more
    outage.answered("claim")
    assert "is available again" in caplog.records[-1].getMessage()


def test_a_store_that_comes_and_goes_does_not_fill_the_log(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(60):
        outage.now += 1
        outage.failed(AWAY, "claim")
        outage.answered("claim")
    assert len(caplog.records) == 4
    assert "It was 29 more times" in caplog.text


def test_an_outage_whose_end_nobody_told_does_not_hide_the_next(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed(AWAY, "claim")
    outage.now += 3600
    outage.failed(AWAY, "claim")
    assert len(caplog.records) == 2
    assert all("trying again" in record.getMessage() for record in caplog.records)


def test_errors_that_are_no_outage_show_a_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[BaseException] = []
    hooks = Hooks(on_error=lambda error, _: heard.append(error))
    for n in range(5):
        try:
            raise BackendError("PostgreSQL refused: \x1b[31m" + "x" * 1_000_000)
        except BackendError as error:
            hooks.report(error, "settle", f"could not settle {n} item(s)")
    (record,) = caplog.records
    assert len(heard) == 5
    assert record.exc_text is not None
    assert "Traceback" in record.exc_text
    assert "\x1b" not in caplog.text
    assert len(caplog.text) < 20_000


def test_a_condition_of_the_store_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    Hooks().report(LongTransaction("session 7", 400.0, "end it"), "claim", "the store reports a problem")
    assert "the store reports a problem: LongTransaction" in caplog.text
    assert "Traceback" not in caplog.text


def test_seldom_says_how_often_it_was_silent() -> None:
    now = 0.0
    seldom = Seldom(60, lambda: now)
    assert [seldom.occurrence("a"), seldom.occurrence("a"), seldom.occurrence("b")] == [0, None, 0]
    now = 61.0
    assert [seldom.occurrence("a"), seldom.occurrence("a")] == [1, None]
