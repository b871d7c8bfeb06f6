"""`treadle pause`, `resume`, `prune`, `schedules pause|resume|trigger|cancel`, and completion."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tests.cli import looked_at
from tests.cli.calling import call
from tests.cli.conftest import APP, Store
from tests.cli.looked_at import fulfil, report
from tests.engine.kit import until_status
from treadle import Treadle


def test_queues_are_paused_and_resumed(store: Store) -> None:
    assert store.call("pause", "default", "bulk").out == "queue default is paused\nqueue bulk is paused\n"
    assert store.call("pause", "mail", "--tenant", "acme", "--json").objects == [
        {"queue": "mail", "type": None, "tenant": "acme", "paused": True}
    ]
    assert store.call("pause", "bulk", "--tenant", "acme").out == "queue bulk is paused for tenant acme\n"
    resumed = store.call("resume", "bulk", "--tenant", "acme")
    assert resumed.out == "queue bulk is resumed for tenant acme\n"
    assert "still paused for all tenants" in resumed.err
    assert store.call("resume", "bulk", "default").code == 0

    async def read(app: Treadle) -> Sequence[tuple[str, str | None]]:
        await app.connect()
        return [(each.about, each.tenant) for each in await app.orders()]

    paused = store.fill(read)
    assert list(paused) == [("mail", "acme")]
    assert store.call("pause", "").code == 2


def test_types_and_tenants_are_paused_until_a_time(store: Store) -> None:
    assert store.call("pause").code == 2
    assert store.call("pause", "bulk", "--type", "report").code == 2
    paused = store.call("pause", "--type", "report", "--until", "2h", "--because", "the disk is full")
    assert paused.out.startswith("type report is paused; it ends in 2 h")
    assert store.call("pause", "--tenant", "acme").out == "tenant acme is paused\n"
    told = store.call("status").out
    assert "type report is paused, by" in told
    assert "the disk is full; it ends in" in told
    assert "tenant acme is paused" in told
    by_type = store.call("status", "--by", "type").out
    assert [line for line in by_type.splitlines() if line.startswith("report") and "paused" in line]
    assert store.call("resume", "--type", "report").out == "type report is resumed\n"
    assert store.call("resume", "--tenant", "acme").out == "tenant acme is resumed\n"
    again = store.call("resume", "--type", "report")
    assert (again.out, "type report was not paused" in again.err) == ("", True)
    past = store.call("pause", "bulk", "--until", "2020-01-01")
    assert (past.code, "until='2020-01-01T00:00:00+00:00' has passed" in past.err) == (2, True)
    assert "2h (two hours from now)" in store.call("pause", "bulk", "--until", "yesterday").err
    assert store.call("pause", "bulk", "--until", f"{time.time() + 7200:.0f}").out.startswith(
        "queue bulk is paused; it ends in "
    )
    assert store.call("pause", "bulk", "--until", "0.0001s").out == "queue bulk is paused\n"
    store.call("pause", "--type", "mail.send")
    assert "did you mean" not in store.call("resume", "mail.sent").err  # a queue


def test_prune_removes_what_need_not_stay(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        handles = await app.enqueue_many([report() for _ in range(5)])
        for handle in handles:
            await app.complete(handle, {})

    store.fill(fill)
    assert store.call("prune").out == "removed 0 items\n"
    assert store.call("prune", "--tenant", "acme").code == 2

    async def fill_short(_: Treadle) -> None:
        app = Treadle(store.url, work=looked_at.TYPES, keep=0)
        for handle in await app.enqueue_many([report() for _ in range(5)]):
            await app.complete(handle, {})
        await app.close()

    store.fill(fill_short)
    assert store.call("prune", "--limit", "2", "--json").objects == [{"verb": "prune", "changed": 2}]
    assert store.call("prune").out == "removed 3 items\n"


def test_schedules_are_paused_resumed_triggered_and_cancelled(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        app.schedule("nightly", every=3600, run=lambda: report("night"))
        app.tenant("acme").schedule("own", every=3600, run=report)
        async with app:
            assert len(await app.schedules.list()) == 2

    store.fill(fill)
    paused = store.call("schedules", "pause", "nightly", "nonsense")
    assert (paused.code, paused.out) == (1, "schedule nightly is paused\n")
    assert paused.err.startswith("treadle: no schedule 'nonsense' here")
    assert [each["paused"] for each in store.call("schedules", "--json").objects] == [False, True]
    assert store.call("schedules", "resume", "own", "--tenant", "acme").code == 0
    assert store.call("schedules", "resume", "own").code == 1
    assert store.call("schedules", "resume", "nightly", "--json").objects == [
        {"schedule": "nightly", "paused": False}
    ]
    refused = store.call("schedules", "trigger", "nightly", app=False)
    assert refused.code == 2
    assert "give the app that has it with --app" in refused.err
    looked_at.app.schedule("nightly", every=3600, run=lambda: report("now"))
    (triggered,) = store.call("schedules", "trigger", "nightly", "--json").objects
    (item,) = store.call("list", "--json").objects
    assert (item["id"], item["input"]) == (triggered["id"], {"day": "now"})
    assert store.call("schedules", "cancel", "nightly", app=False).code == 0
    assert store.call("schedules", "cancel", "nightly", app=False).code == 1
    assert [each["name"] for each in store.call("schedules", "--json").objects] == ["acme/own"]


def test_a_schedule_whose_run_raises_is_told_with_its_traceback(store: Store) -> None:
    def prices() -> None:
        raise LookupError("no rate for \x1b[31mEUR")

    looked_at.app.schedule("prices", every=3600, run=prices)
    looked_at.app.schedule("nightly", every=3600, run=lambda: report("now"))
    failed = store.call("schedules", "trigger", "prices", "nightly")
    assert (failed.code, failed.out.startswith("schedule nightly queued ")) == (1, True), failed
    said = "treadle: run of schedule 'prices' failed: LookupError: no rate for \\x1b[31mEUR\n"
    assert failed.err.endswith(said)
    assert f'{__file__}", line ' in failed.err
    assert "/treadle/cli/" not in failed.err
    first, _ = store.call("schedules", "trigger", "prices", "nightly", "--json").objects
    assert (first["schedule"], first["refused"]) == ("prices", "LookupError")
    assert "run of schedule 'prices' failed" in first["message"]


# --------------------------------------------------------------------------------------------- completion


def _completed(words: str, **env: str) -> list[str]:
    """What bash is offered for the last of these words."""
    given = {"_TREADLE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()))}
    if not words.endswith(" "):
        given["COMP_CWORD"] = str(len(words.split()) - 1)
    return call(env={**given, **env}).out.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("treadle requ", ["requeue"]),
        (f"treadle run --app {APP} ma", ["mail.send"]),
        (f"treadle list --app {APP} --type re", ["report"]),
        (f"treadle list --app {APP} --status ready,su", ["ready,success"]),
        (f"treadle pause --app {APP} b", ["bulk"]),
        (f"treadle schedules pause --app {APP} nig", []),
        ("treadle list --app no.such:app --type re", []),
    ],
)
def test_names_are_completed(store: Store, words: str, offered: list[str]) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(report(), queue="bulk")

    store.fill(fill)
    assert _completed(words) == offered


def test_signals_are_completed(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(fulfil(1), id="o-1")
        await until_status(app, "o-1", "scheduled")

    store.work_off(fill)
    assert _completed("treadle signal o-1 ap", TREADLE_URL=store.url) == ["approval"]
    assert _completed("treadle signal ", TREADLE_URL=store.url) == []


def test_completion_knows_the_store_of_the_environment(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(report(), queue="bulk")

    store.fill(fill)
    assert _completed("treadle list --type re", TREADLE_URL=store.url) == ["report"]
    assert _completed("treadle pause ", TREADLE_URL=store.url) == ["bulk", "default"]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_is_shown(shell: str) -> None:
    shown = call(env={"_TREADLE_COMPLETE": f"source_{shell}"}).out
    assert "_TREADLE_COMPLETE" in shown
