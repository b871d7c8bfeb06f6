"""`treadle list`, `show` and `export`, and what all reading commands share."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.calling import PROJECT, call, start
from tests.cli.conftest import Store
from tests.cli.forks import common_server
from tests.cli.looked_at import TYPES, log_in, order, report, send
from treadle import Client, Context, Defer, Result, Retry, Treadle, work
from treadle.errors import WorkFailed
from treadle.item import Demand, Heartbeat, ItemState
from treadle.operate.filters import attempt_words


async def _three(app: Treadle) -> list[str]:
    first = await app.enqueue(send(1), key="k1")
    second = await app.enqueue(send(2, "b@example.org"), delay=3600, queue="bulk")
    third = await app.enqueue(report(), after=[first], workflow="w1")
    return [first.id, second.id, third.id]


def test_items_are_listed_newest_first(store: Store) -> None:
    first, second, third = store.fill(_three)
    listed = store.call("list")
    assert (listed.code, listed.err) == (0, "")
    lines = listed.out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", third, second, first]
    assert "◇ blocked" in lines[1]
    assert "in 60 min" in lines[2]
    assert "key k1" in lines[3]


def test_filters_and_json(store: Store) -> None:
    first, second, third = store.fill(_three)
    found = store.call("list", "--status", "open", "--type", "mail.send", "--json")
    assert [each["id"] for each in found.objects] == [second, first]
    newest = found.objects[0]
    assert newest["input"] == {"user_id": 2, "address": "b@example.org"}
    assert (newest["queue"], newest["status"], newest["result"]) == ("bulk", "scheduled", None)
    assert newest["due_at"].endswith("Z")
    assert "options" not in newest
    assert [each["id"] for each in store.call("list", "--workflow", "w1", "--json").objects] == [third]
    assert [each["id"] for each in store.call("list", "--key", "k1", "--json").objects] == [first]
    assert store.call("list", "--since", "1h", "--json", app=False).out.count("\n") == 3
    assert store.call("list", "--until", "1h").out == "no items\n"


def test_pages_go_on_with_the_cursor(store: Store) -> None:
    ids = store.fill(_three)
    page = store.call("list", "--limit", "2", "--json")
    cursor = page.err.strip().rpartition("--cursor ")[2]
    rest = store.call("list", "--limit", "2", "--cursor", cursor, "--json")
    assert [each["id"] for each in page.objects + rest.objects] == ids[::-1]
    assert rest.err == ""


def test_where_reads_what_is_inside_and_says_how_far_it_looked(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue_many([send(number, f"{number % 7}@example.org") for number in range(40)])

    store.fill(fill)
    found = store.call("list", "--where", "input.user_id>=38", "--json", "--reveal", app=False)
    assert [each["input"]["user_id"] for each in found.objects] == [39, 38]
    assert "looked at 40 items" in found.err
    some = store.call("list", "--where", "input.address~3@", "--where", "input.user_id!=38", "--limit", "2")
    assert [line.split()[1] for line in some.out.splitlines()[1:3]] == ["○", "○"]
    cursor = some.out.strip().rpartition("--cursor ")[2]
    rest = store.call("list", "--where", "input.address~3@", "--cursor", cursor, "--json")
    assert [each["input"]["user_id"] for each in rest.objects] == [17, 10, 3]
    bounded = store.call("list", "--where", "input.user_id=3", "--scan", "10", "--json")
    assert bounded.out == ""
    assert "looked at 10 items, back to" in bounded.err
    assert (
        "looked at 10 items, up to"
        in store.call("list", "--where", "input.user_id=39", "--scan", "10", "--oldest-first").out
    )
    assert "--cursor" in bounded.err


@pytest.mark.parametrize("condition", ["input.user_id", "inptu.user_id=1", "=1", "options=1"])
def test_a_wrong_condition_is_refused(store: Store, condition: str) -> None:
    refused = store.call("list", "--where", condition)
    assert refused.code == 2
    assert refused.err.startswith("treadle: --where=")


def test_show_has_the_history_the_group_and_the_children(store: Store) -> None:
    async def fill(app: Treadle) -> str:
        handle = await app.enqueue(order([1, 3]))
        with pytest.raises(WorkFailed):
            await handle.group()
        return handle.id

    root = store.work_off(fill)
    shown = store.call("show", root)
    assert shown.code == 0
    assert "its own: failed (1 death)" in shown.out
    assert "✕ dead" in shown.out
    (fields,) = store.call("show", root, "--json").objects
    assert fields["group"]["failed"] == 1
    dead = next(each for each in fields["children"] if each["status"] == "dead")
    shown = store.call("show", dead["id"])
    assert "status    ✕ dead: exhausted" in shown.out
    assert '{"user_id":3}' in shown.out
    assert shown.out.count("Traceback (most recent call last)") == 1
    assert "the same traceback as attempt 1" in shown.out
    assert "\x1b" not in shown.out
    (fields,) = store.call("show", dead["id"], "--json").objects
    assert [each["attempt"] for each in fields["history"]] == [1, 2]
    assert "\x1b[31mroute" in fields["history"][0]["message"]


def test_show_says_how_often_an_item_was_deferred(memory: Store) -> None:
    @work(name="busy")
    async def busy(ctx: Context) -> None:
        if ctx.deferrals < 2:
            raise Defer(delay=0)

    async def fill(app: Treadle) -> None:
        app.register(busy)
        await app.start()
        await app.enqueue(busy(), id="b1").result(30)

    memory.fill(fill)
    assert "attempts  1 begun, 0 of 3 failed, deferred 2 times\n" in memory.call("show", "b1").out
    (fields,) = memory.call("show", "b1", "--json").objects
    assert fields["deferrals"] == 2


def test_show_says_that_a_death_was_no_attempt(memory: Store) -> None:
    """The worker that noted it had no part in it."""

    @work(name="poison", retry=Retry(attempts=1, max_losses=1, base=0.001))
    async def poison() -> None: ...

    async def fill(app: Treadle) -> None:
        app.register(poison)
        handle = await app.enqueue(poison(), id="p1")
        for worker in ("w1", "w2"):
            await app.backend.beat(Heartbeat(worker=worker, lease=60.0))
            claim = await app.backend.claim(Demand(worker=worker, limit=1))
            await app.backend.begin(claim.leases)
            await app.backend.remove_worker(worker)
        await app.trigger(handle)
        await app.start()
        with pytest.raises(WorkFailed):
            await handle.result(30)

    memory.fill(fill)
    shown = memory.call("show", "p1").out
    assert "attempts  2 begun, 0 of 1 failed, 2 lost in a row\n" in shown
    assert [line.partition(":")[0] for line in shown.splitlines() if "LeaseLost" in line][1:] == [
        "Attempt 1",
        "Attempt 2",
        "Death",
    ]
    assert ", noted by worker " in shown
    assert "traceback" not in shown
    assert "took" not in shown
    assert memory.call("list").out.splitlines()[1].split()[4] == "2"
    (mark,) = [line.split()[0] for line in memory.call("dead").out.splitlines()[1:]]
    assert "they may end the next worker too" in memory.call("dead", "show", mark).out


def test_show_says_what_an_item_waits_for(store: Store) -> None:
    first, _, third = store.fill(_three)
    shown = store.call("show", third)
    assert "Waits for 1 item" in shown.out
    (fields,) = store.call("show", third, "--json").objects
    assert fields["prerequisites"] == [{"id": first, "status": "ready", "type": "mail.send"}]
    assert fields["after"] == [first]


def test_show_reads_items_of_built_in_types(memory: Store) -> None:
    @work(name="nested")
    async def nested(ctx: Context) -> Result[None, None]:
        return ctx.queue(ctx.group(report("today"))).next(send(1))

    async def fill(_: Treadle) -> None:
        async with Treadle(memory.backend, work=[nested, *TYPES]) as app:
            await (await app.enqueue(nested(), id="outer")).group()
            action = await app.bulk.start("delete", status="success", type="none")
            await app.handle(action.id).group()

    memory.fill(fill)
    (closing,) = memory.call("list", "--type", "treadle.group", "--json").objects
    assert (closing["input"], closing["result"], "unreadable" in closing) == ({}, {"day": "today"}, False)
    shown = memory.call("show", closing["id"]).out
    assert "Waits for the group that it closes\n" in shown
    assert "cannot be read" not in shown
    (portion,) = memory.call("list", "--type", "treadle.bulk", "--json").objects
    assert (portion["result"], "unreadable" in portion) == ({"phase": "done"}, False)


def test_an_unknown_item_is_refused(store: Store) -> None:
    (first, *_) = store.fill(_three)
    shown = store.call("show", first, "nonsense", "--json")
    assert shown.code == 1
    assert [each["id"] for each in shown.objects] == [first]
    assert shown.err.startswith("treadle: no item 'nonsense' here")


def test_what_this_code_cannot_read_is_shown_as_it_is_stored(store: Store) -> None:
    @work(name="mail.send")
    async def earlier(user: str) -> None: ...

    async def fill(_: Treadle) -> None:
        async with Client(store.url, work=[earlier]) as client:
            await client.enqueue(earlier("x"))

    store.fill(fill)
    (item,) = store.call("list", "--json").objects
    assert item["input"] == {"user": "x"}
    assert item["unreadable"].startswith("input: ")
    (item,) = store.call("list", "--json", "--reveal", app=False).objects
    assert item["input"] == {"user": "x"}
    assert "unreadable" not in item


def test_another_tenants_items_look_as_if_they_did_not_exist(store: Store) -> None:
    async def fill(app: Treadle) -> list[str]:
        own, other = app.tenant("acme"), app.tenant("other")
        return [(await own.enqueue(report())).id, (await other.enqueue(report(), workflow="w")).id]

    own, other = store.fill(fill)
    assert [each["id"] for each in store.call("list", "--tenant", "acme", "--json").objects] == [own]
    assert [each["id"] for each in store.call("list", "--json", "--all", "--tenant", "acme").objects] == [own]
    assert store.call("show", other, "--tenant", "acme").code == 1
    assert store.call("list", "--tenant", "acme", "--group", other).out == "no items\n"


@pytest.mark.usefixtures("processes")
def test_list_can_write_all_items(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue_many([send(number) for number in range(1203)])

    store.fill(fill)
    everything = store.call("list", "--json", "--all", "--history").objects
    assert [each["input"]["user_id"] for each in everything] == list(range(1203))[::-1]
    assert all(each["history"] == [] for each in everything)
    process = start("list", "--json", "--all", "--url", store.url, "--reveal")
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["input"] == {"user_id": 1202}
    process.stdout.close()  # as `head -1` does
    assert process.stderr.read() == ""
    assert process.wait(30) == 0
    process.stderr.close()


# -------------------------------------------------------------------------------- what all commands share


def test_usage_errors_are_one_line_and_exit_with_2(store: Store, tmp_path: Path) -> None:
    for arguments in (
        ("list",),
        ("list", "--url", store.url, "--app", "a:b"),
        ("list", "--url", store.url, "--status", "deid"),
        ("list", "--url", store.url, "--since", "tomorrow"),
        ("list", "--url", "sqlite://host/x"),
        ("list", "--app", "tests.cli.looked_at:none"),
        ("list", "--app", "tests.cli.no_such_module:app"),
        ("list", "--url", store.url, "--cursor", "nonsense"),
        ("list", "--url", store.url, "--limit", "many"),
        ("list", "--urk", store.url),
        ("show", "--url", store.url),
        ("lst",),
    ):
        refused = call(*arguments)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused


def test_the_environment_names_the_store(store: Store) -> None:
    store.fill(_three)
    assert call("list", env={"TREADLE_URL": store.url}).out.count("\n") == 4
    assert call("list", env={"TREADLE_APP": "tests.cli.looked_at:app"}).out.count("\n") == 4


def test_a_command_neither_makes_nor_migrates_a_store(tmp_path: Path) -> None:
    refused = call("list", "--url", f"sqlite:///{tmp_path / 'mistyped.db'}")
    assert refused.code == 1
    assert refused.err.startswith(f"treadle: there is no file {tmp_path / 'mistyped.db'}: check the path")
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_away_is_one_line_and_exit_code_3() -> None:
    away = call("list", "--url", "postgresql://user:secret@127.0.0.1:9/none")
    assert (away.code, away.out) == (3, "")
    assert away.err.count("\n") == 1
    assert away.err.startswith("treadle: the store postgresql://user:***@127.0.0.1:9/none is unavailable: ")
    assert "secret" not in away.err


@pytest.mark.usefixtures("processes")
def test_a_terminal_that_knows_only_ascii_gets_ascii(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(report("名前😀"), key="名前😀")

    store.fill(fill)
    texts: list[str] = []
    for form in ((), ("--json",)):
        env = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = common_server().run(
            ["treadle", "list", "--url", store.url, "--reveal", *form], PROJECT, env, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
        texts.append(done.stdout)
    assert "o ready" in texts[0]
    assert "key \\u540d\\u524d\\U0001f600" in texts[0]
    assert json.loads(texts[1])["input"] == {"day": "名前😀"}


def test_an_app_that_cannot_be_imported_shows_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_app.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    refused = call("list", "--app", "broken_app:app")
    assert (refused.code, refused.out) == (2, "")
    assert "treadle: the module 'broken_app' cannot be imported" in refused.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (ItemState(id="a", type="t", status="ready"), ""),
        (ItemState(id="a", type="t", status="running", attempt=2, failures=1), "2/3"),
        (ItemState(id="a", type="t", status="dead", attempt=3, failures=3), "3/3"),
        (ItemState(id="a", type="t", status="ready", attempt=3), "3"),
        (ItemState(id="a", type="t", status="dead", reason="lease_lost", attempt=3), "3"),
    ],
)
def test_tries_count_as_failures_only_what_may_fail(state: ItemState, shown: str) -> None:
    """Attempts that were lost with their workers do not count."""
    assert attempt_words(state) == shown


def test_without_the_code_inputs_and_results_are_shown_only_if_asked_for(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(log_in("me", "hunter2"), id="one")
        await app.enqueue(report("hunter2"), id="two")
        await app.complete("two", {"day": "hunter2"})

    store.fill(fill)
    for arguments in (("show", "one", "two"), ("list",), ("group", "two")):
        hidden = store.call(*arguments, "--json", app=False)
        assert hidden.objects
        assert "hunter2" not in hidden.out
        assert "is not here, so all of it is masked" in hidden.out
        assert "hunter2" in store.call(*arguments, "--json", "--reveal", app=False).out
    assert "hunter2" not in store.call("show", "one", "two", app=False).out
    assert "hunter2" in store.call("show", "two", "--reveal", app=False).out


def test_secrets_are_shown_only_if_asked_for(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(report("monday"), id="one", headers={"api-key": "hunter2"})
        await app.enqueue(log_in("me", "hunter2"), id="two")

    memory.fill(fill)
    for arguments in (
        ("show", "one", "two"),
        ("list",),
        ("list", "--where", "input.pass_code=hunter2"),
    ):
        hidden = memory.call(*arguments, "--json")
        assert hidden.objects
        assert "hunter2" not in hidden.out
        assert "***" in hidden.out
        assert "hunter2" in memory.call(*arguments, "--json", "--reveal").out
    assert "hunter2" not in memory.call("show", "one", "two").out
    assert "hunter2" in memory.call("show", "two", "--reveal").out
