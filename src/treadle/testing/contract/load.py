"""Many calls: random workers at once, and repeated calls on a store with thousands of items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from treadle.backend import Backend
from treadle.item import Demand, Item, Lease, Settlement

from .build import (
    apply,
    beat,
    cancel,
    claim,
    claim_answer,
    connections,
    defer,
    dependent,
    die,
    item,
    items,
    only,
    release,
    retry,
    settle,
    start_one,
    statuses,
    submit,
    succeed,
)
from .check import consistent, everything
from .subject import Subject, needs


class RandomWorker:
    """A worker that settles at random. Sometimes it cancels items, or is removed."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.random = Random(name)
        self.created = 0

    def new_item(self, known: list[str]) -> Item:
        self.created += 1
        after = tuple(self.random.sample(known, min(len(known), self.random.randrange(3))))
        key = f"k{self.random.randrange(5)}" if self.random.random() < 0.2 else None
        labels: dict[str, Any] = {
            "lane": self.random.choice(["", "l", "m"]),
            "queue": self.random.choice("pq"),
        }
        return dependent(
            *after, id=f"{self.name}-{self.created}", counting="done", key=key, attempts=None, **labels
        )

    def decide(self, lease: Lease, known: list[str]) -> Settlement:
        if lease.verdict:
            return die(lease)
        if self.random.random() < 0.2:
            return succeed(lease, *(self.new_item(known) for _ in range(self.random.randrange(4))))
        kinds: list[Callable[[Lease], Settlement]] = [retry, defer, release, die, cancel, succeed]
        return self.random.choice(kinds)(lease)

    async def work_once(self, known: list[str]) -> None:
        await beat(self.backend, self.name)
        claimed = await self.backend.claim(Demand(worker=self.name, limit=self.random.randrange(1, 8)))
        if claimed.leases:
            await settle(self.backend, *(self.decide(lease, known) for lease in claimed.leases))
        if self.random.random() < 0.3:
            await self.backend.cancel(self.random.sample(known, 2))
        if self.random.random() < 0.1:
            await self.backend.remove_worker(self.name)
        known += [lease.id for lease in claimed.leases[:1]]


async def drain(backend: Backend) -> None:
    """Run and settle every item, doomed ones included."""
    for _ in range(500):
        claimed = await claim_answer(backend, 500, "drain")
        if not claimed.leases:
            return
        await settle(backend, *(die(one) if one.verdict else succeed(one) for one in claimed.leases))
    raise AssertionError("items are still claimed after 500 claims")


class LoadCases:
    @needs("listing", "fencing")
    async def test_random_workers_leave_a_consistent_store(self, subject: Subject) -> None:
        """Settlements of all kinds, dependencies, keys, children, cancels and removed workers at once:
        no deadlock, every counter equals its recount, and every item ends."""
        backends = await connections(subject, 4)
        known = [f"seed-{n}" for n in range(40)]
        await submit(subject.backend, *(item(name, attempts=None) for name in known))
        workers = [RandomWorker(backend, f"h{n}") for n, backend in enumerate(backends)]

        async def work(worker: RandomWorker) -> None:
            for _ in range(40):
                await worker.work_once(known)

        await asyncio.gather(*(work(worker) for worker in workers))
        await consistent(subject.backend)
        for worker in workers:
            await subject.backend.remove_worker(worker.name)
        await subject.advance(100)
        await drain(subject.backend)
        await consistent(subject.backend)
        left = {one.status for one in await everything(subject.backend)}
        assert left <= {"success", "dead", "cancelled"}

    async def test_repeated_claims_stay_correct_with_thousands_of_items(self, subject: Subject) -> None:
        """15 claims and settlements: query plans may change, answers may not."""
        backend = subject.backend
        for _ in range(3):
            new = [item(type=f"t{n % 3}", lane=f"l{n % 7}", queue="pq"[n % 2]) for n in range(1000)]
            await submit(backend, *new)
        await submit(backend, *(dependent("never", id=f"b{n}") for n in range(500)), *items(500, delay=1000))
        fairness: object = None
        seen: set[str] = set()
        for n in range(15):
            claimed = await claim_answer(backend, 50, fairness=fairness)
            fairness = claimed.fairness
            fresh = {lease.id for lease in claimed.leases}
            assert len(fresh) == 50
            assert not fresh & seen
            seen |= fresh
            half = claimed.leases[:25]
            children = [item(f"c{n}-{k}") for k in range(25)]
            pairs = zip(half, children, strict=True)
            await apply(backend, *(succeed(lease, child) for lease, child in pairs))
            await apply(backend, *(retry(lease, 1000) for lease in claimed.leases[25:]))
            last = only(await backend.get([claimed.leases[0].id]))
            assert last is not None
            assert last.status == "success"
        await consistent(backend)

    async def test_calls_of_different_sizes_may_alternate(self, backend: Backend) -> None:
        """A statement prepared for one size must work for another."""
        sizes = [1, 100, 1, 7, 500, 2, 300, 1, 1, 50, 1000, 3]
        for size in sizes:
            new = items(size)
            await submit(backend, *new)
            leases = await claim(backend, size)
            assert [lease.id for lease in leases] == [one.id for one in new]
            await apply(backend, *(succeed(lease) for lease in leases))
        await consistent(backend)

    async def test_a_chain_of_a_hundred_children_is_one_group(self, backend: Backend) -> None:
        """Each link queues the next one. The group ends once."""
        lease = await start_one(backend, item("link0"))
        for n in range(1, 100):
            settled = await apply(backend, succeed(lease, item(f"link{n}")))
            assert settled.effects.ended_groups == ()
            lease = only(await claim(backend))
        settled = await apply(backend, succeed(lease))
        assert [closed.id for closed in settled.effects.ended_groups] == ["link0"]
        assert set(await statuses(backend, *(f"link{n}" for n in range(100)))) == {"success"}
        await consistent(backend)
