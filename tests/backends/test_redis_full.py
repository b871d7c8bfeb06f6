"""A Redis server without room: new items are refused, and the stored ones can be worked off and removed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.valkey import ValkeyServer
from treadle.backends.redis import RedisBackend, settle, stage
from treadle.backends.redis.scripts import RedisScript
from treadle.errors import SchemaError, StoreFull
from treadle.item import (
    AuditNote,
    Demand,
    Fire,
    Heartbeat,
    Item,
    Limit,
    PermitRequest,
    Schedule,
    Settlement,
    Submission,
)

pytestmark = pytest.mark.usefixtures("processes")

SLOTS = Limit("slots", 5, 1.0, "slots")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path / "valkey")
    server.start()
    yield server
    server.kill()


async def test_a_full_store_can_be_worked_off(server: ValkeyServer) -> None:
    backend = RedisBackend(server.url, prefix="full", test_clock=True)
    await backend.open()
    try:
        items = [Item(id, "work", b"", keep=0.0, delay=50.0 if id == "c" else 0.0) for id in "abc"]
        await backend.submit([Submission((item,)) for item in items])
        await backend.put_schedule(Schedule(name="s", next_at=1.0))
        server.call("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(StoreFull):
            await backend.submit([Submission((Item("d", "work", b""),))])
        with pytest.raises(StoreFull):
            await backend.fire(Fire(name="s", at=1.0, next_at=2.0, items=(Item("e", "work", b""),)))

        assert (await backend.beat(Heartbeat(worker="w", lease=100))).fresh
        buffered = frozenset(["work"])
        (first, second) = (await backend.claim(Demand(worker="w", limit=9, buffered=buffered))).leases
        assert await backend.begin([first]) == {}
        assert (await backend.take_permits([PermitRequest((SLOTS,))], worker="w"))[0].count == 1
        await backend.return_permits([PermitRequest((SLOTS,))], worker="w")
        settled = await backend.settle([Settlement(lease=first, kind="success")])
        assert [outcome.verb for outcome in settled.outcomes] == ["applied"]
        assert await backend.remove_worker("w") == 1
        server.call("CONFIG", "SET", "maxmemory", "0")
        server.call("SET", "{full}:shift", "60")
        server.call("CONFIG", "SET", "maxmemory", "1mb")
        await backend.beat(Heartbeat(worker="w", lease=100))
        again = (await backend.claim(Demand(worker="w", limit=9))).leases
        assert {lease.id for lease in again} == {second.id, "c"}
        assert len((await backend.cancel(["b", "c"])).items) == 2
        assert await backend.prune() == 3

        note = AuditNote(actor="me")
        assert await backend.drain_worker("w", note=note)
        assert await backend.pause_schedule("s", True, note=note)
        assert await backend.drop_schedule("s", note=note)
    finally:
        await backend.close()


async def test_a_full_store_can_be_opened_and_worked_off(server: ValkeyServer) -> None:
    """A worker that is started again must be able to make room."""
    first = RedisBackend(server.url, prefix="full")
    await first.open()
    await first.submit([Submission((Item("a", "work", b""),))])
    await first.close()
    server.call("CONFIG", "SET", "maxmemory", "1mb")
    backend = RedisBackend(f"{server.url}?prefix=full")
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=100))
    (lease,) = (await backend.claim(Demand(worker="w", limit=9))).leases
    settled = await backend.settle([Settlement(lease=lease, kind="success")])
    assert [outcome.verb for outcome in settled.outcomes] == ["applied"]
    await backend.close()


async def test_a_store_that_is_only_looked_at_is_not_made(server: ValkeyServer) -> None:
    backend = RedisBackend(server.url, apply_schema=False)
    with pytest.raises(SchemaError, match="treadle migrate"):
        await backend.open()
    assert server.call("KEYS", "*") == []


async def test_a_large_submission_leaves_nothing_in_a_full_store(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first portion is stored, the second is not. A settlement is applied nevertheless."""
    monkeypatch.setattr(stage, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(stage, "PORTION", 2)
    monkeypatch.setattr(settle, "MANY_CHILDREN", 2)
    backend = RedisBackend(server.url, prefix="full", test_clock=True)
    await backend.open()
    run = backend._link.run

    async def fill(script: RedisScript, args: list[object], **options: object) -> object:
        answer = await run(script, args, **options)
        if script.name == "stage":
            server.call("CONFIG", "SET", "maxmemory", "1mb")
        return answer

    try:
        await backend.beat(Heartbeat(worker="w", lease=100))
        await backend.submit([Submission((Item("root", "work", b""),))])
        (lease,) = (await backend.claim(Demand(worker="w", limit=1))).leases
        monkeypatch.setattr(backend._link, "run", fill)
        items = tuple(Item(id, "work", b"") for id in "abcde")
        with pytest.raises(StoreFull):
            await backend.submit([Submission(items)])
        assert not [key for key in server.call("KEYS", "*") if b"stage" in key]
        server.call("CONFIG", "SET", "maxmemory", "0")
        settled = await backend.settle([Settlement(lease=lease, kind="success", children=items)])
        assert settled.outcomes[0].verb == "applied"
        assert {state and state.status for state in await backend.get("abcde")} == {"ready"}
        assert not [key for key in server.call("KEYS", "*") if b"stage" in key]
    finally:
        await backend.close()
