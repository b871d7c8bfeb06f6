"""`treadle check`: what this code could not read, before a deploy."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.cli import looked_at
from tests.cli.calling import call
from tests.cli.conftest import APP, Store
from tests.engine.kit import until_status
from treadle import Client, Context, Step, Treadle, dependency, work
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


# ------------------------------------------------------------------------------------------------- steps


class Charge(msgspec.Struct):
    """What a payment has come to."""

    id: str
    total: int


async def pay() -> dict[str, Any]:
    return {"id": "c-1"}


async def pay_fully() -> Charge:
    return Charge("c-1", 90)


async def page(n: int) -> str:
    return f"page {n}"


async def numbered_page(n: int) -> int:
    return n


def _with_total(old: Any) -> Any:
    return {"total": 0, **old}


UPCAST = Step[Charge]("pay", upcast=_with_total)


@work(name="order.pay")
async def paying(ctx: Context) -> None:
    await ctx.step("pay", pay)
    for n in range(2):
        await ctx.step(f"page:{n}", page, n)
    await ctx.sleep("nap", 3600)


@work(name="order.pay")
async def paying_fully(ctx: Context) -> None:
    await ctx.step("pay", pay_fully)
    for n in range(2):
        await ctx.step(f"page:{n}", page, n)


@work(name="order.pay")
async def paying_by_numbers(ctx: Context) -> None:
    await ctx.step(UPCAST, pay_fully)
    for n in range(2):
        await ctx.step(f"page:{n}", numbered_page, n)
    await ctx.signal("nap", int)


@work(name="order.pay")
async def paying_somehow(ctx: Context) -> None:
    name, call = "pay", pay_fully
    await ctx.step(name, call)
    await ctx.step("pay", lambda: 1)
    await ctx.sleep("nap", 3600)


def _steps_with(memory: Store, monkeypatch: pytest.MonkeyPatch, type: Any) -> dict[str, Any]:
    """What `check` says of steps that `paying` has recorded, for another version of the code."""

    async def fill() -> None:
        async with Treadle(memory.backend, work=[paying], poll_interval=0.05) as app:
            await app.enqueue(paying(), id="p-1", key="once")
            await until_status(app, "p-1", "scheduled")

    asyncio.run(fill())
    monkeypatch.setattr(looked_at, "app", Treadle(memory.backend, work=[type]))
    (found,) = memory.call("check", "--json").objects
    return found


def test_recorded_steps_are_read_as_the_source_of_the_handler_says(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = _steps_with(memory, monkeypatch, paying)
    assert (fine["fine"], fine["looked_at"], fine["steps"]) == (True, 1, 4)
    broken = _steps_with(memory, monkeypatch, paying_fully)
    assert (broken["breaks"], len(broken["errors"])) == (1, 1)
    assert "the step 'pay': " in broken["errors"][0]["error"]
    assert "total" in broken["errors"][0]["error"]
    assert memory.call("check").code == 4


def test_steps_with_an_upcast_in_loops_and_of_another_kind(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _steps_with(memory, monkeypatch, paying_by_numbers)
    errors = sorted(each["error"] for each in found["errors"])
    assert found["breaks"] == 1  # one item, with three errors
    assert errors[0] == "the step 'nap': it is recorded as a sleep, and is a signal now"
    assert [each.partition(": ")[0] for each in errors] == [
        "the step 'nap'",
        "the step 'page:0'",
        "the step 'page:1'",
    ]


def test_steps_that_the_source_does_not_tell_are_fine(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _steps_with(memory, monkeypatch, paying_somehow)["fine"]


def test_a_recorded_value_that_is_no_json_breaks(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    @work(name="order.pay", codec=Backwards())
    async def other(ctx: Context) -> None:
        await ctx.sleep("nap", 3600)

    found = _steps_with(memory, monkeypatch, other)
    assert found["breaks"] == 1
    assert "the step 'pay'" in " ".join(each["error"] for each in found["errors"])


class Backwards:
    """A codec that reads what no other one writes."""

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)[::-1]

    def decode(self, data: bytes) -> Any:
        return msgspec.json.decode(data[::-1])
