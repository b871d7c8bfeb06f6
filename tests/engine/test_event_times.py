"""Event times: those of one item never run backwards, whatever the clocks of the processes say (SPEC §18)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp, failure, until
from treadle import Abort, Context, Defer, Result, Retry, work
from treadle.backend import Backend
from treadle.base.timing import SystemClock
from treadle.events import (
    Cancelled,
    Dead,
    Deferred,
    Event,
    Failed,
    ItemEvent,
    LeaseLost,
    Queued,
    Released,
    Started,
    Succeeded,
)

SKEWS = [0.0, 3600.0, -3600.0]
STAGES = (Queued, Released, Started, (Failed, Deferred, Succeeded, Dead, Cancelled, LeaseLost))
"""In this order, and each attempt ends before the next one begins."""


DEFERRED: set[str] = set()


class Skewed(SystemClock):
    """A machine whose wall clock is wrong, and whose monotonic clock began at another time."""

    def __init__(self, by: float) -> None:
        self._by = by
        real = SystemClock()
        self.now = lambda: real.now() + by  # type: ignore[method-assign]
        self.monotonic = lambda: real.monotonic() + 2 * by + 1e5  # type: ignore[method-assign]


class Log:
    """The events of all processes, in the order in which they were sent."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, id: str) -> list[ItemEvent]:
        return [event for event in self.events if isinstance(event, ItemEvent) and event.id == id]

    def check(self) -> None:
        by_item: dict[tuple[str, str], list[ItemEvent]] = defaultdict(list)
        for event in self.events:
            if isinstance(event, ItemEvent):
                by_item[event.tenant, event.id].append(event)
        assert by_item
        for events in by_item.values():
            # A process hears of its own commit when the store answers: perhaps after another began the item.
            stages = [[event.at for event in events if isinstance(event, kinds)] for kinds in STAGES]
            begins, ends = stages[2:]
            attempts = [at for each in zip_longest(begins, ends) for at in each if at is not None]
            times = [*stages[0], *stages[1], *attempts]
            shown = [f"{type(event).__name__} {event.at}" for event in events]
            assert times == sorted(times), shown


@work(name="steps", retry=Retry(attempts=3, base=0.01))
async def steps(ctx: Context, n: int) -> Result[None, int]:
    if ctx.attempt == 1 and n % 3 == 0:
        raise OSError("again")
    if n % 3 == 1 and ctx.id not in DEFERRED:
        DEFERRED.add(ctx.id)
        raise Defer(delay=0.01)
    return ctx.queue([leaf(n), leaf(n + 1)]).next(leaf(n + 2))


@work(name="leaf")
async def leaf(n: int) -> int:
    return n


@work(name="dies")
async def dies() -> None:
    raise Abort("no")


async def test_event_times_never_run_backwards(make_app: MakeApp) -> None:
    """A producer and three workers, each with another clock."""
    log = Log()
    workers = [make_app(steps, leaf, dies, on_event=log, clock=Skewed(by)) for by in SKEWS]
    for app in workers:
        await app.start()
    producer = make_app(steps, leaf, dies, on_event=log, clock=Skewed(7200.0))
    handles = [await producer.enqueue(steps(n)) for n in range(12)]
    dead = await producer.enqueue(dies())
    for handle in handles:
        await handle.group(PATIENCE)
    await failure(dead.result(PATIENCE))
    for app in workers:
        await app.worker.stop()
    log.check()
    ran = {type(event).__name__ for event in log.events}
    assert ran >= {"Queued", "Released", "Started", "Failed", "Deferred", "Succeeded", "Dead", "GroupDone"}


async def test_events_have_the_times_of_the_store(make_app: MakeApp) -> None:
    log = Log()
    producer = make_app(leaf, on_event=log, clock=Skewed(3600.0))
    handle = await producer.enqueue(leaf(1))
    async with make_app(leaf, on_event=log, clock=Skewed(-3600.0)) as worker:
        await worker.handle(handle.id).result(PATIENCE)
        (state,) = await worker.get([handle.id])
    assert state is not None
    queued, started, succeeded = [event.at for event in log.of(handle.id)[:3]]
    assert [type(event) for event in log.of(handle.id)[:3]] == [Queued, Started, Succeeded]
    assert queued == pytest.approx(state.queued_at, abs=1e-6)
    assert state.claimed_at is not None
    assert state.ended_at is not None
    assert state.claimed_at - 1e-6 <= started <= succeeded == pytest.approx(state.ended_at, abs=1e-6)


@pytest.mark.parametrize("by", SKEWS)
async def test_the_events_of_operators_have_the_times_of_the_store(make_app: MakeApp, by: float) -> None:
    """Each process hears of its own events: the worker of the lost lease, the operator of what was ended."""
    log, ended, begun = Log(), Log(), asyncio.Event()

    @work(name="waits")
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    operator = make_app(waits, on_event=ended, clock=Skewed(by))
    async with make_app(waits, on_event=log) as worker:
        later = await worker.enqueue(waits(), delay=3600)
        running = await worker.enqueue(waits())
        done = await worker.enqueue(waits(), delay=3600)
        await begun.wait()
        before = await worker.backend.now()
        assert await operator.cancel([later.id, running.id]) == 2
        await operator.complete(done.id, None)
        after = await worker.backend.now()
    log.check()
    ended.check()
    for handle in (later, running, done):
        assert before - 1 <= ended.of(handle.id)[0].at <= after + 0.01


@pytest.mark.every_store
async def test_an_item_of_a_transaction_has_the_time_at_which_it_was_stored(make_app: MakeApp) -> None:
    """Not that of the commit: a claim that began before the commit may find the item."""
    log = Log()

    @work(name="parent")
    async def parent(ctx: Context) -> str:
        async with ctx.transaction():
            handle = await app.enqueue(leaf(2))
        before = await app.backend.now()
        while await app.backend.now() < before + 0.01:
            pass
        return handle.id

    app: Any = make_app(leaf, parent, on_event=log)
    if "transactions" not in app.backend.capabilities:
        pytest.skip("this store has no transactions")
    async with app:
        id = await app.enqueue(parent()).result(PATIENCE)
        await app.handle(id).result(PATIENCE)
        (state,) = await app.get([id])
    (queued,) = [event for event in log.of(id) if isinstance(event, Queued)]
    assert queued.at == pytest.approx(state.queued_at, abs=1e-6)


@pytest.mark.parametrize("by", SKEWS)
async def test_a_schedule_and_a_transaction_have_the_times_of_the_store(
    make_app: MakeApp, store: Callable[[], Backend], by: float
) -> None:
    log = Log()

    @work(name="parent")
    async def parent(ctx: Context) -> None:
        if "transactions" in app.backend.capabilities:
            async with ctx.transaction():
                await app.enqueue(leaf(2))

    app: Any = make_app(leaf, parent, on_event=log, clock=Skewed(by))
    async with app:
        app.schedule("s", every=0.1, run=lambda: leaf(1))
        await app.enqueue(parent()).result(PATIENCE)
        await until(lambda: any(isinstance(e, Succeeded) and e.type == "leaf" for e in log.events))
        await app.schedules.cancel("s")
        await app.worker.drain()
    log.check()
