"""Claim: which items are eligible, and what a lease shows."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from treadle.backend import Backend
from treadle.item import Demand, SharedRoom

from .build import (
    apply,
    beat,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    connections,
    dependent,
    item,
    items,
    near,
    pause,
    state,
    status,
    submit,
    succeed,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs


async def claim_the_rest(backend: Backend) -> None:
    """Claim from an empty queue until no claim has left something for the next one."""
    for _ in range(100):
        claimed = await claim_answer(backend, queues=("empty",))
        if claimed.next_due != 0:
            assert (claimed.leases, claimed.next_due) == ((), None)
            return
    raise AssertionError("every claim asks for another")


class ClaimCases:
    async def test_a_claim_on_an_empty_store_returns_nothing(self, backend: Backend) -> None:
        """There are no leases, and the worker is alive."""
        claimed = await claim_answer(backend)
        assert (claimed.leases, claimed.next_due, claimed.alive) == ((), None, True)

    async def test_a_claim_below_its_limit_leaves_nothing_that_it_could_have_had(
        self, backend: Backend
    ) -> None:
        """That holds for all queues, tenants, lanes, priorities and types. So a worker waits for a wake-up
        after it. A claim that was cut short says so: `next_due` is 0."""
        spread = [
            item(type=f"t{n % 3}", queue=f"q{n % 4}", tenant=f"x{n % 2}", lane=f"l{n % 7}", priority=n % 5)
            for n in range(120)
        ]
        await submit(backend, *spread)
        types = {"t0": 200, "t1": 10, "t9": 200}
        found = Counter[str]()
        for _ in range(20):
            claimed = await claim_answer(backend, 150, types=types)
            found.update(lease.type for lease in claimed.leases)
            if claimed.next_due != 0:
                break
        assert found == {"t0": 40, "t1": 10}
        assert await claim_ids(backend, 150, types={"t0": 200, "t9": 200}) == []
        assert len(await claim_ids(backend, 150, types={"t1": 200, "t2": 200})) == 70

    async def test_a_claimed_item_is_running(self, subject: Subject) -> None:
        """The attempt is counted, and the item shows its worker and since when it runs."""
        await submit(subject.backend, item("a"))
        await subject.advance(100)
        lease = await claim_one(subject.backend, "me")
        found = await state(subject.backend, "a")
        now = await subject.backend.now()
        assert (found.status, found.worker, found.attempt) == ("running", "me", 1)
        assert (found.started_at, lease.claimed_at) == (near(now), near(now))
        assert (lease.queued_at, lease.due_at) == (near(now - 100), near(now - 100))
        await consistent(subject.backend)

    async def test_a_claimed_item_is_not_claimed_again(self, backend: Backend) -> None:
        """Two leases on one item never overlap."""
        await submit(backend, item("a"))
        await claim_one(backend, "w1")
        assert await claim_ids(backend, worker="w1") == []
        assert await claim_ids(backend, worker="w2") == []

    async def test_a_claim_returns_at_most_limit_leases(self, backend: Backend) -> None:
        """The rest waits for the next claim."""
        await submit(backend, *items(5))
        assert [len(await claim(backend, 2)) for _ in range(4)] == [2, 2, 1, 0]

    @needs("order")
    async def test_a_claim_skips_queues_with_only_other_tenants_items(self, backend: Backend) -> None:
        """Such queues use up no share, even with a limit of 1."""
        for n in range(3):
            await submit(backend, item(tenant="x", queue=f"q{n}"), item(tenant="z", queue=f"q{n}"))
        await submit(backend, item("mine", tenant="y", queue="q9"), item("first", tenant="y", queue="q1"))
        assert await claim_ids(backend, 1, tenants=("y", "missing")) == ["first"]
        assert await claim_ids(backend, 1, tenants=("y", "missing")) == ["mine"]
        assert await claim_ids(backend, 1, tenants=("y", "missing")) == []

    @needs("operating", "order")
    async def test_a_claim_skips_queues_and_tenants_that_are_paused_or_avoided(
        self, backend: Backend
    ) -> None:
        """They use up no share, even with a limit of 1."""
        await submit(backend, item(tenant="x", queue="q1"), item(tenant="y", queue="q1", lane="busy"))
        await submit(backend, item(tenant="x", queue="q2"), item("mine", tenant="z", queue="q2"))
        await pause(backend, "q1", tenant="x")
        await pause(backend, "q2", tenant="x")
        assert await claim_ids(backend, 1, avoid={"work": frozenset({("y", "busy")})}) == ["mine"]

    async def test_a_limit_of_zero_returns_only_verdicts(self, backend: Backend) -> None:
        """Doomed items are returned, ready items are not."""
        await submit(backend, item("a"), dependent("x", id="doomed", need=2))
        assert await verdicts(backend) == {"doomed": "unsatisfiable"}
        assert await status(backend, "a") == "ready"

    async def test_a_claim_returns_only_the_demanded_types(self, backend: Backend) -> None:
        """None means every type."""
        await submit(backend, item("a", "mail"), item("b", "sms"), item("c", "fax"))
        assert sorted(await claim_ids(backend, types={"mail": 5, "fax": 5})) == ["a", "c"]
        assert await claim_ids(backend, worker="any") == ["b"]

    async def test_a_claim_respects_the_room_for_each_type(self, backend: Backend) -> None:
        """At most `types[type]` items of each type. A type with 0 is left alone."""
        await submit(backend, *items(5, type="mail"), *items(5, type="sms"), *items(5, type="fax"))
        leases = await claim(backend, types={"mail": 2, "sms": 3, "fax": 0})
        assert sorted(lease.type for lease in leases) == ["mail"] * 2 + ["sms"] * 3

    async def test_a_claim_respects_room_and_limit_together(self, backend: Backend) -> None:
        """Neither may be exceeded."""
        await submit(backend, *items(5, type="mail"), *items(5, type="sms"))
        leases = await claim(backend, 4, types={"mail": 1, "sms": 100})
        assert sorted(lease.type for lease in leases) == ["mail"] + ["sms"] * 3

    async def test_a_claim_respects_the_room_that_types_share(self, backend: Backend) -> None:
        """Together, `mail` and `sms` get no more than their shared room. Others get theirs."""
        shared = (SharedRoom(frozenset({"mail", "sms"}), 4),)
        await submit(backend, *items(5, type="mail"), *items(5, type="sms"), *items(3, type="fax"))
        room = {"mail": 4, "sms": 4, "fax": 9}
        for expected in ((4, 3), (4, 0), (2, 0)):
            types = [lease.type for lease in await claim(backend, types=room, shared=shared)]
            assert (len(types) - types.count("fax"), types.count("fax")) == expected

    @needs("order")
    async def test_shared_room_counts_over_lanes_and_queues(self, backend: Backend) -> None:
        """Items that were parked count as well. The order does not change."""
        shared = (SharedRoom(frozenset({"mail", "sms"}), 3), SharedRoom(frozenset({"fax", "post"}), 2))
        room = {"mail": 3, "sms": 2, "fax": 2, "post": 2, "plain": 9}
        for n in range(24):
            type = ("mail", "sms", "fax", "post")[n % 4]
            await submit(backend, item(type=type, queue=f"q{n % 3}", lane=f"l{n % 5}"))
        await submit(backend, item("plain", "plain", queue="q9"))
        claims = [
            Counter(lease.type for lease in await claim(backend, types=room, shared=shared)) for _ in range(6)
        ]
        assert [each["mail"] + each["sms"] for each in claims] == [3, 3, 3, 3, 0, 0]
        assert [each["fax"] + each["post"] for each in claims] == [2] * 6
        assert [each["plain"] for each in claims] == [1, 0, 0, 0, 0, 0]

    async def test_a_claim_returns_only_the_demanded_queues(self, backend: Backend) -> None:
        """None means every queue."""
        await submit(backend, item("a", queue="x"), item("b", queue="y"), item("c", queue="z"))
        assert sorted(await claim_ids(backend, queues=("x", "z", "empty"))) == ["a", "c"]
        assert await claim_ids(backend) == ["b"]

    async def test_a_claim_returns_only_the_demanded_tenants(self, backend: Backend) -> None:
        """None means every tenant."""
        await submit(backend, item("a", tenant="x"), item("b", tenant="y"), item("c", tenant="z"))
        assert sorted(await claim_ids(backend, tenants=("x", "z"))) == ["a", "c"]
        assert await claim_ids(backend) == ["b"]

    async def test_a_claim_matches_queues_and_tenants_together(self, backend: Backend) -> None:
        """Both must match. An empty list of queues or tenants matches nothing."""
        for tenant in "xy":
            for queue in "pq":
                await submit(backend, item(tenant + queue, tenant=tenant, queue=queue))
        assert await claim_ids(backend, queues=("q",), tenants=("x",)) == ["xq"]
        assert await claim_ids(backend, queues=()) == []
        assert await claim_ids(backend, tenants=()) == []

    async def test_a_claim_returns_each_item_once_if_queues_or_tenants_repeat(self, backend: Backend) -> None:
        """Ready and doomed items alike. None is left, and none is lost."""
        twice: list[dict[str, Any]] = [
            {"queues": ("q", "p", "q")},
            {"tenants": ("x", "y", "x")},
            {"queues": ("q", "q", "p"), "tenants": ("y", "x", "x")},
        ]
        for n, demand in enumerate(twice):
            wanted: list[str] = []
            for tenant, queue in ("xp", "xq", "yp", "yq"):
                ready, doomed = f"{tenant}{queue}{n}", f"doomed-{tenant}{queue}{n}"
                await submit(backend, item(ready, tenant=tenant, queue=queue))
                await submit(backend, dependent("x", id=doomed, need=2, tenant=tenant, queue=queue))
                wanted += [ready, doomed]
            leases = (await claim_answer(backend, 100, **demand)).leases
            assert sorted(lease.id for lease in leases) == sorted(wanted)
            assert (await claim_answer(backend, 100)).leases == ()
        await consistent(backend)

    @needs("order")
    async def test_a_queue_or_tenant_that_a_demand_repeats_gets_no_larger_share(
        self, backend: Backend
    ) -> None:
        """The rotation counts it once."""
        for field in ("queue", "tenant"):
            for name in "pq":
                place: dict[str, Any] = {field: name}
                await submit(backend, *(item(f"{field}-{name}{n}", **place) for n in range(6)))
            demand: dict[str, Any] = {f"{field}s": ("p", "p", "q")}
            found = await claim_ids(backend, 6, **demand)
            assert Counter(id[-2] for id in found) == {"p": 3, "q": 3}
            await claim_ids(backend, 100)

    async def test_the_next_due_item_is_found_if_queues_or_tenants_repeat(self, backend: Backend) -> None:
        """As if each was named once."""
        await submit(backend, item("a", tenant="x", queue="q", delay=50))
        twice: list[dict[str, Any]] = [
            {"queues": ("q", "q")},
            {"tenants": ("x", "x")},
            {"queues": ("q", "q"), "tenants": ("x", "x")},
        ]
        for demand in twice:
            assert (await claim_answer(backend, **demand)).next_due == near(50)

    async def test_concurrent_claims_return_each_item_once(self, subject: Subject) -> None:
        """Eight claimers on four connections: no item is returned twice and none is left."""
        backends = await connections(subject, 4)
        await submit(subject.backend, *items(200))
        await asyncio.gather(*(beat(subject.backend, f"w{n}") for n in range(8)))
        seen: list[str] = []

        async def drain(n: int) -> None:
            backend = backends[n % 4]
            while leases := (await backend.claim(Demand(worker=f"w{n}", limit=7))).leases:
                seen.extend(lease.id for lease in leases)
                await apply(backend, *(succeed(lease) for lease in leases))

        await asyncio.gather(*(drain(n) for n in range(8)))
        assert await claim_ids(subject.backend, 500) == []
        assert len(seen) == len(set(seen)) == 200
        await consistent(subject.backend)

    async def test_thousands_of_items_that_are_due_at_once_are_all_claimed(self, subject: Subject) -> None:
        """They become ready in bounded portions. The next claims find the rest."""
        await submit(subject.backend, *items(1500, delay=50), *items(1500, delay=60))
        await subject.advance(100)
        seen: set[str] = set()
        for _ in range(30):
            leases = await claim(subject.backend, 1000)
            seen |= {lease.id for lease in leases}
            await apply(subject.backend, *(succeed(lease) for lease in leases))
        assert len(seen) == 3000
        await consistent(subject.backend)

    @needs("listing")
    async def test_a_claim_that_leaves_due_items_for_the_next_one_says_so(self, subject: Subject) -> None:
        """`next_due` is 0 until all are ready, also those of queues that are not demanded."""
        await submit(subject.backend, *items(1100, delay=50))
        await subject.advance(100)
        await claim_the_rest(subject.backend)
        assert {count.status: count.count for count in await subject.backend.counts()} == {"ready": 1100}

    @needs("listing")
    async def test_a_claim_that_leaves_lapsed_workers_for_the_next_one_says_so(
        self, subject: Subject
    ) -> None:
        """`next_due` is 0 until all that they held is free."""
        await submit(subject.backend, *items(1100))
        assert len(await claim(subject.backend, 1000, "w1", lease=50)) == 1000
        assert len(await claim(subject.backend, 1000, "w2", lease=50)) == 100
        await subject.advance(60)
        await claim_the_rest(subject.backend)
        assert "running" not in {count.status for count in await subject.backend.counts()}

    async def test_a_worker_without_a_heartbeat_gets_nothing(self, backend: Backend) -> None:
        """It is not alive, so the claim returns no leases."""
        await submit(backend, item("a"))
        claimed = await backend.claim(Demand(worker="unknown", limit=10))
        assert (claimed.alive, claimed.leases) == (False, ())
        assert await status(backend, "a") == "ready"

    async def test_a_worker_with_a_lapsed_lease_gets_nothing(self, subject: Subject) -> None:
        """It gets no verdicts either. Its next heartbeat makes it alive again."""
        await beat(subject.backend, "w1", lease=50)
        await submit(subject.backend, item("a"), dependent("x", id="doomed", need=2))
        await subject.advance(60)
        claimed = await subject.backend.claim(Demand(worker="w1", limit=10))
        assert (claimed.alive, claimed.leases) == (False, ())
        assert (await claim_answer(subject.backend, worker="w1")).alive
