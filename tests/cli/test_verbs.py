"""`treadle cancel`, `complete`, `trigger`, `requeue`, `delete`, `update`, `repair`: by ids and by filters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import sys
import time
from collections.abc import Generator, Sequence

import pytest

from tests.cli.calling import Called, call, start
from tests.cli.conftest import APP, Store
from tests.cli.looked_at import order, report, send
from treadle import Treadle
from treadle.cli.commands import commands
from treadle.errors import NotTriggerable, WorkFailed
from treadle.item import Demand, Heartbeat, ItemState
from treadle.operate.changes import all_or_none


async def _delayed(app: Treadle, count: int = 3, tenant: str | None = None) -> list[str]:
    client = app if tenant is None else app.tenant(tenant)
    return [each.id for each in await client.enqueue_many([send(n) for n in range(count)], delay=3600)]


async def _dead(app: Treadle, count: int = 3) -> list[str]:
    handles = await app.enqueue_many([send(3 * n) for n in range(count)])
    await asyncio.gather(*(each.result() for each in handles), return_exceptions=True)
    return [each.id for each in handles]


def states(store: Store, ids: Sequence[str]) -> list[ItemState | None]:
    return store.fill(lambda app: app.get(ids))


def statuses(store: Store, ids: Sequence[str]) -> list[str]:
    return ["gone" if each is None else each.status for each in states(store, ids)]


# -------------------------------------------------------------------------------------------------- ids


def test_items_are_cancelled_by_id_and_refusals_are_said_for_each(store: Store) -> None:
    first, second, third = store.fill(_delayed)
    cancelled = store.call("cancel", first, second)
    assert cancelled == Called(0, "cancelled 2 items\n", "")
    again = store.call("cancel", first, "nonsense", third)
    assert (again.code, again.out) == (1, "cancelled 1 item\n")
    assert again.err.splitlines()[0].startswith("treadle: no item 'nonsense' here")
    assert again.err.splitlines()[1].startswith(f"treadle: item '{first}' has ended (cancelled)")
    assert statuses(store, [first, second, third]) == ["cancelled"] * 3


def test_items_are_held_and_let_go(store: Store) -> None:
    first, second, third = store.fill(_delayed)
    assert store.call("hold", first, second, "--because", "bad card") == Called(0, "held 2 items\n", "")
    (dry,) = store.call("hold", "--all", "--dry-run", "--json").objects
    assert (dry["would_change"], dry["skipped"]) == (1, 2)
    again = store.call("hold", first, third)
    assert (again.code, again.out) == (1, "held 1 item\n")
    assert again.err == f"treadle: item '{first}' is scheduled: it is held already\n"
    assert [item["id"] for item in store.call("list", "--held", "--json").objects] == [third, second, first]
    shown = store.call("show", first).out
    assert "scheduled, held" in shown
    (reason,) = store.call("why", first, "--json").objects[0]["reasons"]
    assert (reason["kind"], reason["text"].endswith(": bad card")) == ("held", True)
    assert reason["fix"] == f"treadle unhold {first}"
    refused = store.call("trigger", first)
    assert (refused.code, refused.err) == (1, f"treadle: item '{first}' is held: unhold it first\n")
    assert store.call("unhold", first).out == "let go 1 item\n"
    assert store.call("unhold", "--all", "--yes").out == "let go 2 items\n"
    refused = store.call("unhold", first)
    assert (refused.code, refused.err) == (1, f"treadle: item '{first}' is scheduled: it is not held\n")


def test_what_a_person_typed_does_not_reach_the_terminal_as_it_is(store: Store) -> None:
    for arguments in (("cancel", "\x1b[2J"), ("cancel", "--key", "\x1b[2J", "--yes"), ("repair", "a\nb")):
        refused = store.call(*arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "\x1b" not in refused.err


def test_an_ended_item_can_be_named_to_cancel_what_it_queued(store: Store) -> None:
    async def fill(app: Treadle) -> str:
        await app.pause("default")
        handle = await app.enqueue(order([1, 2]), queue="other")
        await handle.result()
        return handle.id

    root = store.work_off(fill)
    cancelled = store.call("cancel", root)
    assert (cancelled.code, cancelled.out) == (
        0,
        "cancelled 2 items (1 asked for; the others were queued by them)\n",
    )


def test_json_has_a_line_for_each_refusal_and_a_summary(store: Store) -> None:
    first, *_ = store.fill(_delayed)
    done = store.call("trigger", first, "nonsense", "--json")
    assert done.code == 1
    refusal, summary = done.objects
    assert (refusal["id"], refusal["refused"]) == ("nonsense", "NotFound")
    assert summary == {
        "verb": "trigger",
        "matched": 2,
        "more": False,
        "changed": 1,
        "skipped": 1,
        "unknown": 0,
        "stopped": False,
        "dry_run": False,
    }
    assert done.err == ""


def test_ids_and_lines_of_json_come_from_standard_input(store: Store) -> None:
    ids = store.fill(_delayed)
    acme = store.fill(lambda app: _delayed(app, 1, "acme"))
    listed = store.call("list", "--json").out
    triggered = call("trigger", "-", "--app", APP, input=listed)
    assert (triggered.code, triggered.out) == (0, "triggered 4 items\n")
    assert set(statuses(store, [*ids, *acme])) == {"ready"}
    cancelled = call("cancel", "-", "--app", APP, input=f"\n{ids[0]}\n{ids[1]}\n")
    assert cancelled.out == "cancelled 2 items\n"
    for line in ("two words", '{"di": "x"}', '{"id": 3}', "{"):
        refused = call("cancel", "-", "--app", APP, input=f"{ids[2]}\n{line}\n")
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused
    assert statuses(store, ids) == ["cancelled", "cancelled", "ready"]


def test_another_tenants_items_cannot_be_changed(store: Store) -> None:
    own = store.fill(lambda app: _delayed(app, 1, "acme"))
    other = store.fill(lambda app: _delayed(app, 1, "other"))
    listed = store.call("list", "--json").out
    for verb in ("cancel", "complete", "trigger", "delete", "update"):
        extra = ("--priority", "5") if verb == "update" else ()
        refused = store.call(verb, *other, *extra, "--tenant", "acme")
        assert refused.code == 1
        assert f"no item '{other[0]}' here" in refused.err
        if verb != "update":
            assert call(verb, "-", "--app", APP, "--tenant", "acme", input=listed).code == 1
    assert store.call("repair", *other, "--tenant", "acme").code == 1
    assert statuses(store, [*own, *other]) == ["scheduled", "scheduled"]
    assert store.call("cancel", "--all", "--yes", "--tenant", "acme").out == "cancelled 1 item\n"
    assert statuses(store, [*own, *other]) == ["cancelled", "scheduled"]


def test_two_tenants_may_use_the_same_id(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        for tenant in ("acme", "other"):
            await app.tenant(tenant).enqueue(report(), id="same", delay=3600)

    store.fill(fill)
    assert store.call("trigger", "--type", "report", "--yes").out == "triggered 2 items\n"
    assert store.call("cancel", "same", "--tenant", "other").out == "cancelled 1 item\n"
    found = {each["tenant"]: each["status"] for each in store.call("list", "--json").objects}
    assert found == {"acme": "ready", "other": "cancelled"}


def test_a_value_completes_items(store: Store) -> None:
    first, second, third = store.fill(_delayed)
    done = store.call("complete", first, second, "--value", '"by hand"')
    assert done == Called(0, "completed 2 items\n", "")
    (state,) = states(store, [first])
    assert state is not None
    assert (state.status, state.result) == ("success", "by hand")
    refused = store.call("complete", third, "--value", "not json")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    refused = store.call("complete", third, "--value", "[1]")
    assert refused.code == 1
    assert "is of type mail.send, and the value is no result of it" in refused.err
    refused = store.call("complete", first)
    assert refused.code == 1
    assert "only open items can be completed" in refused.err


def test_update_changes_what_has_not_started(store: Store) -> None:
    first, *_ = store.fill(_delayed)
    done = store.call("update", first, "--priority", "7", "--queue", "bulk", "--delay", "2h")
    assert done == Called(0, "updated 1 item\n", "")
    (state,) = states(store, [first])
    assert state is not None
    assert (state.priority, state.queue) == (7, "bulk")
    assert 7100 < state.due_at - state.queued_at < 7300
    assert store.call("update", first, "--deadline", "1d").code == 0
    assert store.call("update", first, "--deadline", "none", "--run-at", "2030-01-01").code == 0
    (state,) = states(store, [first])
    assert state is not None
    assert (state.deadline, state.due_at) == (None, 1893456000.0)
    for arguments in ((), ("--delay", "1h", "--run-at", "2030-01-01"), ("--delay", "soon")):
        assert store.call("update", first, *arguments).code == 2
    store.call("cancel", first)
    refused = store.call("update", first, "--lane", "x")
    assert (refused.code, refused.out) == (1, "updated 0 items\n")
    assert "only items that have not started" in refused.err


async def _half_started(app: Treadle) -> tuple[list[str], list[str]]:
    """Ten items that wait. Every second one was begun."""
    await app.connect()
    ids = [each.id for each in await app.enqueue_many([report() for _ in range(10)])]
    started = ids[::2]
    for id in started:
        await app.update([id], priority=1)
    await app.backend.beat(Heartbeat(worker="w1", lease=60.0, types=("report",)))
    claimed = await app.backend.claim(Demand(worker="w1", limit=5))
    assert {each.id for each in claimed.leases} == set(started)
    await app.backend.remove_worker("w1")
    return ids, started


def test_an_update_says_for_each_item_why_and_is_one_entry(store: Store) -> None:
    ids, started = store.fill(_half_started)
    given = ("update", "-", "--lane", "x", "--app", APP)
    tried = call(*given, "--dry-run", input="\n".join(ids))
    assert (tried.code, tried.out.split(",")[0]) == (1, "would update 5 items")
    done = call(*given, input="\n".join(ids))
    assert (done.code, done.out) == (1, "updated 5 items\n")
    assert [line.split("'")[1] for line in done.err.splitlines()] == started
    assert "an attempt was made" in done.err
    assert "No item was" not in done.err
    made = [each for each in store.call("audit", "--json").objects if each["about"] == "lane=x"]
    assert [each["count"] for each in made] == [5]


async def test_what_is_refused_is_left_out_of_the_next_try() -> None:
    """Another process may change items between the look and the change."""
    items = [ItemState(id=f"i{n}", type="a", status="scheduled") for n in range(8)]
    calls: list[list[str]] = []

    async def call(ids: list[str]) -> int:
        calls.append(ids)
        for id in ids:
            if id in ("i2", "i5"):
                raise NotTriggerable(id, "running")
        return len(ids)

    outcome = await all_or_none(items, call)
    assert (outcome.changed, [each.id for each in outcome.refused]) == (6, ["i2", "i5"])
    assert outcome.refused[0].message == "item 'i2' is running: only scheduled items can be triggered"
    assert len(calls) == 3


def test_delete_removes_whole_groups(store: Store) -> None:
    async def fill(app: Treadle) -> tuple[str, str, str]:
        handle = await app.enqueue(order([1, 2]))
        await handle.group()
        page = await app.list(group_id=handle.id, type="mail.send")
        waiting = await app.enqueue(report(), delay=3600)
        return handle.id, page.items[0].id, waiting.id

    root, member, waiting = store.work_off(fill)
    refused = store.call("delete", member)
    assert refused.code == 1
    assert f"belongs to the group '{root}'" in refused.err
    skipped = store.call("delete", "--all", "--yes")
    assert skipped.out == "deleted 3 items, skipped 1 (1 GroupStillOpen)\n"
    assert statuses(store, [root, member, waiting]) == ["gone", "gone", "scheduled"]
    assert store.call("delete", waiting).out == "deleted 1 item\n"
    assert store.call("list").out == "no items\n"


def test_an_item_that_is_waited_for_is_not_deleted(store: Store) -> None:
    async def fill(app: Treadle) -> tuple[str, str]:
        first = await app.enqueue(report(), delay=3600)
        second = await app.enqueue(report(), after=[first])
        return first.id, second.id

    first, second = store.fill(fill)
    refused = store.call("delete", first)
    assert (refused.code, refused.out) == (1, "deleted 0 items\n")
    assert f"'{second}' waits on '{first}'" in refused.err
    assert store.call("delete", second, "--cascade").out == (
        "deleted 2 items (1 asked for; the others were in their groups)\n"
    )


def test_a_failed_group_is_repaired(store: Store) -> None:
    async def fill(app: Treadle) -> str:
        handle = await app.enqueue(order([1, 3]))
        with pytest.raises(WorkFailed):
            await handle.group()
        return handle.id

    root = store.work_off(fill)
    assert store.call("repair", root).out == f"repaired {root}: 1 item open again\n"
    assert store.call("repair", root).out == f"nothing to repair in {root}: no death failed it\n"
    assert store.call("repair", root, "--json").objects == [{"verb": "repair", "id": root, "changed": 0}]
    (member,) = store.call("list", "--type", "mail.send", "--json", "--limit", "1").objects
    refused = store.call("repair", member["id"])
    assert refused.code == 1
    assert f"belongs to the group '{root}': repair it with `treadle repair {root}`" in refused.err
    refused = store.call("repair", "nonsense")
    assert refused.code == 1
    assert "no group 'nonsense' here" in refused.err


# ---------------------------------------------------------------------------------------------- filters


def test_filters_need_yes_or_a_terminal(store: Store) -> None:
    ids = store.fill(_delayed)
    refused = store.call("cancel", "--type", "mail.send")
    assert (refused.code, refused.out) == (2, "")
    assert "standard input is no terminal: give --yes" in refused.err
    for arguments in ((), ("--yes",), (ids[0], "--all"), (ids[0], "--type", "x"), ("--all", "--rate", "x")):
        refused = store.call("cancel", *arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused
    assert statuses(store, ids) == ["scheduled"] * 3


def test_a_dry_run_changes_nothing(store: Store) -> None:
    ids = store.fill(_delayed)
    assert store.call("cancel", "--all", "--dry-run").out == (
        "would cancel 3 items, and what they have queued; nothing was changed\n"
    )
    (said,) = store.call("trigger", "--all", "--dry-run", "--limit", "2", "--json").objects
    assert (said["matched"], said["changed"], said["dry_run"]) == (2, 0, True)
    assert [each["id"] for each in said["examples"]] == ids[:2]
    named = store.call("requeue", *ids[:1], "--dry-run")
    assert (named.code, named.out) == (
        1,
        "would requeue 0 items, and skip 1 (1 StatusConflict); nothing was changed\n",
    )
    assert "only dead items can be requeued" in named.err
    assert statuses(store, ids) == ["scheduled"] * 3


def test_a_filter_changes_the_oldest_up_to_the_limit(store: Store) -> None:
    ids = store.fill(lambda app: _delayed(app, 7))
    assert (
        store.call("trigger", "--status", "scheduled", "--limit", "3", "--yes").out == "triggered 3 items\n"
    )
    assert statuses(store, ids) == ["ready"] * 3 + ["scheduled"] * 4
    refused = store.call("trigger", "--status", "ready", "--yes")
    assert refused.code == 2
    assert "only scheduled items can be triggered" in refused.err
    assert (
        store.call("trigger", "--all", "--yes", "--since", "1h", "--until", "30m").out == "no items match\n"
    )


def test_items_are_changed_by_conditions_on_what_is_inside(store: Store) -> None:
    """With the same preview as filters, and in the foreground."""
    ids = store.fill(lambda app: _delayed(app, 1200))
    given = ("--where", "input.user_id>=600", "--where", "input.user_id<603")
    said = store.call("hold", *given, "--dry-run")
    assert "would hold 3 items" in said.out
    assert store.call("hold", *given, "--limit", "2", "--yes").out == "held 2 items\n"
    found = store.call("list", "--held", "--json").objects
    assert [each["id"] for each in found] == [ids[601], ids[600]]
    moved = store.call("update", *given, "--queue", "slow", "--yes", "--canary", "1", "--canary-wait", "0.1s")
    assert "canary: updated 1 item" in moved.out
    (entry, *_) = store.call("audit", "--json").objects
    assert entry["about"].endswith("input.user_id>=600 input.user_id<603")
    done = store.call("trigger", "--type", "mail.send", *given, "--rate", "1000/s", "--yes")
    assert done.out.startswith("triggered 1 item")
    for wrong, why in (
        (("a", *given), "exclude each other"),
        ((*given, "--background"), "cannot be used with --where"),
        (("--where", "nonsense"), "is no condition"),
    ):
        refused = store.call("cancel", *wrong, "--yes")
        assert (refused.code, why in refused.err) == (2, True), refused.err
    assert store.call("cancel", "--where", "input.user_id=9999", "--yes").out == "no items match\n"


def test_thousands_are_changed_in_portions(store: Store) -> None:
    store.fill(lambda app: _delayed(app, 1203))
    (done,) = store.call("cancel", "--type", "mail.send", "--yes", "--json").objects
    assert (done["matched"], done["changed"]) == (1203, 1203)


def test_items_that_die_again_are_requeued_once(store: Store) -> None:
    """A worker runs meanwhile, and what is requeued dies at once. It must not be found a second time."""

    async def fill(app: Treadle) -> list[str]:
        ids = await _dead(app, 30)
        arguments = ("requeue", "--all", "--yes", "--rate", "100/s", "--json")
        (done,) = (await asyncio.to_thread(store.call, *arguments)).objects
        assert (done["matched"], done["changed"]) == (30, 30)
        return ids

    assert len(store.work_off(fill)) == 30


def test_dependents_are_opened_again_with_what_they_wait_for(store: Store) -> None:
    async def fill(app: Treadle) -> tuple[str, str]:
        first = await app.enqueue(send(3))
        second = await app.enqueue(report(), after=[first])
        await asyncio.gather(first.result(), second.result(), return_exceptions=True)
        return first.id, second.id

    first, second = store.work_off(fill)
    stays = store.call("requeue", second)
    assert (stays.code, stays.out) == (1, "requeued 0 items\n")
    assert f"item '{second}' stays dead" in stays.err
    done = store.call("requeue", first)
    assert done.out == "requeued 2 items (1 asked for; the others wait for them)\n"
    assert statuses(store, [first, second]) == ["ready", "blocked"]


# --------------------------------------------------------------------------------------------- terminals


@contextlib.contextmanager
def _typed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> Generator[None]:
    """Let standard input be a terminal on which a person has typed this."""
    screen, inside = pty.openpty()
    os.write(screen, text)
    with os.fdopen(screen, "wb"), os.fdopen(inside) as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", terminal)
        yield


def test_a_terminal_is_asked(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = store.fill(lambda app: _delayed(app, 5))
    arguments = ["cancel", "--type", "mail.send", "--url", store.url]
    with _typed(monkeypatch, b"n\n"):
        assert commands(arguments, standalone_mode=False) == 1
    shown = capsys.readouterr()
    assert "and 2 more items" in shown.err
    assert shown.err.endswith("cancel 5 items, and what they have queued? [y/N] ")
    assert statuses(store, ids) == ["scheduled"] * 5
    with _typed(monkeypatch, b"y\n"):
        assert commands(arguments, standalone_mode=False) == 0
    assert capsys.readouterr().out == "cancelled 5 items\n"
    assert statuses(store, ids) == ["cancelled"] * 5


@pytest.mark.usefixtures("processes")
def test_ctrl_c_stops_between_portions_and_says_how_far_it_came(store: Store) -> None:
    ids = store.fill(lambda app: _delayed(app, 20))
    process = start("cancel", "--all", "--yes", "--rate", "1/s", "--url", store.url)
    assert process.stdout is not None
    assert process.stderr is not None
    end = time.monotonic() + 30
    while "cancelled" not in statuses(store, ids):
        assert time.monotonic() < end
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    done = statuses(store, ids).count("cancelled")
    assert (
        process.stdout.read() == f"stopped: cancelled {done} item{'s'[: done > 1]}. The rest is as it was\n"
    )
    assert done < 20
    process.stdout.close()
    process.stderr.close()


def test_update_by_filters(store: Store) -> None:
    ids, started = store.fill(_half_started)
    given = ("update", "--type", "report", "--from-queue", "default", "--queue", "slow", "--priority", "-5")
    tried = store.call(*given, "--dry-run")
    assert (tried.code, tried.out) == (
        0,
        "would update 5 items, and skip 5 (5 NotUpdatable); nothing was changed\n",
    )
    refused = store.call(*given)
    assert refused.code == 2
    assert "--yes" in refused.err
    done = store.call(*given, "--yes", "--because", "flood")
    assert (done.code, done.out) == (0, "updated 5 items, skipped 5 (5 NotUpdatable)\n")
    found = {each.id: (each.queue, each.priority) for each in states(store, ids) if each is not None}
    assert found == {id: ("default", 1) if id in started else ("slow", -5) for id in ids}
    (entry,) = store.call("audit", "--json").objects
    assert (entry["verb"], entry["count"], entry["reason"]) == ("update", 5, "flood")
    assert entry["about"].startswith("priority=-5 queue=slow for status:")
    action = store.call(
        "update", "--from-queue", "slow", "--queue", "default", "--yes", "--background", "--json"
    )
    assert (action.objects[0]["verb"], action.objects[0]["changes"]) == ("update", "queue=default")
    nothing = store.call("update", "--queue", "slow", "--yes")
    assert (nothing.code, "say which items" in nothing.err) == (2, True)
