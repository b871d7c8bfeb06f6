"""RedisBackend: the server has lost everything, or keys are missing."""

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cli.calling import call
from tests.support.valkey import Client
from treadle import Treadle, work
from treadle.backends.redis import RedisBackend, workers
from treadle.backends.redis.schema import VERSION
from treadle.errors import BackendError
from treadle.item import Demand, Heartbeat, Item, Settlement, Submission


@work
async def tick() -> None:
    ticked.put_nowait(None)


@work
async def other() -> int:
    return 1


ticked: asyncio.Queue[None] = asyncio.Queue()


def do(url: str, *parts: Any) -> Any:
    """Carry out a command in the database of the URL."""
    place, _, number = url.partition("?db=")
    with Client(place) as client:
        client.call("SELECT", number)
        return client.call(*parts)


def empty(url: str) -> None:
    """Do what FLUSHALL does, in the database of the URL only."""
    do(url, "FLUSHDB")


async def test_a_store_that_came_back_empty_gets_schedules_and_types_again(
    valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process says so once."""
    async with Treadle(valkey_url, work=[tick, other], heartbeat=0.2, poll_interval=0.05) as app:
        app.schedule("often", every=0.1, run=tick)
        await asyncio.wait_for(ticked.get(), 10)
        empty(valkey_url)
        while not ticked.empty():
            ticked.get_nowait()
        await asyncio.wait_for(ticked.get(), 10)
        assert await app.enqueue(other()).result() == 1
        assert [each.name for each in await app.schedules.list()] == ["often"]
        (worker,) = await app.workers()
        assert {other.name, tick.name} <= {*(worker.types or ())}
        await asyncio.wait_for(ticked.get(), 10)
    logged = [each.levelno for each in caplog.records if "is new: all items of the old one" in each.message]
    assert logged == [logging.WARNING]


async def test_the_version_of_an_emptied_store_is_noted_again(valkey_url: str) -> None:
    backend = RedisBackend(valkey_url)
    await backend.open()
    beat = Heartbeat(worker="w", lease=10, held=(), types=("a",))
    assert not (await backend.beat(beat)).new_store
    empty(valkey_url)
    reply = await backend.beat(beat)
    assert reply.fresh
    assert reply.new_store
    assert not (await backend.beat(beat)).new_store
    assert await backend._link.command(b"HGET", b"{treadle}:meta", b"version") == b"%d" % VERSION
    await backend.close()


async def test_a_worker_that_was_removed_finds_the_same_store(valkey_url: str) -> None:
    backend = RedisBackend(valkey_url)
    await backend.open()
    beat = Heartbeat(worker="w", lease=10, held=(), types=("a",))
    await backend.beat(beat)
    await backend.remove_worker("w")
    reply = await backend.beat(beat)
    assert reply.fresh
    assert not reply.new_store
    await backend.close()


async def test_an_unknown_lease_is_confirmed_by_the_next_heartbeat(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many leases in the fleet, few heartbeats look for them."""

    async def unknown(looked_at: int) -> Sequence[int] | None:
        monkeypatch.setattr(workers, "LOOKED_AT", looked_at)
        return (await backend.beat(Heartbeat(worker="w", lease=10))).unknown

    backend = RedisBackend(valkey_url)
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=10))
    await backend.submit([Submission((Item(id="a", type="t", input=b""),))])
    (lease,) = (await backend.claim(Demand(worker="w", limit=1))).leases
    assert await unknown(looked_at=0) == [lease.token], "it has just connected"
    backend._looks_anew_until = 0.0
    assert await unknown(looked_at=0) is None
    assert await unknown(looked_at=1000) == [lease.token]
    assert await unknown(looked_at=0) == [lease.token]
    await backend.close()


# -- keys that are missing -------------------------------------------------------------------------------

KEYS = (
    *("item", "id", "kind", "kinds", "text", "uses", "counts", "pages", "seq", "names", "meta"),
    *("state", "held", "ready", "ring", "turns", "served", "due", "due_first", "extra", "keyed", "gates"),
    *("waiters", "workers", "workers_until", "known_types", "groups", "group_ids", "dead", "cancelled"),
    *("marks", "marked", "marks_last"),
)


async def fill(backend: RedisBackend) -> None:
    """Store items of every status, with a key, a prerequisite and a child."""
    await backend.beat(Heartbeat(worker="w", lease=100, held=(), types=("a",)))
    await backend.submit([Submission((new(id),)) for id in ("dead", "parent", "running")])
    leases = (await backend.claim(Demand(worker="w", limit=3, types={"a": 3}))).leases
    await backend.settle(
        [
            Settlement(lease=leases[0], kind="dead", reason="exhausted"),
            Settlement(lease=leases[1], kind="success", children=(new("child"),)),
        ]
    )
    await backend.submit([Submission((new("gone"),))])
    await backend.cancel(["gone"])
    others = (new("later", delay=100.0), new("blocked", after=("running",), need=1), new("keyed", key="k"))
    await backend.submit([Submission((each,)) for each in others])


def new(id: str, **fields: Any) -> Item:
    return Item(id=id, type="a", input=b"", **fields)


async def test_a_missing_key_is_named(valkey_url: str) -> None:
    """Each of them, by `inspect`."""
    backend = RedisBackend(valkey_url)
    await backend.open()
    await fill(backend)
    assert await backend.inspect() == []
    for name in KEYS:
        assert do(valkey_url, "RENAME", f"{{treadle}}:{name}", "aside"), name
        (problem,) = await backend.inspect()
        assert f"missing or have lost a part: {{treadle}}:{name}" in str(problem), name
        do(valkey_url, "RENAME", "aside", f"{{treadle}}:{name}")
        assert await backend.inspect() == []
    await backend.close()


async def test_a_call_that_needs_a_missing_key_names_it(valkey_url: str) -> None:
    backend = RedisBackend(valkey_url)
    await backend.open()
    await fill(backend)
    do(valkey_url, "DEL", "{treadle}:kinds")
    found = r"the store is damaged, .*: \{treadle\}:kinds\. Were they deleted, or evicted\? Stop the workers"
    with pytest.raises(BackendError, match=found):
        await backend.submit([Submission((new("another", key="k2"),))])
    await backend.close()


async def test_a_claim_that_needs_a_missing_key_names_it_and_leases_nothing(valkey_url: str) -> None:
    """Of one line, and of several lanes."""
    backend = RedisBackend(valkey_url)
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=100, held=(), types=("a",)))
    await backend.submit([Submission((new("keyed", key="k"),))])
    for lane in ("", "one", "two"):
        await backend.submit([Submission((new(f"in {lane}", lane=lane),))])
        for name in ("item", "kinds", "counts", "extra", "ready"):
            do(valkey_url, "RENAME", f"{{treadle}}:{name}", "aside")
            for grace in (None, 1000.0):  # claim.lua, and claim_all.lua
                with pytest.raises(BackendError, match=rf"the store is damaged, .*\{{treadle\}}:{name}"):
                    await backend.claim(Demand(worker="w", limit=10, unknown_grace=grace))
            do(valkey_url, "RENAME", "aside", f"{{treadle}}:{name}")
            assert list(await backend.unknown_leases("w", [])) == [], name
    assert await backend.inspect() == []
    assert len((await backend.claim(Demand(worker="w", limit=10))).leases) == 4
    await backend.close()


async def test_a_key_of_another_type_is_no_bug_of_treadle(valkey_url: str) -> None:
    backend = RedisBackend(valkey_url)
    await backend.open()
    do(valkey_url, "SET", "{treadle}:item", "text")
    with pytest.raises(BackendError, match="Did another program write to, or delete, keys of this namespace"):
        await backend.submit([Submission((new("another", key="k2"),))])
    await backend.close()


def test_the_doctor_names_a_missing_key(valkey_url: str) -> None:
    async def prepare() -> None:
        backend = RedisBackend(valkey_url)
        await backend.open()
        await fill(backend)
        await backend.close()

    asyncio.run(prepare())
    do(valkey_url, "DEL", "{treadle}:ready")
    answer = call("doctor", "--url", valkey_url)
    assert answer.code == 4
    assert "the store is damaged" in answer.out
    assert "{treadle}:ready" in re.sub(r"\s+", " ", answer.out)
