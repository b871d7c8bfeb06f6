"""Orders: pauses and limits that operators order while the fleet runs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import Demand, Order

from .build import (
    apply,
    beat,
    claim_answer,
    claim_ids,
    claim_one,
    defer,
    dependent,
    item,
    items,
    near,
    pause,
    resume,
    retry,
    start,
    start_one,
    state,
    submit,
    submit_one,
    succeed,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs

LIMIT = Order(kind="limit", name="mail.send", limit=50, window=60.0, actor="ann", reason="they asked us to")


class PauseCases:
    @needs("operating")
    async def test_a_claim_skips_paused_queues(self, backend: Backend) -> None:
        """Running items of the queue and other queues go on. Resuming makes its items claimable."""
        running = await start_one(backend, item("running", queue="bulk"))
        await submit(backend, item("a", queue="bulk"), item("b"))
        await pause(backend, "bulk")
        assert await claim_ids(backend) == ["b"]
        await apply(backend, succeed(running))
        await submit(backend, item("c", queue="bulk"))
        assert await claim_ids(backend) == []
        await resume(backend, "bulk")
        assert await claim_ids(backend) == ["a", "c"]
        await consistent(backend)

    @needs("operating")
    async def test_a_queue_may_be_paused_for_one_tenant(self, backend: Backend) -> None:
        """Other tenants' items of that queue are claimed."""
        await submit(backend, item("a", tenant="x"), item("b", tenant="y"))
        await pause(backend, "default", tenant="x")
        assert await claim_ids(backend) == ["b"]
        await resume(backend, "default", tenant="x")
        assert await claim_ids(backend) == ["a"]

    @needs("operating", "order")
    async def test_a_tenant_may_be_paused(self, backend: Backend) -> None:
        """In all queues, also in one that is new; parked items, and those to lease at once, too."""
        await submit(backend, item("a", tenant="x"), item("b", tenant="x", queue="q"), item("c", tenant="y"))
        await submit(backend, item("d", "other", tenant="x", queue="q"))
        assert await claim_ids(backend, types={"none": 1}) == []
        await pause(backend, tenant="x")
        assert await claim_ids(backend) == ["c"]
        late = await submit_one(backend, item("late", tenant="x", queue="new", lease_to="w"))
        assert (late.status, late.lease) == ("ready", None)
        assert await claim_ids(backend) == []
        await pause(backend, "q", tenant="x")
        await resume(backend, tenant="x")
        assert sorted(await claim_ids(backend)) == ["a", "late"]
        await resume(backend, "q", tenant="x")
        assert await claim_ids(backend) == ["b", "d"]
        await consistent(backend)

    @needs("operating", "strict")
    async def test_a_paused_tenant_keeps_its_strict_lanes_waiting(self, backend: Backend) -> None:
        """An item that holds its lane, and is ready again, waits too."""
        await submit(backend, item("a", tenant="x", lane="l"))
        held = await claim_one(backend, strict=frozenset({"work"}))
        await apply(backend, retry(held))
        await pause(backend, tenant="x")
        assert await claim_ids(backend, strict=frozenset({"work"})) == []
        await resume(backend, tenant="x")
        assert await claim_ids(backend, strict=frozenset({"work"})) == ["a"]

    @needs("operating")
    async def test_a_pause_ends_at_its_until(self, subject: Subject) -> None:
        """Of a queue, of a queue for a tenant, of a tenant. Also for items that are leased when stored."""
        backend = subject.backend
        end = await backend.now() + 50
        await submit(backend, item("a", queue="q"), item("b", queue="r", tenant="x"), item("c", tenant="y"))
        await pause(backend, "q", until=end)
        await pause(backend, "r", tenant="x", until=end)
        await pause(backend, tenant="y", until=end)
        assert await claim_ids(backend) == []
        await subject.advance(60)
        await beat(backend, "w")
        now = await submit_one(backend, item("d", queue="q", lease_to="w"))
        assert now.status == "running"
        assert sorted(await claim_ids(backend)) == ["a", "b", "c"]
        assert (await backend.orders()).orders == ()
        assert not await resume(backend, "q")
        await backend.prune()
        await consistent(backend)

    @needs("operating")
    async def test_pauses_of_a_queue_and_of_a_tenant_are_independent(self, backend: Backend) -> None:
        """An item is claimable only if neither pause applies."""
        await submit(backend, item("a", tenant="x"))
        await pause(backend, "default")
        await pause(backend, "default", tenant="x")
        await resume(backend, "default")
        assert await claim_ids(backend) == []
        await pause(backend, "default")
        await resume(backend, "default", tenant="x")
        assert await claim_ids(backend) == []
        await resume(backend, "default")
        assert await claim_ids(backend) == ["a"]

    @needs("operating")
    async def test_a_pause_does_not_stop_verdicts(self, backend: Backend) -> None:
        """Doomed items can only end."""
        await submit(backend, dependent("x", id="a", need=2))
        await pause(backend, "default")
        assert await verdicts(backend) == {"a": "unsatisfiable"}

    @needs("operating")
    async def test_a_paused_queue_uses_up_no_share(self, backend: Backend) -> None:
        """Neither its depth nor its priority delays other queues."""
        await submit(backend, *items(50, queue="bulk", priority=9), item("a", queue="z"))
        await pause(backend, "bulk")
        assert await claim_ids(backend, 1) == ["a"]

    @needs("operating")
    async def test_items_that_return_to_a_paused_queue_wait(self, subject: Subject) -> None:
        """Retried, deferred and freed items wait until the queue is resumed."""
        first, second = await start(subject.backend, item("a"), item("b"))
        await start_one(subject.backend, item("c"), "w1")
        await pause(subject.backend, "default")
        await apply(subject.backend, retry(first), defer(second, 50))
        await subject.backend.remove_worker("w1")
        await subject.advance(60)
        assert await claim_ids(subject.backend) == []
        await resume(subject.backend, "default")
        assert sorted(await claim_ids(subject.backend)) == ["a", "b", "c"]


class OrderCases:
    @needs("operating")
    async def test_orders_are_kept_with_who_when_and_why(self, subject: Subject) -> None:
        """Pauses and limits, each under its subject, also after a restart."""
        backend = subject.backend
        assert (await backend.orders()).orders == ()
        now = await backend.now()
        given = [
            Order(kind="pause", queue="q", actor="ann", reason="why", until=now + 90),
            Order(kind="pause", queue="q", tenant="t"),
            Order(kind="pause", type="mail", tenant="t", actor="bob"),
            Order(kind="pause", type="mail"),
            Order(kind="pause", tenant="t"),
            LIMIT,
            replace(LIMIT, window=None),
            Order(kind="limit", type="image", limit=4),
        ]
        for order in given:
            assert await backend.order(order)
        found = await (await subject.another()).orders()
        assert sorted(order.subject for order in given) == [order.subject for order in found.orders]
        assert {order.subject: order for order in given} == {
            order.subject: replace(order, at=0.0) for order in found.orders
        }
        assert all(order.at == near(now) for order in found.orders)
        assert found.now == near(now)
        await subject.advance(100)
        later = await backend.orders()
        assert len(later.orders) == len(given) - 1
        assert later.version == found.version

    @needs("operating")
    async def test_a_later_order_takes_the_place_of_the_first(self, backend: Backend) -> None:
        """The version changes, unless nothing else does."""
        await backend.order(LIMIT)
        first = await backend.orders()
        assert not await backend.order(LIMIT)
        assert (await backend.orders()).version == first.version
        assert await backend.order(replace(LIMIT, limit=5, reason="worse"))
        second = await backend.orders()
        assert [(order.limit, order.reason) for order in second.orders] == [(5, "worse")]
        assert second.version > first.version > 0
        assert await backend.withdraw(Order(kind="limit", name="mail.send", window=1.0))
        assert not await backend.withdraw(LIMIT)
        third = await backend.orders()
        assert (third.orders, third.version > second.version) == ((), True)

    @needs("operating")
    @pytest.mark.parametrize(
        "order", [LIMIT, Order(kind="pause", queue="other"), Order(kind="pause", type="t")]
    )
    async def test_a_claim_with_an_old_version_gets_nothing(self, backend: Backend, order: Order) -> None:
        """Nor verdicts. The answer has the current version, with which the next claim gets everything."""
        assert (await claim_answer(backend, 0, orders=(await backend.orders()).version)).orders is None
        await submit(backend, item("a"), dependent("x", id="doomed", need=2))
        for change in (backend.order, backend.withdraw):
            known = (await backend.orders()).version
            await change(order)
            refused = await backend.claim(Demand(worker="w", limit=9, orders=known))
            assert (refused.leases, refused.alive) == ((), True)
            assert refused.orders == (await backend.orders()).version != known
            assert (await state(backend, "a")).status == "ready"
        answer = await claim_answer(backend, orders=refused.orders)
        assert ([lease.id for lease in answer.leases if lease.verdict is None], answer.orders) == (
            ["a"],
            None,
        )

    @needs("operating")
    async def test_a_claim_without_a_version_obeys_pauses(self, backend: Backend) -> None:
        """As workers do that know of no orders."""
        await submit(backend, item("a"), item("b", tenant="x"))
        await pause(backend, tenant="x")
        await backend.order(LIMIT)
        assert await claim_ids(backend) == ["a"]

    @needs("operating")
    async def test_a_claim_of_a_dead_worker_is_answered_first(self, backend: Backend) -> None:
        """It is not alive, whichever version it knows."""
        await backend.order(LIMIT)
        answer = await backend.claim(Demand(worker="none", limit=1, orders=0))
        assert (answer.alive, answer.orders) == (False, None)
