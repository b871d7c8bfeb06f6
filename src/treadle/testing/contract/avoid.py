"""Lanes that a claim avoids for a type, because a limit of theirs is reached."""

from __future__ import annotations

from typing import Any

from treadle.backend import Backend
from treadle.item import AvoidedLane

from .build import claim, claim_answer, claim_ids, item, items, submit
from .check import consistent
from .subject import Subject, needs

MANY = 1500


def lanes(*refs: AvoidedLane, type: str = "work") -> dict[str, frozenset[AvoidedLane]]:
    return {type: frozenset(refs)}


async def claim_to_the_end(backend: Backend, **demand: Any) -> list[str]:
    """Claim until the store has nothing left to set aside: `next_due` is then no longer 0."""
    found: list[str] = []
    for _ in range(20):
        claimed = await claim_answer(backend, **demand)
        found += [lease.id for lease in claimed.leases]
        if claimed.next_due != 0:
            break
    return found


class AvoidedLaneCases:
    async def test_a_claim_skips_the_lanes_to_avoid(self, backend: Backend) -> None:
        """A lane belongs to a tenant: the lane of that name in another tenant is served."""
        for tenant in ("x", "y"):
            await submit(backend, item(tenant + "1", tenant=tenant, lane="l"), item(tenant, tenant=tenant))
        assert sorted(await claim_ids(backend, avoid=lanes(("x", "l")))) == ["x", "y", "y1"]
        assert await claim_ids(backend) == ["x1"]

    async def test_the_empty_lane_can_be_avoided(self, backend: Backend) -> None:
        """The empty lane is a lane."""
        await submit(backend, item("a"), item("b", lane="l"))
        assert await claim_ids(backend, avoid=lanes(("default", ""))) == ["b"]

    async def test_a_lane_is_avoided_for_one_type_only(self, backend: Backend) -> None:
        """Items of other types in the same lane are handed out, also behind those to avoid. A demand for
        every type obeys too."""
        await submit(backend, *items(3, type="limited", priority=5), item("a", "plain"), item("b", "plain"))
        closed = lanes(("default", ""), type="limited")
        types = {"limited": 9, "plain": 9}
        assert await claim_ids(backend, 1, types=types, avoid=closed) == ["a"]
        assert await claim_ids(backend, avoid=closed) == ["b"]
        assert await claim_ids(backend, types=types, avoid=closed) == []
        assert len(await claim_ids(backend, types=types)) == 3
        await consistent(backend)

    async def test_two_types_avoid_different_lanes(self, backend: Backend) -> None:
        """Each type has lanes of its own to avoid."""
        for lane in "lm":
            await submit(backend, item(f"a{lane}", "a", lane=lane), item(f"b{lane}", "b", lane=lane))
        closed = {**lanes(("default", "l"), type="a"), **lanes(("default", "m"), type="b")}
        assert sorted(await claim_ids(backend, types={"a": 9, "b": 9}, avoid=closed)) == ["am", "bl"]
        assert sorted(await claim_ids(backend, types={"a": 9, "b": 9})) == ["al", "bm"]

    async def test_all_lanes_of_a_tenant_can_be_avoided(self, backend: Backend) -> None:
        """A lane of None stands for all of them, for this type."""
        for tenant in "xy":
            await submit(backend, *(item(tenant + lane, tenant=tenant, lane=lane) for lane in ("", "l", "m")))
        await submit(backend, item("other", "other", tenant="x", lane="l"))
        closed = lanes(("x", None))
        assert sorted(await claim_ids(backend, avoid=closed)) == ["other", "y", "yl", "ym"]
        await submit(backend, item("xn", tenant="x", lane="n"))
        assert await claim_ids(backend, avoid=closed) == []
        assert sorted(await claim_ids(backend)) == ["x", "xl", "xm", "xn"]

    @needs("order")
    async def test_avoided_items_keep_their_place(self, backend: Backend) -> None:
        """When their lane is avoided no more, they are served as if it had never been: by priority, then
        age, among items that came later."""
        await submit(backend, item("a1"), item("a3", priority=-1), item("plain", "plain"))
        closed = lanes(("default", ""))
        assert await claim_ids(backend, types={"work": 9, "plain": 9}, avoid=closed) == ["plain"]
        await submit(backend, item("a2"), item("a0", priority=1))
        assert await claim_ids(backend, types={"work": 9, "plain": 9}) == ["a0", "a1", "a2", "a3"]

    @needs("order")
    async def test_avoided_lanes_keep_their_place(self, backend: Backend) -> None:
        """When they are avoided no more, the lane that waited longest is served first."""
        names = [f"l{n}" for n in range(8)]
        await submit(backend, *(item(lane, lane=lane) for lane in names))
        closed = lanes(*(("default", lane) for lane in names))
        for _ in range(2):
            assert await claim_ids(backend, avoid=closed) == []
        assert await claim_ids(backend) == names

    @needs("order")
    async def test_avoided_lanes_use_up_no_share(self, backend: Backend) -> None:
        """Even a claim of one item finds the item behind them, in any queue and tenant."""
        for n in range(3):
            await submit(backend, item(tenant="x", queue=f"q{n}", lane="l"), item(tenant="y", queue=f"q{n}"))
        await submit(backend, item("mine", tenant="z", queue="q2"))
        closed = lanes(("x", "l"), ("y", None))
        assert await claim_ids(backend, 1, avoid=closed) == ["mine"]
        assert await claim_ids(backend, 1, avoid=closed) == []

    async def test_a_claim_steps_over_thousands_of_avoided_lanes(self, subject: Subject) -> None:
        """As many as there are: an item of a new lane is found behind them, and those of other types."""
        backend = subject.backend
        await submit(backend, *(item(lane=f"l{n:04}", priority=1) for n in range(MANY)))
        closed = lanes(*(("default", f"l{n:04}") for n in range(MANY)))
        assert await claim_to_the_end(backend, types={"work": 9, "plain": 9}, avoid=closed) == []
        await submit(backend, item("new", lane="new"), item("plain", "plain", lane="l0700"))
        found = await claim_to_the_end(backend, types={"work": 9, "plain": 9}, avoid=closed)
        assert sorted(found) == ["new", "plain"]
        await submit(backend, item("newest", lane="l9999"))
        await subject.advance(5)  # ports hide what a claim has looked at in vain for a second
        open_again = {"work": closed["work"] - {("default", "l0007")}}
        assert len(await claim_to_the_end(backend, types={"work": 9}, avoid=open_again)) == 2
        await subject.advance(5)
        left = [len(await claim(backend, MANY)) for _ in range(3)]
        assert sum(left) == MANY - 1
        await consistent(backend)
