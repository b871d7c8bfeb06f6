"""Strict lanes: an item that was handed out holds its lane until it has ended."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle.backend import Backend
from treadle.item import Demand, ItemUpdate, Lease

from .build import (
    apply,
    beat,
    begin,
    by_id,
    cancel,
    claim,
    claim_answer,
    claim_ids,
    connections,
    defer,
    dependent,
    die,
    doomed_lease,
    item,
    items,
    only,
    pause,
    release,
    resume,
    retry,
    statuses,
    submit,
    succeed,
)
from .check import consistent
from .subject import Subject, needs

STRICT = frozenset({"work"})
MANY = 1200


async def next_ids(backend: Backend, limit: int = 100, worker: str = "w", **demand: Any) -> list[str]:
    """Claim with strict lanes for the type `work`."""
    return await claim_ids(backend, limit, worker, strict=STRICT, **demand)


async def next_one(backend: Backend, worker: str = "w", **demand: Any) -> Lease:
    return only(await claim(backend, worker=worker, strict=STRICT, **demand))


class StrictLaneCases:
    @needs("strict")
    async def test_a_claim_hands_out_one_item_of_a_strict_lane(self, backend: Backend) -> None:
        """The first by priority, then age; one of each lane and tenant."""
        await submit(backend, item("a2", lane="a"), item("a1", lane="a", priority=1), item("b", lane="b"))
        await submit(backend, item("y", lane="a", tenant="y"), item("none"), item("none2"))
        assert sorted(await next_ids(backend)) == ["a1", "b", "none", "y"]
        assert await next_ids(backend) == []
        await consistent(backend)

    @needs("strict")
    async def test_a_strict_lane_is_the_same_in_all_queues(self, backend: Backend) -> None:
        """One claim from several queues hands out one item of it too."""
        await submit(
            backend, *(item(f"{queue}{n}", lane="a", queue=queue) for queue in "xyz" for n in range(3))
        )
        assert len(await next_ids(backend)) == 1
        assert await next_ids(backend, worker="other") == []
        await consistent(backend)

    @needs("strict")
    async def test_a_strict_lane_is_free_when_its_holder_has_succeeded(self, backend: Backend) -> None:
        """Then the next item starts, in the order of the line."""
        await submit(backend, *(item(f"i{n}") for n in range(3)))
        for n in range(3):
            lease = await next_one(backend)
            assert lease.id == f"i{n}"
            assert await next_ids(backend, worker="other") == []
            await apply(backend, succeed(lease))
        assert await next_ids(backend) == []
        await consistent(backend)

    @needs("strict")
    async def test_an_item_that_waits_for_its_retry_holds_its_lane(self, subject: Subject) -> None:
        """Nothing else of that lane starts meanwhile, also if it has a higher priority. When it is due, it is
        handed out first."""
        backend = subject.backend
        await submit(backend, item("a"), item("b"))
        await apply(backend, retry(await next_one(backend), 50))
        await submit(backend, item("urgent", priority=9), item("elsewhere", lane="other"))
        assert await next_ids(backend) == ["elsewhere"]
        await subject.advance(60)
        lease = await next_one(backend, "other")
        assert (lease.id, lease.attempt) == ("a", 2)
        await apply(backend, succeed(lease))
        assert await next_ids(backend) == ["urgent"]
        await consistent(backend)

    @needs("strict")
    async def test_a_lane_stays_held_when_a_worker_has_died(self, subject: Subject) -> None:
        """The lost item is handed out again, and nothing else of its lane before it has ended."""
        backend = subject.backend
        await submit(backend, item("a"), item("b", priority=5, delay=20))
        assert (await next_one(backend, "mortal", lease=30)).id == "a"
        await subject.advance(40)
        lease = await next_one(backend, "heir")
        assert (lease.id, lease.losses) == ("a", 1)
        await begin(backend, [lease])
        assert await backend.remove_worker("heir") == 1
        assert await next_ids(backend, worker="third") == []  # the second loss delays it
        await subject.advance(40)
        lease = await next_one(backend, "third")
        assert lease.id == "a"
        await apply(backend, succeed(lease))
        assert await next_ids(backend) == ["b"]

    @needs("strict")
    async def test_a_lane_stays_held_when_a_lease_has_not_begun(self, backend: Backend) -> None:
        """It was handed out, which is enough, though nothing of the lease is to be seen."""
        await submit(backend, item("a"))
        await next_one(backend, "mortal", buffered=STRICT)
        await submit(backend, item("b", priority=5))
        await backend.remove_worker("mortal")
        assert await next_ids(backend) == ["a"]

    @needs("strict")
    async def test_deferred_and_released_items_hold_their_lanes(self, subject: Subject) -> None:
        """They are open."""
        backend = subject.backend
        for lane, how in (("d", defer), ("r", release)):
            await submit(backend, item(f"{lane}1", lane=lane))
            await apply(backend, how(await next_one(backend), 50))
            await submit(backend, item(f"{lane}2", lane=lane, priority=1))
        assert await next_ids(backend) == []
        await subject.advance(60)
        assert sorted(await next_ids(backend)) == ["d1", "r1"]

    @needs("strict")
    async def test_a_released_holder_is_handed_out_again_at_once(self, backend: Backend) -> None:
        """Before items of its lane that have a higher priority."""
        await submit(backend, item("a"))
        lease = await next_one(backend)
        await submit(backend, item("b", priority=5))
        await apply(backend, release(lease))
        assert await next_ids(backend, 1) == ["a"]

    @needs("strict")
    async def test_every_end_of_the_holder_frees_its_lane(self, backend: Backend) -> None:
        """However it ends: settled, or by an operator; running, or waiting for its retry."""
        for lane, how in (("s", succeed), ("d", die), ("c", cancel)):
            await submit(backend, item(f"{lane}1", lane=lane), item(f"{lane}2", lane=lane))
            await apply(backend, how(await next_one(backend)))
            assert await next_ids(backend) == [f"{lane}2"]
        for waits in (False, True):
            for verb in ("cancel", "complete", "delete"):
                lane = f"{verb}-{waits}"
                first, second = f"{lane}-1", f"{lane}-2"
                await submit(backend, item(first, lane=lane), item(second, lane=lane))
                lease = await next_one(backend)
                if waits:
                    await apply(backend, retry(lease, 1000))
                assert await next_ids(backend) == []
                match verb:
                    case "cancel":
                        await backend.cancel([first])
                    case "complete":
                        await backend.complete(first, None)
                    case _:
                        await backend.delete([first])
                assert await next_ids(backend) == [second]
        await consistent(backend)

    @needs("strict")
    async def test_an_expired_holder_frees_its_lane_when_it_is_settled(self, subject: Subject) -> None:
        """Until then it is open."""
        backend = subject.backend
        now = await backend.now()
        await submit(backend, item("a", deadline=now + 50), item("b"))
        await apply(backend, retry(await next_one(backend), 10))
        await subject.advance(60)
        claimed = await claim_answer(backend, strict=STRICT)
        lease = only(claimed.leases)
        assert (lease.id, lease.verdict) == ("a", "expired")
        assert await next_ids(backend) == []
        await apply(backend, die(lease))
        assert await next_ids(backend) == ["b"]

    @needs("strict")
    async def test_a_requeued_item_does_not_hold_its_lane(self, backend: Backend) -> None:
        """Its death freed the lane. It stands in line like any other."""
        await submit(backend, item("a"), item("b"), item("c"))
        await apply(backend, die(await next_one(backend)))
        await backend.requeue(["a"])
        lease = await next_one(backend)
        assert lease.id == "b"
        assert await next_ids(backend) == []
        await apply(backend, succeed(lease))
        assert await next_ids(backend) == ["c"]

    @needs("strict")
    async def test_a_requeued_item_cannot_disturb_the_next_holder(self, backend: Backend) -> None:
        """It was requeued while the next one runs: it waits."""
        await submit(backend, item("a", priority=9), item("b"))
        await apply(backend, die(await next_one(backend)))
        lease = await next_one(backend)
        await backend.requeue(["a"])
        assert await next_ids(backend) == []
        await apply(backend, succeed(lease))
        assert await next_ids(backend) == ["a"]

    @needs("strict", "updates")
    async def test_a_holder_that_is_moved_holds_no_lane(self, backend: Backend) -> None:
        """It has not started, and goes to the end of its new line. Neither lane is held."""
        await submit(backend, item("a", lane="old", key="k"))
        lease = await next_one(backend, buffered=STRICT)
        await submit(backend, item("b", lane="old"), item("c", lane="new"))
        await apply(backend, release(lease))
        await backend.update(["a"], ItemUpdate(lane="new"))
        leases = by_id(await claim(backend, strict=STRICT, buffered=STRICT))
        assert sorted(leases) == ["b", "c"]
        await apply(backend, succeed(leases["c"]))
        lease = await next_one(backend, buffered=STRICT)
        assert (lease.id, lease.lane) == ("a", "new")
        await apply(backend, release(lease))
        await submit(backend, item(key="k", key_policy="replace", lane="newest"), item("d", lane="new"))
        assert sorted(await next_ids(backend)) == ["a", "d"]

    @needs("strict")
    async def test_lanes_are_held_for_one_type(self, backend: Backend) -> None:
        """Items of other types in that lane are handed out, several at once if their type is not strict."""
        await submit(backend, item("a"), item("b"), item("x", "plain"), item("y", "plain"))
        types = {"work": 9, "plain": 9}
        assert sorted(await next_ids(backend, types=types)) == ["a", "x", "y"]
        await submit(backend, item("z", "plain"))
        assert await next_ids(backend, types=types) == ["z"]

    @needs("strict")
    async def test_two_strict_types_have_lanes_of_their_own(self, backend: Backend) -> None:
        """The lane of one type does not hold that of the other."""
        for type in ("one", "two"):
            await submit(backend, item(f"{type}1", type), item(f"{type}2", type))
        strict = frozenset({"one", "two"})
        for types in ({"one": 9, "two": 9}, {"one": 9, "two": 9}):
            found = await claim(backend, strict=strict, types=types)
            assert [lease.id[:3] for lease in sorted(found, key=lambda lease: lease.id)] == ["one", "two"]
            assert await claim_ids(backend, strict=strict, types=types) == []
            await apply(backend, *map(succeed, found))

    @needs("strict")
    async def test_a_holder_needs_room_for_its_type(self, subject: Subject) -> None:
        """And a queue that is not paused, a tenant and a queue that are asked for, and a lane that is not to
        be avoided. Meanwhile it holds its lane."""
        backend = subject.backend
        await submit(backend, item("a", queue="q", tenant="t", lane="l"))
        await apply(backend, retry(await next_one(backend), 10))
        await submit(backend, item("b", tenant="t", lane="l"))  # the same lane, in another queue
        await subject.advance(20)
        avoid = {"work": frozenset({("t", "l")})}
        assert await next_ids(backend, types={"work": 0, "plain": 9}) == []
        assert await next_ids(backend, queues=("default",)) == []
        assert await next_ids(backend, tenants=("u",)) == []
        assert await next_ids(backend, avoid=avoid) == []
        await pause(backend, "q")
        assert await next_ids(backend) == []
        await resume(backend, "q")
        await pause(backend, "q", tenant="t")
        assert await next_ids(backend) == []
        await resume(backend, "q", tenant="t")
        assert await next_ids(backend) == ["a"]

    @needs("strict")
    async def test_holders_count_against_limit_and_room(self, subject: Subject) -> None:
        """They are handed out first."""
        backend = subject.backend
        await submit(backend, *(item(f"h{n}", lane=f"l{n}") for n in range(4)))
        await apply(backend, *[retry(lease, 10) for lease in await claim(backend, strict=STRICT)])
        await submit(backend, *items(4, lane="new", priority=5), *items(2, type="plain"))
        await subject.advance(20)
        assert len(await next_ids(backend, types={"work": 1, "plain": 9}, limit=2)) == 2
        assert len(await next_ids(backend, limit=1)) == 1
        rest = await next_ids(backend)
        assert len([id for id in rest if id.startswith("h")]) == 2
        assert len(rest) == 4  # and one of the lane `new`, and one plain item
        assert await next_ids(backend) == []

    @needs("strict")
    async def test_a_released_dependent_waits_for_its_lane(self, backend: Backend) -> None:
        """It may be in the lane of the item that it waited for."""
        await submit(backend, item("a"), dependent("a", id="b"), item("c"))
        lease = await next_one(backend)
        await apply(backend, succeed(lease))
        assert await next_ids(backend) == ["c"]
        assert await statuses(backend, "b") == ["ready"]

    @needs("strict")
    async def test_many_strict_lanes_are_served(self, backend: Backend) -> None:
        """Each once, and lanes that are held block no other."""
        await submit(backend, *(item(lane=f"l{n:04}") for n in range(MANY)))
        await submit(backend, *(item(lane=f"l{n:04}") for n in range(MANY)))
        found: list[Lease] = []
        while leases := (await claim_answer(backend, 500, strict=STRICT)).leases:
            found += leases
        assert len(found) == len({lease.lane for lease in found}) == MANY
        await submit(backend, item("late", lane="z"))
        assert await next_ids(backend, 1) == ["late"]
        await apply(backend, succeed(found[700]))
        assert (await next_one(backend)).lane == found[700].lane

    @needs("strict", "begin")
    async def test_an_item_that_only_doomed_claims_take_holds_nothing(self, subject: Subject) -> None:
        """A verdict is no start: the lane is not held by an item that is ended without running."""
        backend = subject.backend
        await submit(backend, item("gone", deadline=await backend.now() + 10), item("a", delay=20))
        await subject.advance(30)
        await doomed_lease(backend, strict=STRICT)
        assert await next_ids(backend) == ["a"]

    @needs("strict")
    async def test_concurrent_claims_hand_out_one_item_of_a_lane(self, subject: Subject) -> None:
        """Eight workers claim, settle and fail at once: no lane is ever held twice, and each keeps its
        order."""
        backends = await connections(subject, 4)
        lanes, each = 5, 12
        order = [item(f"{lane}-{n:02}", lane=str(lane)) for n in range(each) for lane in range(lanes)]
        await submit(subject.backend, *order)
        for n in range(8):
            await beat(subject.backend, f"w{n}")
        holders: dict[str, str] = {}
        ended: dict[str, list[str]] = {str(lane): [] for lane in range(lanes)}

        async def work(n: int) -> None:
            backend = backends[n % 4]
            demand = Demand(worker=f"w{n}", limit=3, strict=STRICT)
            while sum(map(len, ended.values())) < lanes * each:
                leases = (await backend.claim(demand)).leases
                for lease in leases:
                    assert holders.setdefault(lease.lane, lease.id) == lease.id, (holders, lease)
                for lease in leases:
                    if lease.attempt == 1 and int(lease.id[-2:]) % 3 == 0:
                        await apply(backend, retry(lease))
                        continue
                    del holders[lease.lane]
                    ended[lease.lane].append(lease.id)
                    await apply(backend, succeed(lease))

        await asyncio.gather(*(work(n) for n in range(8)))
        for lane, ids in ended.items():
            assert ids == [f"{lane}-{n:02}" for n in range(each)]
        await consistent(subject.backend)
