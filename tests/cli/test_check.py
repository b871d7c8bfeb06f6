"""`treadle check`: what this code could not read, before a deploy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli import looked_at
from tests.cli.calling import call
from tests.cli.conftest import APP, Store
from treadle import Client, Treadle, dependency, work
from treadle.define.work import Work
from treadle.errors import WorkFailed


async def _submit(store: Store, *works: Work[Any, Any], **options: Any) -> None:
    """As code of an earlier version did."""
    async with Client(store.backend) as client:
        for each in works:
            await client.enqueue(each, **options)


@work(name="mail.send")
async def earlier_send(user: str) -> None: ...


@work(name="order.old")
async def old_order(number: int) -> None: ...


@work(name="report")
async def same_report(day: str) -> None: ...


def test_what_would_break_is_said_by_type(memory: Store) -> None:
    memory.fill(
        lambda _: _submit(memory, earlier_send("x"), earlier_send("y"), old_order(1), same_report("d"))
    )
    answer = memory.call("check")
    assert answer.code == 4
    rows = [line.split()[:3] for line in answer.out.splitlines()[1:4]]
    assert rows == [["mail.send", "2", "2"], ["order.old", "1", "1"], ["report", "1", "·"]]
    assert "2 types would break" in answer.out
    assert "2 items: cannot decode" in answer.out
    found = {each["type"]: each for each in memory.call("check", "--json").objects}
    assert found["order.old"]["unknown"]
    assert not found["mail.send"]["unknown"]
    assert found["mail.send"]["errors"][0]["count"] == 2
    assert found["report"]["fine"]
    assert memory.call("check", "--elsewhere", "order.*,mail.*").code == 4  # mail.send is here
    assert memory.call("check", "--status", "dead").code == 0


def test_aliases_and_upcast_are_fine(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    @work(name="mail.send", aliases=["mail.old"], upcast=lambda old: {"user_id": old.get("user", 0)})
    async def send(user_id: int | str) -> None: ...

    @work(name="mail.old")
    async def older(user: str) -> None: ...

    memory.fill(lambda _: _submit(memory, earlier_send("x"), older("y")))
    monkeypatch.setattr(looked_at, "app", Treadle(memory.backend, work=[send]))
    answer = memory.call("check", "--json")
    assert answer.code == 0
    assert [(each["type"], each["alias_of"], each["upcast"]) for each in answer.objects] == [
        ("mail.old", "mail.send", True),
        ("mail.send", None, True),
    ]
    assert "nothing would break" in memory.call("check").out


def test_an_upcast_that_raises_breaks(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    @work(name="mail.send", upcast=lambda old: {"user_id": old["nothing"]})
    async def send(user_id: int) -> None: ...

    memory.fill(lambda _: _submit(memory, earlier_send("x")))
    monkeypatch.setattr(looked_at, "app", Treadle(memory.backend, work=[send]))
    (found,) = memory.call("check", "--json").objects
    assert found["breaks"] == 1


def test_dead_items_and_works_that_a_dependency_holds_back_are_read(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        failing = await app.enqueue(looked_at.send(3))
        with pytest.raises(WorkFailed):
            await failing.result()
        await _submit(memory, dependency(on=["nothing"], queue=[old_order(1)]))

    memory.work_off(fill)
    found = {each["type"]: each for each in memory.call("check", "--json").objects}
    assert found["mail.send"]["looked_at"] == 1
    assert found["order.old"]["unknown"]


def test_a_rare_type_is_found_and_a_sample_has_its_size(store: Store) -> None:
    """However many items of other types are in front of it."""

    async def fill(_: Treadle) -> None:
        async with Client(store.url) as client:
            await client.enqueue_many([same_report("d") for _ in range(4100)])
            await client.enqueue(old_order(1))

    store.fill(fill)
    answer = call("check", "--app", APP, "--against", store.url, "--sample", "4", "--json")
    assert {each["type"]: each["looked_at"] for each in answer.objects} == {"report": 2, "order.old": 1}
    assert answer.code == 4


def test_another_store_can_be_checked(memory: Store, store: Store) -> None:
    async def fill(_: Treadle) -> None:
        async with Client(store.url) as client:
            await client.enqueue(old_order(1))

    store.fill(fill)
    looked_at.app = memory.app()
    answer = memory.call("check", "--against", store.url, "--json")
    assert [each["type"] for each in answer.objects] == ["order.old"]


def test_a_tenant_is_checked_alone(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.tenant("acme").enqueue(looked_at.report())
        await _submit(memory, old_order(1))

    memory.fill(fill)
    assert [each["type"] for each in memory.call("check", "--tenant", "acme", "--json").objects] == ["report"]


def test_check_needs_the_code(store: Store) -> None:
    refused = call("check", "--url", store.url)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--app" in refused.err
    assert call("check", "--app", APP, "--sample", "1").code == 2
