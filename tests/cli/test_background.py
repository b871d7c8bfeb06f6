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
    assert started.err.endswith("the last one left just now. `treadle bulk run` runs it here\n")
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
