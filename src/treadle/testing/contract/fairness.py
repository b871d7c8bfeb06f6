"""Fairness: priority and age within a lane; queues, tenants and lanes are served in rotation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Lease

from .build import (
    claim,
    claim_answer,
    claim_ids,
    item,
    items,
    submit,
)
from .check import consistent
from .subject import needs


async def submit_under_each(backend: Backend, count: int, *labels: dict[str, Any]) -> None:
    """Submit `count` items with each of these labels, label by label: the worst order for fairness."""
    for fields in labels:
        await submit(backend, *items(count, **fields))


async def claim_in_sequence(backend: Backend, sizes: Sequence[int], **demand: Any) -> list[Lease]:
    """Claim with each of these limits, passing `fairness` on. Return all leases in order."""
    leases: list[Lease] = []
    fairness: object = None
    for size in sizes:
        claimed = await claim_answer(backend, size, fairness=fairness, **demand)
        assert len(claimed.leases) <= size
        leases += claimed.leases
        fairness = claimed.fairness
    return leases


def served_fairly(served: Sequence[object], among: int) -> bool:
    """Whether `among` parties were served in rotation: in each round, none is served twice."""
    rounds = [served[begin : begin + among] for begin in range(0, len(served), among)]
    return all(len(set(one)) == len(one) for one in rounds)


levels = pytest.mark.parametrize("level", ["queue", "tenant", "lane"])


class ClaimOrderCases:
    @needs("order")
    async def test_higher_priority_is_claimed_first(self, backend: Backend) -> None:
        """Within a lane: higher priority first, then the item that became ready first."""
        for name, priority in [("a", 0), ("b", 5), ("c", -5), ("d", 5), ("e", 0)]:
            await submit(backend, item(name, priority=priority))
        assert await claim_ids(backend) == ["b", "d", "a", "e", "c"]

    @needs("order")
    async def test_an_urgent_item_overtakes_its_lane(self, backend: Backend) -> None:
        """A priority-100 item behind 100 others of its lane is claimed first."""
        await submit(backend, *items(100))
        await submit(backend, item("urgent", priority=100))
        assert await claim_ids(backend, 1) == ["urgent"]

    async def test_equal_priorities_are_claimed_by_age(self, backend: Backend) -> None:
        """Within a submission and across submissions."""
        names = [f"i{n}" for n in range(30)]
        await submit(backend, *(item(name) for name in names[:10]))
        for name in names[10:20]:
            await submit(backend, item(name))
        await submit(backend, *(item(name) for name in names[20:]))
        assert await claim_ids(backend, 7) + await claim_ids(backend) == names

    @needs("order")
    async def test_priority_does_not_cross_lanes(self, backend: Backend) -> None:
        """Priority decides within a lane. Lanes are served in rotation, regardless of priority."""
        await submit_under_each(
            backend, 5, {"lane": "urgent", "priority": 100}, {"lane": "calm", "priority": -100}
        )
        leases = await claim(backend, 4)
        assert Counter(lease.lane for lease in leases) == {"urgent": 2, "calm": 2}


class FairnessCases:
    @needs("order")
    @levels
    async def test_one_claim_is_fair(self, backend: Backend, level: str) -> None:
        """Queues, tenants and lanes are served in rotation, one item at a time."""
        await submit_under_each(backend, 10, *({level: name} for name in "abcd"))
        served = [getattr(lease, level) for lease in await claim(backend, 12)]
        assert Counter(served) == dict.fromkeys("abcd", 3)
        assert served_fairly(served, 4)

    @needs("order")
    @levels
    async def test_fairness_continues_across_claims(self, backend: Backend, level: str) -> None:
        """`fairness` carries the position: each one is served once per round."""
        await submit_under_each(backend, 10, *({level: name} for name in "abcdefg"))
        served = [getattr(lease, level) for lease in await claim_in_sequence(backend, [3, 1, 5, 2, 4, 6, 7])]
        assert len(served) == 28
        assert served_fairly(served, 7)

    @needs("order")
    @levels
    async def test_claims_of_one_item_are_fair(self, backend: Backend, level: str) -> None:
        """Each claim asks for a single item."""
        await submit_under_each(backend, 3, *({level: name} for name in "abc"))
        served = [getattr(lease, level) for lease in await claim_in_sequence(backend, [1] * 9)]
        assert len(served) == 9
        assert served_fairly(served, 3)

    @needs("order")
    @levels
    async def test_a_long_backlog_does_not_delay_others(self, backend: Backend, level: str) -> None:
        """One item behind a thousand of another queue, tenant or lane comes in the first claim."""
        await submit_under_each(backend, 1000, {level: "deep"})
        await submit_under_each(backend, 1, {level: "z"})
        leases = await claim(backend, 2)
        assert sorted(getattr(lease, level) for lease in leases) == ["deep", "z"]

    @needs("order")
    @levels
    async def test_the_empty_ones_are_skipped(self, backend: Backend, level: str) -> None:
        """The others stay in rotation until the limit is reached or all are empty."""
        await submit_under_each(backend, 8, {level: "a"}, {level: "c"})
        await submit_under_each(backend, 1, {level: "b"})
        served = [getattr(lease, level) for lease in await claim(backend, 9)]
        assert Counter(served) == {"a": 4, "b": 1, "c": 4}
        assert len(await claim(backend, 100)) == 8

    @needs("order")
    @levels
    async def test_newcomers_are_served_within_one_round(self, backend: Backend, level: str) -> None:
        """Queues, tenants and lanes that appear while others are served are served too."""
        await submit_under_each(backend, 20, *({level: name} for name in "bdf"))
        first = await claim_answer(backend, 4)
        await submit_under_each(backend, 20, *({level: name} for name in "ace"))
        second = await claim_answer(backend, 6, fairness=first.fairness)
        assert sorted(getattr(lease, level) for lease in second.leases) == list("abcdef")


class NestedFairnessCases:
    @needs("order")
    async def test_a_tenant_with_many_lanes_gets_one_share(self, backend: Backend) -> None:
        """Tenants are served in rotation within a queue, lanes within a tenant."""
        await submit_under_each(backend, 3, *({"tenant": "many", "lane": f"l{n}"} for n in range(10)))
        await submit_under_each(backend, 30, {"tenant": "one"})
        leases = await claim(backend, 10)
        assert Counter(lease.tenant for lease in leases) == {"many": 5, "one": 5}
        assert len({lease.lane for lease in leases if lease.tenant == "many"}) == 5

    @needs("order")
    async def test_a_queue_with_many_tenants_gets_one_share(self, backend: Backend) -> None:
        """Queues are served in rotation, regardless of how many tenants they hold."""
        await submit_under_each(backend, 3, *({"queue": "many", "tenant": f"t{n}"} for n in range(10)))
        await submit_under_each(backend, 30, {"queue": "one", "tenant": "t0"})
        leases = await claim(backend, 10)
        assert Counter(lease.queue for lease in leases) == {"many": 5, "one": 5}
        assert len({lease.tenant for lease in leases if lease.queue == "many"}) == 5

    @needs("order")
    async def test_queues_tenants_and_lanes_are_served_fairly_together(self, backend: Backend) -> None:
        """3 queues x 2 tenants x 2 lanes: each lane is served once per round, in claims of any size."""
        labels = [{"queue": q, "tenant": t, "lane": n} for q in "pqr" for t in "xy" for n in "lm"]
        await submit_under_each(backend, 4, *labels)
        leases = await claim_in_sequence(backend, [5, 1, 6, 7, 5, 12, 12])
        assert served_fairly([lease.queue for lease in leases], 3)
        assert served_fairly([(lease.queue, lease.tenant) for lease in leases], 6)
        assert served_fairly([(lease.queue, lease.tenant, lease.lane) for lease in leases], 12)
        await consistent(backend)

    @needs("order")
    async def test_more_lanes_than_the_limit_are_all_served(self, backend: Backend) -> None:
        """A round takes several claims and misses no lane."""
        await submit_under_each(backend, 2, *({"lane": f"l{n}"} for n in range(50)))
        served = [lease.lane for lease in await claim_in_sequence(backend, [7] * 15)]
        assert len(served) == 100
        assert served_fairly(served, 50)

    @needs("order")
    async def test_fairness_is_kept_per_worker(self, backend: Backend) -> None:
        """Tenant B behind many items of A is served in the first claim of each worker."""
        await submit_under_each(backend, 100, {"tenant": "a"}, {"tenant": "b"})
        for worker in ("w1", "w2"):
            leases = await claim(backend, 4, worker)
            assert Counter(lease.tenant for lease in leases) == {"a": 2, "b": 2}

    @needs("order")
    async def test_fairness_continues_behind_the_lane_served_last(self, backend: Backend) -> None:
        """Also when that lane is empty or no longer exists."""
        await submit_under_each(backend, 1, {"lane": "b"})
        await submit_under_each(backend, 5, {"lane": "a"}, {"lane": "c"})
        lanes = [lease.lane for lease in await claim_in_sequence(backend, [1] * 11)]
        assert len(lanes) == 11
        assert sorted(lanes[:3]) == ["a", "b", "c"]
        assert served_fairly(lanes[3:], 2)

    @needs("order")
    async def test_fairness_carries_over_to_another_demand(self, backend: Backend) -> None:
        """A worker may change its demand and keep its fairness."""
        await submit_under_each(backend, 3, *({"queue": q, "tenant": t} for q in "pq" for t in "xy"))
        first = await claim_answer(backend, 3, queues=("p",))
        second = await claim_answer(backend, 100, queues=("q",), tenants=("y",), fairness=first.fairness)
        assert [(lease.queue, lease.tenant) for lease in second.leases] == [("q", "y")] * 3
        third = await claim_answer(backend, 100, fairness=second.fairness)
        assert len(third.leases) == 12 - 6

    @needs("order")
    async def test_the_empty_lane_is_served_like_any_other(self, backend: Backend) -> None:
        """In claims of one item, no lane comes first every time."""
        await submit_under_each(backend, 5, {"lane": ""}, {"lane": "a"}, {"lane": "b"})
        assert served_fairly([lease.lane for lease in await claim_in_sequence(backend, [1] * 15)], 3)

    @needs("order")
    async def test_fairness_keeps_the_order_within_a_lane(self, backend: Backend) -> None:
        """Turns choose the lane. Priority and age choose the item."""
        for n in range(4):
            for lane in "ab":
                await submit(backend, item(f"{lane}{n}", lane=lane, priority=n % 2))
        leases = await claim_in_sequence(backend, [3, 3, 2])
        lanes = {lane: [lease.id for lease in leases if lease.lane == lane] for lane in "ab"}
        assert lanes == {lane: [f"{lane}{n}" for n in (1, 3, 0, 2)] for lane in "ab"}
