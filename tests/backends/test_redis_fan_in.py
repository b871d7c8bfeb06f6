"""Fan-out and fan-in on Redis: the short ways do what the others do, and need few commands."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from tests.backends.redis_failures import FailingLink, failing
from tests.backends.redis_store import RedisSubject, take_short_ways
from treadle.backends.redis import RedisBackend, settle, stage
from treadle.backends.redis.link import RedisLink
from treadle.item import Contribution, Demand, ErrorInfo, Heartbeat, Item, Lease, Settlement, Submission
from treadle.store.rules.settlement import next_version

OWN_RESULT = Contribution()

PLAIN: dict[str, dict[str, Any]] = {
    "a": {},
    "b": {},
    "c-with-a-longer-id": {},
    "silent": {"contributes": False},
    "flow": {"workflow": "w", "workflow_type": "f"},
    "short": {"keep": 5.0, "keep_dead": 2.0},
    "lane": {"lane": "l", "priority": 3},
}
OTHERS: dict[str, dict[str, Any]] = {
    "keyed": {"key": "k"},
    "expiring": {"expires_in": 1000.0},
    "join": {"after": ("a", "b", "silent"), "need": 3},
    "first": {"after": ("b", "c-with-a-longer-id", "short"), "need": 1},
    "twice": {"after": ("a", "b", "a"), "need": 3},
    "done": {"after": ("a", "flow"), "need": 2, "counting": "done"},
    "late": {"after": ("lane",), "need": 1, "delay": 60.0},
    "chain": {"after": ("join", "first"), "need": 2},
    "own": {"after": ("root", "missing"), "need": 1},
    "none": {"after": ("missing", "a"), "need": 2},
}


@pytest.fixture
async def subject(valkey_url: str) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    await subject.stand_still()
    yield subject
    assert subject.audit() == []
    await subject.close()


async def claim(backend: RedisBackend) -> list[Lease]:
    await backend.beat(Heartbeat(worker="w", lease=1e6))
    return list((await backend.claim(Demand(worker="w", limit=5000))).leases)


def success(lease: Lease, contribution: Contribution | None = OWN_RESULT, **fields: Any) -> Settlement:
    return Settlement(
        lease=lease, kind="success", **{"result": b"r", "contribution": contribution, "ran": 3.0} | fields
    )


def named(items: dict[str, dict[str, Any]], prefix: str = "") -> tuple[Item, ...]:
    def renamed(fields: dict[str, Any]) -> dict[str, Any]:
        after = tuple(prefix + name for name in fields.get("after", ()))
        key = {"key": prefix + fields["key"]} if "key" in fields else {}
        return fields | ({"after": after} if after else {}) | key

    return tuple(Item(prefix + name, "t", b"i", **renamed(fields)) for name, fields in items.items())


async def fanned_out(backend: RedisBackend) -> list[Lease]:
    """The leases of the children of two roots, of two tenants, in turn. One of them was tried before."""
    roots = (Item("root", "t", b""), Item("x-root", "t", b"", tenant="acme"))
    await backend.submit([Submission((root,)) for root in roots])
    for lease in await claim(backend):
        prefix = lease.id.removesuffix("root")
        children = (*named(PLAIN, prefix), *named(OTHERS, prefix))
        (outcome,) = (await backend.settle([success(lease, None, children=children)])).outcomes
        assert outcome.verb == "applied"
    leases = {lease.id: lease for lease in await claim(backend)}
    await backend.settle([Settlement(lease=leases["b"], kind="retry", failure=ErrorInfo("E", "m", "t"))])
    leases |= {lease.id: lease for lease in await claim(backend)}
    return [leases[name] for name in sorted(leases)]


async def all_of(backend: RedisBackend, *calls: Sequence[Settlement]) -> Any:
    """Settle each twice, run what is ready then, and return all that can be seen."""
    seen: list[Any] = []
    for settlements in calls:
        for _ in range(2):
            settled = await backend.settle(settlements)
            seen.append((settled.outcomes, settled.effects))
    while leases := await claim(backend):
        seen.append(
            [(lease.id, lease.group_id, lease.parent, lease.after, lease.workflow) for lease in leases]
        )
        settled = await backend.settle([success(lease) for lease in leases])
        seen.append((settled.outcomes, settled.effects))
    for tenant, prefix in (("default", ""), ("acme", "x-")):
        names = [prefix + name for name in ("root", *PLAIN, *OTHERS)]
        seen.append([state and asdict(state) for state in await backend.get(names, tenant=tenant)])
        seen.append([group and asdict(group) for group in await backend.group(names, tenant=tenant)])
    counts = await backend.counts(ended=True)
    seen.append(sorted((each.tenant, each.type, each.status, each.count) for each in counts))
    return seen


@contextmanager
def counted_members() -> Generator[list[int]]:
    """How many settlements each call of settle_members.lua has applied."""
    found: list[int] = []
    run = RedisLink.run

    async def counted(link: RedisLink, script: Any, args: Any = (), **how: Any) -> Any:
        answer = await run(link, script, args, **how)
        if script.name == "settle_members":
            applied = len(answer[2]) - answer[2].count(b"n")
            found.extend([applied] if applied else [])
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RedisLink, "run", counted)
        yield found


CONTRIBUTIONS: dict[str, tuple[Contribution | None, ...]] = {
    "none": (None,),
    "own": (OWN_RESULT,),
    "values": (Contribution(b"v"), Contribution(b""), OWN_RESULT),
    "final": (Contribution(b"last", final=True), Contribution(b"w"), None),
}
"""Of the items that settle_members.lua does not take, which are settled first, and of the others."""


@pytest.mark.parametrize("contributions", CONTRIBUTIONS)
@pytest.mark.parametrize("result", [None, b"r"])
async def test_members_and_children_do_what_the_others_do(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch, contributions: str, result: bytes | None
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)  # the same tokens, and so the same versions
    found: list[Any] = []
    begin = 0.0
    for is_short in (True, False):
        take_short_ways(monkeypatch, is_short=is_short)
        subject = RedisSubject(valkey_url)
        await subject.backend.open()
        await subject.stand_still()
        begin = begin or await subject.backend.now()
        await subject.advance(begin - await subject.backend.now())
        leases = await fanned_out(subject.backend)
        before, *others = CONTRIBUTIONS[contributions]
        values = others or [before]
        special = [lease for lease in leases if lease.after or lease.deadline]
        rest = [lease for lease in leases if lease not in special]
        first = [success(lease, before, result=result) for lease in special]
        second = [
            success(lease, values[number % len(values)], result=result) for number, lease in enumerate(rest)
        ]
        with counted_members() as members:
            found.append(await all_of(subject.backend, first, second))
        assert bool(members) == is_short
        assert subject.audit() == []
        await subject.close()
    assert found[0] == found[1]


async def test_a_member_that_is_put_off_contributes_before_those_after_it(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that does not own its item any more, and one that settled it before, change nothing."""
    monkeypatch.setattr(settle, "MEMBERS", 1)
    backend = subject.backend
    await backend.submit([Submission((Item("root", "t", b""),))])
    (root,) = await claim(backend)
    await backend.settle([success(root, None, children=tuple(Item(f"c{n}", "t", b"") for n in range(6)))])
    leases = await claim(backend)
    await backend.settle([success(leases[1], Contribution(b"first"))])
    lost = replace(leases[2], token=leases[2].token + 1)
    values = [Contribution(b"%d" % number) for number in range(6)]
    tried = [leases[0], leases[1], lost, *leases[3:]]
    settled = await backend.settle([success(*each) for each in zip(tried, values, strict=True)])
    verbs = [(outcome.verb, outcome.again, outcome.version) for outcome in settled.outcomes]
    applied = [("applied", False, next_version(leases[n].token, None)) for n in (0, 3, 4, 5)]
    assert verbs == [applied[0], ("applied", True, 0), ("stale", False, 0), *applied[1:]]
    (group,) = await backend.group(["root"])
    assert group is not None
    assert (group.open, group.version, group.value) == (1, applied[-1][2], b"5")


async def test_ids_that_exist_refuse_children_with_a_join(subject: RedisSubject) -> None:
    backend = subject.backend
    await backend.submit([Submission((Item("root", "t", b""),)), Submission((Item("c7", "t", b""),))])
    leases = {lease.id: lease for lease in await claim(backend)}
    children = tuple(Item(f"c{number}", "t", b"") for number in range(40))
    join = Item("join", "t", b"", after=tuple(child.id for child in children), need=40)
    settled = await backend.settle([success(leases["root"], None, children=(*children, join))])
    (outcome,) = settled.outcomes
    assert outcome.rejected is not None
    assert (outcome.rejected.why, outcome.rejected.ids) == ("duplicate_id", ("c7",))


async def test_a_command_that_fails_leaves_nothing_half_done(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of a fan-in fails once, in the short ways."""
    take_short_ways(monkeypatch)
    with failing(subject) as backend:
        await backend.submit([Submission((Item("root", "t", b""),))])
        await backend.beat(Heartbeat(worker="w", lease=1e6))
        demand = Demand(worker="w", limit=10)
        (root,) = (await backend.claim(demand)).leases
        children = tuple(Item(f"c{number}", "t", b"") for number in range(3))
        join = Item("join", "t", b"", after=("c0", "c1", "c2"), need=3)
        await backend.settle([success(root, None, children=(*children, join))])
        leases = (await backend.claim(demand)).leases
        with counted_members() as members:
            await backend.settle([success(lease) for lease in leases])
        assert members[-1] == 3
        await backend.settle([success(lease) for lease in (await backend.claim(demand)).leases])
        assert backend.failures > 80
    (group,) = await subject.backend.group(["root"])
    assert group is not None
    assert (group.open, group.contributed) == (0, True)


async def calls_of(subject: RedisSubject, settlements: Sequence[Settlement]) -> int:
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


@pytest.mark.parametrize("most_at_once", [1000, 60])
async def test_a_fan_in_needs_few_commands(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch, most_at_once: int
) -> None:
    """Children that are stored in one call, and in a stage."""
    monkeypatch.setattr(stage, "MOST_AT_ONCE", most_at_once)
    backend = subject.backend
    await backend.submit([Submission((Item("root", "t", b""),))])
    (root,) = await claim(backend)
    children = tuple(Item(f"c{number:03}", "t", b"") for number in range(200))
    join = Item("join", "t", b"", after=tuple(child.id for child in children), need=200)
    assert await calls_of(subject, [success(root, None, children=(*children, join))]) <= 120
    leases = await claim(backend)
    assert await calls_of(subject, [success(lease) for lease in leases]) <= 40
    (lease,) = await claim(backend)
    assert lease.after == join.after
    assert await calls_of(subject, [success(lease)]) <= 40
    (group,) = await backend.group(["root"])
    assert group is not None
    assert (group.open, group.version) == (0, next_version(lease.token, None))


async def test_an_item_that_is_ready_at_once_still_names_what_it_waits_for(subject: RedisSubject) -> None:
    """It has a gate although nothing, or little, is stored of its state."""
    backend = subject.backend
    await backend.submit([Submission((Item("a", "t", b"", after=("missing",), need=0),))])
    for status in ("ready", "running"):
        (state,) = await backend.get(["a"])
        assert state is not None
        assert (state.status, state.waiting_for) == (status, ("missing",))
        leases = await claim(backend)
    assert leases == []
