"""Settling on Redis: plain settlements do what others do, portions do not show, few commands are needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from tests.backends.redis_failures import FailingLink
from tests.backends.redis_store import RedisSubject
from treadle.backends.redis import RedisBackend, settle
from treadle.item import (
    Contribution,
    Demand,
    ErrorInfo,
    Heartbeat,
    Item,
    Lease,
    Settlement,
    Submission,
)
from treadle.store.rules.settlement import next_version

OWN_RESULT = Contribution()
KINDS_OF_ITEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"key": "k"},
    "workflow": {"workflow": "flow", "workflow_type": "f"},
    "silent": {"contributes": False},
    "short": {"keep": 5.0},
    "long": {"keep": 500.0, "keep_dead": 7.0},
    "awaited": {},
    "group_awaited": {},
    "waiting": {"after": ("missing",), "need": 0},
    "expiring": {"expires_in": 1000.0},
    "other_tenant": {"tenant": "acme"},
}


@pytest.fixture
async def subject(valkey_url: str) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    await subject.stand_still()
    yield subject
    assert subject.audit() == []
    await subject.close()


async def claim(backend: RedisBackend, buffered: str = "") -> list[Lease]:
    await backend.beat(Heartbeat(worker="w", lease=1e6))
    demand = Demand(worker="w", limit=1000, buffered=frozenset([buffered]) if buffered else frozenset())
    return list((await backend.claim(demand)).leases)


async def submit(backend: RedisBackend, *items: Item) -> None:
    await backend.submit([Submission((item,)) for item in items])


def success(lease: Lease, contribution: Contribution | None = OWN_RESULT, **fields: Any) -> Settlement:
    return Settlement(
        lease=lease, kind="success", **{"result": b"r", "contribution": contribution, "ran": 3.0} | fields
    )


async def outcome_of_all(
    backend: RedisBackend, contribution: Contribution | None, result: bytes | None
) -> Any:
    """Settle items of many kinds, after one attempt and after two, and return all that can be seen."""
    items = [Item(f"{name}", "t", b"i", **fields) for name, fields in KINDS_OF_ITEMS.items()]
    again = [replace(item, id=f"{item.id}-again", key=item.key and f"{item.key}2") for item in items]
    await submit(backend, *items, *again)
    await submit(
        backend,
        Item("waits", "u", b"", after=("awaited", "\x1egroup_awaited"), need=2),
        Item("waits-again", "u", b"", after=("awaited-again", "\x1egroup_awaited-again"), need=2),
    )
    leases = {lease.id: lease for lease in await claim(backend)}
    retries = [
        Settlement(lease=leases.pop(item.id), kind="retry", failure=ErrorInfo("E", "m", "t"))
        for item in again
    ]
    await backend.settle(retries)
    leases |= {lease.id: lease for lease in await claim(backend)}
    names = sorted(leases)
    settled = await backend.settle([success(leases[name], contribution, result=result) for name in names])
    repeated = await backend.settle([success(leases[name], contribution, result=result) for name in names])
    states = [
        await backend.get([*names, "waits", "waits-again"], tenant=tenant) for tenant in ("default", "acme")
    ]
    groups = [await backend.group(names, tenant=tenant) for tenant in ("default", "acme")]
    return (
        dict(zip(names, settled.outcomes, strict=True)),
        sorted(map(repr, settled.effects.released)),
        sorted(map(repr, settled.effects.ended_groups)),
        dict(zip(names, repeated.outcomes, strict=True)),
        [[state and asdict(state) for state in found] for found in (*states, *groups)],
        sorted(
            (count.tenant, count.type, count.status, count.count)
            for count in await backend.counts(ended=True)
        ),
    )


@pytest.mark.parametrize("contribution", [None, OWN_RESULT])
@pytest.mark.parametrize("result", [None, b"", b"r"])
async def test_plain_settlements_do_what_the_others_do(
    valkey_url: str,
    monkeypatch: pytest.MonkeyPatch,
    contribution: Contribution | None,
    result: bytes | None,
) -> None:
    found: list[Any] = []
    begin = 0.0
    for is_plain in (True, False):
        if not is_plain:
            monkeypatch.setattr(settle, "_may_be_plain", lambda settlement: False)
        subject = RedisSubject(valkey_url)
        await subject.backend.open()
        await subject.stand_still()
        begin = begin or await subject.backend.now()
        await subject.advance(begin - await subject.backend.now())
        found.append(await outcome_of_all(subject.backend, contribution, result))
        assert subject.audit() == []
        await subject.close()
    assert found[0] == found[1]


async def test_a_lease_that_has_not_begun_may_succeed(subject: RedisSubject) -> None:
    backend = subject.backend
    await submit(backend, Item("a", "t", b""))
    (lease,) = await claim(backend, buffered="t")
    assert not lease.begun
    settled = await backend.settle([success(lease)])
    assert settled.outcomes[0].verb == "applied"
    (state,) = await backend.get(["a"])
    assert state is not None
    assert (state.status, state.attempt) == ("success", 0)


async def test_the_same_lease_twice_in_a_call_counts_once(subject: RedisSubject) -> None:
    """The first settlement wins, also if the second one is plain."""
    backend = subject.backend
    await submit(backend, Item("a", "t", b""), Item("b", "t", b""))
    a, b = await claim(backend)
    settled = await backend.settle([Settlement(lease=a, kind="retry"), success(a), success(b), success(b)])
    assert [outcome.again for outcome in settled.outcomes] == [False, True, False, True]
    states = await backend.get(["a", "b"])
    assert [state and state.status for state in states] == ["ready", "success"]
    assert [ended.id for ended in settled.effects.ended_groups] == ["b"]


async def test_a_fold_refused_in_one_portion_refuses_those_of_the_next(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "PORTION", 2)
    backend = subject.backend
    await submit(backend, Item("root", "t", b""))
    (root,) = await claim(backend)
    children = tuple(Item(f"c{number}", "t", b"") for number in range(4))
    await backend.settle([success(root, None, children=children)])
    leases = await claim(backend)
    folds = [Contribution(b"v", version=version) for version in (1, 0, 0, 0)]
    settled = await backend.settle([success(lease, fold) for lease, fold in zip(leases, folds, strict=True)])
    assert [outcome.verb for outcome in settled.outcomes] == ["moved"] * 4
    settled = await backend.settle([success(leases[0], folds[1])])
    version = next_version(leases[0].token, 0)
    assert [(outcome.verb, outcome.version) for outcome in settled.outcomes] == [("applied", version)]


async def test_more_settlements_than_a_portion_are_answered_in_order(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "PORTION", 3)
    backend = subject.backend
    await submit(backend, *(Item(f"i{number}", "t", b"") for number in range(20)))
    leases = await claim(backend)
    how = [
        success(lease, result=b"%d" % number) if number % 3 else Settlement(lease=lease, kind="defer")
        for number, lease in enumerate(leases)
    ]
    settled = await backend.settle(how)
    assert [outcome.value for outcome in settled.outcomes] == [
        b"%d" % number if number % 3 else None for number in range(20)
    ]
    assert len(settled.effects.ended_groups) == 13
    assert settled.at == await backend.now()


async def calls_of(subject: RedisSubject, settlements: list[Settlement]) -> int:
    """How many commands the scripts of one call send."""
    link = subject.backend._link
    link.__class__ = FailingLink
    link._packed.clear()
    await link.command(b"SET", link.key("fail"), 1_000_000)
    settled = await subject.backend.settle(settlements)
    assert {outcome.verb for outcome in settled.outcomes} == {"applied"}
    left = int(await link.command(b"GET", link.key("fail")))
    await link.command(b"DEL", link.key("fail"))
    return 1_000_000 - left


@pytest.mark.parametrize("count", [1, 10, 300])
async def test_plain_settlements_need_few_commands(subject: RedisSubject, count: int) -> None:
    await submit(subject.backend, *(Item(f"i{number}", "t", b"") for number in range(count)))
    leases = await claim(subject.backend)
    assert await calls_of(subject, [success(lease) for lease in leases]) <= 16


async def test_members_of_a_group_settle_with_few_commands(subject: RedisSubject) -> None:
    """A thousand members end their group in some batches. None of them needs commands of its own."""
    backend = subject.backend
    await submit(backend, Item("root", "t", b""))
    (root,) = await claim(backend)
    children = tuple(Item(f"c{number}", "t", b"") for number in range(200))
    await backend.settle([success(root, None, children=children)])
    leases = await claim(backend)
    assert await calls_of(subject, [success(lease) for lease in leases]) <= 30
