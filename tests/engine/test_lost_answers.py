"""Calls whose answer is lost, that arrive late, or that arrive twice. Each takes effect once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, MakeBackend, Seen, until, until_status
from treadle import Context, Result, Retry, StoreUnavailable, Treadle, WorkCancelled, work
from treadle.backends.memory import MemoryBackend
from treadle.engine import store_retry
from treadle.engine.run import settle
from treadle.events import GroupDone, LeaseLost, Queued, Released, Started, Succeeded
from treadle.testing import Faults, FaultyBackend, ManualClock
from treadle.testing.contract.check import everything

LOST = pytest.mark.parametrize("when", ["after", "later"])


@work(name="echo")
async def echo(n: int) -> int:
    return n


# ----------------------------------------------------------------------------------------------------- claim


@LOST
async def test_items_of_a_claim_whose_answer_is_lost_run_once(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """The worker finds the leases that it does not know of, and runs them as the first attempt."""
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


async def test_a_claim_that_takes_effect_late_is_found(make_faulty: MakeApp, faults: Faults) -> None:
    """The worker asks for its unknown leases too early, and asks again one lease later."""
    client = make_faulty(echo)
    asked = faults.hold("unknown_leases")
    asked.release()
    late = faults.fail("claim", when="later")
    async with make_faulty(echo, lease=0.2):
        await asked.reached()
        held = faults.hold("claim")
        await held.reached()
        handle = await client.enqueue(echo(1))
        late.release()
        await late.landed()
        assert (await handle.state()).status == "running"
        held.release()
        assert await handle.result(PATIENCE) == 1


async def test_unknown_leases_are_asked_for_until_the_store_answers(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """Also while claims succeed."""
    client = make_faulty(echo)
    handle = await client.enqueue(echo(1))
    faults.fail("claim", when="after")
    failing = faults.fail("unknown_leases", times=3)
    async with make_faulty(echo):
        assert await handle.result(PATIENCE) == 1
    assert failing.hits == 3


async def test_a_removed_worker_beats_again_and_claims(make_faulty: MakeApp, faults: Faults) -> None:
    """Failed heartbeats do not end the worker."""
    async with make_faulty(echo) as app:
        failing = faults.fail("beat", times=3)
        await app.backend.remove_worker(app.worker.id)
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
    assert failing.hits == 3


async def test_a_lease_whose_submit_is_under_way_is_not_unknown(make_faulty: MakeApp, faults: Faults) -> None:
    """The worker asks for unknown leases while the answer to a `skip_queue` submit is under way. The item
    runs once."""
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
        await errors.until("claim")  # the claim was carried out and found nothing
        assert lost.hits == 1
        assert await other.enqueue(echo(0)).result(PATIENCE) == 0  # the worker goes on and does not ask
        assert asked.hits == 0
        slow.release()
        assert await enqueuing == 1
        await asked.reached()
        assert await app.enqueue(echo(2)).result(PATIENCE) == 2
    assert ran == [1]


async def test_questions_for_unknown_leases_get_rarer_although_submits_postpone_them(
    clock: ManualClock,
) -> None:
    """One lease duration after a lost answer, then after two more, four more and so on."""
    faults = Faults()
    asked = faults.hold("unknown_leases", times=None)
    asked.release()
    backend = FaultyBackend(MemoryBackend(clock=clock), faults)

    async def advance(leases: int) -> int:
        """How often it has asked by then."""
        for _ in range(leases * 12):
            await clock.advance(5)
        return asked.hits

    async with Treadle(backend, work=[echo], clock=clock, lease=60, poll_interval=5) as app:
        assert app.worker._runtime is not None
        app.worker._runtime.claimer.recover_leases()
        await asked.reached()
        assert await advance(2) == 2
        app._core.submitter.leasing += 1  # the answer to a `skip_queue` submit is under way
        assert await advance(2) == 2
        app._core.submitter.leasing -= 1
        assert await advance(1) == 3
        assert await advance(2) == 3
        assert await advance(2) == 4


# ---------------------------------------------------------------------------------------------------- settle


@LOST
async def test_events_come_once_if_answers_of_settlements_are_lost(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """Also `GroupDone`, which the answer to the repeated settlement does not contain."""
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


async def test_a_group_ends_once_if_its_members_are_settled_again_in_parts(
    make_faulty: MakeApp, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that failed again and again is halved, and each half finds that the group ended with it."""
    monkeypatch.setattr(settle, "SPLIT_AFTER", 2)
    seen, barrier = Seen(), Barrier()

    @work(name="member")
    async def member(n: int) -> int:
        await barrier.wait()
        return n

    @work(name="fan")
    async def fan(ctx: Context) -> Result[None, int]:
        return ctx.queue([member(n) for n in range(8)])

    def several(settlements: Sequence[object]) -> bool:
        return len(settlements) > 1

    async with make_faulty(fan, member, on_event=seen) as app:
        handle = await app.enqueue(fan())
        await until(lambda: barrier.count == 8)
        lost = faults.fail("settle", when="after", match=several)
        away = faults.fail("settle", match=several)
        barrier.go.set()
        assert await handle.group(PATIENCE) in range(8)
        await until(lambda: len(seen.of(Succeeded)) == 9)
    assert (lost.hits, away.hits) == (1, 1)
    assert [event.id for event in seen.of(GroupDone)] == [handle.id]


async def test_waiters_of_another_process_are_woken_if_an_answer_is_lost(
    make_faulty: MakeApp, make_app: MakeApp, faults: Faults
) -> None:
    """The poll interval is long, so only a wake-up can tell them."""
    other = make_app(echo, poll_interval=30)
    lost = faults.fail("settle", when="after")
    async with make_faulty(echo, poll_interval=30):
        assert await other.enqueue(echo(1)).group(PATIENCE) == 1
    assert lost.hits == 1


def _every_other() -> object:
    """Match the first settle call of each set of leases."""
    calls: Counter[frozenset[int]] = Counter()

    def match(settlements: list[object]) -> bool:
        tokens = frozenset(s.lease.token for s in settlements)  # type: ignore[attr-defined]
        calls[tokens] += 1
        return calls[tokens] == 1

    return match


@pytest.mark.every_store
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_commit_is_reported_as_it_happened(
    make_faulty: MakeApp, faults: Faults, store: MakeBackend, when: str
) -> None:
    """The handler's transaction was committed, or it was not."""
    if "transactions" not in store().capabilities:
        pytest.skip("the store has no transactions")
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
async def test_a_worker_survives_lost_answers_to_heartbeats(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """From the first heartbeat on."""
    ran: list[int] = []
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        ran.append(ctx.attempt)
        await barrier.wait()
        return 1

    lost = faults.fail("beat", when=when, times=4)
    lost.release()
    async with make_faulty(held, lease=0.3) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        await until(lambda: lost.hits == 4)
        barrier.go.set()
        assert await handle.result(PATIENCE) == 1
    assert ran == [1]


async def test_a_claim_that_overtakes_a_heartbeat_is_kept(make_faulty: MakeApp, faults: Faults) -> None:
    """The worker was removed. Its next heartbeat registers it again, and it claims before the answer
    arrives. The items that it ran before are lost. The item that it runs now is not."""
    barriers = {n: Barrier() for n in range(2)}
    ran: Counter[int] = Counter()

    @work(name="held", retry=Retry(attempts=3))
    async def held(n: int) -> int:
        ran[n] += 1
        await barriers[n].wait()
        return n

    seen = Seen()
    async with make_faulty(held, on_event=seen, lease=2, heartbeat=0.1) as app:
        first = await app.enqueue(held(0))
        await barriers[0].reached()
        slow = faults.hold("beat", when="after")
        blind = faults.fail("claim", times=None)
        await app.backend.remove_worker(app.worker.id)
        await slow.reached()  # it is registered again and does not know it yet
        blind.end()
        second = await app.enqueue(held(1))
        await barriers[1].reached()
        slow.release()
        await seen.until(LeaseLost, first.id)
        for barrier in barriers.values():
            barrier.go.set()
        assert await asyncio.gather(first.result(PATIENCE), second.result(PATIENCE)) == [0, 1]
        assert seen.of(LeaseLost, second.id) == []
    assert ran == {0: 2, 1: 1}


async def test_a_restarted_worker_with_the_same_id_runs_its_items_again(
    make_faulty: MakeApp, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process dies. The item of the first process does not stay leased."""
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.05)
    attempts: list[int] = []
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            await barrier.wait()
        return ctx.attempt

    cut = Faults()
    first = make_app(held, worker_id="w-1", backend=FaultyBackend(make_faulty().backend, cut))
    await first.start()
    handle = await first.enqueue(held())
    await barrier.reached()
    with cut.outage():
        await first.stop(drain=0)
    async with make_faulty(held, worker_id="w-1", lease=60) as second:
        assert await second.handle(handle.id).result(PATIENCE) == 2
    assert attempts == [1, 2]


# ---------------------------------------------------------------------------------------- queries, operators


@LOST
async def test_a_waiter_gets_its_result_if_answers_of_queries_are_lost(
    make_faulty: MakeApp, make_app: MakeApp, faults: Faults, when: str
) -> None:
    """The handle is made from an id: no wake-up has the result for it."""
    lost = faults.fail("ended", when=when, times=2)
    lost.release()
    client = make_faulty(echo)
    async with make_app(echo):
        handle = client.handle((await client.enqueue(echo(1))).id)
        assert await handle.result(PATIENCE) == 1
    assert lost.hits == 2


async def test_a_cancel_whose_answer_is_lost_takes_effect(make_faulty: MakeApp, faults: Faults) -> None:
    """The caller gets StoreUnavailable. The handler is stopped, the waiter gets WorkCancelled, and a
    second cancel does no harm."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    seen = Seen()
    faults.fail("cancel", when="after")
    async with make_faulty(held, on_event=seen, lease=0.2) as app:
        handle = await app.enqueue(held())
        waiting = asyncio.ensure_future(handle.result(PATIENCE))
        await barrier.reached()
        with pytest.raises(StoreUnavailable):
            await handle.cancel()
        assert (await seen.until(LeaseLost)).reason == "cancelled"
        with pytest.raises(WorkCancelled):
            await waiting
        await handle.cancel()
        assert (await handle.state()).status == "cancelled"


# ------------------------------------------------------------------------------------------ repeated requests


async def test_requests_that_arrive_twice_take_effect_once(make_faulty: MakeApp, faults: Faults) -> None:
    """Nothing runs, counts or is announced twice."""
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
        # The answer to the first of two claims is lost. The worker finds its leases when it asks.
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


async def test_a_cancelled_enqueue_is_stored_completely_or_not_at_all(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """At every step of the enqueue. A stored item runs once."""
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
