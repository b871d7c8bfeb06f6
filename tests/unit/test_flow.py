"""Flow control: the adaptive delay, and when a backlog is reported."""

from datetime import timedelta

import pytest

from treadle.errors import InputError
from treadle.flow_control import AdaptiveDelay, BacklogWatch, BackpressureInfo, adaptive_delay
from treadle.metrics import Metrics


class Fleet:
    """Attempts that end. It asks the delay after each of them."""

    def __init__(self, delay: AdaptiveDelay) -> None:
        self.metrics = Metrics()
        self._delay = delay

    def ask(self) -> float:
        return self._delay(BackpressureInfo(self.metrics, 0))

    def fail(self, type: str = "a") -> float:
        self._begin(type).again("retry", 0.1)
        return self.ask()

    def die(self, type: str = "a") -> float:
        self._begin(type).died(0.1, 0.1, 1, reason="exhausted")
        return self.ask()

    def succeed(self, type: str = "a") -> float:
        self._begin(type).succeeded_in(0.1, 0.1, 1)
        return self.ask()

    def _begin(self, type: str):  # type: ignore[no-untyped-def]
        series = self.metrics.of(type)
        series.claimed()
        series.began(0.0)
        return series


def test_a_failure_doubles_the_delay_and_a_success_subtracts_a_step() -> None:
    fleet = Fleet(adaptive_delay(max=1))
    delays = [fleet.ask(), *(fleet.fail() for _ in range(3)), *(fleet.succeed() for _ in range(4))]
    assert delays == [0, 0.1, 0.2, 0.4, 0.3, 0.2, 0.1, 0]


def test_retried_and_final_failures_count_alike() -> None:
    fleet = Fleet(adaptive_delay())
    assert [fleet.fail(), fleet.die(), fleet.fail()] == [0.1, 0.2, 0.4]


def test_the_delay_stays_between_min_and_max() -> None:
    fleet = Fleet(adaptive_delay(min=0.05, max=timedelta(seconds=0.3)))
    assert [fleet.ask(), *(fleet.fail() for _ in range(4))] == [0.05, 0.1, 0.2, 0.3, 0.3]
    assert [fleet.succeed() for _ in range(4)] == [0.2, 0.1, 0.05, 0.05]


def test_the_delay_recovers_without_new_attempts() -> None:
    fleet = Fleet(adaptive_delay())
    fleet.fail()
    fleet.fail()
    assert [fleet.ask(), fleet.ask(), fleet.ask()] == [0.1, 0, 0]


def test_failures_up_to_max_fail_rate_add_no_delay() -> None:
    fleet = Fleet(adaptive_delay(max_fail_rate=0.5))
    fleet.metrics.of("a").succeeded_in(None, 0.1, 1, held=False)
    assert fleet.fail() == 0, "one of two is not more than half"
    assert fleet.fail() == 0.1


def test_base_factor_and_step_can_be_set() -> None:
    fleet = Fleet(adaptive_delay(base=1, factor=3, step=0.5))
    assert [fleet.fail(), fleet.fail(), fleet.succeed()] == [1, 3, 2.5]


def test_only_the_named_types_count() -> None:
    fleet = Fleet(adaptive_delay(types=["b", "unknown"]))
    assert [fleet.fail("a"), fleet.fail("b")] == [0, 0.1]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_fail_rate": 1.5}, "max_fail_rate"),
        ({"factor": 0.5}, "factor"),
        ({"min": 5, "max": 1}, "min"),
        ({"base": -1}, "base"),
        ({"step": float("nan")}, "step"),
        ({"types": "mail.send"}, "types"),
    ],
)
def test_bad_arguments_of_adaptive_delay_are_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        adaptive_delay(**wrong)  # type: ignore[arg-type]
    assert caught.value.parameters == (field,)


# ------------------------------------------------------------------------------------------------- backlog


def test_a_backlog_is_reported_once_after_a_while() -> None:
    watch = BacklogWatch(after=10)
    assert [watch.run_once(now, True) for now in (100, 105, 110, 115, 200)] == [None, None, 10, None, None]


def test_a_backlog_is_reported_again_after_every() -> None:
    watch = BacklogWatch(after=10, every=5)
    assert [watch.run_once(now, True) for now in (0, 10, 12, 15, 19, 20)] == [None, 10, None, 15, None, 20]


def test_the_wait_starts_again_after_the_worker_has_caught_up() -> None:
    watch = BacklogWatch(after=10)
    for now, behind in ((0, True), (9, False), (10, True), (19, True)):
        assert watch.run_once(now, behind) is None
    assert watch.run_once(20, True) == 10
    assert watch.run_once(21, False) is None
    assert watch.next_at is None
    assert [watch.run_once(now, True) for now in (30, 40)] == [None, 10]


def test_next_at_shows_when_the_next_report_is_due() -> None:
    watch = BacklogWatch(after=10, every=5)
    assert watch.next_at is None
    watch.run_once(100, True)
    assert watch.next_at == 110
    watch.run_once(110, True)
    assert watch.next_at == 115


def test_after_zero_reports_at_once() -> None:
    assert BacklogWatch(after=0).run_once(5, True) == 0


@pytest.mark.parametrize("wrong", [{"after": -1}, {"after": 1, "every": 0}, {"after": 1, "every": -2}])
def test_bad_times_of_a_backlog_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="backlog_"):
        BacklogWatch(**wrong)
