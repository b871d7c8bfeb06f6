"""Parked items: ready items whose type this worker does not have, or has no room for."""

from __future__ import annotations

from typing import Any

from treadle.backend import Backend
from treadle.item import Lease

from .build import (
    apply,
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
from .fairness import even, walk
from .subject import Subject, needs


async def persist(backend: Backend, wanted: int, **demand: Any) -> list[Lease]:
    """Claim again while foreign items are still being set aside, in portions."""
    leases: list[Lease] = []
    for _ in range(10):
        leases += await claim(backend, wanted - len(leases), **demand)
        if len(leases) >= wanted:
            break
    return leases


class ParkedCases:
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
