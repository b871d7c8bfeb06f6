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
    pause,
    resume,
    retry,
    state,
    status,
    statuses,
    submit,
    verdicts,
)
from .check import consistent
from .fairness import claim_in_sequence, served_fairly
from .subject import Subject, needs


async def claim_until(backend: Backend, wanted: int, **demand: Any) -> list[Lease]:
    """Claim until `wanted` leases are found: one claim parks only a portion of the items before them."""
    leases: list[Lease] = []
    for _ in range(10):
        leases += await claim(backend, wanted - len(leases), **demand)
        if len(leases) >= wanted:
            break
    return leases


class ParkedCases:
    @needs("parking", "listing")
    async def test_items_of_other_types_do_not_block_a_claim(self, backend: Backend) -> None:
        """3,000 items of a type that the worker does not have precede one that it has."""
        await submit(backend, *items(3000, type="elsewhere", priority=5))
        await submit(backend, item("mine", "mine"))
        lease = only(await claim_until(backend, 1, types={"mine": 5}))
        assert lease.id == "mine"
        counted = {count.type: count.count for count in await backend.counts() if count.status == "ready"}
        assert counted == {"elsewhere": 3000}

    @needs("parking")
    async def test_parked_items_stay_ready(self, backend: Backend) -> None:
        """The item is set aside under its type and stays `ready`. A claim that demands the type finds it."""
        await submit(backend, item("a", "elsewhere"), item("b", "mine"))
        assert await claim_ids(backend, worker="w1", types={"mine": 5}) == ["b"]
        assert await status(backend, "a") == "ready"
        await consistent(backend)
        lease = await claim_one(backend, "w2", types={"elsewhere": 5})
        assert (lease.id, lease.attempt, lease.verdict) == ("a", 1, None)

    @needs("parking")
    async def test_a_worker_of_every_type_claims_parked_items(self, backend: Backend) -> None:
        """`types=None` demands all types."""
        await submit(backend, item("a", "x"), item("b", "y"), item("c", "mine"))
        await claim(backend, worker="w1", types={"mine": 5})
        assert await claim_ids(backend, worker="w2") == ["a", "b"]

    @needs("parking")
    async def test_parked_and_new_items_are_claimed_in_one_order(self, backend: Backend) -> None:
        """By priority, then by age, parked or not."""
        await submit(
            backend, item("old", "elsewhere"), item("high", "elsewhere", priority=5), item("mine", "mine")
        )
        assert await claim_ids(backend, worker="w1", types={"mine": 5}) == ["mine"]
        await submit(backend, item("new", "elsewhere"), item("urgent", "elsewhere", priority=100))
        elsewhere: dict[str, Any] = {"worker": "w2", "types": {"elsewhere": 5}}
        assert await claim_ids(backend, 1, **elsewhere) == ["urgent"]
        assert await claim_ids(backend, 9, **elsewhere) == ["high", "old", "new"]
        await consistent(backend)

    @needs("parking")
    async def test_many_parked_items_do_not_delay_others(self, backend: Backend) -> None:
        """Tenants and lanes stay in rotation: items of another tenant, lane or type are served at once."""
        await submit(backend, *items(300, type="elsewhere", tenant="a"), item("mine", "mine", tenant="a"))
        assert len(await claim_until(backend, 1, worker="w1", types={"mine": 5})) == 1
        await submit(
            backend, item("b", "elsewhere", tenant="b"), item("lane", "elsewhere", tenant="a", lane="x")
        )
        await submit(backend, item("third", "third", tenant="c"))
        leases = await claim_in_sequence(backend, [1] * 6, worker="w2", types={"elsewhere": 500, "third": 5})
        assert {"b", "third", "lane"} <= {lease.id for lease in leases}
        assert len(await claim_in_sequence(backend, [100, 200], worker="w2", types={"elsewhere": 500})) == 297
        await consistent(backend)

    @needs("parking")
    async def test_parked_items_do_not_use_the_room_of_other_types(self, backend: Backend) -> None:
        """Items without room are skipped, parked or not. All other items are found."""
        await submit(backend, *items(50, type="full"), item("mine", "mine"))
        assert await claim_ids(backend, worker="w1", types={"mine": 5}) == ["mine"]
        await submit(backend, item("other", "other"), *(item(f"new{n}", "full") for n in range(5)))
        found = await claim_ids(backend, 9, "w2", types={"full": 2, "other": 5})
        assert (len(found), "other" in found) == (3, True)
        assert len(await claim_ids(backend, 99, "w2", types={"full": 99})) == 53
        await consistent(backend)

    @needs("parking")
    async def test_a_type_without_room_is_parked(self, backend: Backend) -> None:
        """Its items are claimed when there is room."""
        await submit(backend, item("a", "full"), item("b", "mine"), item("c", "full"))
        assert await claim_ids(backend, types={"full": 0, "mine": 5}) == ["b"]
        assert await claim_ids(backend, types={"full": 1, "mine": 5}) == ["a"]
        assert await claim_ids(backend, types={"full": 1, "mine": 5}) == ["c"]

    @needs("parking", "order")
    async def test_parked_items_keep_their_order(self, backend: Backend) -> None:
        """The same rotation, then priority, then age."""
        for n in range(3):
            for lane in "ab":
                await submit(backend, item(f"{lane}{n}", "elsewhere", lane=lane, priority=n))
        await submit(backend, item("mine", "mine", priority=-9), item("other", "mine", lane="a", priority=-9))
        await submit(backend, item("third", "mine", lane="b", priority=-9))
        await claim_until(backend, 3, worker="w1", types={"mine": 5})
        leases = await claim_in_sequence(backend, [2, 1, 3], worker="w2", types={"elsewhere": 9})
        assert served_fairly([lease.lane for lease in leases], 2)
        assert [lease.id for lease in leases if lease.lane == "a"] == ["a2", "a1", "a0"]

    @needs("parking", "operating")
    async def test_parked_items_obey_queues_tenants_lanes_and_pauses(self, backend: Backend) -> None:
        """All limits of a demand apply to parked items as to others."""
        for queue in "pq":
            await submit(backend, item(f"{queue}x", "elsewhere", queue=queue, tenant="x", lane="l"))
            await submit(backend, item(f"{queue}y", "elsewhere", queue=queue, tenant="y"))
            await submit(backend, item(f"{queue}m", "mine", queue=queue, tenant="x", lane="l", priority=-1))
            await submit(backend, item(f"{queue}n", "mine", queue=queue, tenant="y", priority=-1))
        await claim_until(backend, 4, worker="w1", types={"mine": 9})
        elsewhere: dict[str, Any] = {"worker": "w2", "types": {"elsewhere": 9}}
        assert await claim_ids(backend, queues=("none",), **elsewhere) == []
        assert await claim_ids(backend, tenants=("none",), **elsewhere) == []
        await pause(backend, "q")
        assert await claim_ids(backend, avoid={"elsewhere": frozenset({("x", "l")})}, **elsewhere) == ["py"]
        assert await claim_ids(backend, **elsewhere) == ["px"]
        await resume(backend, "q")
        assert len(await claim_ids(backend, 1, **elsewhere)) == 1
        assert len(await claim_ids(backend, **elsewhere)) == 1

    @needs("parking")
    async def test_parked_items_expire_at_their_deadline(self, subject: Subject) -> None:
        """The verdict is `expired`."""
        await submit(subject.backend, item("a", "elsewhere", expires_in=100), item("b", "mine"))
        await claim(subject.backend, worker="w1", types={"mine": 5})
        await subject.advance(101)
        assert await verdicts(subject.backend, "w1", types={"mine": 5}) == {"a": "expired"}

    @needs("parking")
    async def test_parked_items_of_an_unknown_type_are_doomed_after_the_grace(self, subject: Subject) -> None:
        """Parked time is ready time."""
        await submit(subject.backend, item("a", "elsewhere"), item("b", "mine"))
        await claim(subject.backend, worker="w1", types={"mine": 5})
        await subject.advance(200)
        found = await verdicts(subject.backend, "w1", types={"mine": 5}, unknown_grace=100.0)
        assert found == {"a": "unknown_type"}

    @needs("parking", "operating")
    async def test_operators_reach_parked_items(self, backend: Backend) -> None:
        """They are cancelled, completed and deleted like any ready item."""
        await submit(backend, *(item(name, "elsewhere") for name in "abc"), item("mine", "mine"))
        await claim(backend, worker="w1", types={"mine": 5})
        await backend.cancel(["a"])
        await backend.complete("b", b"")
        await backend.delete(["c"])
        assert await statuses(backend, "a", "b", "c") == ["cancelled", "success", None]
        assert await claim_ids(backend, worker="w2", types={"elsewhere": 5}) == []
        await consistent(backend)

    @needs("parking")
    async def test_a_retried_parked_item_is_no_longer_parked(self, backend: Backend) -> None:
        """It is ordered like any other item."""
        await submit(backend, item("a", "elsewhere"), item("b", "mine"))
        await claim(backend, worker="w1", types={"mine": 5})
        await apply(backend, retry(await claim_one(backend, "w2", types={"elsewhere": 5})))
        await submit(backend, item("c", "elsewhere", priority=5))
        assert await claim_ids(backend, worker="w2", types={"elsewhere": 5}) == ["c", "a"]
        assert (await state(backend, "a")).attempt == 2
