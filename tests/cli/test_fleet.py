"""`treadle workers`, `limits`, `schedules`, `doctor`, `why`, `group` and `workflow`."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from tests.cli import looked_at
from tests.cli.conftest import Store
from tests.cli.looked_at import order, report, send
from treadle import Context, MemoryBackend, Result, Treadle, work
from treadle.cli.doctor import Finding, finding_lines
from treadle.cli.fleet import worker_row
from treadle.cli.group import tree_lines
from treadle.doers import concurrency
from treadle.errors import WorkFailed
from treadle.item import Demand, Heartbeat, ItemState, Limit, PermitRequest, WorkerState
from treadle.store.fleet import Fleet
from treadle.testing import ManualClock
from treadle.worker_info import WorkerInfo


async def beat(app: Treadle, worker: str = "w1", lease: float = 60.0, **info: object) -> None:
    """What a worker of another process sends."""
    await app.connect()
    said = msgspec.json.encode(WorkerInfo(host="box", pid=7, lease=lease, **info))  # type: ignore[arg-type]
    await app.backend.beat(Heartbeat(worker=worker, lease=lease, types=("report",), info=said))


# ----------------------------------------------------------------------------------------------- workers


def test_workers_are_listed_with_what_they_say(memory: Store) -> None:
    async def fill(app: Treadle) -> str:
        await beat(app, "w1", room=4, queues=("default",), version="1.0")
        await beat(app, "w2", draining=True, tenants=("other",))
        handle = await app.enqueue(report())
        await app.backend.claim(Demand(worker="w1", limit=1))
        await beat(app, "w3", lease=0.0)
        await beat(app, "w4", blocked_since=1.0)
        return handle.id

    id = memory.fill(fill)
    lines = memory.call("workers").out.splitlines()
    assert lines[0].split() == ["ID", "STATE", "RUNNING", "HOST", "PID", "SEEN", "QUEUES", "TYPES"]
    assert lines[1].split()[:6] == ["w1", "●", "alive", "1/4", "box", "7"]
    assert "◐ draining" in lines[2]
    assert "✕ silent" in lines[3]
    assert "■ blocked" in lines[4]
    assert "w4 (host box, pid 7) is blocked: its event loop has" in memory.call("doctor").out
    assert id in memory.call("workers", "--items").out
    one, two, three, _ = memory.call("workers", "--items", "--json").objects
    assert (one["state"], one["info"]["host"], one["info"]["room"]) == ("alive", "box", 4)
    assert [each["id"] for each in one["items"]] == [id]
    assert (two["state"], three["state"]) == ("draining", "silent")
    seen = memory.call("workers", "--tenant", "acme", "--json").objects
    assert [(each["id"], each["running"]) for each in seen] == [("w1", None), ("w3", None), ("w4", None)]


def test_types_of_a_worker_have_one_order_on_every_store(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.connect()
        types = ("z.last", "treadle.group", "a.first")
        await app.backend.beat(Heartbeat(worker="w1", lease=60.0, types=types))

    memory.fill(fill)
    assert "a.first, z.last" in memory.call("workers").out
    (shown,) = memory.call("workers", "--json").objects
    assert shown["types"] == ["a.first", "treadle.group", "z.last"]


def test_a_worker_that_runs_more_than_it_has_places_for_has_claimed_ahead() -> None:
    """What it said last may be older than the count of the store."""
    fleet = Fleet([WorkerState("w1", 9.0, None, 3, WorkerInfo(room=2))], 1.0)
    assert worker_row(fleet, fleet.workers[0])[2] == "2/2 +1"


# ------------------------------------------------------------------------------------------------ limits


def test_limits_are_listed_with_their_holders(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    @work(name="mail.limited", doer=concurrency(3, per="tenant"))
    async def limited() -> None: ...

    async def fill(app: Treadle) -> None:
        await beat(app)
        slots = [Limit(f"mail.limited:slots:tenant:{tenant}", 3, 1.0, "slots") for tenant in ("a", "b")]
        rate = Limit("api:token_bucket/60:all", 2, 60.0)
        requests = [PermitRequest((each,), 2) for each in (*slots, rate)]
        await app.backend.take_permits(requests, worker="w1")

    memory.fill(fill)
    monkeypatch.setattr(looked_at, "app", Treadle(memory.backend, work=[limited]))
    lines = [line.split() for line in memory.call("limits").out.splitlines()]
    assert lines[1][:4] == ["api:token_bucket/60:all", "2", "of", "2"]
    assert lines[2] == ["mail.limited:slots:tenant:a", "2", "of", "3", "2", "by", "w1"]
    (one,) = memory.call("limits", "--name", "mail.limited:slots:tenant:b", "--json").objects
    assert (one["used"], one["limit"], one["holders"][0]["worker"]) == (2.0, 3, "w1")
    named = memory.call("limits", "--name", "mail.limited", "--name", "api", "--json")
    assert (named.code, named.err, len(named.objects)) == (0, "", 3)  # by the names that code has
    assert memory.call("limits", "--name", "mail").code == 1
    seen = memory.call("limits", "--tenant", "a", "--json").objects
    assert [each["name"] for each in seen] == ["api:token_bucket/60:all", "mail.limited:slots:tenant:a"]
    doctored = memory.call("doctor").out
    assert "1 limit in use that this app does not have: api:token_bucket/60:all" in doctored
    assert "1 limit reached: api:token_bucket/60:all" in doctored


# --------------------------------------------------------------------------------------------- schedules


def test_schedules_are_listed(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        app.schedule("nightly", cron="0 3 * * *", tz="Europe/Berlin", run=report)
        app.schedule("often", every=90, run=report)
        app.tenant("acme").schedule("own", every=60, run=report)
        await app.schedules.list()
        await app.schedules.pause("often")

    memory.work_off(fill)
    lines = memory.call("schedules").out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["acme/own", "✕", "orphaned"],
        ["nightly", "✕", "orphaned"],  # no worker runs now
        ["often", "‖", "paused"],
    ]
    assert lines[2].endswith("0 3 * * * Europe/Berlin")
    assert lines[3].endswith("every 1 min 30 s")
    assert " in " in lines[1]
    assert " in " not in lines[3], "it does not fire while it is paused"
    (own,) = memory.call("schedules", "--tenant", "acme", "--json").objects
    assert (own["name"], own["state"], own["timing"]) == ("own", "orphaned", {"every": 60.0})
    assert memory.call("doctor", "--tenant", "acme").code == 4
    memory.fill(beat)
    states = {each["name"]: each["state"] for each in memory.call("schedules", "--json").objects}
    assert states == {"acme/own": "active", "nightly": "active", "often": "paused"}


# ------------------------------------------------------------------------------------------------ doctor


def test_a_doctor_finds_what_a_person_should_see(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        await beat(app, "w1", version="1.0", queues=("default",))
        await beat(app, "w2", version="1.1", queues=("default",))
        await beat(app, "w3", lease=0.0)
        await app.enqueue(send(1))
        await app.enqueue(report(), queue="mial")
        await app.pause("bulk")

    memory.fill(fill)
    answer = memory.call("doctor", "--json")
    assert answer.code == 4
    found = [(each["check"], each["outcome"]) for each in answer.objects]
    assert found == [
        ("schema", "fine"),
        ("clock", "fine"),
        ("workers", "problem"),
        ("workers", "problem"),
        ("workers", "problem"),
        ("queues", "problem"),
        ("items", "fine"),
        ("versions", "note"),
        ("limits", "fine"),
    ]
    text = memory.call("doctor").out
    assert "✕ workers      none of 2 live workers has mail.send; 1 ready item waits" in text
    assert "✕ workers      no worker serves queue mial: 2 workers serve default; 1 ready item" in text
    (status,) = memory.call("status", "--json").objects
    problems = [each["text"] for each in answer.objects if each["outcome"] == "problem"]
    assert problems == [each["text"] for each in status["problems"]]


def found_wrong(store: Store) -> list[dict[str, Any]]:
    """What the doctor finds, but for what depends on this machine: its clock and its speed."""
    found = store.call("doctor", "--json").objects
    return [each for each in found if each["outcome"] != "fine" and each["check"] not in ("clock", "speed")]


def test_a_doctor_without_workers_names_one_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its clock stands still: however long the commands take, the worker left just now.
    store = Store("memory://", MemoryBackend(ManualClock(time.time())))
    monkeypatch.setattr(looked_at, "app", store.app())

    async def fill(app: Treadle) -> None:
        for name in ("nightly", "often"):
            app.schedule(name, every=3600, run=report)
        await app.schedules.list()

    store.work_off(fill)
    (only,) = found_wrong(store)
    assert (only["check"], only["outcome"]) == ("workers", "problem")
    assert only["text"] == "no worker is alive; 2 schedules are not fired: nightly, often"

    async def more(app: Treadle) -> None:
        await app.enqueue_many([send(1), report()], queue="mial")

    store.fill(more)
    (only,) = found_wrong(store)
    assert only["text"] == (
        "no worker is alive: the last one left just now; 2 open items wait; "
        "2 schedules are not fired: nightly, often"
    )
    assert only["fix"] == "start one: treadle worker MODULE:APP"


def test_findings_fit_the_terminal() -> None:
    long = Finding("workers", "problem", "word " * 30 + "i" * 40, "do this " * 20)
    lines = list(finding_lines(long, 80))
    assert max(map(len, lines)) <= 80
    assert all(line.startswith(" " * 15) for line in lines[1:])


def test_a_healthy_store_needs_no_doctor(memory: Store) -> None:
    memory.fill(beat)
    answer = memory.call("doctor")
    assert answer.code == 0
    assert all(line.startswith("✓") for line in answer.out.splitlines()), answer.out


# --------------------------------------------------------------------------------------------------- why


def test_why_an_item_waits(memory: Store) -> None:
    async def fill(app: Treadle) -> tuple[str, str]:
        first = await app.enqueue(report(), delay=3600, queue="bulk")
        second = await app.enqueue(report(), after=[first])
        await app.pause("bulk")
        return first.id, second.id

    first, second = memory.fill(fill)
    answer = memory.call("why", second)
    assert answer.code == 0
    assert answer.out.splitlines()[0] == f"◇ blocked  {second}"
    assert f"because of {first}:" in answer.out
    (told,) = memory.call("why", second, "--json").objects
    assert told["status"] == "blocked"
    assert told["reasons"][0]["kind"] == "dependency"
    assert told["reasons"][0]["refs"][0] == first
    assert any(each["until"] is not None for each in told["reasons"])
    (told,) = memory.call("why", "--queue", "bulk", "--json").objects
    assert "paused" in [each["kind"] for each in told["reasons"]]


def test_why_of_what_is_not_here(memory: Store) -> None:
    async def fill(app: Treadle) -> str:
        return (await app.tenant("other").enqueue(report())).id

    other = memory.fill(fill)
    assert memory.call("why", other).code == 0
    hidden = memory.call("why", other, "--tenant", "acme")
    assert (hidden.code, "unknown" in hidden.out) == (1, True)
    assert memory.call("why", "--schedule", "nothing", "--json").objects[0]["status"] == "unknown"
    for arguments in ((), (other, "--queue", "q"), ("--queue", "q", "--schedule", "s")):
        assert memory.call("why", *arguments).code == 2


def test_a_drain_says_what_no_worker_takes_any_more(memory: Store) -> None:
    memory.fill(lambda app: beat(app, "w1"))
    drained = memory.call("workers", "drain", "w1")
    assert (drained.code, drained.err) == (
        0,
        "treadle: no other worker takes items: what it would run waits until another is started\n",
    )
    memory.fill(lambda app: beat(app, "w2"))
    assert memory.call("workers", "drain", "w1").err == ""


# ---------------------------------------------------------------------------------------- group, workflow


async def _group(app: Treadle) -> str:
    handle = await app.enqueue(order([1, 3]), workflow="w/1")
    with pytest.raises(WorkFailed):
        await handle.group()
    return handle.id


def test_a_group_is_shown_as_a_tree(memory: Store) -> None:
    root = memory.work_off(_group)
    answer = memory.call("group", root)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[1].split(maxsplit=1)[1].startswith("failed (1 death), ended")
    assert any(line.startswith("partial value") for line in lines)
    assert [line[:14].rstrip() for line in lines[-3:]] == ["order.process", "├─ mail.send", "└─ mail.send"]
    (told,) = memory.call("group", root, "--json").objects
    assert (told["open"], told["failed"], told["more"]) == (0, 1, False)
    child = next(each for each in told["items"] if each["parent"] == root)
    assert memory.call("group", child["id"], "--json").objects[0]["id"] == root  # a member names its group
    assert memory.call("group", root, "--tenant", "acme").code == 1
    assert memory.call("group", root, "--limit", "2").err.startswith("treadle: only the first 2 items")


async def _submit_order(app: Treadle) -> str:
    return (await app.enqueue(order([1, 2]))).id


def test_a_group_that_is_open_shows_how_far_it_is(memory: Store) -> None:
    root = memory.fill(_submit_order)
    lines = memory.call("group", root).out.splitlines()
    assert [line.split(maxsplit=1) for line in lines[1:3]] == [
        ["state", "1 open member"],
        ["ended", "0 of 1"],
    ]
    limited = memory.work_off(_group)
    assert "ended" not in [line.split(" ")[0] for line in memory.call("group", limited).out.splitlines()]


def test_groups_and_workflows_are_listed(memory: Store) -> None:
    root, waiting = memory.work_off(_group), memory.fill(_submit_order)
    for command, id in (("groups", root), ("workflows", "w/1")):
        head, row = memory.call(command).out.splitlines()
        assert head.split()[:3] == ["ID", "STATE", "DONE"]
        assert row.split()[:5] == [id, "failed", "3", "of", "3"]
        assert "mail.send" in row
        (told,) = memory.call(command, "--json", "--outcome", "running,failed", "--since", "1h").objects
        assert (told["id"], told["outcome"], told["done"], told["total"]) == (id, "failed", 3, 3)
        assert (told["failed"], told["death"]["type"], told["capped"]) == (1, "mail.send", False)
        assert memory.call(command, "--outcome", "succeeded").out == f"no {command}\n"
        assert memory.call(command, "--tenant", "acme").out == f"no {command}\n"
        assert memory.call(command, "--type", "report").out == f"no {command}\n"
        assert memory.call(command, "--outcome", "done").code == 2
    assert waiting != root  # it is alone, and not in the list


def test_a_list_of_groups_goes_on_where_it_ended(memory: Store) -> None:
    roots = [memory.work_off(_group) for _ in range(2)]
    first = memory.call("groups", "--limit", "1", "--json")
    assert [each["id"] for each in first.objects] == roots[1:]
    cursor = first.err.split()[-1]
    assert [each["id"] for each in memory.call("groups", "--cursor", cursor, "--json").objects] == roots[:1]
    short = memory.call("groups", "--type", "report", "--scan", "1")
    assert (short.out, "looked at 1 of them" in short.err) == ("no groups\n", True)


def test_a_deep_tree_stays_narrow() -> None:
    chain = [linked(f"link-{place}", f"link-{place - 1}") for place in range(500)]
    lines = tree_lines([*chain, linked("beside", "link-40")], 0.0, None)
    assert max(map(len, lines)) < 80
    rows = {name: line for line in lines for name in line.split() if name.startswith(("link", "beside"))}
    assert rows["link-8"].startswith("                     └─ step")
    assert rows["link-9"].startswith("(9)                  └─ step")
    assert rows["link-41"].startswith("(41)                 ├─ step")
    assert rows["link-42"].startswith("(42)              │  └─ step")
    assert rows["beside"].startswith("(41)                 └─ step")
    assert rows["link-499"].startswith("(499)                └─ step")


def linked(id: str, parent: str) -> ItemState:
    return ItemState(id=id, type="step", status="success", group_id="g", parent=parent)


def test_a_workflow_is_shown_as_a_tree_or_a_graph(memory: Store) -> None:
    root = memory.work_off(_group)
    answer = memory.call("workflow", "w/1")
    assert [line[:14].rstrip() for line in answer.out.splitlines()] == [
        "ITEM",
        "order.process",
        "├─ mail.send",
        "└─ mail.send",
    ]
    dot = memory.call("workflow", "w/1", "--dot").out.splitlines()
    assert dot[0] == "digraph treadle {"
    assert dot[-3:] == ["  n0 -> n1;", "  n0 -> n2;", "}"]
    mermaid = memory.call("workflow", "w/1", "--mermaid").out.splitlines()
    assert mermaid[:2] == ["flowchart LR", f'  n0["order.process<br/>{root}<br/>success"]:::success']
    assert memory.call("workflow", "w/2").code == 1
    assert "tenant " not in answer.out
    memory.fill(lambda app: app.tenant("beta").enqueue(order([]), workflow="w/1", id="other"))
    both = memory.call("workflow", "w/1").out.splitlines()
    assert (both[0], "tenant beta" in both) == ("tenant default", True)
    (shown,) = memory.call("workflow", "w/1", "--json").objects
    assert {each["tenant"] for each in shown["items"]} == {"beta", "default"}
    assert memory.call("workflow", "w/1", "--tenant", "acme").code == 1
    assert memory.call("workflow", "w/1", "--dot", "--mermaid").code == 2


def test_names_cannot_break_a_graph(memory: Store) -> None:
    @work(name='a"] --> x["<b>;%%\\')
    async def hostile() -> None: ...

    async def fill(app: Treadle) -> None:
        await app.enqueue(hostile(), workflow="w")

    memory.fill(fill)
    (label,) = [line for line in memory.call("workflow", "w", "--mermaid").out.splitlines() if "n0[" in line]
    assert label.count('"') == 2
    assert "<b>" not in label
    (label,) = [line for line in memory.call("workflow", "w", "--dot").out.splitlines() if "n0 [" in line]
    assert 'label="a\\"] --> x[\\"<b>;%%\\\\\\\\n' in label or 'label="a\\"] --> x[\\"<b>;%%\\\\\\n' in label


def test_a_graph_has_a_nested_group_between_what_is_before_and_after_it(memory: Store) -> None:
    @work(name="nested")
    async def nested(ctx: Context) -> Result[None, None]:
        return ctx.queue(send(1)).next(ctx.group(report())).next(order([]))

    async def fill(_: Treadle) -> None:
        async with Treadle(memory.backend, work=[nested, *looked_at.TYPES]) as app:
            await (await app.enqueue(nested(), id="outer")).group()

    memory.fill(fill)
    drawn = memory.call("group", "outer", "--dot").out.splitlines()
    types = {line.split()[0]: line.split('"')[1].split("\\n")[0] for line in drawn if "label=" in line}
    waits = [
        line.strip().removesuffix(" [style=dashed];").split(" -> ") for line in drawn if "dashed" in line
    ]
    assert {(types[source], types[target]) for source, target in waits} == {
        ("mail.send", "report"),
        ("report", "treadle.group"),
        ("treadle.group", "order.process"),
    }
    dotted = [line for line in memory.call("group", "outer", "--mermaid").out.splitlines() if "-.->" in line]
    assert len(dotted) == 3


def test_limits_are_set_and_cleared(store: Store) -> None:
    by_ann = store.call("limits", "set", "mail.limited", "50/1m", "--until", "2h", "--because", "they asked")
    assert by_ann.out == "limit mail.limited: 50 per 1 min, counted from the first start\n"
    assert store.call("limits", "set", "app", "1/1.2s").out == "limit app: 1 per 1.2 s\n"
    assert store.call("limits", "set", "--type", "report", "4").out == "type report: 4 at once\n"
    assert "no limit nothing is known here" in store.call("limits", "set", "nothing", "4").err
    out = " ".join(store.call("limits").out.split())
    assert "no such limit is known: it changes nothing" in out
    assert "limits set that no code known here has: app, mail.limited, nothing" in store.call("doctor").out
    store.call("limits", "clear", "nothing")
    out = " ".join(store.call("limits").out.split())
    assert "type:report:slots:all 0 of 4" in out
    assert "50 per 1 min" in out
    assert "they asked; it ends in 2 h" in out
    (one,) = store.call("limits", "--name", "type:report:slots:all", "--json").objects
    assert (one["limit"], one["code"], one["order"]["type"]) == (4, None, "report")
    assert store.call("limits", "clear", "mail.limited").out == "limit mail.limited: as the code says\n"
    assert store.call("limits", "clear", "--type", "report").out == "type report: as the code says\n"
    assert "no limit of report was set" in store.call("limits", "clear", "--type", "report").err
    for wrong in (["mail.limited"], ["x", "4", "5"], ["mail.limited", "many"], ["mail.limited", "0"]):
        assert store.call("limits", "set", *wrong).code == 2
    assert store.call("limits", "set", "--type", "report").code == 2
    refused = store.call("limits", "set", "mail.send", "4")
    assert (refused.code, "is a type without a limit" in refused.err, "--type" in refused.err) == (
        2,
        True,
        True,
    )
    assert store.call("limits", "set", "mail.limited", "4", "--tenant", "acme").code == 2
