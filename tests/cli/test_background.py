"""`--background` starts a bulk action, and `treadle bulk` follows it."""

from __future__ import annotations

import asyncio
import re

from tests.cli.conftest import Store
from tests.cli.looked_at import send
from treadle import Treadle


async def _dead(app: Treadle) -> None:
    handles = await app.enqueue_many([send(3) for _ in range(3)])
    await asyncio.gather(*(each.result() for each in handles), return_exceptions=True)


def test_a_bulk_action_is_started_followed_and_stopped(memory: Store) -> None:
    memory.work_off(_dead)
    assert memory.call("bulk").out == "no bulk actions\n"
    started = memory.call(
        "requeue", "--type", "mail.send", "--yes", "--background", "--rate", "1/h", "--because", "back again"
    )
    found = re.fullmatch(
        r"started (\w+): requeue 3 items\nfollow it with `treadle bulk show (\w+)`\n", started.out
    )
    assert found is not None, started
    assert (started.code, found[1]) == (0, found[2])
    assert started.err.startswith("treadle: it waits: no worker is alive")
    shown = memory.call("bulk", "show", found[1])
    assert shown.out.startswith(f"{found[1]}  requeue type:mail.send\nstarted ")
    assert "(back again)\nwaiting: 0 of 3 looked at, 0 changed\nit waits: no worker is alive" in shown.out
    stopped = memory.call("bulk", "stop", found[1])
    assert "stopped: 0 of 3 looked at, 0 changed" in stopped.out
    (listed,) = memory.call("bulk", "--json").objects
    assert (listed["id"], listed["state"], listed["where"]) == (found[1], "stopped", "type:mail.send")
    assert found[1] in memory.call("bulk").out
    verbs = [entry["verb"] for entry in memory.call("audit", "--json").objects]
    assert verbs == ["bulk stop", "bulk requeue"]
    unknown = memory.call("bulk", "show", "none")
    assert (unknown.code, unknown.err.startswith("treadle: no bulk action 'none' here")) == (1, True)
    for wrong in ("--alone", "--limit=1"):
        refused = memory.call("requeue", "--all", "--yes", "--background", wrong)
        assert (refused.code, refused.err.startswith("treadle: --background cannot be used with")) == (
            2,
            True,
        )


def test_what_no_worker_runs_is_run_by_a_command(memory: Store) -> None:
    memory.work_off(_dead)
    started = memory.call("requeue", "--type", "mail.send", "--yes", "--background")
    left = r"the last one left (just now|[\d.]+ m?s ago)\. `treadle bulk run` runs it here\n"
    assert re.search(left + r"\Z", started.err)
    assert memory.call("bulk", "run").out == "all bulk actions have ended\n"
    (listed,) = memory.call("bulk", "--json").objects
    assert (listed["state"], listed["changed"]) == ("done", 3)


def test_an_action_that_changed_nothing_did_not_succeed(memory: Store) -> None:
    memory.work_off(_dead)
    memory.call("requeue", "--type", "mail.send", "--yes", "--background")
    memory.call("dead", "delete", "--all", "--yes")
    memory.call("bulk", "run")
    (listed,) = memory.call("bulk", "--json").objects
    shown = memory.call("bulk", "show", listed["id"])
    assert (shown.code, "done: 0 of 3 looked at, 0 changed" in shown.out) == (1, True)


def _failed(store: Store) -> str:
    """A bulk action of all tenants that failed. Returns the id of its dead portion."""
    store.work_off(_dead)
    store.call("requeue", "--type", "mail.send", "--yes", "--background")
    (action,) = store.call("bulk", "--json").objects

    async def miss_deadline(app: Treadle) -> None:
        await app.update(action["id"], deadline=0.001)
        await asyncio.gather(app.handle(action["id"]).result(), return_exceptions=True)

    store.work_off(miss_deadline)
    return str(action["id"])


def test_a_filter_leaves_bulk_actions_out_unless_it_names_them(memory: Store) -> None:
    portion = _failed(memory)
    for verb in ("requeue", "delete", "dead requeue", "dead delete"):
        looked = memory.call(*verb.split(), "--all", "--dry-run", "--json")
        assert (looked.code, looked.objects[0]["matched"]) == (0, 3), looked
    assert memory.call("cancel", "--all", "--dry-run").out == "would cancel 0 items; nothing was changed\n"
    requeued = memory.call("requeue", "--all", "--yes", "--json")
    assert (requeued.code, requeued.objects[0]["changed"], requeued.err) == (0, 3, "")
    (mark,) = [each["mark"] for each in memory.call("dead", "--json").objects]
    for named in (("--type", "treadle.bulk"), ("--queue", "treadle.bulk"), ("--mark", mark)):
        looked = memory.call("dead", "requeue", *named, "--dry-run", "--json")
        assert [each["id"] for each in looked.objects[0]["examples"]] == [portion], looked
    assert memory.call("dead", "requeue", "--mark", mark, "--yes").out == "requeued 1 item\n"


def test_a_portion_that_failed_is_requeued_by_its_id(memory: Store) -> None:
    portion = _failed(memory)
    advice = memory.call("why", portion)
    assert f"treadle requeue {portion}" in advice.out
    assert "--tenant" not in advice.out
    looked = memory.call("requeue", portion, "--dry-run")
    assert (looked.code, looked.out.partition(",")[0]) == (0, "would requeue 1 item"), looked
    assert memory.call("requeue", portion).out == "requeued 1 item\n"
    assert memory.call("cancel", portion).out == "cancelled 1 item\n"
    assert memory.call("delete", portion).out == "deleted 1 item\n"
