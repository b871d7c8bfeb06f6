"""Steps, signals, progress and streams, in a shell."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import Any

import pytest

from tests.cli.calling import start
from tests.cli.conftest import Store
from tests.cli.forks import Forked
from tests.cli.looked_at import chat, fulfil, label, report
from tests.engine.kit import until_status
from treadle import Treadle
from treadle.item import MOST_UNREAD
from treadle.testing.contract.fleet import until


async def _until_it_waits(app: Treadle, id: str, step: str) -> None:
    async def waits() -> bool:
        return any(each.name == step and not each.over for each in await app.steps(id))

    await until(waits)


async def _waiting(app: Treadle) -> None:
    """An order that waits for its approval, and one that sleeps."""
    await app.enqueue(fulfil(90), id="o-1")
    await app.enqueue(fulfil(80), id="o-2")
    await app.signal("o-2", "approval", "yes")
    await _until_it_waits(app, "o-1", "approval")
    await _until_it_waits(app, "o-2", "cool-off")


# ------------------------------------------------------------------------------------------------ signal


def test_a_signal_is_sent_once_for_a_key(memory: Store) -> None:
    memory.work_off(_waiting)
    answer = memory.call("signal", "o-1", "approval", '"yes"', "--key", "k", "--because", "by phone")
    assert (answer.code, answer.out, answer.err) == (0, "sent the signal approval to o-1\n", "")
    again = memory.call("signal", "o-1", "approval", '"no"', "--key", "k")
    assert (again.code, "nothing was sent" in again.out) == (0, True)
    (told,) = memory.call("signal", "o-1", "approval", '"no"', "--key", "k", "--json").objects
    assert told == {"verb": "signal", "id": "o-1", "signal": "approval", "sent": False}
    (state,) = memory.fill(lambda app: app.get("o-1"))
    assert state is not None
    assert state.status == "ready"
    (entry,) = memory.call("audit", "--json").objects
    assert (entry["verb"], entry["ids"], entry["count"]) == ("signal", ["o-1"], 1)
    assert (entry["about"], entry["reason"], entry["tenant"]) == (
        "signal=approval key=k",
        "by phone",
        "default",
    )


def test_a_signal_that_nothing_waits_for_is_remarked_on(memory: Store) -> None:
    memory.work_off(_waiting)
    answer = memory.call("signal", "o-1", "aproval")
    assert answer.code == 0
    assert "o-1 waits for the signal approval, and not for aproval" in answer.err
    why = " ".join(memory.call("why", "o-1").out.split())
    assert "; in its mailbox, under other names: aproval" in why
    assert memory.call("signal", "o-1", "approval", '"no"').err == ""
    shown = memory.call("show", "o-1").out
    assert "Mailbox (1 signal that no wait has taken)\n  aproval\n" in shown


def test_a_signal_is_refused(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(report(), id="done").result()
        await app.tenant("acme").enqueue(chat(), id="theirs", delay=3600)
        for _ in range(MOST_UNREAD):
            await app.tenant("acme").signal("theirs", "word")

    memory.work_off(fill)
    assert memory.call("signal", "nosuch", "go").code == 1
    (refusal,) = memory.call("signal", "done", "go", "--json").objects
    assert (refusal["id"], refusal["refused"]) == ("done", "AlreadyEnded")
    full = memory.call("signal", "theirs", "word", "--json")
    assert (full.code, full.objects[0]["refused"]) == (1, "MailboxFull")
    assert memory.call("signal", "theirs", "go", "--tenant", "beta").code == 1
    bad = memory.call("signal", "theirs", "go", "{")
    assert (bad.code, "is no JSON" in bad.err) == (2, True)
    assert memory.call("audit", "--json").objects == []


# -------------------------------------------------------------------------------------------------- show


def test_steps_progress_and_stream_are_shown(memory: Store) -> None:
    memory.work_off(_waiting)
    out = memory.call("show", "o-1").out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "status ◷ scheduled, suspended" in lines
    (progress,) = [line for line in lines if line.startswith("progress")]
    assert progress.startswith("progress █████░░░░░░░░░░░░░░░ 25 % (1 of 4) charged, ")
    at = lines.index("Steps (3)")
    charged, failed, waits = lines[at + 2 : at + 5]
    assert charged.startswith("charge value now")
    assert charged.endswith('{"total":90,"token":"***"}')
    assert failed.startswith("check failure now")
    assert failed.endswith("tests.cli.looked_at.Declined: no \\x1b[31mcover")
    assert waits == "approval signal now waits for signal approval, ends in 2 d"
    assert lines[lines.index("Stream (1 chunk)") + 1] == '1 {"password":"***"}'
    assert "sleeps, ends in 2 d" in memory.call("show", "o-2").out
    assert "hunter2" in memory.call("show", "o-1", "--reveal").out


def test_steps_for_programs(memory: Store) -> None:
    memory.work_off(_waiting)
    (shown,) = memory.call("show", "o-2", "--json").objects
    assert [(step["name"], step["kind"], step["over"]) for step in shown["steps"]] == [
        ("charge", "value", True),
        ("check", "failure", True),
        ("approval", "signal", True),
        ("cool-off", "sleep", False),
    ]
    paid, _, approved, sleeps = shown["steps"]
    assert (paid["value"], approved["value"]) == ({"total": 80, "token": "***"}, "yes")
    assert sleeps["until"] == shown["due_at"]
    assert shown["suspended"]
    assert (shown["progress"]["done"], shown["progress"]["total"]) == (1, 4)
    assert [chunk["number"] for chunk in shown["stream"]] == [1, 2]  # one for each attempt
    assert (shown["chunks"], shown["mailbox"]) == (2, {})


def test_without_the_code_steps_are_masked(store: Store) -> None:
    store.work_off(_waiting)
    (shown,) = store.call("show", "o-2", "--json", app=False).objects
    paid = shown["steps"][0]
    assert paid["value"] == "***"
    assert "is not here" in paid["unreadable"]
    (shown,) = store.call("show", "o-2", "--json", "--reveal", app=False).objects
    assert shown["steps"][0]["value"]["token"] == "tok-1"


def _ended(process: Forked) -> tuple[int, str, str]:
    """The exit code, and what is left of the outputs."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        return process.wait(20), process.stdout.read(), process.stderr.read()


@pytest.mark.usefixtures("processes")
def test_a_stream_is_followed_until_the_item_ends(store: Store) -> None:
    store.fill(lambda app: app.enqueue(chat(), id="c-1"))
    follower = start("show", "c-1", "--stream", "--json", "--reveal", "--url", store.url)
    stop = threading.Event()

    async def work(_: Treadle) -> None:
        await asyncio.to_thread(stop.wait)

    working = threading.Thread(target=store.work_off, args=(work,))
    working.start()
    assert follower.stdout is not None
    told: list[Any] = []
    try:
        for word in ("one", "two"):
            assert store.call("signal", "c-1", "word", json.dumps(word)).code == 0
            told.append(json.loads(follower.stdout.readline()))
        assert store.call("signal", "c-1", "word", '""').code == 0
        assert _ended(follower) == (0, "", "")
    finally:
        stop.set()
        working.join()
    assert [(chunk["number"], chunk["value"]) for chunk in told] == [(1, "one"), (2, "two")]
    assert store.call("show", "c-1", "--stream", "--since", "1").out.split() == ["2", "two"]


@pytest.mark.usefixtures("processes")
def test_ctrl_c_ends_a_stream(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(fulfil(1), id="o-1")
        await _until_it_waits(app, "o-1", "approval")

    store.work_off(fill)
    follower = start("show", "o-1", "--stream", "--json", "--url", store.url)
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["number"] == 1
    follower.send_signal(signal.SIGINT)
    assert _ended(follower) == (0, "", "")


def test_a_stream_is_asked_for_in_the_right_way(memory: Store) -> None:
    assert memory.call("show", "a", "b", "--stream").code == 2
    assert memory.call("show", "a", "--since", "3").code == 2
    assert memory.call("show", "nosuch", "--stream").code == 1


# ------------------------------------------------------------------------------------------- list, status


def test_suspended_items_are_named_and_counted(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(app: Treadle) -> None:
        await _waiting(app)
        await app.enqueue(report(), delay=3600)
        await app.enqueue(chat(), id="c-1")
        await _until_it_waits(app, "c-1", "word:0")

    memory.work_off(fill)
    rows = {line.split()[0]: line.split()[1:] for line in memory.call("list").out.splitlines()}
    assert rows["o-1"] == ["◷", "scheduled", "order.fulfil", "in", "2", "d", "suspended"]
    assert rows["c-1"] == ["◷", "scheduled", "chat", "waits", "suspended"]
    found = memory.call("list", "--where", "suspended=true", "--json").objects
    assert {item["id"] for item in found} == {"o-1", "o-2", "c-1"}
    assert "3 scheduled items are suspended" in memory.call("status").out
    (seen,) = memory.call("status", "--json").objects
    assert (seen["suspended"], seen["statuses"]["scheduled"]["count"]) == ({"count": 3, "more": False}, 4)
    assert (seen["held"], "held" in memory.call("status").out) == ({"count": 0, "more": False}, False)
    for most, text in ((2, "3+ scheduled"), (1, "2+ scheduled"), (3, "3 scheduled")):
        monkeypatch.setattr("treadle.operate.store_look.SCHEDULED_LOOKED_AT", most)
        assert f"{text} items are suspended" in memory.call("status").out


def test_held_items_are_counted(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(app: Treadle) -> None:
        await app.hold(await app.enqueue_many([report(), report()]))
        await app.enqueue_many([report(), report()], delay=3600)

    memory.fill(fill)
    assert "2 scheduled items are held: `treadle unhold` lets them go" in memory.call("status").out
    (seen,) = memory.call("status", "--json").objects
    assert (seen["held"], seen["suspended"]["count"]) == ({"count": 2, "more": False}, 0)
    monkeypatch.setattr("treadle.operate.store_look.SCHEDULED_LOOKED_AT", 1)
    assert "1+ scheduled items are held" in memory.call("status").out


# ----------------------------------------------------------------------------------------------- requeue


async def _dead(app: Treadle) -> None:
    await _waiting(app)
    await app.signal("o-1", "approval", "no")
    await until_status(app, "o-1", "dead")
    await app.enqueue(fulfil(70), id="o-3")
    await _until_it_waits(app, "o-3", "approval")
    await app.cancel("o-3")


def test_an_item_is_requeued_from_a_step(memory: Store) -> None:
    memory.work_off(_dead)
    looked = memory.call("requeue", "o-1", "o-3", "--cancelled", "--from-step", "nosuch", "--dry-run")
    assert (looked.code, "skip 2 (2 NoSuchStep)" in looked.out) == (1, True)
    wrong = memory.call("requeue", "o-1", "--from-step", "nosuch")
    assert (wrong.code, "item 'o-1' has no step 'nosuch'" in wrong.err) == (1, True)
    answer = memory.call("requeue", "o-1", "--from-step", "approval")
    assert (answer.code, answer.out) == (0, "requeued 1 item\n")
    assert [step.name for step in memory.fill(lambda app: app.steps("o-1"))] == ["charge", "check"]
    background = memory.call("requeue", "--all", "--yes", "--background", "--from-step", "charge")
    assert (background.code, "--from-step" in background.err) == (2, True)


# --------------------------------------------------------------------------------------------------- why


def test_why_says_what_a_suspended_item_waits_for(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        await _waiting(app)
        await app.pause("default")
        await app.enqueue(label(), id="l-1", queue="other")
        await _until_it_waits(app, "l-1", "papers")

    memory.work_off(fill)
    waits = " ".join(memory.call("why", "o-1").out.split())
    assert "waits_for_signal it has waited for the signal approval for" in waits
    assert "and goes on without it in 2 d" in waits
    assert "→ treadle signal o-1 approval JSON" in waits
    assert "sleeps it sleeps (step cool-off) and goes on in 2 d" in " ".join(
        memory.call("why", "o-2").out.split()
    )
    children = " ".join(memory.call("why", "l-1").out.split())
    assert "it has waited for its children (step papers) for" in children
    assert ": 0 of 2 ended, waits for" in children
    assert "treadle.join" not in children
    assert "because of" in children


# -------------------------------------------------------------------------------------------------- logs


def test_logs_are_shown_by_attempt(memory: Store) -> None:
    """Without what a terminal would obey. An item that logged nothing, and one that does not exist."""

    async def run(app: Treadle) -> None:
        await app.enqueue(report("noisy"), id="r-1").result()
        await app.enqueue(report(), id="r-2").result()

    memory.work_off(run)
    answer = memory.call("show", "r-1", "r-2", "r-3", "--logs")
    head, first, second, other = answer.out.splitlines()
    assert head == "r-1, attempt 1: 1 record"
    assert first.endswith(r"WARNING shop no \x1b[31mdata")
    assert second.strip() == "second line"
    assert other == "r-2 has logged nothing that is kept"
    assert (answer.code, "r-3" in answer.err) == (1, True)
    (shown,) = memory.call("show", "r-1", "--logs", "--json").objects
    ((line,),) = [each["lines"] for each in shown["logs"]]
    assert (line["level"], line["logger"]) == ("WARNING", "shop")
    assert line["text"] == "no \x1b[31mdata\nsecond line"
    assert memory.call("show", "r-1", "--logs", "--stream").code == 2
