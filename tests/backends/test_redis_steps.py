"""Steps on Redis: many children of suspended items, what plain items pay, what is stored and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.redis_store import RedisSubject
from tests.support.valkey import ValkeyServer
from treadle.backends.redis import settle, stage, steps
from treadle.errors import UnsupportedError
from treadle.item import (
    Demand,
    Heartbeat,
    Item,
    Lease,
    Record,
    Settlement,
    Signal,
    StepRecord,
    Submission,
)

OF_STEPS = {"steps", "recorded", "signal_keys", "step_numbers"}


@pytest.fixture
async def subject(valkey_url: str) -> AsyncIterator[RedisSubject]:
    async with opened(valkey_url) as subject:
        yield subject


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[RedisSubject]:
    """On a server of its own: no other test is among its commands."""
    server = ValkeyServer(tmp_path / "valkey")
    server.start()
    async with opened(server.url) as subject:
        yield subject
    server.remove()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(url)
    await subject.backend.open()
    await subject.backend.beat(Heartbeat(worker="w", lease=1e6))
    yield subject
    await subject.close()
    assert subject.audit() == []


async def start(subject: RedisSubject, *ids: str, **fields: Any) -> list[Lease]:
    items = (Item(id=id, type="work", input=b"", **fields) for id in ids)
    await subject.backend.submit([Submission((item,)) for item in items])
    return list((await subject.backend.claim(Demand(worker="w", limit=1000))).leases)


def value(name: str, data: bytes = b"value", **fields: Any) -> StepRecord:
    return StepRecord(name=name, value=data, **fields)


def awaits(signal: str) -> StepRecord:
    return StepRecord(name=signal, kind="signal", signal=signal, over=False)


@pytest.mark.parametrize("most_at_once", [2, 1000])
async def test_many_children_of_a_suspended_item(
    subject: RedisSubject, most_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are stored in the short way, or in a stage."""
    monkeypatch.setattr(stage, "MOST_AT_ONCE", most_at_once)
    monkeypatch.setattr(settle, "MANY_CHILDREN", 2)
    (lease,) = await start(subject, "a")
    await subject.backend.signal([Signal(id="a", name="go")])
    children = tuple(Item(id=f"c{n}", type="work", input=b"") for n in range(10))
    settled = await subject.backend.settle(
        [Settlement(lease=lease, kind="suspend", steps=(awaits("go"),), children=children)]
    )
    assert (settled.outcomes[0].verb, settled.outcomes[0].ready) == ("applied", True)
    (group,) = await subject.backend.group(["a"])
    assert group is not None
    assert group.open == 11
    leases = (await subject.backend.claim(Demand(worker="w", limit=1000))).leases
    assert {one.id for one in leases if one.resumes} == {"a"}
    ends = [Settlement(lease=one, kind="success") for one in leases]
    assert [one.id for one in (await subject.backend.settle(ends)).effects.ended_groups] == ["a"]


async def test_a_child_whose_key_an_item_has_and_a_wait_that_is_over(subject: RedisSubject) -> None:
    (lease,) = await start(subject, "a", key="k")
    child = Item(id="c", type="work", input=b"", key="k")
    for delay, ready in ((10.0, False), (0.0, True)):
        sleep = StepRecord(name="nap", kind="sleep", delay=delay, over=False)
        suspend = Settlement(lease=lease, kind="suspend", steps=(sleep,), children=(child,))
        outcome = (await subject.backend.settle([suspend])).outcomes[0]
        assert (outcome.verb, outcome.ready, outcome.existing) == ("applied", ready, {"c": "a"})
        await subject.advance(11)
        (lease,) = (await subject.backend.claim(Demand(worker="w", limit=1))).leases


async def test_plain_items_have_no_keys_of_steps(subject: RedisSubject) -> None:
    leases = await start(subject, *(f"i{n}" for n in range(4)))
    kinds: Any = ("success", "dead", "retry", "release")
    ends = [Settlement(lease=lease, kind=kind) for lease, kind in zip(leases, kinds, strict=True)]
    await subject.backend.settle(ends)
    assert not OF_STEPS & set(subject.keys())


async def test_nothing_is_left_of_the_steps_of_an_item_that_is_gone(subject: RedisSubject) -> None:
    leases = await start(subject, "a", "b", keep=0.0)
    for lease in leases:
        record = Record(
            lease=lease,
            steps=(value("one"), value("two", undo=b"u"), awaits("go")),
            progress=b"p",
            chunks=(b"1", b"2"),
            first_chunk=1,
        )
        assert await subject.backend.record([record]) == [None]
        await subject.backend.signal([Signal(id=lease.id, name="x", value=b"v", key="k")] * 2)
    await subject.backend.settle([Settlement(lease=leases[0], kind="success")])
    assert await subject.backend.prune() == 1
    await subject.backend.delete(["b"])
    assert OF_STEPS & set(subject.keys()) == {"step_numbers"}


async def test_records_are_written_in_portions(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number and by size. Those of one item stay in order."""
    monkeypatch.setattr(steps, "PORTION", 5)
    monkeypatch.setattr(steps, "PORTION_BYTES", 1000)
    leases = await start(subject, "a", "b")
    stale = Lease(**{name: getattr(leases[0], name) for name in Lease.__struct_fields__} | {"token": 7})
    asked = [
        Record(lease=lease, steps=(value(f"s{n}", b"x" * 400),))
        for n in range(10)
        for lease in (*leases, stale)
    ]
    answers = await subject.backend.record(asked)
    assert answers == [None, None, "taken"] * 10
    for found in await subject.backend.steps(["a", "b"]):
        assert found is not None
        assert [one.name for one in found.steps] == [f"s{n}" for n in range(10)]


@pytest.mark.usefixtures("processes")
async def test_a_record_takes_few_commands(alone: RedisSubject) -> None:
    """After the first one of an attempt the row of its item is not written."""
    subject = alone
    leases = await start(subject, *(f"i{n}" for n in range(50)))
    used: list[dict[str, int]] = []
    for name in ("one", "two"):
        with subject.client() as client:
            client.call("CONFIG", "RESETSTAT")
            asked = [Record(lease=lease, steps=(value(name),)) for lease in leases]
            await subject.backend.record(asked)
            stats = client.call("INFO", "commandstats").decode().split()
        found = {line.split(":")[0].removeprefix("cmdstat_"): line.split("calls=")[1] for line in stats[2:]}
        counts = {command: int(rest.split(",")[0]) for command, rest in found.items()}
        used.append({command: counts.get(command, 0) for command in ("evalsha", "hmget", "hset", "zadd")})
    assert used[1] == {"evalsha": 1, "hmget": 2, "hset": 1, "zadd": 1}
    assert used[0] == {"evalsha": 1, "hmget": 3, "hset": 2, "zadd": 1}


async def test_a_running_item_stays_as_it_is_when_it_records(subject: RedisSubject) -> None:
    """Its row is stored in another format from then on."""
    (lease,) = await start(subject, "a", priority=3, lane="l")
    (before,) = await subject.backend.get(["a"])
    await subject.backend.record([Record(lease=lease, progress=b"p")])
    assert await subject.backend.get(["a"]) == [before]
    (unknown,) = await subject.backend.unknown_leases("w", [])
    assert unknown == lease


async def test_transactions_are_not_supported(subject: RedisSubject) -> None:
    with pytest.raises(UnsupportedError):
        await subject.backend.signal([Signal(id="a", name="go")], tx=object())
