"""Claiming: who is eligible, what a lease says, verdicts, pauses."""

from __future__ import annotations

import asyncio

from treadle.backend import Backend
from treadle.item import Demand

from .build import (
    apply,
    ask,
    beat,
    claim,
    claim_ids,
    claim_one,
    connections,
    defer,
    gate,
    item,
    items,
    near,
    retry,
    start,
    start_one,
    state,
    status,
    submit,
    succeed,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs


class ClaimCases:
    async def test_an_empty_store_has_nothing(self, backend: Backend) -> None:
        """No items, no leases; the worker is alive."""
        claimed = await ask(backend)
        assert (claimed.leases, claimed.next_due, claimed.alive) == ((), None, True)

    async def test_a_claim_makes_it_running(self, subject: Subject) -> None:
        """The attempt is counted here, and the item says who runs it since when."""
        await submit(subject.backend, item("a"))
        await subject.advance(100)
        lease = await claim_one(subject.backend, "me")
        found = await state(subject.backend, "a")
        now = await subject.backend.now()
        assert (found.status, found.worker, found.attempt) == ("running", "me", 1)
        assert (found.started_at, lease.claimed_at) == (near(now), near(now))
        assert (lease.queued_at, lease.due_at) == (near(now - 100), near(now - 100))
        await consistent(subject.backend)

    async def test_what_is_claimed_is_not_claimed_again(self, backend: Backend) -> None:
        """Two leases on one item never overlap."""
        await submit(backend, item("a"))
        await claim_one(backend, "w1")
        assert await claim_ids(backend, worker="w1") == []
        assert await claim_ids(backend, worker="w2") == []

    async def test_no_more_than_the_limit(self, backend: Backend) -> None:
        """`limit` in all; the rest waits."""
        await submit(backend, *items(5))
        assert [len(await claim(backend, 2)) for _ in range(4)] == [2, 2, 1, 0]

    @needs("order")
    async def test_what_is_not_for_it_takes_no_turn(self, backend: Backend) -> None:
        """However small the limit: queues in which only other tenants' items wait are passed over."""
        for n in range(3):
            await submit(backend, item(tenant="x", queue=f"q{n}"), item(tenant="z", queue=f"q{n}"))
        await submit(backend, item("mine", tenant="y", queue="q9"), item("first", tenant="y", queue="q1"))
        assert await claim_ids(backend, 1, tenants=("y", "nobody")) == ["first"]
        assert await claim_ids(backend, 1, tenants=("y", "nobody")) == ["mine"]
        assert await claim_ids(backend, 1, tenants=("y", "nobody")) == []

    @needs("operating", "order")
    async def test_what_is_held_takes_no_turn(self, backend: Backend) -> None:
        """Nor do queues and tenants of which everything is paused, or in lanes to avoid."""
        await submit(backend, item(tenant="x", queue="q1"), item(tenant="y", queue="q1", lane="busy"))
        await submit(backend, item(tenant="x", queue="q2"), item("mine", tenant="z", queue="q2"))
        await backend.pause("q1", tenant="x")
        await backend.pause("q2", tenant="x")
        assert await claim_ids(backend, 1, avoid=frozenset({("y", "busy")})) == ["mine"]

    async def test_a_limit_of_zero_asks_for_verdicts_only(self, backend: Backend) -> None:
        """Nothing to run is handed out, what is doomed is."""
        await submit(backend, item("a"), gate("x", id="doomed", need=2))
        assert await verdicts(backend) == {"doomed": "unsatisfiable"}
        assert await status(backend, "a") == "ready"

    async def test_only_the_demanded_types(self, backend: Backend) -> None:
        """Types that are not listed are not handed out; None means every type."""
        await submit(backend, item("a", "mail"), item("b", "sms"), item("c", "fax"))
        assert sorted(await claim_ids(backend, types={"mail": 5, "fax": 5})) == ["a", "c"]
        assert await claim_ids(backend, worker="any") == ["b"]

    async def test_no_more_than_there_is_room_for(self, backend: Backend) -> None:
        """No more than `types[type]` of each type; a type with 0 is left alone."""
        await submit(backend, *items(5, type="mail"), *items(5, type="sms"), *items(5, type="fax"))
        leases = await claim(backend, types={"mail": 2, "sms": 3, "fax": 0})
        assert sorted(lease.type for lease in leases) == ["mail"] * 2 + ["sms"] * 3

    async def test_room_and_limit_together(self, backend: Backend) -> None:
        """Room for one type is not filled at the expense of `limit`, nor the other way round."""
        await submit(backend, *items(5, type="mail"), *items(5, type="sms"))
        leases = await claim(backend, 4, types={"mail": 1, "sms": 100})
        assert sorted(lease.type for lease in leases) == ["mail"] + ["sms"] * 3

    async def test_only_the_demanded_queues(self, backend: Backend) -> None:
        """None means every queue."""
        await submit(backend, item("a", queue="x"), item("b", queue="y"), item("c", queue="z"))
        assert sorted(await claim_ids(backend, queues=("x", "z", "empty"))) == ["a", "c"]
        assert await claim_ids(backend) == ["b"]

    async def test_only_the_demanded_tenants(self, backend: Backend) -> None:
        """None means every tenant."""
        await submit(backend, item("a", tenant="x"), item("b", tenant="y"), item("c", tenant="z"))
        assert sorted(await claim_ids(backend, tenants=("x", "z"))) == ["a", "c"]
        assert await claim_ids(backend) == ["b"]

    async def test_queues_and_tenants_together(self, backend: Backend) -> None:
        """Everything demanded must hold; nothing demanded, nothing given."""
        for tenant in "xy":
            for queue in "pq":
                await submit(backend, item(tenant + queue, tenant=tenant, queue=queue))
        assert await claim_ids(backend, queues=("q",), tenants=("x",)) == ["xq"]
        assert await claim_ids(backend, queues=()) == []
        assert await claim_ids(backend, tenants=()) == []

    async def test_lanes_to_avoid_are_left_alone(self, backend: Backend) -> None:
        """A lane is a tenant's: the same name elsewhere is served."""
        for tenant in ("x", "y"):
            await submit(backend, item(tenant + "1", tenant=tenant, lane="l"), item(tenant, tenant=tenant))
        avoided = await claim_ids(backend, avoid=frozenset({("x", "l")}))
        assert sorted(avoided) == ["x", "y", "y1"]
        assert await claim_ids(backend) == ["x1"]

    async def test_the_lane_without_a_name_can_be_avoided(self, backend: Backend) -> None:
        """The empty lane is a lane."""
        await submit(backend, item("a"), item("b", lane="l"))
        assert await claim_ids(backend, avoid=frozenset({("default", "")})) == ["b"]

    async def test_concurrent_claims_are_distinct(self, subject: Subject) -> None:
        """Eight claimers on four connections: each item is handed out once, none is left."""
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

    async def test_thousands_become_due_at_once(self, subject: Subject) -> None:
        """In bounded portions, and all of them soon: what is left over is done by the next claims."""
        await submit(subject.backend, *items(1500, delay=50), *items(1500, delay=60))
        await subject.advance(100)
        seen: set[str] = set()
        for _ in range(30):
            leases = await claim(subject.backend, 1000)
            seen |= {lease.id for lease in leases}
            await apply(subject.backend, *(succeed(lease) for lease in leases))
        assert len(seen) == 3000
        await consistent(subject.backend)

    async def test_an_unknown_worker_gets_nothing(self, backend: Backend) -> None:
        """It never beat: not alive, nothing claimed."""
        await submit(backend, item("a"))
        claimed = await backend.claim(Demand(worker="stranger", limit=10))
        assert (claimed.alive, claimed.leases) == (False, ())
        assert await status(backend, "a") == "ready"

    async def test_a_lapsed_worker_gets_nothing(self, subject: Subject) -> None:
        """A worker without a live lease of its own gets nothing, verdicts neither."""
        await beat(subject.backend, "w1", lease=50)
        await submit(subject.backend, item("a"), gate("x", id="doomed", need=2))
        await subject.advance(60)
        claimed = await subject.backend.claim(Demand(worker="w1", limit=10))
        assert (claimed.alive, claimed.leases) == (False, ())
        assert (await ask(subject.backend, worker="w1")).alive


class PauseCases:
    @needs("operating")
    async def test_a_paused_queue_is_held_back(self, backend: Backend) -> None:
        """What runs goes on; other queues go on; resuming lets go."""
        running = await start_one(backend, item("running", queue="bulk"))
        await submit(backend, item("a", queue="bulk"), item("b"))
        await backend.pause("bulk")
        assert await claim_ids(backend) == ["b"]
        await apply(backend, succeed(running))
        await submit(backend, item("c", queue="bulk"))
        assert await claim_ids(backend) == []
        await backend.pause("bulk", False)
        assert await claim_ids(backend) == ["a", "c"]
        await consistent(backend)

    @needs("operating")
    async def test_a_queue_is_paused_for_one_tenant(self, backend: Backend) -> None:
        """The others' items of that queue go on."""
        await submit(backend, item("a", tenant="x"), item("b", tenant="y"))
        await backend.pause("default", tenant="x")
        assert await claim_ids(backend) == ["b"]
        await backend.pause("default", False, tenant="x")
        assert await claim_ids(backend) == ["a"]

    @needs("operating")
    async def test_both_kinds_of_pause_add_up(self, backend: Backend) -> None:
        """An item is held while either holds."""
        await submit(backend, item("a", tenant="x"))
        await backend.pause("default")
        await backend.pause("default", tenant="x")
        await backend.pause("default", False)
        assert await claim_ids(backend) == []
        await backend.pause("default")
        await backend.pause("default", False, tenant="x")
        assert await claim_ids(backend) == []
        await backend.pause("default", False)
        assert await claim_ids(backend) == ["a"]

    @needs("operating")
    async def test_pauses_are_listed(self, backend: Backend) -> None:
        """(queue, tenant or None for all); pausing is idempotent, also of what does not exist."""
        assert list(await backend.paused()) == []
        for _ in range(2):
            await backend.pause("bulk")
            await backend.pause("bulk", tenant="x")
        assert set(await backend.paused()) == {("bulk", None), ("bulk", "x")}
        assert len(await backend.paused()) == 2
        await backend.pause("bulk", False)
        await backend.pause("other", False)
        assert list(await backend.paused()) == [("bulk", "x")]

    @needs("operating")
    async def test_a_pause_does_not_hold_the_doomed(self, backend: Backend) -> None:
        """They only end."""
        await submit(backend, gate("x", id="a", need=2))
        await backend.pause("default")
        assert await verdicts(backend) == {"a": "unsatisfiable"}

    @needs("operating")
    async def test_a_paused_queue_does_not_stand_in_the_way(self, backend: Backend) -> None:
        """Neither its depth nor its turns."""
        await submit(backend, *items(50, queue="bulk", priority=9), item("a", queue="z"))
        await backend.pause("bulk")
        assert await claim_ids(backend, 1) == ["a"]

    @needs("operating")
    async def test_what_comes_back_to_a_paused_queue_is_held(self, subject: Subject) -> None:
        """Retried, deferred, released, freed: all wait for the pause to end."""
        first, second = await start(subject.backend, item("a"), item("b"))
        await start_one(subject.backend, item("c"), "w1")
        await subject.backend.pause("default")
        await apply(subject.backend, retry(first), defer(second, 50))
        await subject.backend.remove_worker("w1")
        await subject.advance(60)
        assert await claim_ids(subject.backend) == []
        await subject.backend.pause("default", False)
        assert sorted(await claim_ids(subject.backend)) == ["a", "b", "c"]
