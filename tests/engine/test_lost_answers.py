"""Calls whose answer was lost, that came late, or twice: what they did is done once, and is followed up."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.engine.kit import PATIENCE, Errors, Gate, MakeApp, MakeBackend, Seen, until, until_status
from treadle import Context, Result, Retry, StoreUnavailable, Treadle, WorkCancelled, work
from treadle.backends.memory import MemoryBackend
from treadle.events import GroupDone, LeaseLost, Queued, Released, Started, Succeeded
from treadle.testing import Faults, FaultyBackend
from treadle.testing.contract.check import everything

LOST = pytest.mark.parametrize("when", ["after", "later"])


@work(name="echo")
async def echo(n: int) -> int:
    return n


# ----------------------------------------------------------------------------------------------------- claim


@LOST
async def test_claims_whose_answer_is_lost(make_faulty: MakeApp, faults: Faults, when: str) -> None:
    """What they handed out is found and run: once, on the first attempt."""
    attempts: Counter[tuple[int, int]] = Counter()

    @work(name="count")
    async def count(ctx: Context, n: int) -> int:
        attempts[n, ctx.attempt] += 1
        return n

    client = make_faulty(count)
    handles = await client.enqueue_many([count(n) for n in range(30)])
    lost = faults.fail("claim", when=when, times=2)
    lost.release()
    async with make_faulty(count):
        assert await asyncio.gather(*(h.result(PATIENCE) for h in handles)) == list(range(30))
    assert (attempts, lost.hits) == ({(n, 1): 1 for n in range(30)}, 2)


async def test_a_claim_that_lands_after_it_was_asked_for(make_faulty: MakeApp, faults: Faults) -> None:
    """The store is asked at once what was handed out, too early; it is asked again a lease later."""
    client = make_faulty(echo)
    asked = faults.hold("unknown_leases")
    asked.release()
    late = faults.fail("claim", when="later")
    async with make_faulty(echo, lease=0.5):
        await asked.reached()
        held = faults.hold("claim")
        await held.reached()
        handle = await client.enqueue(echo(1))
        late.release()
        await late.landed()
        assert (await handle.state()).status == "running"
        held.release()
        assert await handle.result(PATIENCE) == 1


async def test_asking_for_lost_claims_fails_too(make_faulty: MakeApp, faults: Faults) -> None:
    """It is asked until it is answered, although claims succeed in between."""
    client = make_faulty(echo)
    handle = await client.enqueue(echo(1))
    faults.fail("claim", when="after")
    failing = faults.fail("unknown_leases", times=3)
    async with make_faulty(echo):
        assert await handle.result(PATIENCE) == 1
    assert failing.hits == 3


async def test_a_claim_that_finds_its_worker_buried(make_faulty: MakeApp, faults: Faults) -> None:
    """It beats again; that beats fail does not end it."""
    async with make_faulty(echo) as app:
        failing = faults.fail("beat", times=3)
        await app.backend.remove_worker(app.worker.id)
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
    assert failing.hits == 3


async def test_what_skips_the_queue_is_not_taken_for_lost(make_faulty: MakeApp, faults: Faults) -> None:
    """Its answer is on its way when lost claims are asked for: it runs once all the same."""
    ran: list[int] = []

    @work(name="local", skip_queue=True)
    async def local(n: int) -> int:
        ran.append(n)
        return n

    errors = Errors()
    other = make_faulty(echo)
    async with make_faulty(local, echo, on_error=errors) as app:
        slow = faults.hold("submit", when="after")
        enqueuing = asyncio.ensure_future(app.enqueue(local(1)).result(PATIENCE))
        await slow.reached()
        asked = faults.hold("unknown_leases", when="after")
        asked.release()
        lost = faults.fail("claim", when="after")
        assert app.worker._runtime is not None
        app.worker._runtime.claimer.wake()
        await errors.until("claim")  # it has happened, and found nothing else
        assert lost.hits == 1
        assert await other.enqueue(echo(0)).result(PATIENCE) == 0  # the worker goes on, and does not ask
        assert asked.hits == 0
        slow.release()
        assert await enqueuing == 1
        await asked.reached()
        assert await app.enqueue(echo(2)).result(PATIENCE) == 2
    assert ran == [1]


# ---------------------------------------------------------------------------------------------------- settle


@LOST
async def test_events_of_settlements_whose_answer_is_lost(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """Each is announced once: also that a group is done, which the second answer does not say."""
    seen = Seen()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(echo(1), echo(2)).next(echo(3))

    lost = faults.fail("settle", when=when, times=None, match=_every_other())
    lost.release()
    async with make_faulty(root, echo, on_event=seen) as app:
        handle = await app.enqueue(root())
        assert await handle.group(PATIENCE) == 3
        await seen.until(GroupDone)
        await asyncio.sleep(0)
    assert lost.hits >= 2
    done = seen.of(GroupDone)
    assert [(event.id, event.result) for event in done] == [(handle.id, 3)]
    for kind in (Queued, Started, Succeeded):
        assert Counter(event.id for event in seen.of(kind)).most_common(1)[0][1] == 1, kind
        assert len(seen.of(kind)) == 4, kind
    assert len(seen.of(Released)) <= 1


async def test_the_waiters_of_another_process(
    make_faulty: MakeApp, make_app: MakeApp, faults: Faults
) -> None:
    """The poll is slow, and the answer was lost: they hear of it all the same."""
    other = make_app(echo, poll_interval=30)
    lost = faults.fail("settle", when="after")
    async with make_faulty(echo, poll_interval=30):
        assert await other.enqueue(echo(1)).group(PATIENCE) == 1
    assert lost.hits == 1


def _every_other() -> object:
    calls: Counter[frozenset[int]] = Counter()

    def match(settlements: list[object]) -> bool:
        tokens = frozenset(s.lease.token for s in settlements)  # type: ignore[attr-defined]
        calls[tokens] += 1
        return calls[tokens] == 1

    return match


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_whose_answer_is_lost(
    make_faulty: MakeApp, faults: Faults, store: MakeBackend, when: str
) -> None:
    """The handler's transaction was committed, or it was not: what is told is what happened."""
    if isinstance(store(), MemoryBackend):
        pytest.skip("no transactions in memory")
    seen = Seen()

    @work(name="paid", retry=Retry(attempts=1))
    async def paid(ctx: Context) -> str:
        async with ctx.transaction():
            pass
        return "paid"

    lost = faults.fail("commit", when=when)
    async with make_faulty(paid, on_event=seen) as app:
        handle = await app.enqueue(paid())
        outcome = (await asyncio.gather(handle.result(PATIENCE), return_exceptions=True))[0]
        state = await handle.state()
        await seen.until(GroupDone)
        assert not app.active()
    assert lost.hits == 1
    if when == "after":
        assert (outcome, state.status, len(seen.of(Succeeded))) == ("paid", "success", 1)
    else:
        assert (getattr(outcome, "reason", None), state.status) == ("exhausted", "dead")
        assert seen.of(Succeeded) == []


# ------------------------------------------------------------------------------------------------------ beat


@LOST
async def test_beats_whose_answer_is_lost(make_faulty: MakeApp, faults: Faults, when: str) -> None:
    """A worker that is alive stays so, from the first beat on."""
    ran: list[int] = []
    gate = Gate()

    @work(name="held")
    async def held(ctx: Context) -> int:
        ran.append(ctx.attempt)
        await gate.passing()
        return 1

    lost = faults.fail("beat", when=when, times=4)
    lost.release()
    async with make_faulty(held, lease=0.6) as app:
        handle = await app.enqueue(held())
        await gate.reached()
        await until(lambda: lost.hits == 4)
        gate.go.set()
        assert await handle.result(PATIENCE) == 1
    assert ran == [1]


async def test_a_beat_that_is_overtaken_by_a_claim(make_faulty: MakeApp, faults: Faults) -> None:
    """The worker was buried. Its next beat makes it new, and before the answer comes it has claimed: what it
    was running is lost, what it runs now is not."""
    gates = {n: Gate() for n in range(2)}
    ran: Counter[int] = Counter()

    @work(name="held", retry=Retry(attempts=3))
    async def held(n: int) -> int:
        ran[n] += 1
        await gates[n].passing()
        return n

    seen = Seen()
    async with make_faulty(held, on_event=seen, lease=2) as app:
        first = await app.enqueue(held(0))
        await gates[0].reached()
        slow = faults.hold("beat", when="after")
        blind = faults.fail("claim", times=None)
        await app.backend.remove_worker(app.worker.id)
        await slow.reached()  # it is new again, and has not heard of it
        blind.end()
        second = await app.enqueue(held(1))
        await gates[1].reached()
        slow.release()
        await seen.until(LeaseLost, first.id)
        for gate in gates.values():
            gate.go.set()
        assert await asyncio.gather(first.result(PATIENCE), second.result(PATIENCE)) == [0, 1]
        assert seen.of(LeaseLost, second.id) == []
    assert ran == {0: 2, 1: 1}


async def test_a_worker_that_comes_back_under_its_name(make_faulty: MakeApp, make_app: MakeApp) -> None:
    """It died and was started again at once: what it was running is run again, and not held for ever."""
    attempts: list[int] = []
    gate = Gate()

    @work(name="held")
    async def held(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            await gate.passing()
        return ctx.attempt

    cut = Faults()
    first = make_app(held, worker_id="w-1", backend=FaultyBackend(make_faulty().backend, cut))
    await first.start()
    handle = await first.enqueue(held())
    await gate.reached()
    with cut.outage():
        await first.stop(drain=0)
    async with make_faulty(held, worker_id="w-1", lease=60) as second:
        assert await second.handle(handle.id).result(PATIENCE) == 2
    assert attempts == [1, 2]


# ----------------------------------------------------------------------------------------- looking, operating


@LOST
async def test_looks_whose_answer_is_lost(
    make_faulty: MakeApp, make_app: MakeApp, faults: Faults, when: str
) -> None:
    lost = faults.fail("ended", when=when, times=2)
    lost.release()
    client = make_faulty(echo)
    async with make_app(echo):
        assert await (await client.enqueue(echo(1))).result(PATIENCE) == 1
    assert lost.hits == 2


async def test_a_cancel_whose_answer_is_lost(make_faulty: MakeApp, faults: Faults) -> None:
    """The caller is told that it is not known. It happened: the handler is stopped, whoever waits hears of
    it, and saying it again does no harm."""
    gate = Gate()

    @work(name="held")
    async def held() -> None:
        await gate.passing()

    seen = Seen()
    faults.fail("cancel", when="after")
    async with make_faulty(held, on_event=seen, lease=0.5) as app:
        handle = await app.enqueue(held())
        waiting = asyncio.ensure_future(handle.result(PATIENCE))
        await gate.reached()
        with pytest.raises(StoreUnavailable):
            await handle.cancel()
        assert (await seen.until(LeaseLost)).reason == "cancelled"
        with pytest.raises(WorkCancelled):
            await waiting
        await handle.cancel()
        assert (await handle.state()).status == "cancelled"


# --------------------------------------------------------------------------------------------------- repeated


async def test_every_request_comes_twice(make_faulty: MakeApp, faults: Faults) -> None:
    """A network that repeats what it carries: nothing runs, counts or is announced twice."""
    ran: Counter[int] = Counter()
    seen = Seen()

    @work(name="count")
    async def count(n: int) -> int:
        ran[n] += 1
        return n

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue([count(n) for n in range(20)]).next(count(99))

    for verb in ("beat", "settle", "ended", "publish", "claim"):
        faults.repeat(verb, times=None)
    async with make_faulty(root, count, on_event=seen, lease=0.5) as app:
        # The first of two claims hands out what nobody hears of: it is found when the worker asks.
        assert app.worker._runtime is not None
        handle = await app.enqueue(root())
        app.worker._runtime.claimer.recover_leases()
        group = asyncio.ensure_future(handle.group(PATIENCE))
        while not group.done():
            app.worker._runtime.claimer.recover_leases()
            await asyncio.wait({group}, timeout=0.05)
        assert await group == 99
        await seen.until(GroupDone)
    assert set(ran.values()) == {1}
    assert (len(ran), len(seen.of(GroupDone)), len(seen.of(Succeeded))) == (21, 1, 22)


async def test_an_enqueue_that_is_cancelled_anywhere(make_faulty: MakeApp, faults: Faults) -> None:
    """It is stored or it is not, never half; and whatever is stored runs once."""
    ran: Counter[int] = Counter()

    @work(name="count")
    async def count(n: int) -> int:
        ran[n] += 1
        return n

    @work(name="local", skip_queue=True)
    async def local(n: int) -> int:
        ran[n] += 1
        return n

    async with make_faulty(count, local) as app:
        works = [(local if n % 2 else count)(n) for n in range(40)]
        for n, each in enumerate(works):
            task = asyncio.ensure_future(_enqueue(app, each, follow=n % 4 > 1))
            for _ in range(n // 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        await app._core.submitter.flush()
        stored = {item.id for item in await everything(app.backend)}
        for each in works:
            if each.id in stored:
                await until_status(app, each.id, "success")
        assert not app._core.waiters.items.futures
        assert not app._core.waiters.items.expected
        assert not app.active()
    assert set(ran) == {each.input["n"] for each in works if each.id in stored}
    assert set(ran.values()) <= {1}


async def _enqueue(app: Treadle, each: object, *, follow: bool) -> None:
    call = app.enqueue(each)  # type: ignore[call-overload]
    await (call.result() if follow else call)
