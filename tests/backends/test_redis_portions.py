"""Verbs of Redis that are done in portions: what they answer does not show where a portion ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from tests.backends.redis_failures import FailingLink
from tests.backends.redis_store import RedisSubject
from treadle.backends.redis import RedisBackend, limits, operate, records, schedules, settle, workers
from treadle.item import (
    AuditNote,
    Changed,
    Demand,
    Filter,
    Fire,
    Heartbeat,
    Item,
    Lease,
    Limit,
    PermitRequest,
    Schedule,
    Settlement,
    Submission,
)
from treadle.records import Stat
from treadle.testing.contract.build import pause as pause_queue


@pytest.fixture
async def backend(valkey_url: str) -> AsyncIterator[RedisBackend]:
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    yield subject.backend
    await subject.close()


async def held(backend: RedisBackend, count: int) -> list[Lease]:
    """Leases of the worker `w` that have not begun."""
    await backend.beat(Heartbeat(worker="w", lease=100))
    await backend.submit([Submission((Item(f"i{number}", "t", b""),)) for number in range(count)])
    found: list[Lease] = []
    while len(found) < count:
        claim = await backend.claim(Demand(worker="w", limit=count, buffered=frozenset(["t"])))
        assert claim.leases
        found += claim.leases
    return found


async def test_heartbeats_and_begin_check_any_number_of_leases(backend: RedisBackend) -> None:
    leases = await held(backend, workers.PORTION + 10)
    settled, cancelled = leases[-1], leases[0]
    await backend.settle([Settlement(lease=settled, kind="success")])
    await backend.cancel([cancelled.id, leases[-2].id])
    lost = {cancelled.token: "cancelled", leases[-2].token: "cancelled"}
    assert (await backend.beat(Heartbeat(worker="w", lease=100, held=leases))).lost == lost
    assert await backend.begin(leases) == lost
    state = (await backend.get([leases[-3].id]))[0]
    assert state is not None
    assert (state.status, state.attempt) == ("running", 1)
    assert len(await backend.unknown_leases("w", [])) == len(leases) - 3
    assert await backend.remove_worker("w") == len(leases) - 3
    assert set((await backend.begin(leases)).values()) == {"taken", "cancelled"}


async def test_limits_are_read_in_the_order_of_their_names(backend: RedisBackend) -> None:
    await backend.beat(Heartbeat(worker="w", lease=100))
    names = [f"{number:04}" for number in range(2 * limits.PORTION + 7)]
    # Every third one is not in use.
    requests = [
        PermitRequest((Limit(name, 10, 1000.0, "slots" if number % 2 else "fixed_window"),), number % 3)
        for number, name in enumerate(names)
    ]
    await backend.take_permits(requests, worker="w")
    used = [name for number, name in enumerate(names) if number % 3]
    assert [use.name for use in await backend.limits(count=1000)] == used
    assert [use.name for use in await backend.limits(count=limits.PORTION)] == used[: limits.PORTION]
    assert {use.name for use in await backend.limits(names)} == set(used)
    assert list(await backend.limits(count=0)) == []


async def test_statistics_are_added_and_read_in_portions(backend: RedisBackend) -> None:
    minutes = records.READ_PORTION + 5
    stats = [Stat(at=60.0 * number, type="t", queue="q", started=1, run=(1, 2)) for number in range(minutes)]
    for _ in range(2):
        await backend.add_stats(stats)
    found = await backend.stats(0.0)
    assert [stat.at for stat in found] == [stat.at for stat in stats]
    assert {(stat.started, stat.run) for stat in found} == {(2, (2, 4))}
    (total,) = await backend.stats(0.0, by="type")
    assert (total.started, total.run) == (2 * minutes, (2 * minutes, 4 * minutes))
    assert [stat.at for stat in await backend.stats(60.0, until=300.0)] == [60.0, 120.0, 180.0, 240.0]


async def test_audit_entries_are_found_behind_many_others(backend: RedisBackend) -> None:
    async def pause(actor: str, tenant: str | None = None, bulk: str | None = None) -> None:
        await pause_queue(backend, "q", note=AuditNote(actor=actor, tenant=tenant, bulk=bulk))

    await pause("first", "a")
    await asyncio.gather(*(pause("other", "b", "portion") for _ in range(1100)))
    await pause("last", "a")
    page = await backend.audits(tenant="a", limit=1)
    assert [entry.actor for entry in page.entries] == ["last"]
    assert page.cursor is not None
    rest = await backend.audits(tenant="a", limit=1, cursor=page.cursor)
    assert ([entry.actor for entry in rest.entries], rest.cursor) == (["first"], None)
    assert [entry.actor for entry in (await backend.audits()).entries] == ["last", "first"]
    assert len((await backend.audits(bulk="portion", limit=1000)).entries) == 1000


async def test_runs_of_many_schedules_show_where_their_items_are(backend: RedisBackend) -> None:
    count = schedules.PORTION // 10 + 1
    for number in range(count):
        await backend.put_schedule(Schedule(name=f"s{number:03}", next_at=0.0))
        for at in range(11):
            items = () if at % 2 else (Item(f"{number}-{at}", "t", b""),)
            fire = Fire(name=f"s{number:03}", at=float(at), next_at=at + 1.0, items=items)
            assert await backend.fire(fire) is not None
    runs = await backend.schedule_runs(count=10)
    assert [run.name for run in runs[:: len(runs) // count]] == [f"s{number:03}" for number in range(count)]
    assert [run.at for run in runs[:10]] == [float(at) for at in range(10, 0, -1)]
    assert {(run.at % 2, run.status) for run in runs} == {(0.0, "ready"), (1.0, None)}


async def test_operators_change_many_items_with_few_commands(backend: RedisBackend) -> None:
    """No item needs commands of its own, neither named nor in a tree."""
    link = backend._link
    link.__class__ = FailingLink

    async def commands(call: Awaitable[Changed]) -> int:
        await link.command(b"SET", link.key("fail"), 1_000_000)
        assert len((await call).items) >= 200
        left = int(await link.command(b"GET", link.key("fail")))
        await link.command(b"DEL", link.key("fail"))
        return 1_000_000 - left

    await backend.beat(Heartbeat(worker="w", lease=100))
    await backend.submit([Submission((Item("root", "root", b""),))])
    (root,) = (await backend.claim(Demand(worker="w", limit=1))).leases
    ids = [f"i{number}" for number in range(200)]
    children = tuple(Item(f"c{number}", "t", b"") for number in range(200))
    await backend.settle([Settlement(lease=root, kind="success", children=children)])
    await backend.submit([Submission((Item(id, "t", b""),)) for id in ids])
    # Items that are apart are changed in portions.
    assert await commands(backend.cancel(["root"])) <= 80
    assert await commands(backend.cancel(ids)) <= 120
    assert await commands(backend.requeue(ids, cancelled=True)) <= 160
    assert await commands(backend.requeue([child.id for child in children], cancelled=True)) <= 160
    for changed in (["root"], ids):
        assert await commands(backend.delete(changed)) <= 80


@pytest.mark.parametrize("related", [False, True])
async def test_items_that_wait_for_each_other_are_changed_in_one_step(
    backend: RedisBackend, related: bool
) -> None:
    """Those that are apart are changed in portions. The audit has one entry in either case."""
    ids = [f"i{number}" for number in range(2 * operate.CANCEL_PORTION + 10)]
    chain = ("first", "next") if related else ()
    items = [Item(id, "t", b"") for id in ids]
    if related:
        items += [Item("first", "t", b""), Item("next", "t", b"", after=("first",), need=1)]
    await backend.submit([Submission((item,)) for item in items])
    names = [*chain[:1], *ids, *chain[1:]]
    note = AuditNote(actor="ann")
    for where in (names, Filter(status=("cancelled",))):
        cancelled = await backend.cancel([*names, "missing", ids[0]], note=note)
        assert [item.id for item in cancelled.items] == names
        assert {group.id for group in cancelled.effects.ended_groups} == {*names}
        assert (cancelled.effects.released, cancelled.effects.doomed) == ((), 0)
        opened = await backend.requeue(where, cancelled=True, note=note)
        wanted = names if where is names else [item.id for item in items]
        assert [item.id for item in opened.items] == wanted
        found = {state.id: state.status for state in await backend.get(names) if state is not None}
        assert found.pop("next", "blocked") == "blocked"
        assert set(found.values()) == {"ready"}
    counts = [(entry.verb, entry.count) for entry in (await backend.audits()).entries]
    assert counts == [("requeue", len(names)), ("cancel", len(names))] * 2


async def test_items_that_are_awaited_meanwhile_are_changed_at_the_end(backend: RedisBackend) -> None:
    """Another process submits an item that waits for one of them, between two portions."""
    link = backend._link
    ids = [f"i{number}" for number in range(operate.CANCEL_PORTION + 1)]
    await backend.submit([Submission((Item(id, "t", b""),)) for id in ids])
    run = link.run
    scripts: list[str] = []

    async def run_and_interfere(script: Any, *args: Any, **options: Any) -> Any:
        scripts.append(script.name)
        if scripts == ["are_apart"]:
            answer = await run(script, *args, **options)
            waiting = Item("waiting", "t", b"", after=(ids[0],), need=1)
            await backend.submit([Submission((waiting,))])
            return answer
        return await run(script, *args, **options)

    link.run = run_and_interfere
    changed = await backend.cancel(ids, note=AuditNote(actor="ann"))
    assert [item.id for item in changed.items] == [*ids[1:], ids[0]]
    assert changed.effects.doomed == 1
    assert scripts == ["are_apart", "submit", "cancel", "cancel", "cancel"]
    assert [entry.count for entry in (await backend.audits()).entries] == [len(ids)]


async def test_a_settle_in_portions_answers_when_the_first_was_applied(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it released may have started before the last portion: an event of that would be too early."""
    monkeypatch.setattr(settle, "GENERAL_PORTION", 1)
    settled = await backend.settle(
        [Settlement(lease=lease, kind="success") for lease in await held(backend, 5)]
    )
    ended = [state.ended_at for state in await backend.get([f"i{n}" for n in range(5)]) if state is not None]
    assert len(set(ended)) > 1
    assert settled.at == pytest.approx(min(at for at in ended if at is not None), abs=1e-6)
