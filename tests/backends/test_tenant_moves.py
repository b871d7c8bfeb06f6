"""A tenant leaves one kind of store and comes into another, with all that random calls have made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backends.random_calls import RandomCalls
from tests.backends.redis_store import RedisSubject
from tests.backends.test_moving import PAIRS, STORES, records, subject
from tests.backends.test_postgres import shared_database, shared_url  # noqa: F401
from tests.support.tiers import pairs_of
from treadle.backend import Backend
from treadle.records import TenantMark
from treadle.store import portable
from treadle.store.portable import PortableGroup, PortableItem, PortableKey, RecordsChecksum
from treadle.store.rules.tenant_moves import activated, committed, copying, frozen, prepared, started

TENANT = "acme"


@pytest.fixture
def places(old: str, new: str, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where the two stores are, by kind. Not asked for within the event loop of a test."""
    fixtures = {"postgres": "shared_url", "redis": "valkey_url"}
    found = {kind: request.getfixturevalue(fixtures[kind]) for kind in {old, new} & {*fixtures}}
    return {"sqlite": tmp_path / "work.db", **found}


def present(mark: TenantMark | None) -> TenantMark:
    assert mark is not None
    return mark


async def frozen_for_a_move(old: Any) -> TenantMark:
    """Its mark in the old store."""
    began = present(started(TenantMark(), 0, "us"))
    assert await old.tenant_moves.put_mark(TENANT, None, began)
    now = await old.now()
    mark = present(frozen(began, began.move, now, now + 60))
    assert await old.tenant_moves.put_mark(TENANT, began, mark)
    return mark


async def leave(old: Any, mark: TenantMark) -> list[bytes]:
    """Its records, with leases. It is gone then."""
    found: list[bytes] = []
    async with old.tenant_moves.give(TENANT, mark) as giving:
        while portion := [*await giving.read(100)]:
            found += portion
        await giving.commit(present(committed(mark, mark.move, mark.freeze, await old.now())))
    return found


async def come(new: Any, gone: TenantMark, found: list[bytes]) -> TenantMark:
    importing = present(prepared(None, gone.move, is_empty=True))
    assert await new.tenant_moves.put_mark(TENANT, None, importing, empty=True)
    mark = present(copying(importing, gone.move, gone.freeze))
    assert await new.tenant_moves.put_mark(TENANT, importing, mark)
    for first in range(0, len(found), 100):
        assert await new.tenant_moves.stage(TENANT, mark, found[first : first + 100])
    checksum = RecordsChecksum()
    checksum.add(found)
    assert await new.tenant_moves.staged(TENANT) == checksum.total
    owned = present(activated(mark, gone.move, gone.freeze))
    assert await new.tenant_moves.receive(TENANT, mark, owned)
    return owned


OWNED = TenantMark("owned", 1)


async def here(store: Any, mark: TenantMark = OWNED, tenant: str = "default") -> list[bytes]:
    """What a tenant has now, with leases. It stays."""
    if mark is OWNED:
        await store.tenant_moves.put_mark(tenant, None, OWNED)
    found: list[bytes] = []
    async with store.tenant_moves.give(tenant, mark) as giving:
        while portion := [*await giving.read(100)]:
            found += portion
    return found


def contents(data: list[bytes]) -> dict[str, Any]:
    """By kind and id, but for the numbers, which are those of a store."""
    found: dict[str, Any] = {}
    numbers: dict[int, str] = {}
    order: list[tuple[int, str]] = []
    for record in map(portable.decode, data):
        if isinstance(record, PortableItem):
            numbers[record.number] = record.id
            if record.place:
                order.append((record.place, record.id))
            record.number = record.group = record.place = 0
            found["item " + record.id] = record
        elif isinstance(record, PortableGroup):
            outer = None if record.outer is None else numbers.get(record.outer)
            record.number, record.outer = 0, None
            found["group " + record.id] = (record, outer)
        elif isinstance(record, PortableKey):
            found["key " + record.key] = record
    found["order"] = [id for _, id in sorted(order)]
    return found


@pytest.mark.parametrize(
    ("old", "new"), [*pairs_of(*STORES), pytest.param("redis", "redis", marks=pytest.mark.another_pair)]
)
async def test_a_tenant_takes_along_what_random_calls_have_made(
    old: str, new: str, places: dict[str, Any]
) -> None:
    """Beside the work of others in both stores, which goes on. So does its own in the new one."""
    async with subject(old, places[old]) as source, subject(new, places[new]) as target:
        passed = {"source": 0.0, "target": 0.0}

        async def advance(seconds: float) -> None:
            passed["source"] += seconds
            await source.advance(seconds)

        async def advance_target(seconds: float) -> None:
            passed["target"] += seconds
            await target.advance(seconds)

        seed = len(PAIRS) if old == new else PAIRS.index((old, new))
        calls = RandomCalls(seed, source.backend, advance)
        others = RandomCalls(100, target.backend, advance_target, ("default",))
        for _ in range(250):
            await calls.step()
            await others.step()
        theirs = {store: contents(await here(store)) for store in (source.backend, target.backend)}
        mark = await frozen_for_a_move(source.backend)
        found = await leave(source.backend, mark)
        sound(source)
        assert contents(await here(source.backend)) == theirs[source.backend]
        assert await nothing_of_it(source.backend)
        owned = await come(target.backend, mark, found)
        sound(target)
        assert contents(await here(target.backend)) == theirs[target.backend]
        assert contents(await here(target.backend, owned, TENANT)) == contents(found)
        await target.advance(max(0.0, passed["source"] - passed["target"]))
        others.tenants, others.count = calls.tenants, max(calls.count, others.count)
        for _ in range(100):
            await others.step()
        await others.finish()
        assert await target.backend.counts(ended=True) == []
        sound(target)


def sound(of: Any) -> None:
    if isinstance(of, RedisSubject):
        assert of.audit() == []


async def nothing_of_it(backend: Backend) -> bool:
    found = await records(backend, tenant=TENANT)
    return not any(isinstance(one, (PortableItem, PortableGroup, PortableKey)) for one in found)
