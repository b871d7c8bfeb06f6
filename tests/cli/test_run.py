"""`treadle run`: submit by name, and wait for the result."""

from __future__ import annotations

import asyncio

from tests.cli.calling import Called, call
from tests.cli.conftest import APP, Store
from treadle import Treadle


def test_the_id_of_the_new_item_is_printed(store: Store) -> None:
    line = "--delay 1h --queue bulk --lane l --priority 3 --key k --workflow w --header request=r=1"
    done = store.call("run", "mail.send", '{"user_id": 1}', *line.split())
    assert (done.code, done.err) == (0, "")
    (item,) = store.call("list", "--json").objects
    assert item["id"] == done.out.strip()
    given = [item[name] for name in ("queue", "lane", "priority", "key", "workflow", "status")]
    assert given == ["bulk", "l", 3, "k", "w", "scheduled"]
    assert (item["input"], item["headers"]) == ({"user_id": 1}, {"request": "r=1"})
    again = store.call("run", "mail.send", '{"user_id": 1}', "--key", "k")
    assert (again.code, again.out) == (0, done.out)
    assert "an earlier item has the key" in again.err
    (said,) = store.call("run", "mail.send", '{"user_id": 1}', "--key", "k", "--json").objects
    assert (said["id"], said["existing"], said["status"]) == (item["id"], True, "scheduled")


def test_the_input_may_come_from_standard_input_and_the_tenant_is_kept(store: Store) -> None:
    done = call("run", "report", "-", "--app", APP, "--tenant", "acme", input='{"day": "monday"}')
    assert done.code == 0
    (item,) = store.call("list", "--json", "--tenant", "acme").objects
    assert (item["input"], item["tenant"]) == ({"day": "monday"}, "acme")
    assert store.call("run", "report", "--id", "mine", "--after", item["id"]).out == "mine\n"
    assert store.call("run", "report", "--id", "mine").code == 1


def test_mistakes_are_one_line(store: Store) -> None:
    for arguments in (
        ("report", "[1]"),
        ("report", "{"),
        ("report", '{"dya": "x"}'),
        ("mail.send", '{"user_id": "x"}'),
        ("report", "{}", "--header", "x"),
        ("report", "{}", "--delay", "soon"),
        ("report", "{}", "--delay", "1h", "--run-at", "2030-01-01"),
        ("report", "{}", "--key-policy", "none"),
        ("reprot", "{}"),
    ):
        refused = store.call("run", *arguments)
        assert refused.out == ""
        assert refused.code == 2, refused
        assert refused.err.count("\n") == 1
        assert refused.err.startswith("treadle: ")
    refused = store.call("run", "report", app=False)
    assert refused.code == 2
    assert "run needs --app" in refused.err
    assert store.call("list").out == "no items\n"


def test_wait_prints_the_result_and_exits_with_it(store: Store) -> None:
    async def wait(app: Treadle) -> list[Called]:
        def run(*arguments: str) -> Called:
            return store.call("run", *arguments, "--wait")

        return [
            await asyncio.to_thread(run, "report", '{"day": "monday"}'),
            await asyncio.to_thread(run, "mail.send", '{"user_id": 3}'),
            await asyncio.to_thread(run, "mail.send", '{"user_id": 3}', "--json"),
            await asyncio.to_thread(run, "order.process", '{"users": [1]}', "--wait-group", "--json"),
        ]

    good, bad, bad_json, group = store.work_off(wait)
    assert (good.code, good.out) == (0, '{"day":"monday"}\n')
    assert good.err.startswith("waiting for ")
    assert (bad.code, bad.out) == (1, "")
    assert "failed (exhausted, attempt 2): ConnectionError: no \\x1b[31mroute" in bad.err
    assert bad_json.code == 1
    assert [each["status"] for each in bad_json.objects] == ["dead"]
    (said,) = group.objects
    assert (group.code, said["group"]["open"]) == (0, 0)


def test_a_wait_that_is_too_long_ends(store: Store) -> None:
    done = store.call("run", "report", "--wait", "--max-wait", "50ms")
    assert (done.code, done.out) == (1, "")
    assert "has not ended after 50 ms, and goes on" in done.err
