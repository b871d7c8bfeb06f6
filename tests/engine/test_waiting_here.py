"""Items that are leased and wait in this worker, for a batch or in a doer: deadlines and cancellations count.

See SPEC §5 and §10.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, Seen, failure, until
from treadle import Treadle, WorkCancelled, work
from treadle.doers import balanced, oldest, rate_limited
from treadle.events import Expired, LeaseLost
from treadle.testing import ManualClock

LONG = 600
SOON = 0.3
"""Seconds. Long enough to be claimed before."""


async def expires(app: Treadle, call: Any) -> None:
    """Enqueue an item with a deadline. It expires long before it could run."""
    error = await failure(app.enqueue(call, expires_in=SOON).result(PATIENCE))
    assert error.reason == "expired"


async def test_an_item_that_a_batch_collects_expires(make_app: MakeApp) -> None:
    calls: list[list[int]] = []

    @work.batch(size=3, max_wait=LONG, name="collect")
    async def collect(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return numbers

    seen = Seen()
    async with make_app(collect, on_event=seen) as app:
        first = await app.enqueue(collect(1))
        await expires(app, collect(2))
        assert len(seen.of(Expired)) == 1
        handles = await app.enqueue_many([collect(3), collect(4)])
        assert [await handle.result(PATIENCE) for handle in [first, *handles]] == [1, 3, 4]
    assert calls == [[1, 3, 4]]


async def test_max_wait_counts_from_the_first_item_that_is_left(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """The timer of an item that has expired does not cut the wait of the next one short."""
    calls: list[list[int]] = []

    @work.batch(size=9, max_wait=10, name="collect")
    async def collect(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return numbers

    @work(name="plain")
    async def plain() -> None: ...

    seen = Seen()
    async with make_timed(collect, plain, on_event=seen, lease=LONG) as app:
        await app.enqueue(collect(1), expires_in=6)
        await until(lambda: len(app.active()) == 1)
        await clock.advance(6.5)
        await seen.until(Expired)
        handle = await app.enqueue(collect(2))
        await until(lambda: [lease.id for lease in app.active()] == [handle.id])
        await clock.advance(9)  # 15.5 s after the first, 9 s after the second
        await app.enqueue(plain()).result(PATIENCE)  # time for a batch to begin
        assert calls == []
        await clock.advance(2)
        assert await handle.result(PATIENCE) == 2
    assert calls == [[2]]


@pytest.mark.parametrize("doer", [balanced, oldest])
async def test_an_item_that_waits_for_room_expires(make_app: MakeApp, doer: Any) -> None:
    """Its handler does not begin, and it leaves its place in the line to another."""
    barrier = Barrier()
    began: list[int] = []

    @work(name="job", doer=doer(1, buffer=2))
    async def job(n: int) -> int:
        began.append(n)
        await barrier.wait()
        return n

    async with make_app(job) as app:
        first = await app.enqueue(job(1))
        await barrier.reached()
        await expires(app, job(2))
        await until(lambda: len(app.active()) == 1)
        others = await app.enqueue_many([job(3), job(4)])
        await until(lambda: len(app.active()) == 3)
        barrier.go.set()
        assert [await handle.result(PATIENCE) for handle in [first, *others]] == [1, 3, 4]
    assert began == [1, 3, 4]


async def test_an_item_that_a_limit_holds_back_expires(make_app: MakeApp) -> None:
    """In the store, or in the worker if the limit reopens soon."""
    began: list[int] = []

    @work(name="limited", doer=rate_limited(1, LONG))
    async def limited(n: int) -> int:
        began.append(n)
        return n

    @work(name="soon", doer=rate_limited(1, 0.9, "fixed_window"))
    async def soon(n: int) -> int:
        began.append(n)
        return n

    async with make_app(limited, soon) as app:
        assert await app.enqueue(limited(1)).result(PATIENCE) == 1
        assert await app.enqueue(soon(2)).result(PATIENCE) == 2
        await asyncio.gather(expires(app, limited(3)), expires(app, soon(4)))
    assert sorted(began) == [1, 2]


async def test_an_expired_item_takes_no_permit(make_timed: MakeApp, clock: ManualClock) -> None:
    """The next permit belongs to the next item."""
    began: list[int] = []

    @work(name="limited", doer=rate_limited(1, 0.2))
    async def limited(n: int) -> None:
        began.append(n)

    seen = Seen()
    async with make_timed(limited, on_event=seen, poll_interval=LONG) as app:
        await app.enqueue_many([limited(1), limited(2)], expires_in=0.1)
        await app.enqueue(limited(3))
        await until(lambda: began and len(app.active()) == 2)
        await clock.advance(0.11)
        await seen.until(Expired)
        await clock.advance(0.1)
        await until(lambda: len(began) == 2)
    assert began == [1, 3]


@pytest.mark.parametrize("grace", [0, LONG])
async def test_a_cancelled_item_that_waits_is_dropped_at_once(make_app: MakeApp, grace: float) -> None:
    """`interrupt_grace` is for handlers that have begun."""
    barrier = Barrier()
    began: list[int] = []

    @work(name="job", doer=balanced(1, buffer=5))
    async def job(n: int) -> int:
        began.append(n)
        await barrier.wait()
        return n

    @work.batch(size=9, max_wait=LONG, name="collect")
    async def collect(numbers: list[int]) -> list[int]:
        began.extend(numbers)
        return numbers

    seen = Seen()
    async with make_app(job, collect, on_event=seen, interrupt_grace=grace) as app:
        await app.enqueue(job(1))
        await barrier.reached()
        for call in (job(2), collect(3)):
            handle = await app.enqueue(call)
            await until(lambda: handle.id in {each.id for each in app.active()})  # noqa: B023
            await handle.cancel()
            await seen.until(LeaseLost, handle.id)
            with pytest.raises(WorkCancelled):
                await handle.result(PATIENCE)
        assert len(app.active()) == 1
        barrier.go.set()
        await app.stop(drain=PATIENCE)
    assert began == [1]


async def test_an_item_expires_while_accept_is_asked(make_app: MakeApp) -> None:
    asked = Barrier()

    @work(name="job")
    async def job() -> None:
        raise AssertionError("it began")

    async def accept(_: object) -> bool:
        await asked.wait()
        return True

    async with make_app(job, accept=accept) as app:
        await expires(app, job())
        assert asked.count == 1
