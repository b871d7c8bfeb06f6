"""`treadle audit`, `workers drain`, and the notes of commands that change something."""

from __future__ import annotations

import getpass
import socket

import pytest

from tests.cli import looked_at
from tests.cli.calling import call
from tests.cli.conftest import APP, Store
from tests.cli.looked_at import report
from tests.cli.test_fleet import beat
from treadle import Treadle
from treadle.base.timing import SystemClock
from treadle.ports import PortsBackend
from treadle.ports.memory import MemoryPubSub, MemoryQueue, MemoryStore


def test_commands_note_who_called_them(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the user and the host, or by TREADLE_ACTOR, with the reason. What only reads notes nothing."""

    async def fill(app: Treadle) -> list[str]:
        app.schedule("nightly", every=3600, run=report)
        await app.schedules.list()
        await beat(app, "w1")
        return [(await app.enqueue(report(), delay=100)).id for _ in range(3)]

    first, second, third = memory.fill(fill)
    assert memory.call("audit").out == "no entries\n"
    assert memory.call("cancel", first, "--because", "no need").code == 0
    monkeypatch.setenv("TREADLE_ACTOR", "ann@example.org")
    for arguments in (
        ("update", second, "--priority", "3"),
        ("trigger", second),
        ("complete", second, "--value", "{}"),
        ("delete", first),
        ("cancel", "--type", "report", "--yes"),
        ("pause", "mail", "--tenant", "acme"),
        ("run", "report", "--tenant", "acme"),
        ("workers", "drain", "w1"),
        ("list",),
        ("cancel", third, "--dry-run"),
    ):
        assert memory.call(*arguments).code == 0, arguments
    unknown = memory.call("workers", "drain", "w2")
    assert unknown.err == "treadle: no worker 'w2' has a lease here: it has stopped or died\n"
    entries = memory.call("audit", "--json").objects[::-1]
    assert [(entry["actor"], entry["verb"], entry["count"], entry["about"]) for entry in entries[1:6]] == [
        ("ann@example.org", "update", 1, "priority=3"),
        ("ann@example.org", "trigger", 1, ""),
        ("ann@example.org", "complete", 1, ""),
        ("ann@example.org", "delete", 1, ""),
        ("ann@example.org", "cancel", 1, entries[5]["about"]),
    ]
    assert entries[5]["about"].startswith("status:blocked,scheduled,ready,running type:report until:")
    assert [(entry["verb"], entry["tenant"]) for entry in entries[6:]] == [
        ("pause", "acme"),
        ("enqueue", "acme"),
        ("drain_worker", None),
        ("drain_worker", None),
    ]
    host = socket.gethostname()
    assert (entries[0]["actor"], entries[0]["reason"]) == (f"{getpass.getuser()}@{host}", "no need")
    assert (entries[0]["ids"], entries[0]["address"]) == ([first], host)
    shown = memory.call("audit", "--limit", "2")
    rows = [line.split()[2:4] for line in shown.out.splitlines()[1:]]
    assert rows == [["ann@example.org", "drain_worker"]] * 2
    assert "there are more: treadle audit --cursor" in shown.err
    assert len(memory.call("audit", "--tenant", "acme", "--json").objects) == 2
    on = memory.call("audit", "--limit", "1", "--tenant", "acme").err.removeprefix(
        "treadle: there are more: "
    )
    assert [entry["verb"] for entry in memory.call(*on.split()[1:], "--json").objects] == ["pause"]


def test_the_entries_of_a_bulk_action_go_on_with_its_id(memory: Store) -> None:
    async def fill(app: Treadle) -> str:
        for tenant in ("acme", "beta"):
            await app.tenant(tenant).enqueue(report(), delay=100)
        action = await app.by("ann").bulk.start("cancel", type="report")
        await app.worker.drain()
        return action.id

    id = memory.work_off(fill)
    (row,) = memory.call("audit").out.splitlines()[1:]
    assert row.split()[2:6] == ["ann", "bulk", "cancel", "-"]  # `treadle bulk` says how many
    first = memory.call("audit", "--bulk", id, "--limit", "1")
    on = first.err.removeprefix("treadle: there are more: treadle ").split()
    seen = [*memory.call("audit", "--bulk", id, "--limit", "1", "--json").objects]
    seen += memory.call(*on, "--json").objects
    assert sorted((entry["verb"], entry["tenant"]) for entry in seen) == [
        ("cancel", "acme"),
        ("cancel", "beta"),
    ]


def test_a_schedule_is_changed_with_a_note(memory: Store) -> None:
    """Also of one tenant, which sees it."""

    async def fill(app: Treadle) -> None:
        app.tenant("acme").schedule("own", every=3600, run=report)
        await app.start()
        await app.schedules.list()
        await app.stop()

    memory.fill(fill)
    for verb in ("pause", "resume", "cancel"):
        assert memory.call("schedules", verb, "own", "--tenant", "acme", "--because", "test").code == 0
    entries = memory.call("audit", "--tenant", "acme", "--json").objects
    assert [(entry["verb"], entry["ids"], entry["reason"]) for entry in entries] == [
        ("cancel_schedule", ["acme/own"], "test"),
        ("resume_schedule", ["acme/own"], "test"),
        ("pause_schedule", ["acme/own"], "test"),
    ]


def test_notes_that_cannot_be_kept_are_refused(memory: Store) -> None:
    for wrong in ("a\x1b[2Jb", "two\nlines", "x" * 2001):
        refused = memory.call("pause", "mail", "--because", wrong)
        assert (refused.code, "reason=" in refused.err) == (2, True)
        assert "\x1b" not in refused.err
    refused = call("pause", "mail", "--app", APP, env={"TREADLE_ACTOR": "x" * 201})
    assert (refused.code, "TREADLE_ACTOR=" in refused.err) == (2, True)
    assert memory.call("audit", "--cursor", "x").code == 2
    assert memory.call("audit").out == "no entries\n"


def test_a_store_without_an_audit_is_changed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    backend = PortsBackend(MemoryQueue(clock), MemoryPubSub(), MemoryStore(clock))
    store = Store("memory://", backend)  # type: ignore[arg-type]
    monkeypatch.setattr(looked_at, "app", store.app())

    async def fill(app: Treadle) -> str:
        return (await app.enqueue(report(), delay=100)).id

    id = store.fill(fill)
    assert store.call("cancel", id, "--because", "no need").out == "cancelled 1 item\n"
    assert "does not support audit entries" in store.call("audit").err
