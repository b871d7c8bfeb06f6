from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from treadle.define.condition import DONE, When, at_least, condition_met, need
from treadle.store.rules.submission import dependency_state

OPEN = ["blocked", "scheduled", "ready", "running", None]


@pytest.mark.parametrize(
    ("when", "states", "met"),
    [
        ("all_success", [], True),
        ("all_done", [], True),
        (at_least(3), [], True),
        ("all_success", ["success", "success"], True),
        ("all_success", ["success", "dead"], False),
        ("all_success", ["success", "cancelled"], False),
        ("all_success", ["success", "running"], False),
        ("all_success", ["success", None], False),
        ("all_done", ["success", "dead", "cancelled"], True),
        ("all_done", ["success", "dead", "ready"], False),
        ("all_done", [None], False),
        (at_least(1), ["dead", "success", None], True),
        (at_least(2), ["dead", "success", None], False),
        (at_least(2, of="done"), ["dead", "success", None], True),
        (at_least(2, of="done"), ["cancelled", "running"], False),
        (at_least(2, of="done"), ["cancelled", "dead"], True),
        (at_least(3), ["success", "success"], False),
        *(("all_done", [state], False) for state in OPEN),
        *(("all_done", [state], True) for state in DONE),
    ],
)
def test_condition_met(when: When, states: list[str | None], met: bool) -> None:
    assert condition_met(when, states) is met


class Status(StrEnum):
    SUCCESS = "success"
    DEAD = "dead"


@dataclass
class State:
    status: str


def test_states_may_be_objects_or_enums() -> None:
    assert condition_met("all_success", [State("success"), State(Status.SUCCESS), Status.SUCCESS])
    assert not condition_met("all_success", [State("success"), Status.DEAD])
    assert condition_met("all_done", [State("success"), Status.DEAD])


@pytest.mark.parametrize(
    ("when", "count", "expected"),
    [
        ("all_success", 3, (3, "success")),
        ("all_done", 3, (3, "done")),
        (at_least(2), 3, (2, "success")),
        (at_least(3, of="done"), 3, (3, "done")),
        ("all_success", 0, (0, "success")),
        (at_least(2), 0, (0, "success")),
    ],
)
def test_need_gives_the_count_and_what_counts(when: When, count: int, expected: tuple[int, str]) -> None:
    assert need(when, count) == expected


def test_at_least_more_than_the_dependencies_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at_least\(3\) of 2"):
        need(at_least(3), 2)


@pytest.mark.parametrize("n", [0, -1, True, 1.5, "2", None])
def test_at_least_refuses_a_bad_count(n: Any) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        at_least(n)


def test_at_least_refuses_a_bad_of() -> None:
    of: Any = "failed"
    with pytest.raises(ValueError, match="'success' or 'done'"):
        at_least(1, of=of)


@pytest.mark.parametrize("when", ["any", None, 2, "all-success"])
def test_an_unknown_condition_is_refused(when: Any) -> None:
    with pytest.raises(ValueError, match="must be 'all_success'"):
        condition_met(when, ["success"])
    with pytest.raises(ValueError, match="must be 'all_success'"):
        need(when, 1)


@pytest.mark.parametrize(
    ("counters", "expected"),
    [((2, 0, 2), False), ((2, 0, 1), True), ((2, 1, 1), False), ((2, 2, 0), False), ((1, 0, 0), True)],
)
def test_doomed_if_the_open_dependencies_cannot_meet_the_need(
    counters: tuple[int, int, int], expected: bool
) -> None:
    assert (dependency_state(*counters) == "doomed") is expected


@pytest.mark.parametrize(
    "when", ["all_success", "all_done", at_least(1), at_least(2), at_least(2, of="done")]
)
def test_the_counters_agree_with_condition_met(when: When) -> None:
    """For every combination of three dependencies."""
    for states in product(["success", "dead", "cancelled", "running", None], repeat=3):
        required, counts = need(when, 3)
        met = sum(state == "success" if counts == "success" else state in DONE for state in states)
        still_open = sum(state not in DONE for state in states)
        assert (met >= required) is condition_met(when, states)
        best_case = [state if state in DONE else "success" for state in states]
        doomed = dependency_state(required, met, still_open) == "doomed"
        assert doomed is not condition_met(when, best_case)
