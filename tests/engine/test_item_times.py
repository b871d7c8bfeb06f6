"""When an item was claimed, when its handler began, and how long it waited (SPEC §18)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, failure
from treadle import Retry, work
from treadle.doers import concurrency
from treadle.item import ItemState
from treadle.metrics import WAIT, Histogram


def ordered(state: ItemState) -> bool:
    times = [state.queued_at, state.claimed_at, state.started_at, state.ended_at]
    given = [at for at in times if at is not None]
    return len(given) == len(times) and given == sorted(given)


async def test_a_handler_begins_after_its_claim(make_app: MakeApp) -> None:
    """The second item is claimed, and waits in the worker until the first one has ended."""
    barrier = Barrier()

    @work(name="one", doer=concurrency(1))
    async def one() -> None:
        await barrier.wait()

    async with make_app(one) as app:
        handles = [await app.enqueue(one()) for _ in range(2)]
        await barrier.reached()
        barrier.go.set()
        for handle in handles:
            await handle.result(PATIENCE)
        states = [await handle.state() for handle in handles]
        assert all(map(ordered, states))
        first, second = sorted(states, key=lambda state: state.started_at or 0)
        assert (second.started_at or 0) >= (first.ended_at or 0) - 0.05


async def test_a_success_after_a_failure_shows_no_error(make_app: MakeApp) -> None:
    """The history has it."""
    tries: list[int] = []

    @work(name="twice", retry=AT_ONCE)
    async def twice() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("first")

    async with make_app(twice) as app:
        handle = await app.enqueue(twice())
        await handle.result(PATIENCE)
        state = await handle.state()
        assert (state.error, state.error_type) == (None, None)
        assert [attempt.message for attempt in state.history] == ["first"]
        assert ordered(state)


@pytest.mark.parametrize("error", [RuntimeError("no")])
async def test_a_death_shows_when_its_handler_began(make_app: MakeApp, error: Exception) -> None:
    """As a success does."""

    @work(name="bad", retry=Retry(attempts=1))
    async def bad() -> None:
        raise error

    async with make_app(bad) as app:
        handle = await app.enqueue(bad())
        await failure(handle.result(PATIENCE))
        state = await handle.state()
        assert ordered(state)
        assert state.error == "RuntimeError: no"


async def test_a_lease_without_a_worker_began_with_its_claim(make_app: MakeApp) -> None:
    """There is no handler: the caller does it."""

    @work(name="manual")
    async def manual() -> None: ...

    app = make_app(manual)
    handle = await app.enqueue(manual())
    lease = await app.claim_one()
    assert lease is not None
    await lease.complete()
    assert ordered(await handle.state())


async def test_the_wait_of_a_blocked_item_counts_from_its_release(make_timed: Any, clock: Any) -> None:
    """Not from its submission."""

    @work(name="step")
    async def step() -> None: ...

    app = make_timed(step)
    first = await app.enqueue(step(), delay=100)
    second = await app.enqueue(step(), after=[first])
    async with app:
        await clock.advance(100)
        await second.result(PATIENCE)
        waited = app.metrics.get(WAIT, type="step")
        assert isinstance(waited, Histogram)
        assert (waited.count, waited.sum < 50) == (2, True)
