"""The order of claims: priority and age in a lane; turns of queues, tenants and lanes; parked types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Lease

from .build import (
    ask,
    claim,
    claim_ids,
    item,
    items,
    submit,
)
from .check import consistent
from .subject import needs


async def fill(backend: Backend, count: int, *labels: dict[str, Any]) -> None:
    """`count` items under each of these labels, one label after the other: the worst order."""
    for fields in labels:
        await submit(backend, *items(count, **fields))


async def walk(backend: Backend, sizes: Sequence[int], **demand: Any) -> list[Lease]:
    """Claims of these sizes, each going on where the last one stopped: all leases, in order."""
    leases: list[Lease] = []
    rotation: object = None
    for size in sizes:
        claimed = await ask(backend, size, rotation=rotation, **demand)
        assert len(claimed.leases) <= size
        leases += claimed.leases
        rotation = claimed.rotation
    return leases


def even(served: Sequence[object], among: int) -> bool:
    """Whether `among` parties took turns: nobody is ever served twice more than another."""
    rounds = [served[begin : begin + among] for begin in range(0, len(served), among)]
    return all(len(set(one)) == len(one) for one in rounds)


levels = pytest.mark.parametrize("level", ["queue", "tenant", "lane"])


class ClaimOrderCases:
    @needs("order")
    async def test_higher_priority_goes_first(self, backend: Backend) -> None:
        """Within a lane: higher priority first, then who became ready first."""
        for name, priority in [("a", 0), ("b", 5), ("c", -5), ("d", 5), ("e", 0)]:
            await submit(backend, item(name, priority=priority))
        assert await claim_ids(backend) == ["b", "d", "a", "e", "c"]

    @needs("order")
    async def test_a_late_urgent_item_overtakes_a_lane(self, backend: Backend) -> None:
        """A priority-100 item behind 100 others of its lane is handed out first."""
        await submit(backend, *items(100))
        await submit(backend, item("urgent", priority=100))
        assert await claim_ids(backend, 1) == ["urgent"]

    async def test_first_in_first_out(self, backend: Backend) -> None:
        """Of one priority: by age, within a submission and across."""
        names = [f"i{n}" for n in range(30)]
        await submit(backend, *(item(name) for name in names[:10]))
        for name in names[10:20]:
            await submit(backend, item(name))
        await submit(backend, *(item(name) for name in names[20:]))
        assert await claim_ids(backend, 7) + await claim_ids(backend) == names

    @needs("order")
    async def test_priority_does_not_cross_lanes(self, backend: Backend) -> None:
        """Priority decides within a lane; lanes take turns whatever is in them."""
        await fill(backend, 5, {"lane": "urgent", "priority": 100}, {"lane": "calm", "priority": -100})
        leases = await claim(backend, 4)
        assert Counter(lease.lane for lease in leases) == {"urgent": 2, "calm": 2}


class FairnessCases:
    @needs("order")
    @levels
    async def test_turns_within_one_claim(self, backend: Backend, level: str) -> None:
        """Queues, tenants, lanes take turns, one item at a time."""
        await fill(backend, 10, *({level: name} for name in "abcd"))
        served = [getattr(lease, level) for lease in await claim(backend, 12)]
        assert Counter(served) == dict.fromkeys("abcd", 3)
        assert even(served, 4)

    @needs("order")
    @levels
    async def test_turns_go_on_across_claims(self, backend: Backend, level: str) -> None:
        """`rotation` says where the turns stand: everyone is served once per rotation."""
        await fill(backend, 10, *({level: name} for name in "abcdefg"))
        served = [getattr(lease, level) for lease in await walk(backend, [3, 1, 5, 2, 4, 6, 7])]
        assert len(served) == 28
        assert even(served, 7)

    @needs("order")
    @levels
    async def test_turns_one_by_one(self, backend: Backend, level: str) -> None:
        """The same when each claim asks for a single item."""
        await fill(backend, 3, *({level: name} for name in "abc"))
        served = [getattr(lease, level) for lease in await walk(backend, [1] * 9)]
        assert len(served) == 9
        assert even(served, 3)

    @needs("order")
    @levels
    async def test_depth_buys_nothing(self, backend: Backend, level: str) -> None:
        """One item behind many of another's comes in the first claim."""
        await fill(backend, 1000, {level: "deep"})
        await fill(backend, 1, {level: "z"})
        leases = await claim(backend, 2)
        assert sorted(getattr(lease, level) for lease in leases) == ["deep", "z"]

    @needs("order")
    @levels
    async def test_who_is_empty_is_passed_over(self, backend: Backend, level: str) -> None:
        """The others go on taking turns until the limit is reached or all are empty."""
        await fill(backend, 8, {level: "a"}, {level: "c"})
        await fill(backend, 1, {level: "b"})
        served = [getattr(lease, level) for lease in await claim(backend, 9)]
        assert Counter(served) == {"a": 4, "b": 1, "c": 4}
        assert len(await claim(backend, 100)) == 8

    @needs("order")
    @levels
    async def test_newcomers_get_their_turn(self, backend: Backend, level: str) -> None:
        """Whoever comes while others are being served is served within a rotation."""
        await fill(backend, 20, *({level: name} for name in "bdf"))
        first = await ask(backend, 4)
        await fill(backend, 20, *({level: name} for name in "ace"))
        second = await ask(backend, 6, rotation=first.rotation)
        assert sorted(getattr(lease, level) for lease in second.leases) == list("abcdef")


class NestedFairnessCases:
    @needs("order")
    async def test_a_tenant_with_many_lanes_gets_one_share(self, backend: Backend) -> None:
        """Tenants take turns within a queue, lanes within a tenant."""
        await fill(backend, 3, *({"tenant": "many", "lane": f"l{n}"} for n in range(10)))
        await fill(backend, 30, {"tenant": "one"})
        leases = await claim(backend, 10)
        assert Counter(lease.tenant for lease in leases) == {"many": 5, "one": 5}
        assert len({lease.lane for lease in leases if lease.tenant == "many"}) == 5

    @needs("order")
    async def test_a_queue_with_many_tenants_gets_one_share(self, backend: Backend) -> None:
        """Queues take turns whatever is in them."""
        await fill(backend, 3, *({"queue": "many", "tenant": f"t{n}"} for n in range(10)))
        await fill(backend, 30, {"queue": "one", "tenant": "t0"})
        leases = await claim(backend, 10)
        assert Counter(lease.queue for lease in leases) == {"many": 5, "one": 5}
        assert len({lease.tenant for lease in leases if lease.queue == "many"}) == 5

    @needs("order")
    async def test_turns_of_all_levels_at_once(self, backend: Backend) -> None:
        """Every lane is served once per rotation: 3 queues x 2 tenants x 2 lanes, in claims of any size."""
        labels = [{"queue": q, "tenant": t, "lane": n} for q in "pqr" for t in "xy" for n in "lm"]
        await fill(backend, 4, *labels)
        leases = await walk(backend, [5, 1, 6, 7, 5, 12, 12])
        assert even([lease.queue for lease in leases], 3)
        assert even([(lease.queue, lease.tenant) for lease in leases], 6)
        assert even([(lease.queue, lease.tenant, lease.lane) for lease in leases], 12)
        await consistent(backend)

    @needs("order")
    async def test_many_lanes_are_all_served(self, backend: Backend) -> None:
        """More lanes than a claim asks for: a rotation takes several claims and misses none."""
        await fill(backend, 2, *({"lane": f"l{n}"} for n in range(50)))
        served = [lease.lane for lease in await walk(backend, [7] * 15)]
        assert len(served) == 100
        assert even(served, 50)

    @needs("order")
    async def test_two_workers_each_with_its_own_rotation(self, backend: Backend) -> None:
        """Whoever claims, tenant B behind many of A comes in its first claim."""
        await fill(backend, 100, {"tenant": "a"}, {"tenant": "b"})
        for worker in ("w1", "w2"):
            leases = await claim(backend, 4, worker)
            assert Counter(lease.tenant for lease in leases) == {"a": 2, "b": 2}

    @needs("order")
    async def test_turns_go_on_behind_who_was_served_last(self, backend: Backend) -> None:
        """Also when that one has nothing left, or does not exist any more."""
        await fill(backend, 1, {"lane": "b"})
        await fill(backend, 5, {"lane": "a"}, {"lane": "c"})
        lanes = [lease.lane for lease in await walk(backend, [1] * 11)]
        assert len(lanes) == 11
        assert sorted(lanes[:3]) == ["a", "b", "c"]
        assert even(lanes[3:], 2)

    @needs("order")
    async def test_a_rotation_of_other_queues_does_no_harm(self, backend: Backend) -> None:
        """A worker may change its demand and keep its rotation."""
        await fill(backend, 3, *({"queue": q, "tenant": t} for q in "pq" for t in "xy"))
        first = await ask(backend, 3, queues=("p",))
        second = await ask(backend, 100, queues=("q",), tenants=("y",), rotation=first.rotation)
        assert [(lease.queue, lease.tenant) for lease in second.leases] == [("q", "y")] * 3
        third = await ask(backend, 100, rotation=second.rotation)
        assert len(third.leases) == 12 - 6

    @needs("order")
    async def test_the_nameless_lane_takes_turns_like_any_other(self, backend: Backend) -> None:
        """In claims of one: none of the lanes is always the first again."""
        await fill(backend, 5, {"lane": ""}, {"lane": "a"}, {"lane": "b"})
        assert even([lease.lane for lease in await walk(backend, [1] * 15)], 3)

    @needs("order")
    async def test_in_a_lane_the_order_holds_through_the_turns(self, backend: Backend) -> None:
        """Turns choose the lane; priority and age choose the item."""
        for n in range(4):
            for lane in "ab":
                await submit(backend, item(f"{lane}{n}", lane=lane, priority=n % 2))
        leases = await walk(backend, [3, 3, 2])
        lanes = {lane: [lease.id for lease in leases if lease.lane == lane] for lane in "ab"}
        assert lanes == {lane: [f"{lane}{n}" for n in (1, 3, 0, 2)] for lane in "ab"}
