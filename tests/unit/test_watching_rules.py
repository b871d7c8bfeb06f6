"""The rules of what operators read: treadle.store.rules.watching."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import Struct

from treadle.backends.memory.priority_queue import Position, PriorityQueue
from treadle.item import Attempt, Count, ItemState, Status, WorkerState
from treadle.item_facts import LimitHolder, LimitUse, Prerequisite
from treadle.store.rules.limits import LimitState
from treadle.store.rules.watching import (
    MOST_HOLDERS,
    WaitsAgain,
    rate_use,
    shown_counts,
    shown_prerequisites,
    slots_use,
    unserved_since,
    why_again,
)

NOW = 1000.0


def state(status: Status = "ready", due_at: float = 100.0, **fields: Any) -> ItemState:
    return ItemState(id="x", type="t", status=status, due_at=due_at, **fields)


def attempt(at: float) -> Attempt:
    return Attempt(1, "E", "", "", at, "w")


class TestWhyAgain:
    def test_an_item_that_was_never_claimed_waits_for_the_first_time(self) -> None:
        assert why_again(state(), None, keeps_place=True) == WaitsAgain()

    @pytest.mark.parametrize("status", ["blocked", "running", "success", "dead", "cancelled"])
    def test_only_scheduled_and_ready_items_wait_again(self, status: Any) -> None:
        again = why_again(state(status=status, claimed_at=200.0), None, keeps_place=True)
        assert again == WaitsAgain()

    def test_a_doomed_item_does_not_wait_to_run(self) -> None:
        assert why_again(state(claimed_at=200.0), "expired", keeps_place=True) == WaitsAgain()

    def test_a_loss_after_the_claim_freed_it(self) -> None:
        lost = state(claimed_at=200.0, losses=1, history=(attempt(50), attempt(300)))
        assert why_again(lost, None, keeps_place=False) == WaitsAgain(freed=True)

    def test_a_failure_after_the_claim_did_not_free_it(self) -> None:
        failed = state(claimed_at=200.0, history=(attempt(300),), due_at=10.0)
        assert why_again(failed, None, keeps_place=False) == WaitsAgain()

    def test_a_claim_after_the_last_loss_was_given_back(self) -> None:
        released = state(claimed_at=400.0, losses=1, history=(attempt(300),))
        assert why_again(released, None, keeps_place=False) == WaitsAgain(given_back=True)

    def test_a_deferred_item_is_due_after_its_claim(self) -> None:
        assert why_again(state(claimed_at=200.0, due_at=250.0), None, keeps_place=False) == WaitsAgain()

    @pytest.mark.parametrize("keeps_place", [True, False])
    def test_a_scheduled_item_that_keeps_its_place_was_given_back(self, keeps_place: bool) -> None:
        again = why_again(
            state(status="scheduled", claimed_at=200.0, due_at=900.0), None, keeps_place=keeps_place
        )
        assert again == WaitsAgain(given_back=keeps_place)


class TestPrerequisites:
    def test_open_ones_come_first_and_those_that_counted_last(self) -> None:
        item = state(after=("good", "open", "gone", "bad", "open", "later"), waiting_for=("later",))
        found: Any = {"good": ("success", "a"), "open": ("running", "b"), "bad": ("dead", "c")}
        assert shown_prerequisites(item, "success", found) == (
            Prerequisite("open", "running", "b"),
            Prerequisite("later", "missing"),
            Prerequisite("bad", "dead", "c"),
            Prerequisite("good", "success", "a"),
            Prerequisite("gone", "missing"),  # it counted when the item was requeued
        )

    def test_any_end_counts_if_any_end_is_wanted(self) -> None:
        item = state(after=("bad", "good"))
        found: Any = {"good": ("success", ""), "bad": ("cancelled", "")}
        assert [one.id for one in shown_prerequisites(item, "done", found)] == ["bad", "good"]
        assert [one.id for one in shown_prerequisites(item, "success", found)] == ["bad", "good"]
        found["good"] = ("ready", "")
        assert [one.id for one in shown_prerequisites(item, "done", found)] == ["good", "bad"]


class TestServing:
    LIVE = WorkerState("live", NOW + 1, ("a",), 0)
    LAPSED = WorkerState("lapsed", NOW - 50, ("b",), 0)
    GONE = WorkerState("gone", NOW - 70, None, 0)

    def test_a_served_type_is_not_unserved(self) -> None:
        assert unserved_since("a", [self.LIVE], {"a": 5.0}, NOW) is None

    def test_the_last_worker_that_had_it_counts(self) -> None:
        assert unserved_since("b", [self.LIVE, self.LAPSED, self.GONE], {}, NOW) == NOW - 50
        assert unserved_since("c", [self.LAPSED, self.GONE], {"c": 5.0}, NOW) == NOW - 70
        assert unserved_since("c", [], {"c": 5.0, "": 7.0, "d": 9.0}, NOW) == 7.0
        assert unserved_since("c", [], {"d": 9.0}, NOW) is None


class TestCounts:
    def test_counts_of_a_queue_and_status_are_estimates_together(self) -> None:
        found: Any = {
            ("y", "q", "t", "ready"): 4,
            ("x", "q", "t", "ready"): 3,
            ("y", "r", "t", "ready"): 5,
            ("z", "q", "t", "dead"): 1,
            ("z", "r", "t", "dead"): 0,
        }
        assert shown_counts(found, {("q", "ready")}) == (
            Count("x", "q", "t", "ready", 3, True),
            Count("y", "q", "t", "ready", 4, True),
            Count("y", "r", "t", "ready", 5),
            Count("z", "q", "t", "dead", 1),
        )


class TestLimits:
    def test_a_rate_that_is_not_used_is_left_out(self) -> None:
        assert rate_use("l", "fixed_window", (5, 10.0), LimitState(NOW - 10, 3), NOW) is None
        assert rate_use("l", "token_bucket", (5, 10.0), LimitState(NOW - 10, 3), NOW) is None

    def test_a_rate_says_how_much_of_it_is_left(self) -> None:
        use = rate_use("l", "token_bucket", (5, 10.0), LimitState(NOW - 2, 5), NOW)
        assert use == LimitUse("l", "token_bucket", 4.0, 5, 0.0)
        use = rate_use("l", "fixed_window", (5, 10.0), LimitState(NOW - 4, 5), NOW)
        assert use == LimitUse("l", "fixed_window", 5, 5, 6.0)

    def test_the_previous_window_counts_in_part(self) -> None:
        use = rate_use("l", "sliding_window", (10, 100.0), LimitState(900.0, 8), 1025.0)
        assert use is not None
        assert use.used == pytest.approx(6.0)

    def test_an_unknown_rate_says_what_is_stored(self) -> None:
        assert rate_use("l", "token_bucket", None, LimitState(NOW, 3), NOW) == LimitUse(
            "l", "token_bucket", 3
        )
        assert rate_use("l", "token_bucket", None, LimitState(NOW, 0), NOW) is None

    def test_the_largest_holders_are_named(self) -> None:
        holders = [LimitHolder(f"w{n:03}", 1 + (n == 150)) for n in range(200)]
        use = slots_use("s", holders)
        assert use is not None
        assert (use.used, len(use.holders)) == (201, MOST_HOLDERS)
        assert [holder.worker for holder in use.holders[:3]] == ["w150", "w000", "w001"]
        assert slots_use("s", []) is None


class Member(Struct, eq=False):
    position: Position | None = None


def test_a_priority_queue_counts_the_members_before_a_position() -> None:
    """However they came in and whichever were removed."""
    chance = random.Random(7)
    for _ in range(50):
        queue: PriorityQueue[Member] = PriorityQueue()
        members: list[Member] = []
        for tie in range(60):
            members.append(Member())
            queue.push(chance.randrange(5), tie, members[-1])
        for member in chance.sample(members, 25):
            queue.remove(member)
        left = [member.position[:2] for member in members if member.position is not None]
        for number, tie in left:
            before = sum(place < (number, tie) for place in left)
            assert queue.count_before(number, tie, 1000) == before
            assert queue.count_before(number, tie, 10) == min(before, 10)
