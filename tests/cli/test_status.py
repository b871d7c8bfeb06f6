"""`treadle status`: problems first, capped counts, and an exit code for monitoring."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

import pytest

from tests.cli.calling import start
from tests.cli.conftest import Store
from tests.cli.looked_at import report, send
from treadle import Treadle
from treadle.cli import problems
from treadle.cli.problems import Problem, find_problems
from treadle.cli.status import StatusView, away_lines
from treadle.engine.why.fleet import WorkerFleet
from treadle.errors import StoreUnavailable, WorkFailed
from treadle.item import Count, ItemState, WorkerState
from treadle.item_facts import Overview, QueueAge, UnservedType
from treadle.worker_info import UndecodableType, WorkerInfo

NOW = 1_800_000_000.0
LIVE = WorkerState("w1", NOW + 10, None, 3)


def _problems(**facts: object) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in _found(None, **facts)]


def _found(tenant: str | None, **facts: object) -> list[Problem]:
    overview = Overview(now=NOW, **facts)  # type: ignore[arg-type]
    return list(find_problems(overview, WorkerFleet(overview.workers, NOW), 300.0, tenant=tenant))


def _count(status: str, count: int = 1, *, type: str = "t", queue: str = "q", capped: bool = False) -> Count:
    return Count("default", queue, type, status, count, capped)  # type: ignore[arg-type]


def test_an_empty_store_is_healthy(store: Store) -> None:
    answer = store.call("status")
    assert answer.code == 0
    assert answer.out.splitlines()[0].startswith("✓ healthy")
    assert "no open and no dead items" in answer.out


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
    counts = (_count("ready", 5), _count("ready", 2, queue="mial", capped=True))
    assert _problems(counts=counts, workers=(LIVE,), unserved=(UnservedType("t", 5, NOW - 120),)) == [
        (
            "no_worker",
            "the only live worker, w1, does not have t; the last that had it left 2 min ago; "
            "5+ ready items wait",
        )
    ]
    bounds = (UnservedType("many", 10_000, None), UnservedType("t", 5, None), UnservedType("u", 5, None))
    cut = (_count("ready", 5, capped=True),)
    assert [text for _, text in _problems(workers=(LIVE,), counts=cut, unserved=bounds)] == [
        "the only live worker, w1, does not have many; 10,000+ ready items wait",
        "the only live worker, w1, does not have t; 5+ ready items wait",
        "the only live worker, w1, does not have u; 5 ready items wait",
    ]
    picky = WorkerState("w1", NOW + 10, None, 0, WorkerInfo(queues=("q",), tenants=("acme",)))
    assert _problems(counts=counts, workers=(picky,)) == [
        ("no_worker", "no worker serves queue mial: 1 worker serves q; 2+ ready items wait"),
        ("no_worker", "no worker serves tenant default: 1 worker serves acme; 7+ ready items wait"),
    ]


def test_names_that_are_close_are_said_and_many_are_one_problem() -> None:
    picky = WorkerState("w1", NOW + 10, ("mail.send",), 0, WorkerInfo(queues=("mail",)))
    close = _found(
        None,
        counts=(_count("ready", queue="mial"),),
        workers=(picky,),
        unserved=(UnservedType("mail.sent", 1, None),),
    )
    assert close[1].fix.endswith("--queues mial; or move it: treadle update ID --queue mail")
    assert [each.text for each in close] == [
        "the only live worker, w1, does not have mail.sent, but mail.send is known; 1 ready item waits",
        "no worker serves queue mial: 1 worker serves mail; 1 ready item waits",
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
    overview = Overview(now=NOW, workers=tuple(two), counts=(_count("scheduled"),))
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
        await app.enqueue(report(), after=["never"], id="stuck")

    store.fill(fill)
    answer = store.call("status", "--max-wait", "0s", "--json")
    (problem,) = [each for each in answer.objects[0]["problems"] if each["kind"] == "not_submitted"]
    assert (problem["refs"], problem["fix"]) == (["stuck"], "treadle why stuck")
    assert "not_submitted" not in store.call("status", "--json").out  # it may come yet
    monkeypatch.setattr(problems, "LISTED_QUICKLY", 0)  # as in a large store: only the doctor takes the time
    assert "not_submitted" not in store.call("status", "--max-wait", "0s", "--json").out


def test_silent_workers_late_items_pauses_and_deaths_are_problems() -> None:
    silent = WorkerState("w2", NOW - 1, None, 1)
    blocked = WorkerState("w3", NOW + 9, None, 1, WorkerInfo(blocked_since=NOW - 60))
    found = _problems(
        workers=(LIVE, silent, blocked),
        ages=(QueueAge("q", NOW - 301), QueueAge("bulk", NOW - 9999), QueueAge("fast", NOW - 299)),
        paused=(("bulk", None), ("q", "acme")),
        counts=(_count("dead", 10_000, capped=True), _count("dead", 2, type="u")),
    )
    assert found == [
        ("silent", "1 worker silent: w2"),
        ("blocked", "w3 is blocked: its event loop has not run for 1 min"),
        ("late", "queue q: an item has been ready for 5 min 1 s"),
        ("paused", "queue bulk is paused"),
        ("paused", "queue q is paused for tenant acme"),
        ("dead", "10,002+ dead items: t, u"),
    ]


def test_a_tenant_gets_commands_of_its_own() -> None:
    facts = {
        "workers": (LIVE,),
        "counts": (_count("dead"),),
        "ages": (QueueAge("q", NOW - 301), QueueAge("bulk", NOW - 301)),
        "paused": (("bulk", "acme"),),
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
    assert [line.split("  ")[1] for line in lines[:3]] == [
        "no worker is alive; 4 open items wait",
        "queue bulk is paused",
        "1 dead item: mail.send",
    ]
    assert lines[4].split() == ["QUEUE", "READY", "RUNNING", "SCHEDULED", "BLOCKED", "DEAD", "OLDEST", "WAIT"]
    assert lines[5].split()[:6] == ["bulk", "3", "·", "·", "·", "·"]
    assert lines[5].endswith("paused")
    assert lines[7].split() == ["all", "3", "·", "1", "·", "1"]
    assert max(map(len, lines)) <= 80
    assert store.call("status", "--ignore", "no_worker,paused", "--ignore", "dead").code == 0


def test_status_as_json(store: Store) -> None:
    store.work_off(_some)
    answer = store.call("status", "--json", app=False)
    assert answer.code == 4
    (seen,) = answer.objects
    assert seen["healthy"] is False
    assert [each["kind"] for each in seen["problems"]] == ["no_worker", "paused", "dead"]
    assert seen["statuses"]["ready"] == {"count": 3, "capped": False}
    assert [(each["queue"], each["ready"]["count"]) for each in seen["queues"]] == [
        ("bulk", 3),
        ("default", 0),
    ]
    assert seen["paused"] == [{"queue": "bulk", "tenant": None}]


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


def test_watching_on_a_terminal_draws_in_place(store: Store) -> None:
    terminal, other_end = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle", "status", "--watch", "--every", "0.2", "--url", store.url],
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=other_end,
        stderr=other_end,
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
