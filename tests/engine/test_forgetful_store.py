"""A store that has forgotten what it answered: it was restored, or a replica that was behind took over.

The worker has settled an item, and the store counts it as running there. Both agree again within two leases.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, MakeBackend, until, until_status
from treadle import Context, Retry, Treadle, work
from treadle.doers import concurrency
from treadle.item import Outcome, PermitReply, PermitRequest, Settled, Settlement
from treadle.item_facts import LimitUse
from treadle.testing.wrap import WrappedBackend

LEASE = 0.6


class ForgetfulBackend(WrappedBackend):
    """Acknowledges calls that it forgets. forgets: how many calls of each verb. It forgets no items that a
    worker gives back: on a busy machine one may, whose heartbeat comes late."""

    def __init__(self, inner: Any, **forgets: int) -> None:
        super().__init__(inner)
        self.forgets = Counter(forgets)
        self.calls: Counter[str] = Counter()

    async def around(self, verb: str, args: tuple[Any, ...], call: Any) -> Any:
        self.calls[verb] += 1
        return await call()

    def forgets_now(self, verb: str) -> bool:
        self.forgets[verb] -= 1
        return self.forgets[verb] >= 0

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        ends = any(settlement.kind != "release" for settlement in settlements)
        if ends and self.forgets_now("settle"):
            return Settled(tuple(Outcome(verb="applied") for _ in settlements))
        return await super().settle(settlements)

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        replies = await super().take_permits(requests, worker=worker)
        if any(reply.count for reply in replies) and self.forgets_now("take_permits"):
            given = [
                PermitRequest(request.limits, reply.count, request.lease)
                for request, reply in zip(requests, replies, strict=True)
            ]
            await self.inner.return_permits(given, worker=worker)
        return replies

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        if not self.forgets_now("return_permits"):
            await super().return_permits(requests, worker=worker)


@pytest.fixture
def make_forgetful(make_app: MakeApp, store: MakeBackend, sound: None) -> Any:
    def make(
        *works: Any, lease: float = LEASE, forgets: dict[str, int] | None = None, **options: Any
    ) -> Treadle:
        return make_app(*works, lease=lease, backend=ForgetfulBackend(store(), **(forgets or {})), **options)

    return make


async def ends(app: Treadle, *ids: str, leases: float = 2.0) -> list[tuple[str, int]]:
    """The statuses and attempts of items that have to end within this many leases."""
    async with asyncio.timeout(leases * LEASE + 5.0):  # and what a busy machine takes
        states = [await until_status(app, id, "success", "dead") for id in ids]
    return [(state.status, state.attempt) for state in states]


async def uses_of_limits(app: Treadle, *, some: bool) -> Sequence[LimitUse]:
    """The limits that are in use, when there are some or none."""
    async with asyncio.timeout(PATIENCE):
        while bool(uses := await app.backend.limits()) != some:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.02)
    return uses


# ---------------------------------------------------------------------------------------------------- leases


async def test_an_item_whose_end_is_forgotten_runs_again(
    make_forgetful: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """As the same attempt: no worker died."""
    attempts: list[int] = []

    @work(name="send")
    async def send(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        return "sent"

    async with make_forgetful(send, forgets={"settle": 1}) as app:
        handle = await app.enqueue(send())
        await until(lambda: attempts)
        assert await ends(app, handle.id) == [("success", 1)]
        assert (await handle.state()).history == ()
    assert attempts == [1, 1]
    assert f"say that 1 item(s) run here that do not: send {handle.id}" in caplog.text.replace("says", "say")


async def test_all_items_of_a_batch_whose_end_is_forgotten_run_again(make_forgetful: MakeApp) -> None:
    """Together, as before."""
    sizes: list[int] = []

    @work.batch(size=3, max_wait=0.02, name="double")
    async def double(inputs: list[int]) -> list[int]:
        sizes.append(len(inputs))
        return [2 * n for n in inputs]

    async with make_forgetful(double, forgets={"settle": 1}) as app:
        handles = await app.enqueue_many([double(n) for n in range(3)])
        assert await ends(app, *(handle.id for handle in handles)) == [("success", 1)] * 3
    assert sum(sizes) == 6


async def test_a_failure_that_is_forgotten_is_not_counted(make_forgetful: MakeApp) -> None:
    """The store knows of one failure, and the item is tried as often as it says."""
    attempts: list[int] = []

    @work(name="fail", retry=Retry(attempts=2, base=0, jitter=0))
    async def fail(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError

    async with make_forgetful(fail, forgets={"settle": 1}) as app:
        handle = await app.enqueue(fail())
        assert await ends(app, handle.id) == [("dead", 2)]
    assert attempts == [1, 1, 2]


async def test_a_busy_worker_finds_what_is_forgotten(make_forgetful: MakeApp) -> None:
    """Claims and settlements are under way with every heartbeat, and other items run on."""
    ran: Counter[int] = Counter()
    barrier = Barrier()

    @work(name="short")
    async def short(n: int) -> None:
        ran[n] += 1

    @work(name="long")
    async def long() -> None:
        await barrier.wait()

    async with make_forgetful(short, long) as app:
        running = await app.enqueue(long())
        await barrier.reached()
        store: Any = app.backend
        store.forgets["settle"] = 1
        first = await app.enqueue(short(0))
        await until(lambda: ran[0])

        async def load() -> None:
            for n in range(1, 10**6):
                await app.enqueue(short(n))
                await asyncio.sleep(0.001)

        loading = asyncio.ensure_future(load())
        assert await ends(app, first.id) == [("success", 1)]
        loading.cancel()
        assert (ran[0], barrier.count) == (2, 1)
        assert (await running.state()).status == "running"
        barrier.go.set()


async def test_a_worker_that_is_pressed_finds_what_is_forgotten(make_forgetful: MakeApp) -> None:
    """It claims nothing new. What the store says that it runs is its own."""
    ran: list[int] = []

    @work(name="one", doer=concurrency(1))
    async def one(n: int) -> None:
        ran.append(n)

    forgets = {"settle": 1, "return_permits": 1}
    async with make_forgetful(
        one, lease=LEASE / 3, forgets=forgets, backpressure=lambda _: 2 * PATIENCE if ran else 0.0
    ) as app:
        first = await app.enqueue(one(1))
        await until(lambda: ran)
        second = await app.enqueue(one(2))
        assert await ends(app, first.id) == [("success", 1)]
        assert not await uses_of_limits(app, some=False)
        assert (await second.state()).status == "ready"
    assert ran == [1, 1]


async def test_a_store_that_forgets_nothing_is_not_asked(make_forgetful: MakeApp) -> None:
    """Heartbeats alone say that all is well, while items run and wait for permits."""
    barrier = Barrier()

    @work(name="long", doer=concurrency(2))
    async def long() -> None:
        await barrier.wait()

    async with make_forgetful(long, lease=0.15) as app:
        await app.enqueue_many([long() for _ in range(3)])
        await until(lambda: barrier.count == 2)
        store: Any = app.backend
        beats = store.calls["beat"]
        await until(lambda: store.calls["beat"] > beats + 8)
        barrier.go.set()
        await until(lambda: barrier.count == 3)
    assert (store.calls["keep_permits"], store.calls["unknown_leases"]) == (0, 0)


# --------------------------------------------------------------------------------------------------- permits


@pytest.mark.parametrize("forgets", [{"settle": 1, "return_permits": 1}, {"return_permits": 1}])
async def test_a_permit_whose_return_is_forgotten_is_free_again(
    make_forgetful: MakeApp, forgets: dict[str, int]
) -> None:
    """Also if the worker that had it gets no more items, and the others wait."""
    ran: list[int] = []

    @work(name="one", doer=concurrency(1))
    async def one(n: int) -> int:
        ran.append(n)
        return n

    async with make_forgetful(one, forgets=forgets) as app:
        first = await app.enqueue(one(1))
        await until(lambda: ran)
        await until(lambda: app.backend.forgets["return_permits"] <= 0)  # type: ignore[attr-defined]
        async with make_forgetful(one) as other:
            handles = await other.enqueue_many([one(n) for n in (2, 3)])
            await ends(other, first.id, *(handle.id for handle in handles), leases=4)
        assert not await uses_of_limits(app, some=False)
    assert Counter(ran) == {1: 1 + len(forgets) // 2, 2: 1, 3: 1}


async def test_a_permit_of_a_lease_whose_return_is_forgotten_is_free_again(make_forgetful: MakeApp) -> None:
    """The next item is not dropped for it."""

    @work(name="one", doer=concurrency(1, on_full="drop"))
    async def one(n: int) -> int:
        return n

    async with make_forgetful(one, forgets={"return_permits": 1}) as app:
        first = await app.enqueue(one(1))
        await until_status(app, first.id, "success")
        assert not await uses_of_limits(app, some=False)
        second = await app.enqueue(one(2))
        await until_status(app, second.id, "success")


async def test_a_permit_that_is_forgotten_is_counted_again(make_forgetful: MakeApp) -> None:
    """From then on the limit is not exceeded."""
    barrier = Barrier()

    @work(name="one", doer=concurrency(1))
    async def one() -> None:
        await barrier.wait()

    async with make_forgetful(one, forgets={"take_permits": 1}) as app:
        await app.enqueue(one())
        await barrier.reached()
        (use,) = await uses_of_limits(app, some=True)
        assert (use.used, [holder.worker for holder in use.holders]) == (1, [app.worker.id])
        barrier.go.set()
