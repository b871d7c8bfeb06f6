"""Rules: the storage rules that the Python backends share."""

import math
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle.item import (
    Algorithm,
    Contribution,
    Counting,
    ErrorInfo,
    Fire,
    Item,
    Lease,
    Limit,
    PermitReply,
    PermitRequest,
    Ref,
    Rejected,
    Schedule,
    Settlement,
    SettlementKind,
    Status,
)
from treadle.store.rules.limits import LimitState, idle_at, permit
from treadle.store.rules.repair import Condition, RepairLookups, plan_repair
from treadle.store.rules.settlement import (
    VERSIONS,
    Counters,
    GroupValue,
    WaitingAgain,
    after_loss,
    contributed,
    contribution_state,
    loss_delay,
    loss_of,
    next_version,
    put_back,
    recorded_failure,
    redrive,
)
from treadle.store.rules.submission import (
    Dependencies,
    KeyHolder,
    SubmitPlan,
    as_child,
    count_dependencies,
    dependency_cycle,
    dependency_state,
    find_cycle,
    is_tolerant,
    key_answers,
    plan_submission,
)
from treadle.store.rules.times import due_at, fired, put_schedule

EPOCH = 1_700_000_000.0


class Limits:
    """The states of some limits, kept between requests as a store keeps them."""

    def __init__(self, *limits: Limit) -> None:
        self.limits = limits
        self.states: dict[Limit, LimitState] = {}

    def take(self, count: int, now: float) -> PermitReply:
        reply, states = permit(PermitRequest(self.limits, count), self.states, now)
        self.states.update(states)
        return reply


def test_an_absolute_instant_wins_over_a_relative_one() -> None:
    assert due_at(Item(id="a", type="t", input=b"", delay=5), 100.0) == 105.0
    assert due_at(Item(id="a", type="t", input=b"", delay=5, run_at=7.0), 100.0) == 7.0


def test_the_delay_grows_with_losses_in_a_row() -> None:
    """It is spread over half of its length, so that items that were lost together come back apart."""
    for losses, longest in ((2, 1), (3, 2), (4, 4), (5, 8), (6, 16), (7, 30), (100_000, 30)):
        delays = [loss_delay(losses, number) for number in range(1000)]
        assert longest / 2 <= min(delays) < longest * 0.51
        assert longest * 0.99 < max(delays) <= longest


# --------------------------------------------------------------------------------------- attempts and history


def settled(kind: SettlementKind, delay: float = 0.0, run_at: float | None = None) -> Settlement:
    return Settlement(lease=Lease("a", "t", 1, "x", b"", 1, "a"), kind=kind, delay=delay, run_at=run_at)


def test_a_retry_counts_a_failure_and_goes_to_the_end() -> None:
    found = put_back(settled("retry", delay=5), 100.0, Counters(2, 0, 1, True), due=90.0, deadline=None)
    assert found == WaitingAgain("scheduled", 105.0, 2, 1, 0, False, None)


def test_a_deferral_does_not_count_the_attempt() -> None:
    found = put_back(settled("defer"), 100.0, Counters(2, 1, 1, True), due=90.0, deadline=101.0)
    assert found == WaitingAgain("ready", 100.0, 1, 1, 0, False, None)


def test_a_release_keeps_its_place_its_losses_and_its_due_time() -> None:
    found = put_back(settled("release"), 100.0, Counters(1, 0, 2, True), due=90.0, deadline=None)
    assert found == WaitingAgain("ready", 90.0, 0, 0, 2, True, None, stays_ready=True)
    later = put_back(
        settled("release", run_at=120.0), 100.0, Counters(1, 0, 0, False), due=90.0, deadline=None
    )
    assert later == WaitingAgain("scheduled", 120.0, 1, 0, 0, True, None)


def test_an_item_returned_after_its_deadline_is_doomed() -> None:
    found = put_back(settled("retry", delay=5), 100.0, Counters(1, 0, 0, True), due=90.0, deadline=100.0)
    assert (found.status, found.verdict) == ("scheduled", "expired")


def test_a_lost_item_is_ready_at_once_then_backs_off_and_keeps_its_place() -> None:
    first = after_loss(100.0, Counters(1, 0, 0, True), 7, due=90.0, deadline=None)
    assert first == WaitingAgain("ready", 90.0, 1, 0, 1, True, None)
    second = after_loss(100.0, Counters(2, 0, 1, True), 7, due=90.0, deadline=100.0)
    assert second == WaitingAgain("scheduled", 100 + loss_delay(2, 7), 2, 0, 2, True, "expired")


def test_an_attempt_that_had_not_begun_is_no_loss() -> None:
    found = after_loss(100.0, Counters(3, 1, 2, False), 7, due=90.0, deadline=None)
    assert found == WaitingAgain("ready", 90.0, 3, 1, 2, True, None, stays_ready=True)


def test_a_requeue_by_an_operator_resets_the_count_of_redrives() -> None:
    assert redrive(3, None, 10.0) == (0, 0.0)
    assert redrive(3, 5, 10.0) == (4, 80.0)


def test_retries_and_deaths_record_their_failure() -> None:
    failure = ErrorInfo("E", "boom", "")
    lease = Lease("a", "t", 1, "x", b"", 1, "a")
    recorded = {
        (kind, verdict): recorded_failure(Settlement(lease=lease, kind=kind, failure=failure), verdict)
        for kind in ("retry", "defer", "dead")
        for verdict in (None, "expired")
    }
    assert {key for key, found in recorded.items() if found} == {
        ("retry", None),
        ("dead", None),
        ("dead", "expired"),
    }


@pytest.mark.parametrize(
    ("settled", "ended", "by_operator", "expected"),
    [
        ((7,), "dead", False, None),
        ((), None, False, "taken"),
        ((), "success", False, "taken"),
        ((), "success", True, "completed"),
        ((), "cancelled", True, "cancelled"),
    ],
)
def test_a_stale_token_has_a_reason(
    settled: tuple[int, ...], ended: Status | None, by_operator: bool, expected: str | None
) -> None:
    assert loss_of(7, settled, ended, by_operator=by_operator) == expected


def test_an_append_changes_the_value_unless_it_is_final() -> None:
    plain, fold = Contribution(), Contribution(b"v", final=True, version=2)
    assert contribution_state(fold, 2, final=False, refused=False) == "applies"
    assert contribution_state(fold, 3, final=True, refused=False) == "moved"
    assert contribution_state(fold, 2, final=False, refused=True) == "moved"
    assert contribution_state(plain, 2, final=False, refused=True) == "applies"
    assert contribution_state(plain, 2, final=True, refused=False) == "ignored"
    assert contributed(fold, b"r", 7) == GroupValue(next_version(7, 2), b"v", True)
    assert contributed(plain, b"r", 7) == GroupValue(7, b"r", False)


def test_versions_of_a_group_depend_on_who_folded_from_what_and_in_which_order() -> None:
    one, other = 2**62 + 5, 2**40 + 11
    chains = [(one, other), (other, one), (one,), (other,), (one, one), ()]
    versions = [reduce(lambda version, token: next_version(token, version), chain, 0) for chain in chains]
    assert len(set(versions)) == len(chains)
    assert all(0 <= version < VERSIONS for version in versions)
    assert next_version(VERSIONS, None) == 1, "0 is for groups without a value"


# ------------------------------------------------------------------------------------------------- submission


def item(id: str, *after: str, key: str | None = None, tenant: str = "t", need: int | None = None) -> Item:
    need = len(after) if need is None else need
    return Item(id=id, type="x", input=b"", tenant=tenant, after=after, need=need, key=key)


def planned(
    *items: Item, stored: frozenset[str] = frozenset(), holds: str | None = None
) -> SubmitPlan | Rejected:
    holder = None if holds is None else KeyHolder(holds, True, 90.0)
    return plan_submission(items, 100.0, lambda key: holder, lambda ref: ref[1] in stored)


def test_dependents_of_a_known_key_wait_for_the_existing_item() -> None:
    plan = planned(item("a", key="k"), item("b", "a", "c"), holds="old")
    assert isinstance(plan, SubmitPlan)
    assert plan.answers == [(("t", "old"), True), (("t", "b"), False)]
    assert plan.existing == {"a": "old"}
    assert [(new.id, new.after) for new in plan.new.values()] == [("b", ("old", "c"))]


def test_the_first_item_with_a_key_in_a_submission_answers_for_the_others() -> None:
    plan = planned(item("a", key="k"), item("b", key="k"), item("c", "b"))
    assert isinstance(plan, SubmitPlan)
    assert plan.answers == [(("t", "a"), False), (("t", "a"), True), (("t", "c"), False)]
    assert plan.keys == {("t", "x", "k"): ("t", "a")}
    assert plan.new["t", "c"].after == ("a",)


def test_ids_that_are_stored_or_come_twice_are_refused() -> None:
    found = planned(item("a"), item("b"), item("b"), stored=frozenset({"a"}))
    assert found == Rejected("duplicate_id", ("a", "b"))


def test_a_submit_plan_can_have_a_tenant() -> None:
    plan = plan_submission([item("a")], 100.0, lambda key: None, lambda ref: False, tenant="u")
    assert isinstance(plan, SubmitPlan)
    assert list(plan.new) == [("u", "a")]


def test_a_child_gets_its_tenant_and_parent() -> None:
    child = as_child(item("a"), "u", "p")
    assert (child.tenant, child.parent) == ("u", "p")
    assert as_child(child, "u", "other") is child


def test_a_dependency_named_twice_counts_twice() -> None:
    found = count_dependencies(item("a", "b", "b", "c"), {"c": "success"}.get)  # type: ignore[arg-type]
    assert (found.met, found.open, found.pending, found.state) == (1, 2, {"b": 2}, "waiting")
    assert found.count("b", "success", "success")
    assert (found.met, found.open, found.state) == (3, 0, "released")
    assert not found.count("b", "success", "success")


def test_a_dead_dependency_dooms_the_item() -> None:
    found = Dependencies(1)
    found.pending, found.open = {"b": 1}, 1
    assert found.count("b", "success", "dead")
    assert found.state == "doomed"


def test_a_cycle_may_contain_new_and_stored_items() -> None:
    new = {("t", "a"): item("a", "b")}
    waits = {("t", "b"): [("t", "a")]}

    def cycle(is_awaited: bool, ended: Status | None = None) -> tuple[str, ...] | None:
        return dependency_cycle(
            new, lambda ref: ended, lambda ref: is_awaited, lambda ref: waits.get(ref, [])
        )

    assert cycle(True) == ("a", "b")
    assert cycle(False) is None
    assert cycle(True, ended="success") is None
    together = {("t", "a"): item("a", "b"), ("t", "b"): item("b", "a")}
    found = dependency_cycle(together, lambda ref: None, lambda ref: False, lambda ref: [])
    assert found == ("a", "b")


@pytest.mark.parametrize(
    ("need", "met", "open", "expected"),
    [(2, 2, 0, "released"), (2, 1, 1, "waiting"), (2, 1, 0, "doomed"), (0, 0, 3, "released")],
)
def test_dependencies_are_released_doomed_or_waiting(need: int, met: int, open: int, expected: str) -> None:
    assert dependency_state(need, met, open) == expected


def test_a_cycle_is_found_from_outside_of_it() -> None:
    waits = {"a": ["b"], "b": ["c", "d"], "c": [], "d": ["e"], "e": ["b"]}
    assert find_cycle(["c", "a"], lambda node: waits[node]) == ("b", "d", "e")
    assert find_cycle(["c"], lambda node: waits[node]) is None


def test_a_long_chain_is_not_a_cycle() -> None:
    assert find_cycle([0], lambda n: [n + 1] if n < 100_000 else []) is None


def test_a_key_answers_within_its_scope() -> None:
    assert key_answers("open", group_open=True, age=9)
    assert not key_answers("open", group_open=False, age=0)
    assert key_answers("any", group_open=False, age=9)
    assert key_answers(9.0, group_open=False, age=9)
    assert not key_answers(8.0, group_open=True, age=9)


# --------------------------------------------------------------------------------------- schedules and limits


def test_a_schedule_is_replaced_only_if_its_spec_changed() -> None:
    known = Schedule(name="s", next_at=10.0, spec=b"old", paused=True)
    new = Schedule(name="s", next_at=20.0, spec=b"new")
    assert put_schedule(known, replace(new, spec=b"old"), 5.0) == replace(known, seen_at=5.0)
    assert put_schedule(known, new, 5.0) == replace(new, seen_at=5.0)
    assert put_schedule(known, replace(new, next_at=None), 5.0) is None
    assert put_schedule(known, new, 5.0, again=True) is None
    assert put_schedule(None, new, 5.0, again=True) == replace(new, seen_at=5.0)
    assert put_schedule(None, new, 5.0, again=True, removed=True) is None
    assert put_schedule(None, new, 5.0, removed=True) == replace(new, seen_at=5.0)


def test_only_the_next_occurrence_fires() -> None:
    known = Schedule(name="s", next_at=10.0)
    fire = Fire(name="s", at=10.0, next_at=20.0)
    assert fired(known, fire) == Schedule(name="s", next_at=20.0, last_at=10.0)
    assert fired(known, replace(fire, at=9.0)) is None
    assert fired(replace(known, paused=True), fire) is None
    assert fired(None, fire) is None


def test_a_worker_that_is_not_alive_gets_no_concurrency_permits() -> None:
    slots, rate = Limit("a", 3, algorithm="slots"), Limit("b", 3)
    assert permit(PermitRequest((slots, rate), 1), {}, EPOCH, alive=False) == (PermitReply(0), {})
    assert permit(PermitRequest((rate,), 1), {}, EPOCH, alive=False)[0].count == 1


def test_a_bucket_starts_full_and_refills_evenly() -> None:
    bucket = Limits(Limit("a", 10, 5.0))
    assert bucket.take(12, EPOCH) == PermitReply(10, 0.5)
    assert bucket.take(1, EPOCH + 0.25) == PermitReply(0, 0.25)
    assert bucket.take(1, EPOCH + 0.5).count == 1
    assert bucket.take(100, EPOCH + 100).count == 10


def test_a_fixed_window_begins_with_its_first_permit() -> None:
    window = Limits(Limit("a", 2, 10.0, "fixed_window"))
    assert window.take(1, EPOCH + 3) == PermitReply(1, 0.0)
    assert window.take(5, EPOCH + 12) == PermitReply(1, 1.0)
    assert window.take(5, EPOCH + 20) == PermitReply(2, 10.0)


def test_a_sliding_window_remembers_the_previous_one() -> None:
    start = math.floor(EPOCH / 10) * 10.0
    window = Limits(Limit("a", 10, 10.0, "sliding_window"))
    assert window.take(10, start + 9).count == 10
    assert window.take(10, start + 10).count == 0
    assert window.take(10, start + 15).count == 5
    assert window.take(10, start + 29).count == 9


def test_concurrency_permits_are_kept_until_returned() -> None:
    slots = Limits(Limit("a", 3, algorithm="slots"))
    assert slots.take(2, EPOCH) == PermitReply(2, 0.0)
    assert slots.take(2, EPOCH + 1e6) == PermitReply(1, 0.0)


def test_a_limit_is_not_charged_for_permits_that_another_denied() -> None:
    wide, narrow = Limit("wide", 10), Limit("narrow", 2, 60.0)
    both = Limits(wide, narrow)
    assert both.take(5, EPOCH) == PermitReply(2, 30.0)
    assert both.states[wide].used == 2


def test_a_limit_of_zero_gives_no_permits() -> None:
    assert Limits(Limit("a", 0)).take(1, EPOCH) == PermitReply(0, math.inf)


def test_a_clock_that_goes_back_gives_no_extra_permits() -> None:
    for algorithm in ("token_bucket", "fixed_window", "sliding_window"):
        limits = Limits(Limit("a", 5, 10.0, algorithm))
        assert limits.take(5, EPOCH).count == 5
        reply = limits.take(5, EPOCH - 3600)
        assert (reply.count, reply.retry_after <= 20) == (0, True), "not until the old time comes again"


TIMED: list[Algorithm] = ["token_bucket", "fixed_window", "sliding_window"]


@given(
    st.sampled_from(TIMED),
    st.integers(1, 1000),
    st.floats(0.01, 1e5),
    st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 50)), min_size=1, max_size=20),
)
def test_after_the_wait_there_is_one_and_idle_is_like_new(
    algorithm: Algorithm, most: int, window: float, requests: list[tuple[float, int]]
) -> None:
    limit = Limit("a", most, window, algorithm)
    limits, now = Limits(limit), EPOCH
    for pause, count in requests:
        now += pause
        given = limits.take(count, now)
        assert 0 <= given.count <= min(count, most)
        if given.count < count:
            assert given.retry_after > 0
        now += given.retry_after
        assert limits.take(1, now).count == 1
    idle = idle_at(limit, limits.states[limit]) + 1e-3
    assert limits.take(most, max(now, idle)).count == most


@given(
    algorithm=st.sampled_from(("token_bucket", "fixed_window", "sliding_window")),
    limit=st.integers(1, 12),
    pauses=st.lists(st.floats(0, 3), max_size=60),
)
def test_no_stretch_of_a_window_sees_more_than_twice_the_limit(
    algorithm: Algorithm, limit: int, pauses: list[float]
) -> None:
    """As docs/running.md says of `rate_limited`. A limit of 1 is a hard limit."""
    rate, window, now = Limit("rate", limit, 2.0, algorithm), 2.0, 1000.0
    states: dict[Limit, LimitState] = {}
    given_at: list[float] = []
    for pause in pauses:
        now += pause
        reply, states = permit(PermitRequest((rate,), limit), states, now)
        given_at += [now] * reply.count
    most = max((sum(start <= at < start + window - 1e-3 for at in given_at) for start in given_at), default=0)
    assert most <= (1 if limit == 1 and algorithm == "token_bucket" else 2 * limit)


def test_permits_one_by_one_are_a_hard_limit() -> None:
    """`rate_limited(1, window=2 / 10)` for 10 in 2 s."""
    rate, states = Limit("rate", 1, 0.2, "token_bucket"), dict[Limit, LimitState]()
    given_at: list[float] = []
    for step in range(1000):
        reply, states = permit(PermitRequest((rate,), 5), states, 1000.0 + step / 100)
        given_at += [step] * reply.count
    assert max(sum(start <= at < start + 200 for at in given_at) for start in given_at) == 10


@pytest.mark.parametrize(
    ("counting", "need", "tolerant"),
    [
        ("success", 2, False),
        ("success", 1, True),
        ("success", 3, False),
        ("done", 2, True),
        ("done", 1, True),
    ],
)
def test_an_item_is_tolerant_if_it_may_run_after_a_death(
    counting: Counting, need: int, tolerant: bool
) -> None:
    assert is_tolerant(counting, need, ("a", "b")) is tolerant


def test_a_repair_leaves_items_that_wait_for_each_other() -> None:
    """Each of a and b can run only after the other. c can run, and d after it."""
    after = {"a": ("b",), "b": ("a",), "c": (), "d": ("c",)}

    def condition(id: str) -> Condition:
        return Condition("t", after[id], len(after[id]), "success")

    def ended(id: str, name: str) -> Status | None:
        return "dead"

    def names(id: str) -> list[Ref]:
        return [("t", id)]

    def dependents(name: Ref) -> list[str]:
        return [id for id, waits_for in after.items() if name[1] in waits_for]

    lookups = RepairLookups(condition, ended, names, dependents)
    assert plan_repair(["a", "b", "c"], lookups) == (["c", "d"], {("t", "c"), ("t", "d")})
