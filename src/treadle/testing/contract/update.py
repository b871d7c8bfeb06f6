"""Update: items that have not started get other times, lanes, queues and priorities, all of them or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.errors import ConflictError, NotFound
from treadle.item import Claim, Demand, ItemUpdate

from .build import (
    apply,
    beat,
    cancel,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    connections,
    dependent,
    die,
    doomed_lease,
    end,
    item,
    near,
    release,
    retry,
    start_one,
    state,
    status,
    submit,
    succeed,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs


class UpdateCases:
    @needs("updates")
    async def test_a_scheduled_item_gets_another_instant(self, subject: Subject) -> None:
        """Later, or earlier. The answer has the items as they were."""
        backend = subject.backend
        await submit(backend, item("a", delay=100))
        due = (await state(backend, "a")).due_at
        changed = await backend.update(["a"], ItemUpdate(run_at=due + 400))
        assert [(one.id, one.due_at, one.status) for one in changed.items] == [("a", due, "scheduled")]
        assert (await state(backend, "a")).due_at == due + 400
        await subject.advance(200)
        assert await claim(backend) == []
        await backend.update(["a"], ItemUpdate(run_at=due + 150))
        await subject.advance(60)
        assert (await claim_one(backend)).id == "a"
        await consistent(backend)

    @needs("updates")
    async def test_an_instant_in_the_past_means_now(self, backend: Backend) -> None:
        """It is ready at once."""
        await submit(backend, item("a", delay=100))
        await backend.update(["a"], ItemUpdate(run_at=1.0))
        assert await status(backend, "a") == "ready"
        assert (await claim_one(backend)).id == "a"

    @needs("updates")
    async def test_a_ready_item_is_put_off(self, subject: Subject) -> None:
        """It becomes scheduled."""
        await submit(subject.backend, item("a"))
        await subject.backend.update(["a"], ItemUpdate(run_at=await subject.backend.now() + 100))
        assert await status(subject.backend, "a") == "scheduled"
        assert 90 < ((await claim_answer(subject.backend)).next_due or 0) <= 100
        await subject.advance(110)
        assert (await claim_one(subject.backend)).id == "a"
        await consistent(subject.backend)

    @needs("updates", "order")
    async def test_a_priority_changes_the_order(self, backend: Backend) -> None:
        """Within its lane."""
        await submit(backend, item("a"), item("b"), item("c"))
        await backend.update(["c"], ItemUpdate(priority=5))
        assert (await state(backend, "c")).priority == 5
        leases = await claim(backend)
        assert [(lease.id, lease.priority) for lease in leases] == [("c", 5), ("a", 0), ("b", 0)]

    @needs("updates", "order")
    async def test_it_goes_to_the_end_of_its_new_line(self, backend: Backend) -> None:
        """In another queue or lane, or with another priority or instant."""
        await submit(backend, item("a"), item("b", queue="q", lane="l"), item("c", queue="q", lane="l"))
        await backend.update(["a"], ItemUpdate(queue="q", lane="l"))
        found = await state(backend, "a")
        assert (found.queue, found.lane) == ("q", "l")
        assert await claim_ids(backend) == ["b", "c", "a"]
        await consistent(backend)

    @needs("updates")
    async def test_it_keeps_since_when_it_has_been_ready(self, subject: Subject) -> None:
        """With another priority, queue or lane, and parked: so the age of a queue stays true. Another instant
        makes it ready anew."""
        backend = subject.backend
        await submit(backend, *(item(id) for id in "abcd"), item("p", "strange"))
        began = await backend.now()
        assert await claim(backend, types={"other": 10}) == []
        await subject.advance(60)
        await backend.update(["a", "p"], ItemUpdate(priority=5))
        await backend.update(["b"], ItemUpdate(queue="q", lane="l"))
        await backend.update(["c"], ItemUpdate(deadline=await backend.now() + 900))
        await backend.update(["d"], ItemUpdate(run_at=await backend.now() - 1, priority=5))
        ready = {lease.id: lease.ready_at for lease in await claim(backend)}
        assert ready == {**dict.fromkeys("abcp", near(began)), "d": near(began + 60)}
        await consistent(backend)

    @needs("updates")
    async def test_it_is_claimed_from_its_new_queue(self, backend: Backend) -> None:
        """And no longer from the old one."""
        await submit(backend, item("a"))
        await backend.update(["a"], ItemUpdate(queue="q"))
        assert await claim(backend, queues=("default",)) == []
        lease = await claim_one(backend, queues=("q",))
        assert (lease.queue, lease.input) == ("q", b"input")
        await apply(backend, succeed(lease))
        assert (await state(backend, "a")).queue == "q"
        await consistent(backend)

    @needs("updates", "parking")
    async def test_a_parked_item_is_updated(self, backend: Backend) -> None:
        """A worker that has its type finds it in its new place."""
        await submit(backend, item("a", "strange"))
        assert await claim(backend, types={"work": 10}) == []
        await backend.update(["a"], ItemUpdate(lane="l"))
        assert (await claim_one(backend, worker="w2", types={"strange": 1})).lane == "l"
        await consistent(backend)

    @needs("updates")
    async def test_a_deadline_is_set_and_removed(self, subject: Subject) -> None:
        """None removes it. What is not given stays."""
        backend = subject.backend
        await submit(backend, item("a", expires_in=50, delay=10), item("b"))
        await backend.update(["a"], ItemUpdate(deadline=None))
        await backend.update(["b"], ItemUpdate(deadline=await backend.now() + 50))
        assert (await state(backend, "a")).deadline is None
        assert (await state(backend, "b")).deadline == near(await backend.now() + 50)
        await backend.update(["b"], ItemUpdate(priority=1))
        assert (await state(backend, "b")).deadline is not None
        await subject.advance(60)
        assert await verdicts(backend) == {"b": "expired"}
        lease = await claim_one(backend)
        assert (lease.id, lease.deadline) == ("a", None)
        await apply(backend, succeed(lease))
        assert (await state(backend, "a")).deadline is None
        await consistent(backend)

    @needs("updates")
    async def test_a_deadline_is_read_after_the_end(self, backend: Backend) -> None:
        """An ended item shows the deadline that it had last."""
        deadline = await backend.now() + 500
        await submit(backend, item("a"))
        await backend.update(["a"], ItemUpdate(deadline=deadline))
        await apply(backend, succeed(await claim_one(backend)))
        assert (await state(backend, "a")).deadline == deadline

    @needs("updates")
    async def test_an_update_leaves_a_blocked_item_blocked(self, backend: Backend) -> None:
        """It has its new queue, priority and instant once it is released."""
        lease = await start_one(backend, item("p"))
        await submit(backend, dependent("p", id="a"), dependent("p", id="b"))
        later = await backend.now() + 100
        await backend.update(["a"], ItemUpdate(queue="q", priority=2))
        await backend.update(["b"], ItemUpdate(run_at=later))
        assert [await status(backend, id) for id in ("a", "b")] == ["blocked", "blocked"]
        await apply(backend, succeed(lease))
        assert [await status(backend, id) for id in ("a", "b")] == ["ready", "scheduled"]
        (found,) = await claim(backend)
        assert (found.id, found.queue, found.priority) == ("a", "q", 2)
        await consistent(backend)

    @needs("updates")
    @pytest.mark.parametrize("how", [succeed, die, cancel])
    async def test_an_ended_item_is_not_updated(self, backend: Backend, how: Any) -> None:
        """`ConflictError` names the id and the status. No other item of the call is changed."""
        await end(backend, item("a"), how=how)
        await submit(backend, item("b", delay=100))
        await self._refused(backend, "a", await status(backend, "a"))
        assert await status(backend, "b") == "scheduled"

    @needs("updates")
    async def test_a_running_item_is_not_updated(self, backend: Backend) -> None:
        """It has started."""
        await start_one(backend, item("a"))
        await submit(backend, item("b", delay=100))
        await self._refused(backend, "a", "running")

    @needs("updates")
    async def test_an_item_that_is_tried_again_is_not_updated(self, backend: Backend) -> None:
        """An attempt of it has begun."""
        await apply(backend, retry(await start_one(backend, item("a")), delay=50))
        await submit(backend, item("b", delay=100))
        await self._refused(backend, "a", "scheduled")

    @needs("updates")
    async def test_a_doomed_item_is_not_updated(self, backend: Backend) -> None:
        """It can only end."""
        await submit(backend, dependent("x", id="a", need=2), item("b", delay=100))
        await self._refused(backend, "a", "blocked")
        lease = await doomed_lease(backend)
        assert lease.id == "a"
        await self._refused(backend, "a", "blocked")
        await apply(backend, die(lease))

    async def _refused(self, backend: Backend, id: str, status: str) -> None:
        before = await backend.get([id, "b"])
        with pytest.raises(ConflictError) as refusal:
            await backend.update(["b", id], ItemUpdate(run_at=1.0, lane="other"))
        assert (getattr(refusal.value, "id", None), getattr(refusal.value, "status", None)) == (id, status)
        assert list(await backend.get([id, "b"])) == list(before)
        await consistent(backend)

    @needs("updates")
    async def test_a_missing_item_is_not_updated(self, backend: Backend) -> None:
        """`NotFound`, and no other item is changed."""
        await submit(backend, item("b", delay=100))
        with pytest.raises(NotFound) as refusal:
            await backend.update(["b", "missing"], ItemUpdate(run_at=1.0))
        assert refusal.value.id == "missing"
        assert await status(backend, "b") == "scheduled"

    @needs("updates")
    async def test_a_released_item_is_updated(self, backend: Backend) -> None:
        """Its attempt was given back."""
        await apply(backend, release(await start_one(backend, item("a"))))
        await backend.update(["a", "a"], ItemUpdate(lane="l"))
        assert (await claim_one(backend)).lane == "l"

    @needs("updates")
    async def test_the_items_of_one_tenant_are_updated(self, backend: Backend) -> None:
        """Another tenant's item of the same name stays as it is, and does not exist for this one."""
        await submit(backend, item("a"), item("a", tenant="acme"), item("b"))
        await backend.update(["a"], ItemUpdate(lane="l"), tenant="acme")
        assert (await state(backend, "a", "acme")).lane == "l"
        assert (await state(backend, "a", "default")).lane == ""
        with pytest.raises(NotFound):
            await backend.update(["b"], ItemUpdate(lane="l"), tenant="acme")
        await consistent(backend)

    @needs("updates")
    async def test_an_update_of_nothing_changes_nothing(self, backend: Backend) -> None:
        """No ids."""
        assert (await backend.update([], ItemUpdate(lane="l"))).items == ()

    @needs("updates", "operating")
    async def test_a_requeued_item_keeps_its_update(self, backend: Backend) -> None:
        """The update changed the item itself."""
        await submit(backend, item("a"))
        await backend.update(["a"], ItemUpdate(queue="q", lane="l", priority=3))
        await apply(backend, die(await claim_one(backend)))
        await backend.requeue(["a"])
        lease = await claim_one(backend, queues=("q",))
        assert (lease.lane, lease.priority) == ("l", 3)

    @needs("updates")
    async def test_an_update_races_with_a_claim(self, subject: Subject) -> None:
        """Either the item was changed before it started, or it is refused."""
        backends = await connections(subject, 2)
        await beat(subject.backend)

        async def update(n: int) -> bool:
            try:
                await backends[0].update([f"a{n}"], ItemUpdate(lane="new"))
            except ConflictError:
                return False
            return True

        async def race(n: int) -> None:
            await submit(subject.backend, item(f"a{n}"))
            claimed: Claim
            updated, claimed = await asyncio.gather(
                update(n), backends[1].claim(Demand(worker="w", limit=10))
            )
            (lease,) = claimed.leases or tuple(await claim(subject.backend))
            assert lease.lane == ("new" if updated else "")
            await apply(subject.backend, succeed(lease))

        for n in range(50):
            await race(n)
        await consistent(subject.backend)

    @needs("updates")
    async def test_updates_of_the_same_items_do_not_deadlock(self, subject: Subject) -> None:
        """Each applies as a whole."""
        backends = await connections(subject, 4)
        ids = [f"i{n}" for n in range(6)]
        await submit(subject.backend, *(item(id) for id in ids))

        async def update(n: int) -> None:
            order = ids if n % 2 else ids[::-1]
            await backends[n % 4].update(order, ItemUpdate(lane=f"l{n}", priority=n))

        await asyncio.gather(*(update(n) for n in range(40)))
        found = {(lease.lane, lease.priority) for lease in await claim(subject.backend)}
        assert len(found) == 1
        await consistent(subject.backend)
