"""`treadle status`: problems first, estimates, and an exit code for monitoring."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.cli.calling import PROJECT, start
from tests.cli.conftest import Store
from tests.cli.forks import common_server
from tests.cli.looked_at import report, send
from treadle import Treadle
from treadle.cli.status import StatusView, away_lines
from treadle.engine.schedule.scheduler import ScheduleStanding
from treadle.errors import StoreUnavailable, WorkFailed
from treadle.item import Count, Demand, Heartbeat, ItemState, Order, WorkerState
from treadle.item_facts import Overview, QueueAge, UnservedType
from treadle.operate import store_look
from treadle.operate.why.fleet import WorkerFleet
from treadle.problems import NO_WAITS, Problem, find_problems
from treadle.records import QueueBacklog
from treadle.schedule import ScheduleState
from treadle.worker_info import Blockage, BlockingItem, UndecodableType, WorkerInfo

NOW = 1_800_000_000.0
LIVE = WorkerState("w1", NOW + 10, None, 3)


def _problems(**facts: object) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in _found(None, **facts)]


def _found(
    tenant: str | None,
    items: Sequence[ItemState] = (),
    schedules: Sequence[ScheduleState] = (),
    waits: Mapping[str, float] = NO_WAITS,
    **facts: object,
) -> list[Problem]:
    overview = Overview(now=NOW, **facts)  # type: ignore[arg-type]
    fleet = WorkerFleet(overview.workers, NOW)
    given: Any = {"items": items, "schedules": schedules, "waits": waits, "tenant": tenant}
    return list(find_problems(overview, fleet, 300.0, **given))


def _pause(queue: str, tenant: str | None = None) -> Order:
    return Order(kind="pause", queue=queue, tenant=tenant)


def _count(
    status: str, count: int = 1, *, type: str = "t", queue: str = "q", estimated: bool = False
) -> Count:
    return Count("default", queue, type, status, count, estimated)  # type: ignore[arg-type]


def test_an_empty_store_is_healthy(store: Store) -> None:
    answer = store.call("status")
    assert answer.code == 0
    assert answer.out.splitlines()[0].startswith("✓ healthy")
    assert "no open and no dead items" in answer.out


def test_problems_say_how_many_items_they_are_about() -> None:
    """Also to programs."""
    late, ready = (QueueAge("q", NOW - 301),), (_count("ready", 37),)
    picky = WorkerState("w1", NOW + 10, None, 0, WorkerInfo(queues=("other",)))
    for facts in (
        {"workers": (LIVE,), "ages": late},
        {},
        {"workers": (LIVE,), "unserved": (UnservedType("t", 37, None),)},
        {"workers": (picky,)},
        {"workers": (LIVE,), "paused": (_pause("q"),)},
    ):
        (found,) = _found(None, counts=ready, **facts)
        assert ("37" in found.text, found.items) == (True, 37)
    many = tuple(UnservedType(f"t{n}", 2, None) for n in range(4))
    (found,) = _found(None, workers=(LIVE,), unserved=many)
    assert found.items == 8


def test_open_items_without_a_worker_are_a_problem() -> None:
    assert _problems(counts=(_count("ready", 3), _count("scheduled"))) == [
        ("no_worker", "no worker is alive; 4 open items wait")
    ]
    assert _problems(counts=(_count("running", 3),), workers=(LIVE,)) == []
    leaving = WorkerState("w1", NOW + 10, None, 3, WorkerInfo(draining=True))
    by_hand = WorkerState("w2", NOW + 10, None, 1, WorkerInfo(manual=True))
    assert _problems(counts=(_count("ready"),), workers=(leaving, by_hand)) == [
        ("no_worker", "no worker takes new items: w1 is stopping; 1 open item waits")
    ]


def test_types_queues_and_tenants_that_no_worker_serves_are_problems() -> None:
    counts = (_count("ready", 5), _count("ready", 2, queue="mial", estimated=True))
    assert _problems(counts=counts, workers=(LIVE,), unserved=(UnservedType("t", 5, NOW - 120),)) == [
        (
            "no_worker",
            "the only live worker, w1, does not have t; the last that had it left 2 min ago; "
            "about 5 ready items wait",
        )
    ]
    types = (UnservedType("many", 10_000, None), UnservedType("t", 5, None), UnservedType("u", 5, None))
    estimate = (_count("ready", 5, estimated=True),)
    assert [text for _, text in _problems(workers=(LIVE,), counts=estimate, unserved=types)] == [
        "the only live worker, w1, does not have many; 10,000 ready items wait",
        "the only live worker, w1, does not have t; about 5 ready items wait",
        "the only live worker, w1, does not have u; 5 ready items wait",
    ]
    picky = WorkerState("w1", NOW + 10, None, 0, WorkerInfo(queues=("q",), tenants=("acme",)))
    assert _problems(counts=counts, workers=(picky,)) == [
        ("no_worker", "no worker serves queue mial: 1 worker serves q; about 2 ready items wait"),
        ("no_worker", "no worker serves tenant default: 1 worker serves acme; about 7 ready items wait"),
    ]


def _ready(tenant: str, type: str, count: int, estimated: bool = False) -> Count:
    return Count(tenant, "q", type, "ready", count, estimated)


def test_a_flood_names_the_tenant_or_the_type_and_what_to_do() -> None:
    late = {"q": 90.0}
    mine = (_ready("acme", "mail", 9_000), _ready("acme", "scan", 700), _ready("beta", "mail", 12))
    (flood,) = _found(None, counts=mine, workers=(LIVE,), waits=late)
    assert (flood.kind, flood.refs, flood.items) == ("flood", ("q", "acme"), 9_700)
    assert flood.text == (
        "tenant acme is 99 % of the backlog of queue q: 9,700 of 9,712 ready items. 12 others wait there "
        "too, one of them for 1 min 30 s"
    )
    assert flood.fix == (
        "let the others go on: treadle pause q --tenant acme; or park it elsewhere: "
        "treadle update --queue parked --from-queue q --tenant acme"
    )
    many = (_ready("acme", "mail", 8_000, True), _ready("beta", "scan", 1_999), _ready("beta", "mail", 1))
    (flood,) = _found("acme", counts=many[:2], workers=(LIVE,), waits=late)
    assert flood.refs == ("q", "acme")
    (flood,) = _found(None, counts=(*many[1:], _ready("beta", "mail", 9_000)), workers=(LIVE,), waits=late)
    assert flood.text.startswith("type mail is 82 % of the backlog of queue q: 9,001 of 11,000 ready items. ")
    assert flood.fix == "let the others go first: treadle update --priority -5 --type mail --from-queue q"
    # Nothing waits with it, or a few, or not for long; it is paused; no worker has it; there are few.
    for facts in (
        {"counts": mine[:1]},
        {"counts": (mine[0], _ready("beta", "mail", 9))},
        {"waits": {"q": 50.0}},
        {"paused": (_pause("q", "acme"),)},
        {"unserved": (UnservedType("mail", 9_000, None),)},
        {"counts": (_ready("acme", "mail", 900), _ready("beta", "mail", 1))},
        {"counts": (_ready("acme", "mail", 700), _ready("beta", "scan", 400), _ready("acme", "x", 100))},
    ):
        given = {"counts": mine, "workers": (LIVE,), "waits": late, **facts}
        assert "flood" not in {each.kind for each in _found(None, **given)}, facts


def test_items_that_no_worker_takes_although_some_have_the_type_and_others_serve_the_queue() -> None:
    """As after a release without the type, in a fleet whose queues have workers of their own."""
    old = WorkerState("old", NOW + 10, ("t", "u"), 0, WorkerInfo(queues=("mail",)))
    new = WorkerState("new", NOW + 10, ("u",), 0, WorkerInfo(queues=("q",), tenants=("default",)))
    late = (QueueAge("q", NOW - 9999),)
    (found,) = _found(None, counts=(_count("ready", 4),), workers=(old, new), ages=late)
    assert (found.kind, found.refs) == ("no_worker", ("t", "q"))
    assert found.text == (
        "no worker that has t serves queue q: 1 worker that has it serves mail; 4 ready items wait"
    )
    assert found.fix == "start a worker for it: treadle worker MODULE:APP --queues q"
    foreign = (Count("acme", "q", "u", "ready", 2), _count("ready", type="u"))
    assert _problems(counts=foreign, workers=(old, new)) == [
        (
            "no_worker",
            "no worker that has u and serves queue q serves tenant acme: 1 worker serves default; "
            "2 ready items wait",
        )
    ]
    paused = _problems(counts=(_count("ready", 4),), workers=(old, new), paused=(_pause("q"),))
    assert [kind for kind, _ in paused] == ["paused"]
    many = tuple(_count("ready", type=f"t{n}") for n in range(4))
    has_all = WorkerState("old", NOW + 10, tuple(each.type for each in many), 0, WorkerInfo(queues=("mail",)))
    assert _problems(counts=many, workers=(has_all, new)) == [
        ("no_worker", "no worker for 4 types of which items are ready: t0, t1, t2 and 1 more")
    ]


def test_a_queue_that_no_worker_serves_is_not_late_besides_also_if_it_was_not_counted() -> None:
    picky = WorkerState("w1", NOW + 10, None, 0, WorkerInfo(queues=("q",)))
    given: Any = {"workers": (picky,), "ages": (QueueAge("mail", NOW - 9999),)}
    for estimated in (False, True):
        counts = (_count("ready", 5, queue="mail", estimated=estimated),)
        assert [kind for kind, _ in _problems(counts=counts, **given)] == ["no_worker"]


def test_a_pause_says_what_it_holds_back() -> None:
    counts = (_count("ready", 66_000), _count("dead"), Count("acme", "q", "t", "ready", 1, estimated=True))
    paused = (_pause("q"), _pause("q", "acme"), _pause("empty"))
    given: Any = {"counts": counts, "workers": (LIVE,), "ages": (QueueAge("q", NOW - 3600),)}
    assert [text for kind, text in _problems(**given, paused=paused) if kind == "paused"] == [
        "queue q is paused; about 66,000 ready items wait, the oldest for 1 h",
        "queue q is paused for tenant acme; about 1 ready item waits",
        "queue empty is paused",
    ]


def test_what_a_pause_holds_back_does_not_wait_for_a_worker() -> None:
    picky = WorkerState("w1", NOW + 10, ("u",), 0, WorkerInfo(queues=("q",)))
    given: Any = {
        "counts": (_count("ready", 5, queue="mail"),),
        "workers": (picky,),
        "unserved": (UnservedType("t", 5, None),),
    }
    for whose in (None, "default"):
        assert [kind for kind, _ in _problems(**given, paused=(_pause("mail", whose),))] == ["paused"]
    for other in (("mail", "acme"), ("q", None)):
        assert [kind for kind, _ in _problems(**given, paused=(_pause(*other),))] == ["no_worker"] * 2 + [
            "paused"
        ]


def test_names_that_are_close_are_said_and_many_are_one_problem() -> None:
    picky = WorkerState("w1", NOW + 10, ("mail.send",), 0, WorkerInfo(queues=("mail",)))
    close = _found(
        None,
        counts=(_count("ready", queue="mial"),),
        workers=(picky,),
        unserved=(UnservedType("mail.sent", 1, None),),
    )
    assert close[1].fix.startswith("correct --queues of the worker or, if that is right, update the queue")
    assert [each.text for each in close] == [
        "the only live worker, w1, does not have mail.sent, but mail.send is known; 1 ready item waits",
        "no worker serves queue mial: 1 worker serves mail; mail and mial look alike; 1 ready item waits",
    ]
    many = tuple(UnservedType(f"t{n}", 1, None) for n in range(5))
    assert _problems(workers=(picky,), unserved=many) == [
        ("no_worker", "no worker for 5 types of which items are ready: t0, t1, t2 and 2 more")
    ]


def test_what_follows_from_a_missing_worker_is_no_problem_of_its_own() -> None:
    gone = WorkerState("w1", NOW - 100, None, 1, WorkerInfo(lease=20.0))
    found = _problems(
        workers=(gone,),
        counts=(_count("ready", 5),),
        unserved=(UnservedType("t", 5, None),),
        ages=(QueueAge("q", NOW - 9999),),
    )
    assert found == [
        (
            "no_worker",
            "no worker is alive: the last one, w1, was last seen 2 min ago; 5 open items wait",
        )
    ]


def test_arguments_that_do_not_decode_and_ids_that_were_never_submitted_are_problems() -> None:
    types = {"t": UndecodableType(2, "expected int\x1b[2J", NOW + 420)}
    two = [WorkerState(id, NOW + 10, None, 0, WorkerInfo(undecodable=types)) for id in ("w1", "w2")]
    stuck = [ItemState(id=id, type="t", status="blocked", waiting_for=("never",)) for id in ("a", "b")]
    overview = Overview(now=NOW, workers=tuple(two), counts=(_count("scheduled", 2),))
    bad, waits = find_problems(overview, WorkerFleet(two, NOW), 300.0, stuck)
    assert bad.text == (
        "the arguments of 2 items of t do not fit the code of w1, w2: expected int\\x1b[2J; "
        "the first of them is dead (undecodable) in 7 min at the latest"
    )
    assert "treadle check" in bad.fix
    assert waits.text == "2 blocked items wait for ids that were never submitted: never"
    assert (waits.kind, waits.fix, waits.refs) == ("not_submitted", "treadle why a", ("a", "b"))


def test_long_problems_are_wrapped_and_ids_are_whole() -> None:
    silent = WorkerState("w" * 60, NOW - 1, None, 1)
    overview = Overview(now=NOW, workers=(LIVE, silent, WorkerState("other-worker", NOW - 1, None, 1)))
    fleet = WorkerFleet(overview.workers, NOW)
    lines = StatusView(overview, fleet, tuple(find_problems(overview, fleet, 300.0)), "queue").lines(80)
    assert max(map(len, lines)) <= 80
    assert "w" * 60 in "".join(lines)


def test_a_blocked_item_that_waits_in_vain_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(report(), delay=3600)
        await app.enqueue(report(), after=["never"], id="stuck")

    store.fill(fill)
    answer = store.call("status", "--max-wait", "0s", "--json")
    (problem,) = [each for each in answer.objects[0]["problems"] if each["kind"] == "not_submitted"]
    assert (problem["refs"], problem["fix"]) == (["stuck"], "treadle why stuck")
    assert "not_submitted" not in store.call("status", "--json").out  # it may come yet
    monkeypatch.setattr(store_look, "QUICK_REACH", 1)  # as in a large store: only the doctor takes the time
    answer = store.call("status", "--max-wait", "0s", "--json")
    assert "not_submitted" not in str(answer.objects[0]["problems"])
    assert answer.objects[0]["unseen"].endswith("never submitted: treadle doctor looks at all")
    assert "only the 1 oldest open items were looked at" in store.call("status", "--max-wait", "0s").out


def test_silent_workers_late_items_pauses_and_deaths_are_problems() -> None:
    silent = WorkerState("w2", NOW - 1, None, 1)
    blocked = WorkerState("w3", NOW + 9, None, 1, WorkerInfo(blocked_since=NOW - 60))
    found = _problems(
        workers=(LIVE, silent, blocked),
        ages=(QueueAge("q", NOW - 301), QueueAge("bulk", NOW - 9999), QueueAge("fast", NOW - 299)),
        paused=(_pause("bulk"), _pause("q", "acme")),
        counts=(_count("dead", 10_000, estimated=True), _count("dead", 2, type="u")),
    )
    assert found == [
        ("silent", "1 worker silent: w2"),
        ("blocked", "w3 is blocked: its event loop has not run for 1 min"),
        ("late", "queue q: an item has been ready for 5 min 1 s"),
        ("paused", "queue bulk is paused"),
        ("paused", "queue q is paused for tenant acme"),
        ("dead", "about 10,000 dead items: t, u"),
    ]


def test_items_that_end_their_workers_come_first() -> None:
    items = [ItemState(id=f"a{n}", type="t", status="ready", losses=n) for n in range(8)]
    first, last, dead = _found(None, items, workers=(LIVE,), counts=(_count("ready", 8), _count("dead")))
    assert first == Problem(
        "killing",
        "a7 (t): 7 workers in a row died, or lost the lease, while they ran it",
        "it may end the next worker too: see the logs of those that died. To keep it from running: "
        "treadle hold a7. To give it up: treadle cancel a7",
        ("a7",),
        1,
        item="a7",
        tenant="default",
    )
    assert last.refs == ("a6", "a5", "a4", "a3")  # one or two losses are usual
    (runs,) = _found(None, [ItemState(id="a", type="t", status="running", losses=7)], workers=(LIVE,))
    assert "It cannot be held while it runs; when that worker is gone: treadle hold a. To give" in runs.fix
    assert runs.item == ""
    assert last.text == (
        "4 other items have lost 3 workers in a row or more, and may have run beside it: "
        "a6 (t), a5 (t), a4 (t) and 1 more"
    )
    assert "cancel" not in last.fix
    assert dead.kind == "dead"
    (killing, alone) = _found(None, items[7:], counts=(_count("ready"),))
    assert (killing.kind, alone.kind) == ("killing", "no_worker")


def test_of_items_that_were_lost_together_none_is_accused() -> None:
    items = [ItemState(id=f"a{n}", type="t", status="ready", losses=5) for n in range(5)]
    (tie, other) = _found(
        None, [*items, ItemState(id="b", type="t", status="ready", losses=4)], workers=(LIVE,)
    )
    assert tie == Problem(
        "killing",
        "5 workers in a row died, or lost the lease, while they ran it: this is so for 5 items, and one of "
        "them may be at fault: a0 (t), a1 (t), a2 (t) and 2 more",
        "see the logs of those that died. Each of the items runs beside ever fewer others, until it is known "
        "which one it is",
        ("a0", "a1", "a2", "a3", "a4"),
        5,
    )
    assert (other.refs, other.items) == (("b",), 1)


def test_an_item_that_is_held_ends_no_more_workers() -> None:
    """Nor is another accused in its place, until it has lost as many."""
    held = ItemState(id="a", type="t", status="scheduled", losses=5, held=True)
    beside = ItemState(id="b", type="t", status="ready", losses=4)
    assert _found(None, [held, beside], workers=(LIVE,)) == []
    (found,) = _found(None, [held, replace(beside, losses=5)], workers=(LIVE,))
    assert found.refs == ("b",)
    running = replace(beside, status="running", tenant="acme")
    (found,) = _found(None, [running], workers=(LIVE,))
    assert found.fix.endswith("treadle hold b --tenant acme. To give it up: treadle cancel b --tenant acme")


def test_an_item_whose_workers_died_is_found(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(report(), id="killer")
        for n in range(3):
            await app.backend.beat(Heartbeat(worker="w1", lease=60.0))
            claimed = await app.backend.claim(Demand(worker="w1", limit=1))
            await app.backend.begin(claimed.leases)
            await app.backend.remove_worker("w1")
            await app.trigger(["killer"] if n else [])

    store.fill(fill)
    (status,) = store.call("status", "--json").objects
    assert (status["problems"][0]["kind"], status["problems"][0]["refs"]) == ("killing", ["killer"])
    assert "killer (report" in store.call("doctor").out


def test_a_worker_that_was_blocked_again_and_again_is_a_problem_in_between() -> None:
    past = tuple(Blockage(NOW - at, NOW - at + 9) for at in (100, 50))
    often = WorkerState("w3", NOW + 9, None, 1, WorkerInfo(blockages=past))
    (found,) = _found(None, workers=(LIVE, often))
    assert (found.kind, found.refs) == ("blocked", ("w3",))
    assert found.text == "w3 was blocked 2 times in the last 5 min, 18 s in all"
    assert list(_found(None, workers=(LIVE, replace(often, info=WorkerInfo(blockages=past[:1]))))) == []


def test_blocked_and_silent_workers_are_named_with_their_processes_and_items() -> None:
    blocked = WorkerState("w3", NOW + 9, None, 1, WorkerInfo(host="h", pid=7, blocked_since=NOW - 60))
    gone = WorkerState("w2", NOW - 1, None, 1, WorkerInfo(host="h", pid=8))
    items = [ItemState(id=id, type="t", status="running", worker=id) for id in ("w1", "w3")]
    silent, found = _found(None, items, workers=(LIVE, gone, blocked))
    assert silent.text == "1 worker silent: w2 (host h, pid 8)"
    assert silent.fix.startswith("look at process 8 on host h: it is gone, or stopped (kill -CONT 8).")
    assert found.text.endswith("is blocked: its event loop has not run for 1 min; there runs w3 (t)")
    assert found.fix.endswith("(kill -CONT 7)")


def test_the_item_that_blocks_a_worker_is_named() -> None:
    """And not those that run beside it."""
    by = BlockingItem("guilty", "t", "default")
    blocked = WorkerState("w3", NOW + 9, None, 3, WorkerInfo(blocked_since=NOW - 60, blocked_by=(by,)))
    items = [ItemState(id=id, type="t", status="running", worker="w3") for id in ("a", "b", "guilty")]
    (found,) = _found(None, items, workers=(LIVE, blocked))
    assert found.text == "w3 is blocked: its event loop has not run for 1 min; guilty (t) blocks it"


def test_late_items_that_no_worker_can_run_are_one_problem() -> None:
    old, unserved = (QueueAge("q", NOW - 999),), (UnservedType("t", 1, None),)
    picky = WorkerState("w1", NOW + 10, None, 0, WorkerInfo(queues=("other",)))
    counts = (_count("ready"),)
    for workers, missing in (((LIVE,), unserved), ((picky,), ())):
        (only,) = _problems(workers=workers, counts=counts, unserved=missing, ages=old)
        assert only[0] == "no_worker"
    both = _problems(
        workers=(LIVE,), counts=(*counts, _count("ready", type="u")), unserved=unserved, ages=old
    )
    assert [kind for kind, _ in both] == ["no_worker", "late"]


def test_schedules_that_no_process_fires_are_problems() -> None:
    def schedule(name: str, state: ScheduleStanding) -> ScheduleState:
        return ScheduleState(
            name=name,
            next_at=NOW,
            last_at=None,
            paused=False,
            orphaned=state == "orphaned",
            timing={},
            seen_at=NOW - 60,
            state=state,
        )

    schedules = [schedule("nightly", "orphaned"), schedule("often", "overdue"), schedule("good", "active")]
    orphaned, overdue = _found("acme", schedules=schedules, workers=(LIVE,))
    assert orphaned.text == "no running process has schedule nightly: last seen 1 min ago"
    assert orphaned.schedule == "nightly"
    assert orphaned.fix.endswith("end it: treadle schedules cancel nightly --tenant acme")
    assert overdue.text == "1 schedule overdue: no process has fired often"
    many = [schedule(f"s{n}", "orphaned") for n in range(5)]
    *_, more = _found(None, schedules=many, workers=(LIVE,))
    assert (more.kind, more.text) == ("schedule", "nor has one of these schedules: s3, s4")
    failing = [msgspec.structs.replace(schedule(f"f{n}", "failing"), last_error="E: no") for n in range(4)]
    first, *_, more = _found(None, schedules=failing, workers=(LIVE,))
    assert first.text == "schedule f0: its last run failed, and submitted nothing: E: no"
    assert (first.kind, first.fix) == (
        "schedule_failed",
        "correct its `run`: treadle why --schedule f0; then run it now: treadle schedules trigger f0",
    )
    assert more.text == "the last runs of these schedules failed too: f3"
    (alone,) = _found(None, schedules=schedules)
    assert (alone.kind, alone.text) == ("no_worker", "no worker is alive; 1 schedule is not fired: nightly")


def test_a_tenant_gets_commands_of_its_own() -> None:
    facts = {
        "workers": (LIVE,),
        "counts": (_count("dead"),),
        "ages": (QueueAge("q", NOW - 301), QueueAge("bulk", NOW - 301)),
        "paused": (_pause("bulk", "acme"),),
    }
    assert [each.fix for each in _found("acme", **facts)] == [
        "treadle why --queue q --tenant acme",
        "treadle resume bulk --tenant acme",
        "treadle dead --tenant acme",
    ]
    late = "treadle why --queue bulk"  # also for other tenants, for which it is not paused
    assert late in [each.fix for each in _found(None, **facts)]


async def _some(app: Treadle) -> None:
    failing = await app.enqueue(send(3))
    with pytest.raises(WorkFailed):
        await failing.result()
    await app.worker.stop()
    await app.enqueue_many([report() for _ in range(3)], queue="bulk")
    await app.tenant("acme").enqueue(report(), delay=60)
    await app.pause("bulk")


def test_problems_come_first_and_the_exit_code_says_so(store: Store) -> None:
    store.work_off(_some)
    answer = store.call("status")
    assert answer.code == 4
    head, *lines = answer.out.splitlines()
    assert head.startswith("✕ 3 problems")
    shown = "\n".join(lines)
    assert "no worker is alive: the last one left " in shown  # and when
    assert "; 4 open items wait" in shown
    assert (
        shown.index("4 open items") < shown.index("queue bulk is paused") < shown.index("1 dead item: mail")
    )
    lines = lines[lines.index("") - 3 :]
    assert lines[4].split() == ["QUEUE", "READY", "RUNNING", "SCHEDULED", "BLOCKED", "DEAD", "OLDEST", "WAIT"]
    assert lines[5].split()[:6] == ["bulk", "3", "·", "·", "·", "·"]
    assert lines[5].endswith("paused")
    assert lines[7].split() == ["all", "3", "·", "1", "·", "1"]
    assert max(map(len, lines)) <= 80
    assert store.call("status", "--ignore", "no_worker,paused", "--ignore", "dead").code == 0


def test_estimates_are_marked_and_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = (
        _count("ready", 2_345_678, estimated=True),
        _count("dead", 12_345),
        _count("ready", queue="few"),
    )
    view = StatusView(Overview(now=NOW, counts=counts), WorkerFleet((), NOW), (), "queue")
    for speaks, sign in ((True, "≈"), (False, "~")):
        monkeypatch.setattr("treadle.cli.text.speaks_unicode", lambda: speaks)  # noqa: B023
        rows = [line.split() for line in view.lines(80)]
        assert next(row for row in rows if row[:1] == ["few"])[:2] == ["few", "1"]
        for name in ("q", "all"):
            row = next(row for row in rows if row[:1] == [name])
            assert (row[1], row[5]) == (f"{sign}2,350,000", "12,345")


def test_status_as_json(store: Store) -> None:
    store.work_off(_some)
    answer = store.call("status", "--json", app=False)
    assert answer.code == 4
    (seen,) = answer.objects
    assert seen["healthy"] is False
    assert [each["kind"] for each in seen["problems"]] == ["no_worker", "paused", "dead"]
    assert seen["statuses"]["ready"] == {"count": 3, "estimated": False}
    assert [(each["queue"], each["ready"]["count"]) for each in seen["queues"]] == [
        ("bulk", 3),
        ("default", 0),
    ]
    (paused,) = seen["paused"]
    assert (paused["kind"], paused["queue"], paused["tenant"], paused["until"]) == (
        "pause",
        "bulk",
        None,
        None,
    )


def test_a_tenant_sees_its_own_counts_only(store: Store) -> None:
    store.work_off(_some)
    (seen,) = store.call("status", "--json", "--tenant", "acme").objects
    assert {name: each["count"] for name, each in seen["statuses"].items() if each["count"]} == {
        "scheduled": 1
    }
    assert [each["tenant"] for each in seen["tenants"]] == ["acme"]
    rows = store.call("status", "--by", "tenant").out.splitlines()
    assert [line.split()[0] for line in rows if line.startswith(("acme", "default"))] == ["acme", "default"]


@pytest.mark.parametrize(
    "arguments", [("--by", "colour"), ("--ignore", "everything"), ("--max-wait", "long")]
)
def test_wrong_options_are_refused(store: Store, arguments: tuple[str, ...]) -> None:
    refused = store.call("status", *arguments)
    assert (refused.code, refused.err.count("\n")) == (2, 1)


@pytest.mark.usefixtures("processes")
def test_watching_looks_again_until_ctrl_c(store: Store) -> None:
    process = start("status", "--watch", "--json", "--every", "0.2", "--url", store.url)
    assert process.stdout is not None
    assert process.stderr is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert looks[0]["healthy"]
    assert looks[0]["now"] < looks[1]["now"]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


@pytest.mark.usefixtures("processes")
def test_watching_on_a_terminal_draws_in_place(store: Store) -> None:
    terminal, other_end = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    process = common_server().start(
        ["treadle", "status", "--watch", "--every", "0.2", "--url", store.url],
        PROJECT,
        {**os.environ, "PYTHONIOENCODING": "utf-8", "TERM": "xterm"},
        output=other_end,
        errors=other_end,
    )
    os.close(other_end)
    shown = ""
    while shown.count("✓ healthy") < 2:
        shown += os.read(terminal, 65536).decode()
    process.send_signal(signal.SIGINT)
    while "\x1b[?25h" not in shown:  # the cursor is shown again
        shown += os.read(terminal, 65536).decode()
    assert process.wait(30) == 0
    os.close(terminal)
    assert "\x1b[1A" in shown
    assert "Traceback" not in shown


def test_a_store_that_does_not_answer_is_not_shown_as_healthy() -> None:
    last = ["\x1b[32m✓ healthy\x1b[0m  \x1b[2m2026-11-16 12:47:15 UTC\x1b[0m", "", "no workers"]
    lines = away_lines(StoreUnavailable("PostgreSQL did not answer"), last, 120.0, 80)
    assert lines == [
        "✕ the store does not answer: PostgreSQL did not answer",
        "",
        "2 min ago it was:",
        "",
        "✓ healthy  2026-11-16 12:47:15 UTC",
        "",
        "no workers",
    ]


def test_a_row_says_whether_the_queue_grows_or_drains() -> None:
    """The columns of rates are left out first where there is no room for them."""
    counts = (_count("ready", 4200, queue="mail"), _count("ready", 900, queue="images"), _count("dead"))
    rates = {"over": 300.0, "waited": True}
    backlogs = (
        QueueBacklog(queue="images", ready=900, growth=-40.0, ends=60.0, arrivals=20.0, **rates),
        QueueBacklog(queue="mail", ready=4200, growth=120.0, ends=300.0, arrivals=420.0, **rates),
    )
    overview = Overview(now=NOW, counts=counts)
    view = StatusView(overview, WorkerFleet((), NOW), (), "queue", backlogs=backlogs)
    heads, images, mail, other, _ = view.lines(100)[2:7]
    assert heads.split()[-2:] == ["IN/MIN", "OUT/MIN"]
    assert images.split()[-6:] == ["20", "60", "drains", "in", "22", "min"]
    assert mail.split()[-5:] == ["420", "300", "grows", "by", "120/min"]
    assert other.split()[-1] == "1"
    heads, images, mail, *_ = view.lines(72)[2:7]
    assert "IN/MIN" not in heads
    assert mail.endswith("grows by 120/min")
    row = view.json()["queues"][1]["backlog"]
    assert (row["growth_per_minute"], row["drains_in_seconds"]) == (120.0, None)
    assert view.json()["queues"][2]["backlog"] is None
    paused = replace(overview, paused=(_pause("mail"),))
    assert "paused, grows by 120/min" in "\n".join(view._replace(overview=paused).lines(110))
    assert "grows" not in "\n".join(view._replace(by="type").lines(110))
