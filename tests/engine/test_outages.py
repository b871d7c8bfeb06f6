"""The store is unavailable at the start, in between or at the end, and wake-ups are lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, Seen, no_new_tasks, until, until_status
from treadle import Context, MemoryBackend, Result, StoreUnavailable, Treadle, group, work
from treadle.engine import store_retry
from treadle.errors import BackendError, Stopped
from treadle.events import WorkerStarted, WorkerStopping
from treadle.testing import Faults, WrappedBackend

T = TypeVar("T")


@work(name="echo")
async def echo(n: int) -> int:
    return n


# ----------------------------------------------------------------------------------------------- at the start


@pytest.mark.parametrize("verb", ["open", "subscribe", "beat"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_start_waits_for_the_store(
    make_faulty: MakeApp, faults: Faults, verb: str, when: str
) -> None:

    away = faults.fail(verb, when=when, times=3)
    async with make_faulty(echo) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
    assert away.hits == 3


@pytest.mark.parametrize("verb", ["open", "beat"])
async def test_a_start_without_the_store_fails_and_leaves_nothing_behind(
    make_faulty: MakeApp, faults: Faults, verb: str
) -> None:
    """A second start succeeds when the store is there."""
    opened: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        opened.append("open")
        yield
        opened.append("closed")

    seen = Seen()
    away = faults.fail(verb, times=None)
    app = make_faulty(echo, lifespan=lifespan, on_event=seen)
    with no_new_tasks():
        with pytest.raises(StoreUnavailable):
            await app.start()
        assert not app.worker.running
        await app.close()
    assert opened in ([], ["open", "closed"])
    assert seen.of(WorkerStarted) == []
    away.end()
    async with app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1


async def test_a_start_raises_a_permanent_error_at_once(make_faulty: MakeApp, faults: Faults) -> None:
    refused = faults.fail("open", error=lambda: BackendError("no such database"), times=None)
    with pytest.raises(BackendError, match="no such database"):
        await make_faulty(echo).start()
    assert refused.hits == 1


async def test_an_enqueue_without_the_store_raises_after_a_while(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """The caller can enqueue the same work again."""
    app = make_faulty(echo)
    await app.connect()
    unsent = echo(1)
    with faults.outage(), pytest.raises(StoreUnavailable):
        await app.enqueue(unsent)
    handle = await app.enqueue(unsent)
    assert (await handle.state()).status == "ready"


async def test_one_item_that_the_store_cannot_submit_does_not_stop_the_others(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """The driver raises an unexpected error for one of six items."""
    poison = echo(3)
    faults.fail(
        "submit",
        times=None,
        error=lambda: RuntimeError("strange"),
        match=lambda given: any(s.items[0].id == poison.id for s in given),
    )
    app = make_faulty(echo)
    await app.connect()
    works = [poison if n == 3 else echo(n) for n in range(6)]
    answers = await asyncio.gather(*(app.enqueue(each) for each in works), return_exceptions=True)
    assert [isinstance(answer, RuntimeError) for answer in answers] == [n == 3 for n in range(6)]
    assert (await app.get([poison.id])) == [None]


# ------------------------------------------------------------------------------------------------- in between


async def test_handlers_survive_an_outage_shorter_than_the_lease(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """Their results are settled when the store is back."""
    ran: Counter[int] = Counter()
    barrier = Barrier()

    @work(name="held")
    async def held(n: int) -> int:
        ran[n] += 1
        await barrier.wait()
        return n

    errors = Errors()
    async with make_faulty(held, on_error=errors) as app:
        handles = await app.enqueue_many([held(n) for n in range(20)])
        await until(lambda: len(ran) == 20)
        with faults.outage():
            barrier.go.set()
            await errors.until("settle")
            await errors.until("claim")
        assert await asyncio.gather(*(h.result(PATIENCE) for h in handles)) == list(range(20))
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("verb", ["get", "group", "claim_key"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_context_waits_for_a_store_that_is_away_briefly(
    make_faulty: MakeApp, faults: Faults, verb: str, when: str
) -> None:
    """As in a planned failover. It costs the item no attempt."""

    @work(name="asks")
    async def asks(ctx: Context) -> tuple[list[int], str, bool, int]:
        (state,) = await ctx.states(ctx.dependencies[-1:])
        assert state is not None
        values = [*await ctx.results(echo), await ctx.result_of(echo), *await ctx.results(ctx.dependencies)]
        return values, state.status, await ctx.claim("key"), ctx.attempt

    async with make_faulty(echo, asks) as app:
        one, two = await app.enqueue_many([echo(7), echo(8)])
        await asyncio.gather(one.group(PATIENCE), two.group(PATIENCE))
        asked: list[str] = []
        away = faults.fail(verb, when=when, times=3, match=lambda *_: bool(asked))
        asks_now = asks()
        asked.append(asks_now.id)
        found = await app.enqueue(asks_now, after=[one, group(two)]).result(PATIENCE)
        assert found == ([7, 7, 7, 8], "success", True, 1)
    assert away.hits == 3


async def test_a_context_gives_up_on_a_store_that_stays_away(make_faulty: MakeApp, faults: Faults) -> None:
    """The handler learns of it, and may go on without."""

    @work(name="asks")
    async def asks(ctx: Context) -> str:
        try:
            await ctx.claim("key")
        except StoreUnavailable:
            return "unavailable"
        return "claimed"

    faults.fail("claim_key", times=None)
    async with make_faulty(asks) as app:
        assert await app.enqueue(asks()).result(PATIENCE) == "unavailable"


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_an_outage_longer_than_the_lease_interrupts_handlers(
    make_faulty: MakeApp, faults: Faults, how: str
) -> None:
    """Other workers may have taken over, so the reason is `error`. The items run again."""
    reasons: list[object] = []
    attempts: list[int] = []
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if len(attempts) > 1:
            return ctx.attempt
        try:
            await barrier.wait()
        finally:
            reasons.append(ctx.interrupt.reason)
        return 0

    async with make_faulty(held, lease=0.2) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        verbs = ("beat", "heartbeat_connection", "claim", "settle")
        fail = faults.fail if how == "fails" else faults.hold
        away = [(faults.fail if verb == "heartbeat_connection" else fail)(verb, times=None) for verb in verbs]
        await until(lambda: reasons)
        for fault in away:
            fault.end()
        assert await handle.result(PATIENCE) in (1, 2)
        assert (reasons, len(attempts)) == (["error"], 2)


async def test_an_outage_longer_than_the_lease_ends_the_whole_batch(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """Its items were given back, and ran again, while the handler still ran for them."""
    barrier = Barrier()
    calls: list[str] = []

    @work.batch(size=2, max_wait=0.05, name="held")
    async def held(numbers: list[int]) -> list[int]:
        calls.append("begins")
        if barrier.count == 0:
            try:
                await barrier.wait()
            finally:
                calls.append("ends")
        return numbers

    async with make_faulty(held, lease=0.2) as app:
        handles = await app.enqueue_many([held(1), held(2)])
        await barrier.reached()
        verbs = ("beat", "heartbeat_connection", "claim", "settle")
        away = [faults.fail(verb, times=None) for verb in verbs]
        await until(lambda: len(calls) > 1 or not app.active())
        for fault in away:
            fault.end()
        assert [await handle.result(PATIENCE) for handle in handles] == [1, 2]
    assert calls[:3] == ["begins", "ends", "begins"]


# ------------------------------------------------------------------------------------------------- at the end


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_stop_ends_in_bounded_time_without_the_store(
    make_faulty: MakeApp, faults: Faults, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded, whatever is on its way; and nothing is lost."""
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.04)
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        if not barrier.count:
            await barrier.wait()
        return ctx.attempt

    app = make_faulty(held, echo, lease=0.2)
    await app.start()
    handle = await app.enqueue(held())
    await barrier.reached()
    if how == "fails":
        faults.fail("*", times=None)
    else:
        for verb in ("settle", "claim", "beat", "remove_worker", "submit"):
            faults.hold(verb, times=None)
    stuck = asyncio.ensure_future(app.enqueue(echo(1)))
    waiting = asyncio.ensure_future(handle.result())
    await asyncio.sleep(0)
    began = time.monotonic()
    await app.stop(drain=0.05)
    assert time.monotonic() - began < 10
    faults.clear()
    # Waiters get an error and do not wait for ever.
    outcomes = await asyncio.wait_for(asyncio.gather(stuck, waiting, return_exceptions=True), PATIENCE)
    assert isinstance(outcomes[1], Stopped)
    async with make_faulty(held, echo) as second:
        assert await second.handle(handle.id).result(PATIENCE) in (1, 2)


async def test_a_claim_answered_during_stop_is_given_back(make_faulty: MakeApp, faults: Faults) -> None:
    """At once, and the attempt is not counted."""
    client = make_faulty(echo)
    handle = await client.enqueue(echo(1))
    slow = faults.hold("claim", when="after")
    app = make_faulty(echo)
    await app.start()
    await until_status(client, handle.id, "running")
    stopping = asyncio.ensure_future(app.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    slow.release()
    await stopping
    state = await handle.state()
    assert (state.status, state.attempt, state.history) == ("ready", 0, ())


async def test_a_cancelled_stop_gives_running_items_back(make_faulty: MakeApp) -> None:
    """It is cancelled while it drains."""
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        await barrier.wait()
        return ctx.attempt

    client = make_faulty(held)
    seen = Seen()
    app = make_faulty(held, lease=60, on_event=seen)
    await app.start()
    handle = await client.enqueue(held())
    await barrier.reached()
    stopping = asyncio.ensure_future(app.stop(drain=60))
    await seen.until(WorkerStopping)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert stopping.cancelled()
    state = await handle.state()
    assert (state.status, state.attempt) == ("ready", 0)
    await app.close()


class Slow(WrappedBackend):
    """Other tasks run between a settlement and its answer, after a wake-up."""

    wake: Callable[[], None]

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        answer = await call()
        if verb == "settle":
            self.wake()
            for _ in range(50):
                await asyncio.sleep(0)
        return answer


async def test_a_stop_cancelled_early_does_not_claim_its_items_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stop is cancelled before the worker stops claiming."""
    barrier, seen = Barrier(), Seen()

    @work(name="held")
    async def held(ctx: Context) -> int:
        await barrier.wait()
        return ctx.attempt

    async def never(worker: str) -> None:
        await asyncio.Event().wait()

    backend = Slow(MemoryBackend())
    app = Treadle(backend, work=[held], lease=60, on_event=seen)
    backend.wake = app._core.wakeups.ready
    handle = await app.enqueue(held())
    await app.start()
    await barrier.reached()
    monkeypatch.setattr(app._core.scheduler, "stop", never)
    stopping = asyncio.ensure_future(app.stop(drain=60))
    await seen.until(WorkerStopping)
    stopping.cancel()
    await asyncio.wait({stopping})
    state = await handle.state()
    assert (state.status, state.attempt, state.history) == ("ready", 0, ())
    await app.close()


# --------------------------------------------------------------------------------------------------- wake-ups


@pytest.mark.parametrize("how", ["dropped", "doubled", "late"])
async def test_everything_runs_once_without_reliable_wakeups(
    make_faulty: MakeApp, faults: Faults, how: str
) -> None:
    """Wake-ups are lost, repeated or late. Waiters get their results."""
    ran: Counter[int] = Counter()
    seen = Seen()

    @work(name="count")
    async def count(n: int) -> int:
        ran[n] += 1
        return n

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue([count(n) for n in range(10)]).next(count(99))

    fault = {
        "dropped": faults.drop,
        "doubled": lambda: faults.repeat("publish", times=None),
        "late": lambda: faults.hold("publish", times=None),
    }[how]()
    client = make_faulty(root, count)
    async with make_faulty(root, count, on_event=seen):
        handle = await client.enqueue(root())
        assert await handle.group(PATIENCE) == 99
        assert await client.enqueue(count(50)).result(PATIENCE) == 50
        fault.release()
        assert await client.enqueue(count(51)).result(PATIENCE) == 51
    assert fault.hits
    assert set(ran.values()) == {1}
    assert len(ran) == 13
