"""Claims of a Redis backend hand out the same items as those of a memory backend, in the same order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import asdict

from tests.backends.redis_store import RedisSubject
from treadle.backends.memory import MemoryBackend
from treadle.item import (
    AvoidedLane,
    Claim,
    Demand,
    ErrorInfo,
    Heartbeat,
    Item,
    Lease,
    Settlement,
    SharedRoom,
    Submission,
)
from treadle.testing import ManualClock

TYPES = ("a", "b", "c")
LANES = ("", "l1", "l2", "l3", "l4")
WORKERS = ("w1", "w2", "w3")
STORE_FIELDS = {"token", "ref"}
"""Those that each store fills as it likes."""


class ClaimWalk:
    """The same random calls of both.

    lines: whether there are several queues, tenants and lanes. types: whether there are several types.

    With both, items leave their lines only when they are claimed: how the turn of a line changes that loses
    all items of one type is open. With several lines no delays are used, and nothing is avoided or parked,
    which moves lines of the memory backend. Pauses are left out: see the contract.
    """

    def __init__(self, seed: int, subject: RedisSubject, *, lines: bool, types: bool) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.memory = MemoryBackend(self.clock)
        self.subject = subject
        self.lines, self.types = lines, types
        self.count = 0
        self.leases: list[tuple[Lease, Lease]] = []
        self.verbs = [*[self.submit] * 4, *[self.claim] * 6, *[self.settle] * 4]
        self.verbs += [self.remove_worker, self.pass_time]
        self.leaves = not (lines and types)
        """Whether items may leave their lines without being claimed."""
        if self.leaves:
            self.verbs.append(self.cancel)

    async def start(self) -> None:
        await self.memory.open()
        for worker in WORKERS:
            await self.both("beat", Heartbeat(worker=worker, lease=1e6))

    async def both(self, verb: str, *args: Any, **options: Any) -> tuple[Any, Any]:
        await self.set_clock()
        one = await getattr(self.memory, verb)(*args, **options)
        return one, await getattr(self.subject.backend, verb)(*args, **options)

    async def set_clock(self) -> None:
        link = self.subject.backend._link
        await link.command(b"SET", link.key("shift"), f"={self.clock.now()!r}")

    async def step(self) -> str:
        await self.clock.advance(2**-10)  # no two calls at one instant
        verb = self.random.choice(self.verbs)
        await verb()
        return verb.__name__

    # -- verbs ---------------------------------------------------------------------------------------------

    async def submit(self) -> None:
        submissions = [Submission((self.item(),)) for _ in range(self.random.choice((1, 1, 3, 20)))]
        await self.both("submit", submissions)

    def item(self) -> Item:
        self.count += 1
        pick, roll = self.random.choice, self.random.random
        return Item(
            f"i{self.count}",
            pick(TYPES) if self.types else "a",
            b"input",
            tenant=pick(("default", "acme")) if self.lines else "default",
            queue=pick(("default", "bulk", "slow")) if self.lines else "default",
            lane=pick(LANES) if self.lines else "",
            priority=pick((0, 0, 0, 5, -5)),
            delay=0.0 if self.lines else pick((0.0, 0.0, 0.0, 5.0)),
            expires_in=pick((1.0, 30.0)) if self.leaves and roll() < 0.1 else None,
            workflow="flow" if roll() < 0.2 else None,
        )

    async def claim(self) -> None:
        pick, roll = self.random.choice, self.random.random
        types: dict[str, int] | None = None
        if self.leaves and roll() < 0.7:
            types = {type: self.random.randint(0, 9) for type in (TYPES if self.types else "a")}
        shared = (SharedRoom(frozenset("ab"), 4),) if types and self.types and roll() < 0.3 else ()
        demand = Demand(
            worker=pick(WORKERS),
            limit=pick((0, 1, 2, 7, 30)),
            types=types,
            shared=shared,
            queues=None if roll() < 0.7 else pick((("bulk",), ("slow", "default"), ("none",))),
            tenants=None if roll() < 0.7 else (pick(("default", "acme")),),
            buffered=frozenset("b") if roll() < 0.3 else frozenset(),
            avoid=self.avoided() if not self.lines and roll() < 0.3 else {},
            strict=frozenset("a") if not self.lines and roll() < 0.3 else frozenset(),
        )
        one, other = await self.both("claim", demand)
        self.compare(one, other, demand)

    def avoided(self) -> dict[str, frozenset[AvoidedLane]]:
        lanes: list[AvoidedLane] = [("default", "l1"), ("acme", None), ("acme", "l2"), ("default", "")]
        return {"a": frozenset(self.random.sample(lanes, 2))}

    def compare(self, one: Claim, other: Claim, demand: Demand) -> None:
        assert (one.alive, one.next_due) == (other.alive, pytest.approx(other.next_due)), demand
        leases, others = _in_order(one), _in_order(other)
        assert [lease.id for lease in leases] == [lease.id for lease in others], demand
        for pair in zip(leases, others, strict=True):
            fields, found = (
                {k: v for k, v in asdict(each).items() if k not in STORE_FIELDS} for each in pair
            )
            assert fields == found, demand
            self.leases.append(pair)

    async def settle(self) -> None:
        self.random.shuffle(self.leases)
        some, self.leases = self.leases[:5], self.leases[5:]
        for pair in some:
            await self.clock.advance(2**-10)
            await self.set_clock()
            verdict = pair[0].verdict
            kind: Any = "dead" if verdict else self.random.choice(("success", "retry", "defer", "release"))
            delay = 0.0 if self.lines else self.random.choice((0.0, 5.0))
            for store, lease in zip((self.memory, self.subject.backend), pair, strict=True):
                settlement = Settlement(
                    lease=lease, kind=kind, reason=verdict, delay=delay, failure=ErrorInfo("Oops", "no")
                )
                await store.settle([settlement])

    async def remove_worker(self) -> None:
        worker = self.random.choice(WORKERS)
        await self.both("remove_worker", worker)
        await self.both("beat", Heartbeat(worker=worker, lease=1e6))

    async def pass_time(self) -> None:
        await self.clock.advance(self.random.choice((0.5, 3.0, 10.0)))

    async def cancel(self) -> None:
        await self.both("cancel", [f"i{self.random.randint(1, self.count + 1)}"])


def _in_order(claim: Claim) -> list[Lease]:
    """Doomed items are handed out in any order."""
    doomed = sorted((lease for lease in claim.leases if lease.verdict), key=lambda lease: lease.id)
    return [*doomed, *(lease for lease in claim.leases if not lease.verdict)]


PORTION = 75
"""How many due items, and how many expired ones, a claim of Redis processes: see due.lua."""


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(60))
async def test_claims_are_the_same_as_in_memory(
    seed: int, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With portions of one size: what is left for the next claim is the same too, and both ask for it."""
    monkeypatch.setattr("treadle.backends.memory.claim.PORTION", PORTION)
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    walk = ClaimWalk(seed, subject, lines=seed % 3 > 0, types=seed % 3 < 2)
    await walk.start()
    for _ in range(150):
        await walk.step()
    assert subject.audit() == []
    await subject.close()


async def test_an_item_of_an_unknown_type_that_was_due_for_long_is_doomed_at_once(valkey_url: str) -> None:
    """The claim that makes it ready leases it with its verdict, as that of a memory backend does."""
    clock, subject = ManualClock(), RedisSubject(valkey_url)
    memory = MemoryBackend(clock)
    await memory.open()
    await subject.backend.open()
    await subject.stand_still()
    found: list[list[tuple[str, str | None]]] = []
    for backend in (memory, subject.backend):
        await backend.beat(Heartbeat(worker="w", lease=1000.0, types=("a",)))
        await backend.submit([Submission((Item("i1", "other", b"", delay=5.0),))])
    clock.advance(20.0)
    await subject.advance(20.0)
    for backend in (memory, subject.backend):
        claim = await backend.claim(Demand(worker="w", limit=1, types={"a": 1}, unknown_grace=10.0))
        found.append([(lease.id, lease.verdict) for lease in claim.leases])
    await subject.close()
    assert found == [[("i1", "unknown_type")]] * 2
