"""A store that is away: at the start, in the middle, at the end; and signals that do not arrive."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from tests.engine.kit import PATIENCE, Errors, Gate, MakeApp, Seen, no_new_tasks, until, until_status
from treadle import Context, MemoryBackend, Result, StoreUnavailable, Treadle, work
from treadle.engine import store_retry
from treadle.errors import BackendError, Stopped
from treadle.events import WorkerStarted, WorkerStopping
from treadle.testing import Faults, WrappedBackend

T = TypeVar("T")


@work(name="echo")
async def echo(n: int) -> int:
    return n


# --------------------------------------------------------------------------------------------------- at first


@pytest.mark.parametrize("verb", ["open", "subscribe", "beat"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_comes_late(make_faulty: MakeApp, faults: Faults, verb: str, when: str) -> None:
    """A start waits for it a little."""
    away = faults.fail(verb, when=when, times=3)
    async with make_faulty(echo) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
    assert away.hits == 3


@pytest.mark.parametrize("verb", ["open", "beat"])
async def test_a_store_that_does_not_come(make_faulty: MakeApp, faults: Faults, verb: str) -> None:
    """The start fails, and leaves nothing behind; it can be tried again."""
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


async def test_an_error_that_waiting_does_not_mend(make_faulty: MakeApp, faults: Faults) -> None:
    """It is told at once."""
    refused = faults.fail("open", error=lambda: BackendError("no such database"), times=None)
    with pytest.raises(BackendError, match="no such database"):
        await make_faulty(echo).start()
    assert refused.hits == 1


async def test_an_enqueue_while_the_store_is_away(make_faulty: MakeApp, faults: Faults) -> None:
    """It waits a little; then the caller is told, and may try again with the same work."""
    app = make_faulty(echo)
    await app.connect()
    minted = echo(1)
    with faults.outage(), pytest.raises(StoreUnavailable):
        await app.enqueue(minted)
    handle = await app.enqueue(minted)
    assert (await handle.state()).status == "ready"


async def test_a_submit_that_fails_strangely(make_faulty: MakeApp, faults: Faults) -> None:
    """One of many is what the store, or its driver, fails at: the others are stored, and do not wait."""
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


async def test_an_outage_while_handlers_run(make_faulty: MakeApp, faults: Faults) -> None:
    """Shorter than the lease: handlers go on, and what they came to is settled when the store is back."""
    ran: Counter[int] = Counter()
    gate = Gate()

    @work(name="held")
    async def held(n: int) -> int:
        ran[n] += 1
        await gate.passing()
        return n

    errors = Errors()
    async with make_faulty(held, on_error=errors) as app:
        handles = await app.enqueue_many([held(n) for n in range(20)])
        await until(lambda: len(ran) == 20)
        with faults.outage():
            gate.go.set()
            await errors.until("settle")
            await errors.until("claim")
        assert await asyncio.gather(*(h.result(PATIENCE) for h in handles)) == list(range(20))
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_an_outage_longer_than_the_lease(make_faulty: MakeApp, faults: Faults, how: str) -> None:
    """Others may have taken over: handlers are told to stop, with the reason `error`. Then they run again."""
    reasons: list[object] = []
    attempts: list[int] = []
    gate = Gate()

    @work(name="held")
    async def held(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if len(attempts) > 1:
            return ctx.attempt
        try:
            await gate.passing()
        finally:
            reasons.append(ctx.interrupt.reason)
        return 0

    async with make_faulty(held, lease=0.4) as app:
        handle = await app.enqueue(held())
        await gate.reached()
        verbs = ("beat", "heartbeat_connection", "claim", "settle")
        fail = faults.fail if how == "fails" else faults.hold
        away = [(faults.fail if verb == "heartbeat_connection" else fail)(verb, times=None) for verb in verbs]
        await until(lambda: reasons)
        for fault in away:
            fault.end()
        assert await handle.result(PATIENCE) in (1, 2)
        assert (reasons, len(attempts)) == (["error"], 2)


# ---------------------------------------------------------------------------------------------------- at last


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_stop_ends_without_the_store(
    make_faulty: MakeApp, faults: Faults, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded, whatever is on its way; and nothing is lost."""
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.3)
    gate = Gate()

    @work(name="held")
    async def held(ctx: Context) -> int:
        if not gate.count:
            await gate.passing()
        return ctx.attempt

    app = make_faulty(held, echo, lease=1.0)
    await app.start()
    handle = await app.enqueue(held())
    await gate.reached()
    if how == "fails":
        faults.fail("*", times=None)
    else:
        for verb in ("settle", "claim", "beat", "remove_worker", "submit"):
            faults.hold(verb, times=None)
    stuck = asyncio.ensure_future(app.enqueue(echo(1)))
    waiting = asyncio.ensure_future(handle.result())
    await asyncio.sleep(0)
    began = time.monotonic()
    await app.stop(drain=0.1)
    assert time.monotonic() - began < 10
    faults.clear()
    # Those who wait on it are told, and do not wait for ever.
    outcomes = await asyncio.wait_for(asyncio.gather(stuck, waiting, return_exceptions=True), PATIENCE)
    assert isinstance(outcomes[1], Stopped)
    async with make_faulty(held, echo) as second:
        assert await second.handle(handle.id).result(PATIENCE) in (1, 2)


async def test_a_claim_that_is_answered_after_stop_began(make_faulty: MakeApp, faults: Faults) -> None:
    """What it handed out is given back at once, and the attempt with it."""
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


async def test_a_stop_that_is_cut_short(make_faulty: MakeApp) -> None:
    """Cancelled while it drains: what was running is given back all the same."""
    gate = Gate()

    @work(name="held")
    async def held(ctx: Context) -> int:
        await gate.passing()
        return ctx.attempt

    client = make_faulty(held)
    seen = Seen()
    app = make_faulty(held, lease=60, on_event=seen)
    await app.start()
    handle = await client.enqueue(held())
    await gate.reached()
    stopping = asyncio.ensure_future(app.stop(drain=60))
    await seen.until(WorkerStopping)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert stopping.cancelled()
    state = await handle.state()
    assert (state.status, state.attempt) == ("ready", 0)
    await app.close()


class Slow(WrappedBackend):
    """Others have a few turns between a settlement and its answer, and are told that there is something."""

    tell: Callable[[], None]

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        answer = await call()
        if verb == "settle":
            self.tell()
            for _ in range(50):
                await asyncio.sleep(0)
        return answer


async def test_a_stop_that_is_cut_short_before_the_worker_takes_on_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not claim again what it gives back."""
    gate, seen = Gate(), Seen()

    @work(name="held")
    async def held(ctx: Context) -> int:
        await gate.passing()
        return ctx.attempt

    async def never(worker: str) -> None:
        await asyncio.Event().wait()

    backend = Slow(MemoryBackend())
    app = Treadle(backend, work=[held], lease=60, on_event=seen)
    backend.tell = app._core.wakeups.ready
    handle = await app.enqueue(held())
    await app.start()
    await gate.reached()
    monkeypatch.setattr(app._core.scheduler, "stop", never)
    stopping = asyncio.ensure_future(app.stop(drain=60))
    await seen.until(WorkerStopping)
    stopping.cancel()
    await asyncio.wait({stopping})
    state = await handle.state()
    assert (state.status, state.attempt, state.history) == ("ready", 0, ())
    await app.close()


# ---------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("how", ["dropped", "doubled", "late"])
async def test_signals_are_not_needed(make_faulty: MakeApp, faults: Faults, how: str) -> None:
    """Lost, repeated or late: everything runs once, and whoever waits hears of it."""
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
