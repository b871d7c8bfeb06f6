"""`treadle dead`: dead letters by what they died of, and the canary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli import looked_at
from tests.cli.conftest import Store
from tests.cli.looked_at import order, report, send
from treadle import Abort, Retry, Treadle, work

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202e [bold]x[/bold]\nsecond line"


@work(name="pay", retry=Retry(attempts=1))
async def pay(order: int) -> None:
    raise Abort(HOSTILE)


async def _deaths(app: Treadle) -> list[str]:
    """Four deaths of one kind, and one of another, which is the newest."""
    app.register(pay)
    await asyncio.gather(*(app.enqueue(send(n)).result() for n in (3, 6, 9)), return_exceptions=True)
    await asyncio.gather(app.tenant("acme").enqueue(send(3)).result(), return_exceptions=True)
    handle = await app.enqueue(pay(1))
    await asyncio.gather(handle.result(), return_exceptions=True)
    return [each.id for each in (await app.list("dead", oldest_first=True)).items]


def test_deaths_are_shown_by_what_they_died_of(store: Store) -> None:
    ids = store.work_off(_deaths)
    shown = store.call("dead")
    assert shown.code == 0
    head, *rows = shown.out.splitlines()
    assert head.split() == ["MARK", "COUNT", "LAST", "TYPE", "ERROR"]
    assert [row.split()[1] for row in rows] == ["1", "4"]
    assert "ConnectionError: no \\x1b[31mroute to a@example.org" in rows[1]
    assert "\x1b" not in shown.out
    newest, other = store.call("dead", "--json").objects
    assert (newest["type"], newest["count"], newest["sample"]) == ("pay", 1, ids[-1])
    assert newest["error"].startswith("\x1b[2J")
    assert (other["type"], other["count"], other["capped"]) == ("mail.send", 4, False)
    assert [each["count"] for each in store.call("dead", "--tenant", "acme", "--json").objects] == [1]
    assert store.call("dead", "--tenant", "nobody").out == "no dead items\n"


def test_deaths_are_shown_by_the_release_of_their_workers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for release in ("v1", "v2"):
        monkeypatch.setenv("TREADLE_RELEASE", release)
        store.work_off(_fail_once if release == "v1" else _deaths)
    monkeypatch.delenv("TREADLE_RELEASE")
    head, *rows = store.call("dead").out.splitlines()
    assert head.split() == ["MARK", "COUNT", "LAST", "RELEASE", "TYPE", "ERROR"]
    assert ("v1, v2" in rows[1], "v1" in rows[0]) == (True, False)
    pay, mail = store.call("dead", "--release", "v2", "--json").objects
    assert (pay["count"], mail["count"], mail["releases"][0]["release"]) == (1, 4, "v2")
    (mail,) = store.call("dead", "--release", "v1", "--json").objects
    assert (mail["type"], mail["count"]) == ("mail.send", 1)
    assert store.call("dead", "--release", "v3").out == "no dead items\n"
    assert store.call("dead", "--by", "type", "--release", "v1", "--json").objects[0]["count"] == 1
    assert store.call("dead", "--by", "reason", "--release", "v1", "--json").objects[0]["count"] == 1
    shown = store.call("dead", "show", mail["mark"]).out
    assert "of the deaths of this mark 1 under v1, 4 under v2" in shown
    assert "the only death of this mark began with v2, " in store.call("dead", "show", pay["mark"]).out
    assert ", release v2\n" in store.call("show", mail["sample"]).out
    assert len(store.call("list", "--release", "v1", "--json").objects) == 1
    assert store.call("dead", "requeue", "--release", "v1", "--yes").code == 0
    assert store.call("list", "--release", "v1", "--status", "dead").out == "no items\n"
    assert "is longer than" in store.call("dead", "--release", "x" * 256).err


async def _fail_once(app: Treadle) -> None:
    await asyncio.gather(app.enqueue(send(3)).result(), return_exceptions=True)


def test_what_waited_for_dead_items_is_part_of_their_row(store: Store) -> None:
    """As on the dashboard. By type, and for programs, it is there."""

    async def fill(app: Treadle) -> None:
        (first, *_) = await _deaths(app)
        for each in (report(), order([1])):
            handle = await app.enqueue(each, after=[first])
            await asyncio.gather(handle.result(), return_exceptions=True)

    store.work_off(fill)
    _, pay_row, mail_row, _, note = store.call("dead").out.splitlines()
    assert ("+" in pay_row, "mail.send +2 types" in mail_row) == (False, True)
    assert note == "+ types: their items waited for these, and could not run. All: treadle dead --by type"
    assert len(store.call("dead", "--json").objects) == 4
    assert len(store.call("dead", "--by", "type").out.splitlines()) == 5


def test_deaths_are_counted_by_type_and_by_reason(store: Store) -> None:
    store.work_off(_deaths)
    types = {
        each["type"]: (each["count"], each["marks"])
        for each in store.call("dead", "--by", "type", "--json").objects
    }
    assert types == {"mail.send": (4, 1), "pay": (1, 1)}
    reasons = {
        each["reason"]: each["count"] for each in store.call("dead", "--by", "reason", "--json").objects
    }
    assert reasons == {"exhausted": 4, "aborted": 1}
    assert store.call("dead", "--by", "reason").out.splitlines()[0].split() == ["REASON", "COUNT", "LAST"]
    assert store.call("dead", "--by", "colour").code == 2


def test_a_count_by_reason_says_that_it_was_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.work_off(_deaths)
    monkeypatch.setattr("treadle.cli.dead.LOOKED_AT", 2)
    counted = store.call("dead", "--by", "reason", "--json")
    assert sum(each["count"] for each in counted.objects) == 2
    assert all(each["capped"] for each in counted.objects)
    assert counted.err == "treadle: only the newest 2 dead items were looked at: there are more\n"


def test_a_mark_is_shown_with_its_traceback_and_its_items(store: Store) -> None:
    store.work_off(_deaths)
    newest, other = store.call("dead", "--json").objects
    shown = store.call("dead", "show", other["mark"][:5])
    assert shown.code == 0
    assert f"mark    {other['mark']}" in shown.out
    assert "Traceback (most recent call last)" in shown.out
    assert f"treadle dead requeue --canary 5 --mark {other['mark']}" in shown.out
    assert shown.out.count("✕ dead") == 4
    assert "more item" not in shown.out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treadle.cli.dead.NEWEST", 1)
        short = store.call("dead", "show", other["mark"]).out
        bound = store.call("dead", "show", other["mark"], "--tenant", "default").out
    assert f"and 3 more items: treadle list --status dead --mark {other['mark']}" in short
    assert f"and 2 more items: treadle list --status dead --mark {other['mark']} --tenant default" in bound
    assert short.count(other["sample"]) == 2, "in the list, and over the traceback"
    (fields,) = store.call("dead", "show", newest["mark"], "--json").objects
    assert [each["type"] for each in fields["items"]] == ["pay"]
    hostile = store.call("dead", "show", newest["mark"])
    assert not set(hostile.out) & {"\x1b", "\x07", "\u202e"}
    missing = store.call("dead", "show", "0ff")
    assert missing.code == 1
    assert missing.err.startswith("treadle: no mark '0ff' here")


def test_it_is_told_who_runs_dead_items_again(store: Store) -> None:
    store.work_off(_deaths)
    assert "runs some of them again" not in store.call("dead").out
    store.call("requeue", "--type", "mail.send", "--background", "--yes")
    said = " ".join(store.call("dead").out.split())
    assert " runs some of them again now: 0 of 4 looked at (type:mail.send): treadle bulk show" in said


def test_a_mark_is_requeued_and_deleted(store: Store) -> None:
    store.work_off(_deaths)
    newest, other = store.call("dead", "--json").objects
    assert store.call("dead", "requeue", "--mark", other["mark"], "--yes").out == "requeued 4 items\n"
    assert store.call("dead", "delete", "--mark", newest["mark"], "--yes").out == "deleted 1 item\n"
    assert store.call("dead").out == "no dead items\n"
    refused = store.call("dead", "delete", "--status", "ready", "--yes")
    assert refused.code == 2
    assert "`dead delete` is for dead items" in refused.err


def test_items_with_open_groups_are_not_deleted_by_filter(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.pause("slow")
        first = await app.enqueue(looked_at.order([3]))
        await asyncio.gather(first.group(), return_exceptions=True)
        page = await app.dead.list()
        await app.enqueue(report(), after=[page.items[0].id], when="all_done", queue="slow")

    store.work_off(fill)
    kept = store.call("dead", "delete", "--all", "--yes")
    assert kept.out == "deleted 0 items, skipped 1 (1 ReferencedError)\n"


def test_every_item_of_a_group_that_stays_is_told(memory: Store) -> None:
    async def fill(app: Treadle) -> list[str]:
        await app.pause("slow")
        first = await app.enqueue(looked_at.order([3, 6]))
        await asyncio.gather(first.group(), return_exceptions=True)
        ids = [item.id for item in (await app.dead.list()).items]
        await app.enqueue(report(), after=ids[:1], when="all_done", queue="slow")
        return ids

    first, second = memory.work_off(fill)
    kept = memory.call("dead", "delete", first, second, "--json")
    assert [each.get("id") for each in kept.objects] == [first, second, None]
    assert kept.code == 1
    kept = memory.call("dead", "delete", "--all", "--yes")
    assert kept.out == "deleted 0 items, skipped 2 (2 ReferencedError)\n"


# ------------------------------------------------------------------------------------------------ canary


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """What a deploy does: another handler for the same type."""

    @work(name="mail.send", retry=Retry(attempts=1))
    async def repaired(user_id: int, address: str = "a@example.org") -> str:
        if user_id == 9:
            raise ConnectionError("still broken")
        return "sent"

    return lambda: monkeypatch.setattr(looked_at, "TYPES", [repaired, looked_at.order, report])


def test_a_canary_that_succeeds_lets_the_others_follow(store: Store, fixed: Callable[[], Any]) -> None:
    store.work_off(_deaths)
    fixed()

    async def go_on(app: Treadle) -> str:
        done = await asyncio.to_thread(
            store.call, "requeue", "--type", "mail.send", "--tenant", "default", "--canary", "2", "--yes"
        )
        assert (done.code, done.err) == (0, "")
        return done.out

    out = store.work_off(go_on).splitlines()
    assert out == [
        "canary: requeued 2 items, waiting for up to 1 min",
        "canary: 2 items succeeded",
        "requeued 3 items",
    ]


def test_a_canary_that_fails_holds_the_others_back(store: Store, fixed: Callable[[], Any]) -> None:
    ids = store.work_off(_deaths)
    fixed()
    arguments = ("dead", "requeue", ids[2], ids[0], ids[1], "--canary", "1")

    async def go_on(app: Treadle) -> None:
        done = await asyncio.to_thread(store.call, *arguments)
        assert done.code == 1
        assert "canary: 0 succeeded, 1 failed" in done.out
        assert "still broken" in done.out
        assert done.out.endswith("stopped: requeued 1 item. The rest is as it was\n")
        again = (await asyncio.to_thread(store.call, *arguments, "--json")).objects
        assert [each["id"] for each in again[0]["failed"]] == [ids[2]]
        assert again[1]["stopped"]

    store.work_off(go_on)


def test_a_canary_waits_no_longer_than_it_is_told(store: Store) -> None:
    ids = store.work_off(_deaths)
    done = store.call("requeue", *ids[:3], "--canary", "2", "--canary-wait", "100ms")
    assert done.code == 1
    assert "no worker is alive: they run once one is started" in done.err
    assert "canary: 0 succeeded, 0 failed, 2 not ended after 100 ms" in done.out
    assert f"look with `treadle why {ids[0]}`" in done.out
