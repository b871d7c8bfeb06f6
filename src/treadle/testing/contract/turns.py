"""The order of claims: priority and age in a lane; turns of queues, tenants and lanes; parked types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Lease

from .build import (
    apply,
    ask,
    claim,
    claim_ids,
    claim_one,
    item,
    items,
    only,
    retry,
    state,
    status,
    statuses,
    submit,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs


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


class Order:
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


class Levels:
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


class Turns:
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


async def persist(backend: Backend, wanted: int, **demand: Any) -> list[Lease]:
    """Claim again while foreign items are still being set aside, in portions."""
    leases: list[Lease] = []
    for _ in range(10):
        leases += await claim(backend, wanted - len(leases), **demand)
        if len(leases) >= wanted:
            break
    return leases


class Parking:
    @needs("parking", "listing")
    async def test_foreign_types_do_not_stand_in_the_way(self, backend: Backend) -> None:
        """3,000 items of a type the worker does not have, and one it has behind them."""
        await submit(backend, *items(3000, type="foreign", priority=5))
        await submit(backend, item("mine", "mine"))
        lease = only(await persist(backend, 1, types={"mine": 5}))
        assert lease.id == "mine"
        counted = {count.type: count.count for count in await backend.counts() if count.status == "ready"}
        assert counted == {"foreign": 3000}

    @needs("parking")
    async def test_parked_items_are_ready(self, backend: Backend) -> None:
        """Set aside under its type, still `ready`; a claim that demands the type finds it."""
        await submit(backend, item("a", "foreign"), item("b", "mine"))
        assert await claim_ids(backend, worker="w1", types={"mine": 5}) == ["b"]
        assert await status(backend, "a") == "ready"
        await consistent(backend)
        lease = await claim_one(backend, "w2", types={"foreign": 5})
        assert (lease.id, lease.attempt, lease.verdict) == ("a", 1, None)

    @needs("parking")
    async def test_a_worker_of_every_type_finds_the_parked(self, backend: Backend) -> None:
        """`types=None` demands them all."""
        await submit(backend, item("a", "x"), item("b", "y"), item("c", "mine"))
        await claim(backend, worker="w1", types={"mine": 5})
        assert await claim_ids(backend, worker="w2") == ["a", "b"]

    @needs("parking")
    async def test_the_parked_stand_in_line_with_others(self, backend: Backend) -> None:
        """By priority, then by age, whoever was parked and whoever was not."""
        await submit(
            backend, item("old", "foreign"), item("high", "foreign", priority=5), item("mine", "mine")
        )
        assert await claim_ids(backend, worker="w1", types={"mine": 5}) == ["mine"]
        await submit(backend, item("new", "foreign"), item("urgent", "foreign", priority=100))
        foreign: dict[str, Any] = {"worker": "w2", "types": {"foreign": 5}}
        assert await claim_ids(backend, 1, **foreign) == ["urgent"]
        assert await claim_ids(backend, 9, **foreign) == ["high", "old", "new"]
        await consistent(backend)

    @needs("parking")
    async def test_a_crowd_that_is_parked_keeps_nobody_waiting(self, backend: Backend) -> None:
        """Tenants and lanes take turns: one of another is served at once, and so is one of another type."""
        await submit(backend, *items(300, type="foreign", tenant="a"), item("mine", "mine", tenant="a"))
        assert len(await persist(backend, 1, worker="w1", types={"mine": 5})) == 1
        await submit(backend, item("b", "foreign", tenant="b"), item("lane", "foreign", tenant="a", lane="x"))
        await submit(backend, item("third", "third", tenant="c"))
        leases = await walk(backend, [1] * 6, worker="w2", types={"foreign": 500, "third": 5})
        assert {"b", "third", "lane"} <= {lease.id for lease in leases}
        assert len(await walk(backend, [100, 200], worker="w2", types={"foreign": 500})) == 297
        await consistent(backend)

    @needs("parking")
    async def test_the_parked_do_not_fill_the_room_of_others(self, backend: Backend) -> None:
        """What there is no room for is passed over, parked or not; everything else is found."""
        await submit(backend, *items(50, type="full"), item("mine", "mine"))
        assert await claim_ids(backend, worker="w1", types={"mine": 5}) == ["mine"]
        await submit(backend, item("other", "other"), *(item(f"new{n}", "full") for n in range(5)))
        found = await claim_ids(backend, 9, "w2", types={"full": 2, "other": 5})
        assert (len(found), "other" in found) == (3, True)
        assert len(await claim_ids(backend, 99, "w2", types={"full": 99})) == 53
        await consistent(backend)

    @needs("parking")
    async def test_a_type_without_room_is_parked_too(self, backend: Backend) -> None:
        """It comes back when there is room."""
        await submit(backend, item("a", "full"), item("b", "mine"), item("c", "full"))
        assert await claim_ids(backend, types={"full": 0, "mine": 5}) == ["b"]
        assert await claim_ids(backend, types={"full": 1, "mine": 5}) == ["a"]
        assert await claim_ids(backend, types={"full": 1, "mine": 5}) == ["c"]

    @needs("parking", "order")
    async def test_the_parked_keep_their_order(self, backend: Backend) -> None:
        """Among themselves: the same turns, then priority, then age."""
        for n in range(3):
            for lane in "ab":
                await submit(backend, item(f"{lane}{n}", "foreign", lane=lane, priority=n))
        await submit(backend, item("mine", "mine", priority=-9), item("other", "mine", lane="a", priority=-9))
        await submit(backend, item("third", "mine", lane="b", priority=-9))
        await persist(backend, 3, worker="w1", types={"mine": 5})
        leases = await walk(backend, [2, 1, 3], worker="w2", types={"foreign": 9})
        assert even([lease.lane for lease in leases], 2)
        assert [lease.id for lease in leases if lease.lane == "a"] == ["a2", "a1", "a0"]

    @needs("parking", "operating")
    async def test_the_parked_obey_every_other_rule(self, backend: Backend) -> None:
        """Queues, tenants, lanes to avoid, pauses, limits hold for them as for others."""
        for queue in "pq":
            await submit(backend, item(f"{queue}x", "foreign", queue=queue, tenant="x", lane="l"))
            await submit(backend, item(f"{queue}y", "foreign", queue=queue, tenant="y"))
            await submit(backend, item(f"{queue}m", "mine", queue=queue, tenant="x", lane="l", priority=-1))
            await submit(backend, item(f"{queue}n", "mine", queue=queue, tenant="y", priority=-1))
        await persist(backend, 4, worker="w1", types={"mine": 9})
        foreign: dict[str, Any] = {"worker": "w2", "types": {"foreign": 9}}
        assert await claim_ids(backend, queues=("none",), **foreign) == []
        assert await claim_ids(backend, tenants=("none",), **foreign) == []
        await backend.pause("q")
        assert await claim_ids(backend, avoid=frozenset({("x", "l")}), **foreign) == ["py"]
        assert await claim_ids(backend, **foreign) == ["px"]
        await backend.pause("q", False)
        assert len(await claim_ids(backend, 1, **foreign)) == 1
        assert len(await claim_ids(backend, **foreign)) == 1

    @needs("parking")
    async def test_the_parked_expire(self, subject: Subject) -> None:
        """A deadline finds them."""
        await submit(subject.backend, item("a", "foreign", expires_in=100), item("b", "mine"))
        await claim(subject.backend, worker="w1", types={"mine": 5})
        await subject.advance(101)
        assert await verdicts(subject.backend, "w1", types={"mine": 5}) == {"a": "expired"}

    @needs("parking")
    async def test_the_parked_of_an_unknown_type_are_doomed_after_the_grace(self, subject: Subject) -> None:
        """Being parked is being ready."""
        await submit(subject.backend, item("a", "foreign"), item("b", "mine"))
        await claim(subject.backend, worker="w1", types={"mine": 5})
        await subject.advance(200)
        found = await verdicts(subject.backend, "w1", types={"mine": 5}, unknown_grace=100.0)
        assert found == {"a": "unknown_type"}

    @needs("parking", "operating")
    async def test_operators_find_the_parked(self, backend: Backend) -> None:
        """Cancelled, completed, deleted like any other ready item."""
        await submit(backend, *(item(name, "foreign") for name in "abc"), item("mine", "mine"))
        await claim(backend, worker="w1", types={"mine": 5})
        await backend.cancel(["a"])
        await backend.complete("b", b"")
        await backend.delete(["c"])
        assert await statuses(backend, "a", "b", "c") == ["cancelled", "success", None]
        assert await claim_ids(backend, worker="w2", types={"foreign": 5}) == []
        await consistent(backend)

    @needs("parking")
    async def test_parked_once_is_not_parked_for_ever(self, backend: Backend) -> None:
        """Claimed and retried, it stands in its line again, like any other."""
        await submit(backend, item("a", "foreign"), item("b", "mine"))
        await claim(backend, worker="w1", types={"mine": 5})
        await apply(backend, retry(await claim_one(backend, "w2", types={"foreign": 5})))
        await submit(backend, item("c", "foreign", priority=5))
        assert await claim_ids(backend, worker="w2", types={"foreign": 5}) == ["c", "a"]
        assert (await state(backend, "a")).attempt == 2
