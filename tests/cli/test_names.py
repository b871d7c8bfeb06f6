"""Names that a person mistypes: of types, queues, marks, limits, schedules, and of the store itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.calling import call
from tests.cli.conftest import APP, Store
from tests.cli.looked_at import report, send
from treadle import Client, Treadle, work
from treadle.cli.names import misspelt_queues
from treadle.item import Heartbeat
from treadle.testing.contract.build import item
from treadle.testing.contract.marks import kill
from treadle.worker_info import WorkerInfo, encode_worker_info


async def _one_of_each(app: Treadle) -> None:
    await app.enqueue(report(), queue="email", delay=3600)
    await asyncio.gather(app.enqueue(send(3)).result(), return_exceptions=True)


@pytest.fixture
def filled(memory: Store) -> Store:
    memory.work_off(_one_of_each)
    return memory


def test_filters_that_find_nothing_are_remarked_on(filled: Store) -> None:
    for arguments in (
        ("list", "--type", "mial.send"),
        ("cancel", "--type", "mial.send", "--yes"),
        ("requeue", "--type", "mial.send", "--dry-run"),
    ):
        found = filled.call(*arguments)
        assert found.code == 0
        assert found.err == (
            "treadle: no item, worker or app here has the work type 'mial.send': did you mean 'mail.send'?\n"
        )
    assert "did you mean 'email'?" in filled.call("list", "--queue", "emial").err
    assert "there are default, email" in filled.call("list", "--queue", "x", "--json").err
    # What is known, and finds nothing, is no mistake.
    assert filled.call("list", "--type", "report", "--status", "dead").err == ""


@work(name="mail.secret", queue="secrets")
async def secret() -> None: ...


def test_remarks_name_nothing_of_other_tenants(store: Store) -> None:
    async def fill(app: Treadle) -> None:
        async with Client(store.url, work=[report, secret]) as client:
            await client.tenant("acme").enqueue(report(), delay=3600)
            await client.tenant("other").enqueue(secret(), delay=3600)
            info = encode_worker_info(WorkerInfo(host="h", queues=("secrets",), lease=60.0))
            beat = Heartbeat(worker="w", lease=60.0, types=("mail.secret",), info=info)
            await client.backend.beat(beat)

    store.fill(fill)
    for option, name in (("--type", "mail.sec"), ("--queue", "secret")):
        own = store.call("list", option, name, "--tenant", "acme", app=False).err
        assert own.startswith("treadle: no item of 'acme', and no app here, has the ")
        assert "secret" not in own.replace(repr(name), "")
        assert "secret" in store.call("list", option, name, app=False).err.replace(repr(name), "")


def test_pauses_of_unknown_queues_are_remarked_on(filled: Store) -> None:
    assert filled.call("pause", "email").err == ""
    paused = filled.call("pause", "emial")
    assert (paused.code, paused.out) == (0, "queue emial is paused\n")
    assert "did you mean 'email'?" in paused.err
    assert "did you mean 'email'?" in filled.call("list", "--queue", "emial").err
    assert filled.call("resume", "mail").err == "treadle: queue mail was not paused: did you mean 'email'?\n"
    assert filled.call("resume", "emial").err == ""
    filled.call("pause", "email", "--tenant", "acme")
    assert "still paused for acme: give --tenant" in filled.call("resume", "email").err
    resumed = filled.call("resume", "email")
    assert resumed.out == ""
    assert resumed.err == "treadle: queue email is still paused for acme: give --tenant\n"
    assert filled.call("pause", "treadle.bulk").err == ""


def test_queues_of_a_worker_are_remarked_on_if_a_name_is_close(filled: Store) -> None:
    async def look(app: Treadle) -> list[str]:
        await app.connect()
        return await misspelt_queues(app, app.backend, ["emial", "email", "something else"])

    (remark,) = filled.fill(look)
    assert remark.endswith("has the queue 'emial': did you mean 'email'?")


def test_a_mark_may_be_given_by_how_it_begins(filled: Store) -> None:
    (mark,) = filled.call("dead", "--json").objects
    assert filled.call("dead", "requeue", "--mark", "zz", "--yes").code == 1
    looked = filled.call("list", "--mark", mark["mark"][:4], "--json")
    assert [each["id"] for each in looked.objects] == [mark["sample"]]
    assert filled.call("dead", "requeue", "--mark", mark["mark"][:4], "--yes").out == "requeued 1 item\n"


def test_a_long_mark_may_be_given_by_how_it_begins(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.connect()
        await kill(app.backend, "old:mail.send", item("x", type="mail.send"))

    memory.fill(fill)
    for mark in ("old:", "old:mail.send", "'old:mail.sen'"):
        found = memory.call("list", "--mark", mark, "--json")
        assert [each["id"] for each in found.objects] == ["x"]
    assert "'old:mail.sent'" in memory.call("list", "--mark", "old:mail.sent").err


def test_what_is_not_found_is_named_as_what_it_is(filled: Store) -> None:
    for arguments, code, text in (
        (("dead", "show", "9999"), 1, "no mark '9999' here: no dead item has it; `treadle dead` lists"),
        (("workflow", "none"), 1, "no workflow 'none' here: no item has it"),
        (("schedules", "pause", "none"), 1, "no schedule 'none' here: no process that has it"),
        (("limits", "--name", "none"), 1, "no limit 'none' is in use: none is"),
        (("run", "mial.send"), 2, "did you mean 'mail.send'?"),
    ):
        refused = filled.call(*arguments)
        assert (refused.code, refused.out, refused.err.count("\n")) == (code, "", 1)
        assert text in refused.err
    (mark,) = filled.call("dead", "--json").objects
    assert (
        f"an item has that id: `treadle show {mark['sample']}`"
        in filled.call("dead", "show", mark["sample"]).err
    )


def test_migrate_finds_the_store_as_other_commands_do(tmp_path: Path, store: Store) -> None:
    assert call("migrate", "--app", APP).out == f"the schema of {store.url} is up to date\n"
    assert call("migrate", env={"TREADLE_APP": APP}).out == f"the schema of {store.url} is up to date\n"
    url = f"sqlite:///{tmp_path / 'new.db'}"
    missing = call("status", "--url", url)
    assert missing.code == 1
    assert f"there is no file {tmp_path / 'new.db'}: check the path" in missing.err
    assert call("migrate", env={"TREADLE_URL": url}).out == f"the schema of {url} is made, version 10\n"
    assert call("migrate", url).out == f"the schema of {url} is up to date\n"
    for arguments in ((), (url, "--url", url), (url, "--app", APP)):
        refused = call("migrate", *arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert call("migrate", f"sqlite:///{tmp_path / 'none' / 'x.db'}").code == 1


def test_a_worker_says_which_app_it_lacks() -> None:
    assert "say which app" in call("worker").err
    assert "are two apps" in call("worker", "a:b", "--app", "c:d").err
    refused = call("worker", "--app", "nosuch:app")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "there is no module 'nosuch'" in refused.err
