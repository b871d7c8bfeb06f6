"""What facts about an item mean: each reason of `app.why`, from facts made by hand."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from treadle.base.wording import duration
from treadle.bulk_action import BULK_TYPE
from treadle.item import (
    GROUP_MARK,
    Attempt,
    Count,
    DeathReason,
    ItemState,
    Limit,
    Order,
    Schedule,
    Status,
    StepRecord,
    WorkerState,
)
from treadle.item_facts import (
    Explanation,
    LimitHolder,
    LimitUse,
    Prerequisite,
    QueueAge,
    UnservedType,
)
from treadle.operate.tenant_view import seen_workers
from treadle.operate.why.facts import GroupFacts, ItemFacts, LimitFact, NoItem, QueueFacts, ScheduleFacts
from treadle.operate.why.fleet import WorkerFleet
from treadle.operate.why.meaning import reasons_of
from treadle.operate.why.read import next_name, undo_types
from treadle.operate.why.wording import since_text, until_text, worker_name
from treadle.why import Reason
from treadle.worker_info import Blockage, BlockingItem, UndecodableType, WorkerInfo, WorkerTrial

NOW = 1_794_820_000.0


def item(status: Status = "ready", **fields: Any) -> ItemState:
    defaults: dict[str, Any] = {"id": "a1", "type": "mail.send", "queue": "mail", "queued_at": NOW - 60}
    return ItemState(**{**defaults, "due_at": NOW - 60, "status": status, **fields})


def worker(
    id: str = "w1", *, until: float = 8.0, running: int = 0, types: Any = ("mail.send",), **info: Any
) -> WorkerState:
    """A worker that lapses in `until` seconds. It says who it is, and what `info` says."""
    said: dict[str, Any] = {"host": "h", "pid": 7, "lease": 10.0, **info}
    return WorkerState(id, NOW + until, types, running, WorkerInfo(**said))


def silent(id: str = "old") -> WorkerState:
    """A worker that says nothing about itself."""
    return WorkerState(id, NOW + 8, ("mail.send",), 0)


OWN = ("limits", "causes", "root", "group", "paused", "runs")
PAUSE = Order(kind="pause", queue="mail")


def facts(status: Status = "ready", *workers: WorkerState, **given: Any) -> ItemFacts:
    """Facts about an item. Names of an Explanation go there, others into the item."""
    known = {name: given.pop(name) for name in list(given) if name in Explanation.__struct_fields__}
    own: dict[str, Any] = {"limits": ()}
    own |= {name: given.pop(name) for name in list(given) if name in OWN}
    explained = Explanation(now=NOW, item=item(status, **given), workers=workers, **known)
    return ItemFacts(explained=explained, **own)


def kinds(facts: Any) -> list[str]:
    return [reason.kind for reason in reasons_of(facts)]


def only(facts: Any, kind: str) -> Reason:
    """The reason of this kind."""
    (found,) = [reason for reason in reasons_of(facts) if reason.kind == kind]
    return found


# -- no such item ---------------------------------------------------------------------------------------


def test_an_unknown_id_may_be_of_another_tenant_or_pruned_or_not_committed() -> None:
    reason = only(NoItem(id="zz", tenant="acme"), "unknown")
    for word in ("zz", "acme", "pruned", "another tenant", "transaction"):
        assert word in reason.text


# -- blocked --------------------------------------------------------------------------------------------


def test_a_blocked_item_says_how_many_it_needs_and_which_are_open() -> None:
    after = ("p1", "p2", "p3")
    prerequisites = (
        Prerequisite("p2", "running", "page"),
        Prerequisite("p3", "ready", "page"),
        Prerequisite("p1", "success", "page"),
    )
    blocked = facts("blocked", after=after, need=3, met=1, open=2, prerequisites=prerequisites)
    reason = only(blocked, "dependency")
    assert (
        reason.text
        == "1 of 3 prerequisites succeeded, needs 3; waits for p2 (page, running), p3 (page, ready)"
    )
    assert reason.refs == ("p2", "p3")
    assert next_name(blocked) == "p2"


def test_a_blocked_item_that_counts_any_end_says_ended() -> None:
    prerequisites = (Prerequisite("p1", "running", "page"),)
    blocked = facts("blocked", after=("p1",), need=1, open=1, counting="done", prerequisites=prerequisites)
    assert "0 of 1 prerequisite ended, needs 1" in only(blocked, "dependency").text


def test_a_death_that_does_not_count_is_named_while_others_may_come() -> None:
    prerequisites = (Prerequisite("p1", "ready", "page"), Prerequisite("p2", "dead", "page"))
    blocked = facts("blocked", after=("p1", "p2"), need=1, open=1, prerequisites=prerequisites)
    assert "not counted: p2 (page, dead)" in only(blocked, "dependency").text


def test_what_is_not_listed_is_counted() -> None:
    prerequisites = tuple(Prerequisite(f"p{n}", "ready", "page") for n in range(100))
    blocked = facts(
        "blocked", after=tuple(f"p{n}" for n in range(500)), need=500, open=500, prerequisites=prerequisites
    )
    assert only(blocked, "dependency").text.endswith("p2 (page, ready) and 497 more")


def test_an_item_that_waits_for_a_group_names_the_group() -> None:
    name = f"{GROUP_MARK}g1"
    blocked = facts(
        "blocked", after=(name,), need=1, open=1, prerequisites=(Prerequisite(name, "running", "job"),)
    )
    reason = only(blocked, "dependency")
    assert "waits for group g1 (job, running)" in reason.text
    assert reason.refs == ("g1",)
    assert next_name(blocked) == name


@pytest.mark.parametrize("deadline", [None, NOW + 600])
def test_an_id_that_nobody_has_submitted_is_named(deadline: float | None) -> None:
    missing = facts(
        "blocked",
        after=("p1",),
        need=1,
        open=1,
        prerequisites=(Prerequisite("p1", "missing"),),
        waiting_for=("p1",),
        deadline=deadline,
    )
    reason = only(missing, "not_submitted")
    assert "p1" in reason.text
    assert ("no deadline" in reason.text) == (deadline is None)
    assert reason.until == deadline
    assert reason.fix == "submit p1, or give up: treadle cancel a1"
    assert kinds(missing) == (["not_submitted"] if deadline is None else ["not_submitted", "deadline"])
    assert next_name(missing) is None


@pytest.mark.parametrize(("need", "first"), [(2, "not_submitted"), (1, "dependency")])
def test_an_id_that_was_not_submitted_comes_first_if_the_others_are_not_enough(need: int, first: str) -> None:
    prerequisites = (Prerequisite("p1", "ready", "page"), Prerequisite("p2", "missing"))
    blocked = facts("blocked", after=("p1", "p2"), need=need, open=2, prerequisites=prerequisites)
    assert kinds(blocked)[0] == first


# -- scheduled ------------------------------------------------------------------------------------------

FAILED = Attempt(2, "SmtpError", "timed\nout", "", NOW - 5, "w1")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "it was submitted for later"),
        ({"history": (FAILED,), "claimed_at": NOW - 6}, "attempt 2 of 3 failed (SmtpError: timed)"),
        ({"history": (FAILED,), "claimed_at": NOW - 2}, "its handler deferred it"),
        ({"claimed_at": NOW - 2}, "its handler deferred it"),
        ({"freed": True, "losses": 1}, "its worker died while it ran, once"),
        ({"given_back": True}, "a worker gave it back before it ran"),
    ],
)
def test_an_item_that_is_due_later_says_why_and_when(given: dict[str, Any], text: str) -> None:
    scheduled = facts("scheduled", due_at=NOW + 180, tenant="acme", **given)
    (reason,) = reasons_of(scheduled)
    assert reason.kind == "due_at"
    assert reason.text == f"{text}, due in 3 min"
    assert reason.until == NOW + 180
    assert reason.fix == "treadle trigger a1 --tenant acme"


def test_an_item_that_ends_its_workers_is_not_to_be_run_sooner() -> None:
    warning = (
        "it may end the next worker too: see the logs of those that died. To keep it from running: "
        "treadle hold a1. To give it up: treadle cancel a1"
    )
    (reason,) = reasons_of(facts("scheduled", due_at=NOW + 180, freed=True, losses=7))
    assert reason.text == "its worker died while it ran, 7 times in a row, due in 3 min"
    assert reason.fix == warning
    back = reasons_of(facts("scheduled", due_at=NOW + 180, given_back=True, losses=7))
    assert [(each.kind, each.fix) for each in back] == [("due_at", ""), ("isolated", warning)]
    assert only(running(worker(), losses=6), "running").text.endswith(
        "attempt 2 of 3; 6 workers in a row died, or lost the lease, while they ran it before"
    )


def test_an_item_that_was_declined_says_by_whom() -> None:
    declining = worker(declined={"mail.send": 40})
    scheduled = facts("scheduled", declining, worker("w2"), due_at=NOW + 1, given_back=True)
    assert kinds(scheduled) == ["due_at", "declined"]
    assert "w1 (host h, pid 7) declined 40 in the last minute" in only(scheduled, "declined").text


def test_arguments_that_do_not_decode_say_why_until_when_and_what_to_do() -> None:
    says = worker(undecodable={"mail.send": UndecodableType(1, "expected int\x07 - at $.n", NOW + 420)})
    back = facts("scheduled", says, due_at=NOW + 9, claimed_at=NOW - 1, given_back=True)
    reason, later = reasons_of(back)
    assert reason.text == (
        "its arguments do not fit the code of w1 (host h, pid 7): expected int\\x07 - at $.n; it is left to "
        "workers with other code and tried again; it is dead (undecodable) in 7 min at the latest"
    )
    assert (reason.kind, reason.until, reason.refs) == ("undecodable", NOW + 420, ("w1",))
    assert "upcast" in reason.fix
    assert "treadle check" in reason.fix
    assert (later.kind, later.fix) == ("due_at", "")
    many = worker(undecodable={"mail.send": UndecodableType(12, "no", NOW + 420)})
    assert (
        "12 items of mail.send are in this state, and the first"
        in reasons_of(facts("scheduled", many, due_at=NOW + 9, claimed_at=NOW - 1, given_back=True))[0].text
    )


def test_a_tenant_learns_that_its_arguments_do_not_decode_and_nothing_of_others() -> None:
    says = worker(undecodable={"mail.send": UndecodableType(12, "secret", NOW + 420)})
    (seen,) = seen_workers([says], "acme")
    back = facts("scheduled", seen, due_at=NOW + 9, claimed_at=NOW - 1, given_back=True)
    reason = only(back, "undecodable")
    assert reason.until is None
    assert reason.text == (
        "its arguments do not fit the code of w1; it is left to workers with other code and tried again"
    )


def test_a_ready_item_that_did_not_decode_says_so_first() -> None:
    says = worker(undecodable={"mail.send": UndecodableType(1, "no", NOW + 420)}, full=True)
    assert kinds(facts("ready", says, claimed_at=NOW - 1)) == ["undecodable", "worker_full"]
    assert kinds(facts("scheduled", says, claimed_at=NOW - 1, due_at=NOW - 1))[0] == "undecodable"
    assert kinds(facts("ready", says)) == ["worker_full"]  # no worker has had it
    ran = {"claimed_at": NOW - 2, "started_at": NOW - 2}
    assert kinds(facts("ready", says, **ran)) == ["worker_full"]


def test_an_item_that_is_due_and_not_claimed_says_what_a_ready_one_says() -> None:
    assert kinds(facts("scheduled", due_at=NOW - 14)) == ["no_worker", "overdue"]
    behind = facts("scheduled", worker(full=True), due_at=NOW - 14, ahead=3)
    assert kinds(behind) == ["worker_full", "overdue", "turn"]
    overdue = facts("scheduled", worker(), due_at=NOW - 14)
    assert kinds(overdue) == ["overdue"]
    assert "14 s ago" in only(overdue, "overdue").text


# -- ready: pauses and workers --------------------------------------------------------------------------


def test_a_paused_queue_is_the_first_reason() -> None:
    paused = facts("ready", worker(), paused=(PAUSE, replace(PAUSE, tenant="default")))
    first, second = reasons_of(paused)
    assert (first.text, first.fix) == ("queue mail is paused for all tenants", "treadle resume mail")
    assert second.fix == "treadle resume mail --tenant default"


def test_a_paused_queue_without_workers_says_both() -> None:
    assert kinds(facts("ready", paused=(PAUSE,))) == ["paused", "no_worker"]


def test_without_workers_it_says_so() -> None:
    assert only(facts("ready"), "no_worker").text == "no worker is alive"


def test_the_last_worker_that_was_seen_is_named() -> None:
    reason = only(facts("ready", worker("w0", until=-500), worker("w1", until=-170)), "no_worker")
    assert reason.text == "no worker is alive: the last one, w1 (host h, pid 7), was last seen 3 min ago"
    gone = WorkerState("old", NOW - 20, None, 0)
    assert "the last one, old, lost its lease 20 s ago" in only(facts("ready", gone), "no_worker").text


def test_a_worker_that_is_stopping_takes_nothing() -> None:
    reason = only(facts("ready", worker(draining=True)), "no_worker")
    assert reason.text == "no worker takes new items: w1 (host h, pid 7) is stopping"


def test_a_manual_lease_is_no_worker() -> None:
    assert kinds(facts("ready", worker(types=None, manual=True))) == ["no_worker"]


def test_a_type_that_no_worker_has_is_shown_with_close_names() -> None:
    workers = [worker(f"w{n}", types=("mail.sned", "page"), unknown_type_grace=600.0) for n in range(4)]
    reason = only(facts("ready", *workers, due_at=NOW - 900, unknown_since=NOW - 180), "no_worker_for_type")
    assert reason.text == (
        "none of 4 live workers has mail.send, but mail.sned is known; the last that had it left 3 min ago; "
        "without one it is dead (unknown_type) in 7 min"
    )
    assert reason.until == NOW + 420
    assert "aliases=['mail.send']" in reason.fix


def test_a_type_that_the_only_worker_lacks() -> None:
    reason = only(facts("ready", worker(types=("page",))), "no_worker_for_type")
    assert reason.text == "the only live worker, w1 (host h, pid 7), does not have mail.send"
    assert reason.until is None


def test_a_queue_that_no_worker_serves_is_shown_with_those_that_they_do() -> None:
    workers = [worker("w1", queues=("default",)), worker("w2", queues=("bulk", "mial"))]
    reason = only(facts("ready", *workers), "no_worker_for_queue")
    assert reason.text == (
        "no worker that has mail.send serves queue mail: 2 workers that have it serve bulk, default, mial; "
        "mial and mail look alike"
    )
    assert reason.fix == (
        "correct --queues of the worker or, if that is right, update the queue of the items; "
        "or start a worker for it: treadle worker MODULE:APP --queues mail"
    )


def test_a_tenant_that_no_worker_serves() -> None:
    reason = only(facts("ready", worker(tenants=("acme",)), tenant="beta"), "no_worker_for_tenant")
    assert reason.text == (
        "no worker that has mail.send and serves queue mail serves tenant beta: 1 worker serves acme"
    )


def test_a_worker_that_says_nothing_may_serve_it() -> None:
    reason = only(facts("ready", worker(queues=("bulk",)), silent()), "next")
    assert "old says nothing about itself: its queues, tenants and room are not known" in reason.text
    assert reason.fix == "look again"


# -- ready: limits --------------------------------------------------------------------------------------

SLOTS = Limit("mail:slots:tenant:acme", 5, 1.0, "slots")
RATE = Limit("mail:token_bucket/60:all", 100, 60.0, "token_bucket")


def held(*holders: LimitHolder, used: float = 5) -> LimitFact:
    return LimitFact(SLOTS, LimitUse(SLOTS.name, "slots", used, holders=holders))


def test_a_limit_on_items_at_once_names_who_holds_it() -> None:
    full = facts("ready", worker(), limits=(held(LimitHolder("w1", 5)),))
    reason = only(full, "concurrency")
    assert reason.text == "limit mail:slots:tenant:acme: 5 of 5 in use, held by worker w1 (host h, pid 7): 5"
    assert reason.refs == (SLOTS.name,)


def test_items_that_hold_a_limit_are_named_and_a_silent_worker_is_marked() -> None:
    holders = (LimitHolder("w1", 2, ("b1", "b2")), LimitHolder("w2", 3, ("b3",)))
    full = facts("ready", worker(), worker("w2", until=-4), limits=(held(*holders),))
    reason = only(full, "concurrency")
    assert (
        "b1, b2 on worker w1 (host h, pid 7), b3 on worker w2 (host h, pid 7) (silent for 14 s)"
        in reason.text
    )
    assert reason.refs == (SLOTS.name, "b1", "b2", "b3")
    assert "silent" in reason.fix


def test_a_limit_that_is_not_reached_is_no_reason() -> None:
    limits = (
        held(LimitHolder("w1", 4), used=4),
        LimitFact(RATE),
        LimitFact(RATE, LimitUse(RATE.name, "token_bucket", 40)),
    )
    assert kinds(facts("ready", worker(), limits=limits)) == ["next"]


def test_a_limit_on_starts_says_when_the_next_is_allowed() -> None:
    used = LimitFact(RATE, LimitUse(RATE.name, "token_bucket", 100, retry_after=12.0))
    reason = only(facts("ready", worker(), limits=(used,)), "rate")
    assert reason.text == (
        "limit mail:token_bucket/60:all: 100 starts per 1 min are used; the next may start in 12 s"
    )
    assert reason.until == NOW + 12


def test_a_doer_without_room_is_no_reason_beside_its_limit() -> None:
    full = worker(full_types=("mail.send",))
    assert kinds(facts("ready", full, limits=(held(LimitHolder("w1", 5)),))) == ["concurrency"]


def test_a_worker_says_that_it_is_full_for_a_moment_longer_than_its_limit_is_reached() -> None:
    """What it says is some seconds old. One that runs as much as it can is full all the same."""
    passed = (LimitFact(RATE), held(LimitHolder("w1", 4), used=4))
    full: dict[str, Any] = {"running": 3, "full_types": ("mail.send",)}
    for room in ({}, {"room": 4}, {"room": 3, "rooms": {"mail.send": 4}}):
        reason = only(facts("ready", worker(**full, **room), limits=passed), "rate")
        assert reason.text == "limit mail:token_bucket/60:all: 100 starts per 1 min; the next may start now"
        assert reason.until == NOW
        assert kinds(facts("ready", worker(**full, **room), limits=passed)) == ["rate"]
    assert kinds(facts("ready", worker(**full), limits=passed[1:])) == ["next"]
    assert kinds(facts("ready", worker(**full, rooms={"mail.send": 3}), limits=passed)) == ["worker_full"]
    assert kinds(facts("ready", worker(full=True))) == ["worker_full"]


def test_a_portion_of_a_bulk_action_needs_no_room() -> None:
    """An item on trial and back-pressure keep it away all the same."""
    full = worker(running=4, room=4, full=True, types=(BULK_TYPE,))
    assert kinds(facts("ready", full, type=BULK_TYPE)) == ["next"]
    trial = WorkerTrial("killer", "default", 3, 1, NOW + 5)
    tried = worker(running=4, room=4, full=True, types=(BULK_TYPE,), trial=trial)
    assert kinds(facts("ready", tried, type=BULK_TYPE)) == ["trial"]
    pressed = worker(full=True, types=(BULK_TYPE,), pressed_until=NOW + 5)
    assert kinds(facts("ready", pressed, type=BULK_TYPE)) == ["pressed"]


def test_a_full_worker_is_perhaps_at_a_limit_that_is_not_known() -> None:
    reason = only(facts("ready", worker(full=True), limits=None), "worker_full")
    assert reason.text.endswith("; the limits of mail.send are not known here: ask with its code (--app)")


def test_limits_that_are_not_known_are_said_to_be_so() -> None:
    reason = only(facts("ready", worker(), limits=None), "next")
    assert "the limits of mail.send are not known here: ask with its code (--app)" in reason.text


def test_a_strict_lane_names_its_holder() -> None:
    reason = only(facts("ready", worker(), lane="user:1", lane_holder="b1"), "lane_held")
    assert reason.text == "lane user:1 is strict, and b1 holds it until it has ended"
    assert next_name(facts("ready", worker(), lane_holder="b1")) == "b1"


# -- ready: busy workers --------------------------------------------------------------------------------


def test_workers_without_room() -> None:
    two = (worker("w1", running=20, room=20), worker("w2", running=20, room=20))
    assert only(facts("ready", *two), "worker_full").text == (
        "the 2 workers that could run it are full: w1 (host h, pid 7) runs 20 of 20, "
        "w2 (host h, pid 7) runs 20 of 20"
    )


def test_a_type_that_holds_the_places_is_named() -> None:
    """With a limit that leaves places to others."""
    full = worker(running=6, room=6, full=True)
    reason = only(facts("ready", full, runs={"w1": ["image.render"] * 5 + ["mail.send"]}), "worker_full")
    assert reason.text.endswith("runs 6 of 6; 5 of 6 run image.render")
    assert reason.fix == (
        "let it leave places to others: treadle limits set --type image.render 4; "
        "or wait, start more workers, or raise max of the doer"
    )
    for runs in (["mail.send"] * 6, ["a", "b", "c", "c", "d", "e"], []):
        plainly = only(facts("ready", full, runs={"w1": runs, "other": ["x"] * 9}), "worker_full")
        assert plainly.text.endswith("runs 6 of 6")
        assert plainly.fix == "wait, start more workers, or raise max of the doer"


def test_a_blocked_worker_is_not_told_as_full_besides() -> None:
    blocked = worker(running=6, room=6, full=True, blocked_since=NOW - 20)
    assert kinds(facts("ready", blocked)) == ["worker_blocked"]
    assert kinds(facts("ready", blocked, worker("w2", running=6, room=6))) == [
        "worker_blocked",
        "worker_full",
    ]


def test_a_worker_that_is_blocked_again_and_again_says_how_often() -> None:
    by = BlockingItem("e1", "feed.export", "default")
    past = tuple(Blockage(NOW - at, NOW - at + 22, (by,)) for at in (700, 250, 150, 60))
    now = worker(blocked_since=NOW - 5, blocked_by=(by,), blockages=past)
    reason = only(facts("ready", now), "worker_blocked")
    assert reason.text.endswith("; blocked 3 times in the last 5 min, 66 s in all, by feed.export")
    assert reason.fix.endswith("; to run no more of feed.export: treadle pause --type feed.export")
    fleet = WorkerFleet([worker(blockages=past), worker("w2", blockages=past[:2])], NOW)
    assert [each.id for each in fleet.often_blocked()] == ["w1"]
    often = fleet.worker_often_blocked(fleet.often_blocked())
    assert often.text == (
        "w1 (host h, pid 7) was blocked 3 times in the last 5 min, 66 s in all, by feed.export"
    )
    most = worker(blockages=past[1:] + past[2:])
    assert "blocked at least 5 times" in fleet.worker_often_blocked([most]).text


def test_a_worker_with_an_item_on_trial_says_so() -> None:
    """Its doer is not full. What ended meanwhile, and a doer that is really full, is something else."""
    alone = WorkerTrial("x1", "acme", 8, 1, NOW + 180)
    reason = only(facts("ready", worker(running=1, room=200, full=True, trial=alone)), "trial")
    assert reason.text == (
        "w1 (host h, pid 7) takes no other items: x1 is on trial, and runs alone for 3 min more at the "
        "longest (8 workers in a row died, or lost the lease, while they ran it)"
    )
    assert reason.fix == (
        "wait, or start more workers; if x1 is at fault, give it up: treadle cancel x1 --tenant acme"
    )
    assert (reason.refs, reason.until) == (("x1", "w1"), NOW + 180)
    few = WorkerTrial("x1", "default", 3, 3, NOW + 20)
    two = (
        worker(running=3, room=8, trial=few),
        worker("w2", running=3, room=8, trial=replace(few, waits=True)),
    )
    reason = only(facts("ready", *two), "trial")
    assert (
        "w1 (host h, pid 7) takes few items: x1 is on trial, and runs beside at most 2 others for "
        in reason.text
    )
    assert (
        "w2 (host h, pid 7) takes no items: x1 is on trial, and waits until at most 2 others run, "
        in reason.text
    )
    assert kinds(facts("ready", *two, ahead=1)) == ["trial", "turn"]
    hidden = seen_workers([worker(running=1, full=True, trial=alone)], "other")
    reason = only(facts("ready", *hidden), "trial")
    assert (
        reason.text
        == "w1 takes no other items: an item is on trial, and runs alone for 3 min more at the longest"
    )
    assert (reason.refs, reason.fix) == (("w1",), "wait, or start more workers")
    (own,) = seen_workers([worker(trial=alone)], "acme")
    assert own.info is not None
    assert own.info.trial == alone
    assert kinds(facts("ready", worker(running=2, room=8, trial=few))) == ["next"]
    assert kinds(facts("ready", worker(running=1, full=True, trial=replace(alone, until=NOW)))) == [
        "worker_full"
    ]
    assert kinds(facts("ready", worker(running=8, room=8, trial=few))) == ["worker_full"]


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (
            {"running": 3, "room": 20, "full_types": ("mail.send",), "rooms": {"mail.send": 3}},
            "at most 3 of mail.send",
        ),
        (
            {"running": 3, "room": 2, "full": True, "rooms": {"page": None}},
            "runs 3 items, and its doer is full (2 at",
        ),
        ({"running": 3, "full": True}, "has no room for mail.send"),
    ],
)
def test_a_worker_without_room_for_a_type(info: dict[str, Any], text: str) -> None:
    assert text in only(facts("ready", worker(**info)), "worker_full").text


def test_one_worker_with_room_is_enough() -> None:
    assert kinds(facts("ready", worker("w1", full=True), worker("w2", room=20))) == ["next"]
    assert kinds(facts("ready", worker("w1", full=True), silent())) == ["next"]


def test_back_pressure_says_for_how_long() -> None:
    reason = only(facts("ready", worker(pressed_until=NOW + 8)), "pressed")
    assert reason.text == "back-pressure: w1 (host h, pid 7) claims nothing for 8 s more"
    assert reason.until == NOW + 8
    assert kinds(facts("ready", worker(pressed_until=NOW - 1))) == ["next"]


def test_each_worker_may_be_busy_in_its_own_way() -> None:
    busy = (
        worker("w1", pressed_until=NOW + 8),
        worker("w2", declined={"mail.send": 2}),
        worker("w3", full=True),
    )
    assert kinds(facts("ready", *busy)) == ["pressed", "declined", "worker_full"]


def test_an_item_that_was_lost_twice_runs_beside_fewer() -> None:
    assert "2 workers in a row" in only(facts("ready", worker(), losses=2), "isolated").text
    assert kinds(facts("ready", worker(), losses=1)) == ["next"]


def test_items_that_go_first_are_counted() -> None:
    reason = only(facts("ready", worker(), ahead=312, lanes=7), "turn")
    assert reason.text == "312 items of its line go first; 7 lines of queue mail are served in rotation"
    assert "1,000+ items of its line go first" in only(facts("ready", worker(), ahead=1000), "turn").text


def test_nothing_in_its_way() -> None:
    reason = only(facts("ready", worker()), "next")
    assert reason.text == "nothing is in its way: it should start soon"
    assert reason.fix == ""
    long = only(facts("ready", worker(), due_at=NOW - 61), "next")
    assert long.fix == "look again; if it stays, it is a bug of treadle"
    released = facts("ready", worker(), due_at=NOW - 61, after=("b2",))  # since when it is ready is not known
    assert only(released, "next").fix == ""


# -- doomed and deadlines -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["blocked", "scheduled", "ready"])
@pytest.mark.parametrize("verdict", ["expired", None])
def test_a_passed_deadline_dooms_any_item_that_waits(status: Status, verdict: Any) -> None:
    doomed = facts(status, worker(), deadline=NOW - 12, verdict=verdict)
    assert kinds(doomed) == ["doomed"]
    assert "its deadline passed 12 s ago" in only(doomed, "doomed").text


def test_an_item_that_waits_in_vain_names_what_died() -> None:
    doomed = facts(
        "blocked",
        worker(),
        verdict="unsatisfiable",
        after=("p1", "p2"),
        need=2,
        prerequisites=(Prerequisite("p2", "dead", "page"), Prerequisite("p1", "success", "page")),
    )
    reason = only(doomed, "doomed")
    assert "what it waits for can no longer come: p2 (page, dead); it can only end dead" in reason.text
    assert (reason.refs, reason.fix) == (("p2",), "treadle requeue p2")
    assert next_name(doomed) == "p2"


def test_an_unknown_type_dooms_too() -> None:
    doomed = facts("ready", worker(types=("page",)), verdict="unknown_type")
    assert kinds(doomed) == ["doomed"]
    assert "mail.send" in only(doomed, "doomed").text


def test_a_doomed_item_needs_a_worker_of_its_queue_to_settle_it() -> None:
    assert kinds(facts("ready", verdict="expired")) == ["doomed", "no_worker"]
    elsewhere = worker(queues=("bulk",))
    assert kinds(facts("ready", elsewhere, verdict="expired")) == ["doomed", "no_worker_for_queue"]
    assert kinds(facts("ready", worker(), verdict="expired", paused=(PAUSE,))) == ["doomed"]


@pytest.mark.parametrize("status", ["blocked", "scheduled", "ready", "running"])
def test_a_deadline_to_come_is_the_last_reason(status: Status) -> None:
    waiting = facts(status, worker(), deadline=NOW + 720, due_at=NOW + 60, worker="w1", claimed_at=NOW - 1)
    reason = reasons_of(waiting)[-1]
    assert reason.kind == "deadline"
    assert reason.text == "its deadline: it is dead (expired) in 12 min, unless it has ended by then"
    assert reason.until == NOW + 720


# -- running --------------------------------------------------------------------------------------------


def running(*workers: WorkerState, **given: Any) -> ItemFacts:
    return facts(
        "running", *workers, worker="w1", claimed_at=NOW - 40, started_at=NOW - 40, attempt=2, **given
    )


def test_a_running_item_says_where_since_when_and_which_attempt() -> None:
    reason = only(running(worker(running=12, waiting=3)), "running")
    assert reason.text == (
        "it runs on w1 (host h, pid 7), which claimed it 40 s ago: attempt 2 of 3; "
        "3 of the 12 items there have not begun"
    )
    assert reason.fix == "to stop it: treadle cancel a1"
    assert "attempt 2" in only(running(attempts=None), "running").text
    assert only(running(attempts=1), "running").text.endswith("attempt 2")  # one was lost, and does not count


def test_an_item_beside_the_one_that_blocks_its_worker_is_not_blamed() -> None:
    by = BlockingItem("guilty", "page", "default")
    beside = running(worker(blocked_since=NOW - 90, blocked_by=(by,)))
    assert only(beside, "worker_blocked").text.endswith("not run for 1 min 30 s; guilty (page) blocks it")
    assert only(beside, "running").text.endswith("; it goes on when the event loop does")
    assert only(beside, "running").fix == "to stop it then: treadle cancel a1"
    itself = running(worker(blocked_since=NOW - 90, blocked_by=(BlockingItem("a1", "mail", "default"),)))
    assert "cannot interrupt it while it blocks the event loop" in only(itself, "running").fix


def test_a_blocked_worker_is_the_first_reason_of_what_it_runs_and_of_what_it_could_run() -> None:
    blocked = worker(blocked_since=NOW - 90)
    assert kinds(running(blocked)) == ["worker_blocked", "running"]
    reason = only(facts("ready", blocked), "worker_blocked")
    assert reason.text == "w1 (host h, pid 7) is blocked: its event loop has not run for 1 min 30 s"
    assert reason.fix == (
        "look at process 7 on host h: a handler blocks it (the log of the worker has its stack), or it is "
        "stopped (kill -CONT 7)"
    )
    assert kinds(facts("ready", blocked, worker("w2"))) == ["next"]
    assert only(running(blocked), "running").fix == (
        "so that it does not run again: treadle cancel a1; that cannot interrupt it while it blocks the "
        "event loop: end process 7 on host h too (kill -KILL 7), or wait until its supervisor does "
        "(--max-block)"
    )


def test_a_killer_that_is_claimed_is_still_called_one() -> None:
    reason = only(running(worker(), begun=False, losses=11), "claimed_ahead")
    assert reason.text.endswith("; 11 workers in a row died, or lost the lease, while they ran it before")


def test_an_item_that_was_claimed_ahead_has_not_begun() -> None:
    reason = only(running(worker(), begun=False), "claimed_ahead")
    assert reason.text.startswith("w1 (host h, pid 7) has had it for 40 s, and has not begun")


def test_a_silent_worker_is_named_and_who_frees_its_items() -> None:
    silent_one = worker(until=-4)
    reason = only(running(silent_one, worker("w2")), "lease_lapsed")
    assert reason.text == (
        "w1 (host h, pid 7), which runs it, has been silent for 14 s: the next claim of any worker frees it"
    )
    assert kinds(running(silent_one)) == ["lease_lapsed", "no_worker"]
    unknown = WorkerState("w1", NOW - 4, None, 1)
    assert (
        "w1, which runs it, has been without a lease for 4 s" in only(running(unknown), "lease_lapsed").text
    )


# -- ended ----------------------------------------------------------------------------------------------


def ended(status: Status, **given: Any) -> ItemFacts:
    return facts(status, worker(), **{"ended_at": NOW - 180, "worker": "w1", "attempt": 1, **given})


def test_a_success_says_when_and_where() -> None:
    assert only(ended("success"), "ended").text == "it succeeded 3 min ago on w1 (host h, pid 7), attempt 1"
    assert only(ended("success", worker=None), "ended").text == "it succeeded 3 min ago by an operator"


def test_a_cancelled_item_says_what_it_was_told() -> None:
    reason = only(ended("cancelled", error="LimitReached: full", error_type="LimitReached"), "ended")
    assert reason.text == "it was cancelled 3 min ago: LimitReached: full"
    assert reason.fix == "to run it again: treadle requeue --cancelled a1"
    earlier = only(ended("cancelled", error="LeaseLost: w1 died", error_type="LeaseLost"), "ended")
    assert earlier.text == "it was cancelled 3 min ago; its last attempt had failed: LeaseLost: w1 died"


def test_a_death_says_why_and_how_to_run_it_again() -> None:
    dead = ended("dead", reason="exhausted", failures=3, error="SmtpError: no", mark="f00d")
    reason = only(dead, "ended")
    assert reason.text == (
        "it died 3 min ago on w1 (host h, pid 7): all of its 3 attempts failed; the last error: SmtpError: no"
    )
    assert reason.fix == "treadle requeue a1; all that died alike: treadle dead requeue --mark f00d"


@pytest.mark.parametrize(
    ("reason", "attempts", "ran"),
    [
        ("exhausted", (1,), True),
        ("undecodable", (1,), True),
        ("expired", (1,), True),
        ("expired", (1, 2), True),
        ("expired", (0,), False),
        ("expired", (2, 2), False),
        ("lease_lost", (1, 1), False),
        ("unknown_type", (0,), False),
    ],
)
def test_a_death_without_an_attempt_does_not_name_the_worker_that_took_note(
    reason: DeathReason, attempts: tuple[int, ...], ran: bool
) -> None:
    history = tuple(Attempt(each, "Error", "", "", NOW, "w1") for each in attempts)
    dead = ended("dead", reason=reason, attempt=attempts[-1], history=history)
    where = " on w1 (host h, pid 7)" if ran else ""
    assert only(dead, "ended").text.startswith(f"it died 3 min ago{where}: ")


@pytest.mark.parametrize("reason", get_args(DeathReason))
def test_every_reason_of_a_death_has_words_of_its_own(reason: DeathReason) -> None:
    texts = {only(ended("dead", reason=each, failures=2), "ended").text for each in get_args(DeathReason)}
    assert len(texts) == len(get_args(DeathReason))
    assert only(ended("dead", reason=reason), "ended").fix.endswith("treadle requeue a1")


def test_an_item_that_ended_its_workers_names_these_and_warns() -> None:
    lost = [Attempt(n, "LeaseLost", f"worker w{n} died", "", NOW - 9 + n, f"w{n}") for n in (1, 2, 3)]
    death = Attempt(3, "LeaseLost", "3 workers in a row died", "", NOW, "innocent")
    dead = ended(
        "dead", reason="lease_lost", losses=3, worker="innocent", history=(*lost, death), mark="f00d"
    )
    reason = only(dead, "ended")
    assert reason.text == (
        "it died 3 min ago: 3 workers in a row died, or lost the lease, while they ran it: w3, w2, "
        "w1 (host h, pid 7)"
    )
    assert reason.refs == ("w3", "w2", "w1")
    assert reason.fix == (
        "it may end the next worker too: see the logs of these workers before you run treadle requeue a1"
    )


def test_an_item_that_died_of_another_names_that_one() -> None:
    causes = (Prerequisite("p2", "dead", "page"),)
    dead = ended("dead", reason="unsatisfiable", error="Unsatisfiable: p2", causes=causes)
    reason = only(dead, "ended")
    assert reason.text.endswith("what it waited for can no longer come: p2 (page, dead)")
    assert reason.fix == "run what died first: treadle requeue p2"
    assert next_name(dead) == "p2"
    later = ended("dead", reason="unsatisfiable", causes=causes, root=Prerequisite("p0", "cancelled"))
    assert only(later, "ended").fix == "run what died first: treadle requeue --cancelled p0"


def test_a_dead_item_that_cannot_be_decoded_says_what_to_do_before_it_runs_again() -> None:
    fix = only(ended("dead", reason="undecodable", mark="f00d"), "ended").fix
    assert "upcast" in fix
    assert fix.endswith("treadle check; then: treadle requeue a1")


def test_an_item_that_died_of_a_group_names_that() -> None:
    causes = (Prerequisite(f"{GROUP_MARK}g1", "dead", "page"),)
    reason = only(ended("dead", reason="unsatisfiable", causes=causes), "ended")
    assert "group g1 (page, dead)" in reason.text
    assert (reason.refs, reason.fix) == (("g1",), "run what died first: treadle repair g1")


def test_a_group_that_is_open_names_its_members() -> None:
    group = GroupFacts(
        id="a1", tenant="default", open=5, members=(item("ready", id="m1"), item("running", id="m2"))
    )
    root = ended("success", group=group)
    assert kinds(root) == ["ended", "open"]
    reason = only(root, "open")
    assert reason.text == (
        "group a1 is open: 5 members have not ended: m1 (mail.send, ready), m2 (mail.send, running) "
        "and 3 more"
    )
    assert reason.refs == ("m1", "m2")
    assert next_name(root) == "m1"


def test_a_group_that_failed_names_the_first_death_and_how_to_repair_it() -> None:
    cause = item("dead", id="m1", reason="exhausted", failures=3, error="SmtpError: no")
    group = GroupFacts(id="a1", tenant="acme", open=0, failed=2, cause=cause, ended_at=NOW - 5, now=NOW)
    root = ended("success", group=group, tenant="acme")
    assert kinds(root) == ["ended", "group_failed"]
    reason = only(root, "group_failed")
    assert reason.text == (
        "group a1 has failed: 2 members died, first m1 (mail.send): all of its 3 attempts failed; "
        "SmtpError: no"
    )
    assert (reason.refs, reason.fix) == (("m1",), "to run what died again: treadle repair a1 --tenant acme")
    assert next_name(root) == "m1"
    members = (item("ready", id="m2"),)
    half = GroupFacts(id="a1", tenant="acme", open=1, members=members, failed=1, cause=cause, now=NOW)
    assert kinds(half) == ["group_failed", "open"]
    assert "has failed: a member died: m1" in only(half, "group_failed").text
    assert next_name(half) == "m2"


def test_a_group_without_its_root() -> None:
    gone = GroupFacts(id="g", tenant="default", open=0, ended_at=NOW - 5, now=NOW)
    assert only(gone, "ended").text == "group g ended 5 s ago; its root is not stored any more"


# -- queues ---------------------------------------------------------------------------------------------


def queue(*workers: WorkerState, ready: int = 3, **given: Any) -> QueueFacts:
    counts = (
        Count("default", "mail", "mail.send", "ready", ready, True),
        Count("default", "mail", "page", "dead", 2),
    )
    known: dict[str, Any] = {"name": "mail", "now": NOW, "counts": counts if ready else (), **given}
    return QueueFacts(workers=workers, **known)


def test_a_queue_says_what_is_ready_and_since_when() -> None:
    reason = only(queue(worker(), age=QueueAge("mail", NOW - 95)), "turn")
    assert reason.text == "about 3 items are ready, the oldest for 1 min 35 s; also 2 dead"


def test_a_queue_says_what_holds_all_of_it_up() -> None:
    assert kinds(queue(paused=(replace(PAUSE, tenant="acme"),))) == ["paused", "no_worker", "turn"]
    assert kinds(queue(worker(queues=("bulk",)))) == ["no_worker_for_queue", "turn"]
    assert kinds(queue(worker(tenants=("acme",)), tenant="beta")) == ["no_worker_for_tenant", "turn"]
    unserved = (UnservedType("page", 3, None),)
    assert kinds(queue(worker(), unserved=unserved)) == ["no_worker_for_type", "turn"]


def test_a_type_that_no_worker_has_dies_a_grace_after_its_oldest_item_could_run() -> None:
    unserved = (UnservedType("page", 3, None), UnservedType("other", 3, NOW - 10))
    since = {"page": NOW - 95, "other": NOW - 95}
    found = queue(worker(unknown_type_grace=100.0), unserved=unserved, ready_since=since)
    page, other = (each for each in reasons_of(found) if each.kind == "no_worker_for_type")
    assert page.text.endswith("without one it is dead (unknown_type) in 5 s")
    assert (page.until, other.until) == (NOW + 5, NOW + 90)


def test_a_queue_in_which_nothing_waits() -> None:
    assert kinds(queue(worker(queues=("mail",)), ready=0)) == ["empty"]


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({"name": "default"}, True),
        ({"declared": ("mail",)}, True),
        ({}, True),  # the worker serves every queue
        ({"queues": ("mial",)}, False),
        ({"workers": (worker(queues=("bulk",)),)}, False),
    ],
)
def test_an_empty_queue_that_could_be_served_is_empty(given: dict[str, Any], known: bool) -> None:
    workers = given.pop("workers", (worker(),))
    assert kinds(queue(*workers, ready=0, **given)) == (["empty"] if known else ["unknown"])


def test_a_queue_that_is_not_known_is_shown_with_close_names() -> None:
    unknown = queue(worker(), ready=0, name="mial", queues=("mail", "bulk"))
    assert (
        only(unknown, "unknown").text == "nothing is in queue mial, and no worker names it, but there is mail"
    )


# -- schedules ------------------------------------------------------------------------------------------


def schedule(
    next_at: float | None = NOW + 60, *, taking: int = 1, orphaned: bool = False, **given: Any
) -> ScheduleFacts:
    stored = Schedule(name="nightly", next_at=next_at, **given)
    return ScheduleFacts(name="nightly", now=NOW, stored=stored, orphaned=orphaned, taking=taking)


def test_a_schedule_says_when_it_is_due() -> None:
    reason = only(schedule(last_at=NOW - 30), "not_due")
    assert (reason.text, reason.until) == ("it is due in 1 min; it fired last 30 s ago", NOW + 60)
    assert reason.fix == "to run it now: treadle schedules trigger nightly"


def test_a_paused_schedule_and_one_without_code() -> None:
    assert only(schedule(paused=True), "paused").fix == "treadle schedules resume nightly"
    orphan = schedule(NOW - 5, orphaned=True, seen_at=NOW - 7200)
    assert kinds(orphan) == ["orphaned"]
    assert (
        "no running process has its code; one that has its code was last seen 2 h ago"
        in only(orphan, "orphaned").text
    )
    assert "no worker is alive" in only(schedule(orphaned=True, taking=0), "orphaned").text


def test_a_schedule_that_has_ended_or_is_about_to_fire_or_is_unknown() -> None:
    assert kinds(schedule(None)) == ["ended"]
    assert kinds(schedule(NOW - 1)) == ["overdue"]
    unknown = ScheduleFacts(name="nigthly", now=NOW, names=("nightly",))
    assert only(unknown, "unknown").text == "no schedule is called nigthly, but there is nightly"


# -- words ----------------------------------------------------------------------------------------------


def test_times_far_away_have_a_clock_time() -> None:
    assert until_text(NOW, NOW + 7200) == "in 2 h (at 11:06 UTC)"
    assert since_text(NOW, NOW - 172800) == "2 d ago (2026-11-14 09:06 UTC)"
    assert until_text(NOW, NOW) == "now"
    assert until_text(NOW, 1e18) == f"in {duration(1e18 - NOW)}"


def test_hostile_texts_stay_on_one_line() -> None:
    hostile = ended("dead", reason="aborted", error="E: \x1b]0;x\x07\r\n" + "y" * 10_000)
    (reason,) = reasons_of(hostile)
    assert reason.text.isprintable()
    assert len(reason.text) < 400


def test_a_hostile_id_is_quoted_for_the_shell() -> None:
    assert (
        only(facts("scheduled", id="a; rm -rf /", due_at=NOW + 9), "due_at").fix
        == "treadle trigger 'a; rm -rf /'"
    )
    dashed = facts("scheduled", id="-x", tenant="a b", due_at=NOW + 9)
    assert only(dashed, "due_at").fix == "treadle trigger --tenant 'a b' -- -x"


def test_an_undo_that_cannot_be_read_is_left_out() -> None:
    """A worker of another version may have written it."""
    good = b'{"wanted": {"type": "refund"}}'
    steps = [StepRecord(name="a", undo=undo) for undo in (b'{"wanted": 1}', b"\xff", good)]
    assert list(undo_types(steps)) == ["refund"]


def test_a_worker_that_was_given_no_id_is_named_by_its_process() -> None:
    made_up, info = "0f" * 16, WorkerInfo(host="h", pid=7)
    assert worker_name(WorkerState(made_up, 0.0, None, 0, info)) == "h:7"
    assert worker_name(WorkerState("mailer", 0.0, None, 0, info)) == "mailer (host h, pid 7)"
    assert worker_name(WorkerState(made_up, 0.0, None, 0, WorkerInfo())) == made_up
