"""Rules: the arithmetic of storage."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.item import Algorithm, Item, Limit, PermitReply, PermitRequest
from treadle.rules import LimitState, due_at, find_cycle, gate, grant, idle_at, key_answers, loss_delay

EPOCH = 1_700_000_000.0


class Ledger:
    """Gauges, kept between takes the way a store does."""

    def __init__(self, *limits: Limit) -> None:
        self.limits = limits
        self.gauges: dict[Limit, LimitState] = {}

    def take(self, count: int, now: float) -> PermitReply:
        given, gauges = grant(PermitRequest(self.limits, count), self.gauges, now)
        self.gauges.update(gauges)
        return given


def test_an_absolute_instant_wins_over_a_relative_one() -> None:
    assert due_at(Item(id="a", type="t", input=b"", delay=5), 100.0) == 105.0
    assert due_at(Item(id="a", type="t", input=b"", delay=5, run_at=7.0), 100.0) == 7.0


def test_losses_in_a_row_wait_longer_and_longer() -> None:
    assert [loss_delay(n) for n in range(10)] == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert loss_delay(100_000) == 60


@pytest.mark.parametrize(
    ("need", "met", "open", "expected"),
    [(2, 2, 0, "released"), (2, 1, 1, "waiting"), (2, 1, 0, "doomed"), (0, 0, 3, "released")],
)
def test_a_gate_is_released_doomed_or_waiting(need: int, met: int, open: int, expected: str) -> None:
    assert gate(need, met, open) == expected


def test_a_cycle_is_found_from_outside_of_it() -> None:
    waits = {"a": ["b"], "b": ["c", "d"], "c": [], "d": ["e"], "e": ["b"]}
    assert find_cycle(["c", "a"], lambda node: waits[node]) == ("b", "d", "e")
    assert find_cycle(["c"], lambda node: waits[node]) is None


def test_a_long_chain_is_no_cycle() -> None:
    assert find_cycle([0], lambda n: [n + 1] if n < 100_000 else []) is None


def test_whose_key_answers() -> None:
    assert key_answers("open", group_open=True, age=9)
    assert not key_answers("open", group_open=False, age=0)
    assert key_answers("any", group_open=False, age=9)
    assert key_answers(9.0, group_open=False, age=9)
    assert not key_answers(8.0, group_open=True, age=9)


def test_a_bucket_starts_full_and_refills_evenly() -> None:
    bucket = Ledger(Limit("a", 10, 5.0))
    assert bucket.take(12, EPOCH) == PermitReply(10, 0.5)
    assert bucket.take(1, EPOCH + 0.25) == PermitReply(0, 0.25)
    assert bucket.take(1, EPOCH + 0.5).count == 1
    assert bucket.take(100, EPOCH + 100).count == 10


def test_a_fixed_window_begins_with_its_first_permit() -> None:
    window = Ledger(Limit("a", 2, 10.0, "fixed_window"))
    assert window.take(1, EPOCH + 3) == PermitReply(1, 0.0)
    assert window.take(5, EPOCH + 12) == PermitReply(1, 1.0)
    assert window.take(5, EPOCH + 20) == PermitReply(2, 10.0)


def test_a_sliding_window_remembers_the_previous_one() -> None:
    start = math.floor(EPOCH / 10) * 10.0
    window = Ledger(Limit("a", 10, 10.0, "sliding_window"))
    assert window.take(10, start + 9).count == 10
    assert window.take(10, start + 10).count == 0
    assert window.take(10, start + 15).count == 5
    assert window.take(10, start + 29).count == 9


def test_slots_are_held_not_timed() -> None:
    slots = Ledger(Limit("a", 3, algorithm="slots"))
    assert slots.take(2, EPOCH) == PermitReply(2, 0.0)
    assert slots.take(2, EPOCH + 1e6) == PermitReply(1, 0.0)


def test_a_limit_is_not_charged_for_what_another_denied() -> None:
    wide, narrow = Limit("wide", 10), Limit("narrow", 2, 60.0)
    both = Ledger(wide, narrow)
    assert both.take(5, EPOCH) == PermitReply(2, 30.0)
    assert both.gauges[wide].used == 2


def test_a_limit_of_nothing_never_gives() -> None:
    assert Ledger(Limit("a", 0)).take(1, EPOCH) == PermitReply(0, math.inf)


def test_a_clock_that_goes_back_gives_nothing_extra() -> None:
    for algorithm in ("token_bucket", "fixed_window", "sliding_window"):
        ledger = Ledger(Limit("a", 5, 10.0, algorithm))
        assert ledger.take(5, EPOCH).count == 5
        assert ledger.take(5, EPOCH - 3600).count == 0


TIMED: list[Algorithm] = ["token_bucket", "fixed_window", "sliding_window"]


@given(
    st.sampled_from(TIMED),
    st.integers(1, 1000),
    st.floats(0.01, 1e5),
    st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 50)), min_size=1, max_size=20),
)
def test_after_the_wait_there_is_one_and_idle_is_like_new(
    algorithm: Algorithm, most: int, window: float, takes: list[tuple[float, int]]
) -> None:
    limit = Limit("a", most, window, algorithm)
    ledger, now = Ledger(limit), EPOCH
    for pause, count in takes:
        now += pause
        given = ledger.take(count, now)
        assert 0 <= given.count <= min(count, most)
        if given.count < count:
            assert given.retry_after > 0
        now += given.retry_after
        assert ledger.take(1, now).count == 1
    idle = idle_at(limit, ledger.gauges[limit]) + 1e-3
    assert ledger.take(most, max(now, idle)).count == most
