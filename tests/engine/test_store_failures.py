"""The store fails at the worst moment, workers die, two workers run the same item.

The numbers A1 to A24 are the failure cases that the design must pass.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.engine.kit import (
    AT_ONCE,
    PATIENCE,
    Barrier,
    Errors,
    MakeApp,
    MakeBackend,
    Seen,
    failure,
)
from treadle import Context, Result, Retry, work
from treadle.engine.run.claim import Claimer
from treadle.engine.run.heartbeat import HeartbeatLoop
from treadle.engine.upkeep import prune
from treadle.errors import BackendError
from treadle.events import Dead, GroupDone, LeaseLost, Succeeded
from treadle.item import Settlement
from treadle.store.rules import settlement
from treadle.testing import Faults, FaultyBackend

WHEN = pytest.mark.parametrize("when", ["before", "after", "later"])
"""Before: the request is lost. After: the answer is lost. Later: the request arrives after it was
repeated."""


def settles(kind: str) -> Callable[[list[Settlement]], bool]:
    return lambda settlements: any(settlement.kind == kind for settlement in settlements)


@WHEN
async def test_a1_a_retry_runs_once_if_the_store_fails_while_it_is_settled(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """Nothing is lost and nothing happens twice."""
    calls: list[int] = []

    @work(name="flaky", retry=AT_ONCE)
    async def flaky(ctx: Context) -> str:
        calls.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("once")
        return "done"

    fault = faults.fail("settle", when=when, match=settles("retry"))
    async with make_faulty(flaky) as app:
        handle = await app.enqueue(flaky())
        assert await handle.result(PATIENCE) == "done"
        fault.release()
        await fault.landed()
        state = await handle.state()
        assert (state.attempt, len(state.history)) == (2, 1)
    assert (calls, fault.hits) == ([1, 2], 1)


@WHEN
async def test_a2_dependents_run_once_if_the_store_fails_while_they_are_released(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """The settlement of the last dependency fails."""
    ran: Counter[str] = Counter()

    @work(name="step")
    async def step(name: str) -> str:
        ran[name] += 1
        return name

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(last).next(step("x"), step("y")).next(step("end"))

    last = step("last")
    fault = faults.fail("settle", when=when, match=lambda given: any(s.lease.id == last.id for s in given))
    async with make_faulty(root, step) as app:
        assert await app.enqueue(root()).group(PATIENCE) == "end"
        fault.release()
        await fault.landed()
    assert (ran, fault.hits) == ({"last": 1, "x": 1, "y": 1, "end": 1}, 1)


async def test_a3_a_dependency_that_cannot_be_met_ends_at_once(make_faulty: MakeApp) -> None:
    """A child is dead. The item that waits for its success becomes dead too, and the group ends."""

    @work(name="bad", retry=Retry(attempts=1))
    async def bad() -> None:
        raise ValueError("bad")

    @work(name="then")
    async def then() -> None: ...

    blocked = then()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(bad()).next(blocked)

    async with make_faulty(root, bad, then) as app:
        handle = await app.enqueue(root())
        await failure(handle.group(PATIENCE))
        error = await failure(app.handle(blocked.id).result(PATIENCE))
        assert error.reason == "unsatisfiable"


@WHEN
async def test_a4_children_run_once_if_the_store_fails_while_their_parent_is_settled(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """The parent runs once, and each of its three children runs once."""
    ran: Counter[str] = Counter()

    @work(name="child")
    async def child(n: int) -> int:
        ran[f"child {n}"] += 1
        return n

    @work(name="parent")
    async def parent(ctx: Context) -> Result[None, int]:
        ran["parent"] += 1
        return ctx.queue(child(1), child(2), child(3))

    seen = Seen()
    fault = faults.fail("settle", when=when, match=lambda given: any(s.children for s in given))
    async with make_faulty(parent, child, on_event=seen) as app:
        handle = await app.enqueue(parent())
        assert await handle.group(PATIENCE) in (1, 2, 3)
        fault.release()
        await fault.landed()
        assert len((await app.list(group_id=handle.id)).items) == 4
    assert (set(ran.values()), len(ran), fault.hits) == ({1}, 4, 1)
    assert len(seen.of(GroupDone)) == 1


async def test_a5_the_settlement_of_a_worker_that_lost_its_lease_is_refused(
    make_faulty: MakeApp, store: MakeBackend, make_app: MakeApp
) -> None:
    """The first worker lost its lease and does not know it. The store refuses its result and its children."""
    barriers = {1: Barrier(), 2: Barrier()}

    @work(name="child")
    async def child() -> int:
        return 0

    @work(name="contested")
    async def contested(ctx: Context) -> Result[None, int]:
        await barriers[ctx.attempt].wait()
        return ctx.queue(child(), ctx.result(ctx.attempt, final=True))

    cut = Faults()
    seen = [Seen(), Seen()]
    first = make_app(contested, child, backend=FaultyBackend(store(), cut), on_event=seen[0])
    second = make_app(contested, child, on_event=seen[1])
    async with first:
        handle = await first.enqueue(contested())
        await barriers[1].reached()
        for verb in ("beat", "claim"):
            cut.fail(verb, times=None)
        async with second:
            assert await second.backend.remove_worker(first.worker.id) == 1
            await barriers[2].reached()
            barriers[1].go.set()
            lost = await seen[0].until(LeaseLost)
            assert (lost.id, lost.attempt, lost.reason) == (handle.id, 1, "taken")
            barriers[2].go.set()
            assert await second.handle(handle.id).group(PATIENCE) == 2
            assert len((await second.list(type="child")).items) == 1
            await seen[1].until(GroupDone)
        cut.clear()
    assert [len(each.of(Succeeded, handle.id)) for each in seen] == [0, 1]
    assert sum(len(each.of(GroupDone)) for each in seen) == 1


async def test_a6_an_item_whose_workers_die_too_often_ends_dead(
    make_app: MakeApp, store: MakeBackend, sound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers die. One loss is allowed, so the item becomes dead."""
    monkeypatch.setattr(settlement, "loss_delay", lambda losses, number: 0.05)
    started: list[int] = []
    barrier = Barrier()

    @work(name="killer", retry=Retry(max_losses=1))
    async def killer(ctx: Context) -> None:
        started.append(ctx.attempt)
        barrier.started.set()
        await asyncio.Event().wait()

    client = make_app(killer)
    handle = await client.enqueue(killer())
    seen = Seen()
    with contextlib.ExitStack() as outages:
        for _ in range(2):
            cut = Faults()
            doomed = make_app(killer, backend=FaultyBackend(store(), cut))
            await doomed.start()
            await barrier.reached()
            barrier.started.clear()
            outages.enter_context(cut.outage())  # the worker dies: it sends nothing more
            await client.backend.remove_worker(doomed.worker.id)
        async with make_app(killer, on_event=seen):
            dead = await seen.until(Dead, handle.id)
    assert (dead.reason, started) == ("lease_lost", [1, 2])
    error = await failure(handle.result(PATIENCE))
    assert (error.reason, error.attempts) == ("lease_lost", 2)


async def test_a7_a_result_that_the_store_refuses_makes_only_its_item_dead(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """The handler runs once. The other items of the same settle call succeed."""
    ran: Counter[int] = Counter()

    @work(name="echo")
    async def echo(n: int) -> int:
        ran[n] += 1
        return n

    works = [echo(n) for n in range(10)]
    faults.fail(
        "settle",
        times=None,
        error=lambda: BackendError("value refused"),
        match=lambda given: any(s.lease.id == works[3].id and s.kind == "success" for s in given),
    )
    errors = Errors()
    async with make_faulty(echo, on_error=errors) as app:
        handles = await app.enqueue_many(works)
        results = await asyncio.gather(*(h.result(PATIENCE) for h in handles), return_exceptions=True)
        assert [each for each in results if isinstance(each, int)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        error = await failure(handles[3].result(PATIENCE))
        assert (error.reason, set(ran.values())) == ("undecodable", {1})
    assert "settle" in errors.phases()


async def test_a7_an_item_that_the_store_refuses_to_end_is_settled_when_it_accepts(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """The store refuses the success and then the death. The settlement is repeated without another run of
    the handler. When the store accepts it, the item ends with the handler's result."""
    ran: Counter[int] = Counter()

    @work(name="echo")
    async def echo(n: int) -> int:
        ran[n] += 1
        return n

    works = [echo(n) for n in range(5)]
    refused_too = asyncio.Event()

    def is_third(given: Sequence[Settlement]) -> bool:
        kinds = [s.kind for s in given if s.lease.id == works[3].id]
        if "dead" in kinds:
            refused_too.set()
        return bool(kinds)

    fault = faults.fail("settle", times=None, error=lambda: BackendError("no permission"), match=is_third)
    async with make_faulty(echo) as app:
        handles = await app.enqueue_many(works)
        await asyncio.gather(*(handles[n].result(PATIENCE) for n in (0, 1, 2, 4)))
        assert await app.enqueue(echo(9)).result(PATIENCE) == 9
        (state,) = await app.get([handles[3].id])
        assert state is not None
        assert state.status == "running"
        await asyncio.wait_for(refused_too.wait(), PATIENCE)
        fault.end()
        assert (await handles[3].result(PATIENCE), ran[3]) == (3, 1)


@pytest.mark.parametrize("error", [BackendError, RuntimeError])
async def test_a7_two_refusals_do_not_change_the_result(
    make_faulty: MakeApp, faults: Faults, error: type[Exception]
) -> None:
    """The settlement is repeated. The item succeeds with the handler's result."""

    @work(name="echo")
    async def echo(n: int) -> int:
        return n

    fault = faults.fail("settle", times=2, error=lambda: error("lost track"))
    async with make_faulty(echo) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
    assert fault.hits == 2


async def test_a8_an_item_of_an_unknown_type_is_dead_after_the_grace(make_app: MakeApp, sound: None) -> None:
    @work(name="ghost")
    async def ghost() -> None: ...

    @work(name="other")
    async def other() -> None: ...

    client = make_app(ghost)
    handle = await client.enqueue(ghost())
    async with make_app(other, unknown_type_grace=0.05):
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts) == ("unknown_type", 0)


async def test_a8_without_a_grace_an_item_of_an_unknown_type_waits(make_app: MakeApp, sound: None) -> None:
    """It runs when a worker that has the type starts."""

    @work(name="ghost")
    async def ghost() -> str:
        return "boo"

    @work(name="other")
    async def other() -> None: ...

    client = make_app(ghost)
    handle = await client.enqueue(ghost())
    async with make_app(other) as busy:
        await busy.enqueue(other()).result(PATIENCE)
        assert (await handle.state()).status == "ready"
        async with make_app(ghost):
            assert await handle.result(PATIENCE) == "boo"


@pytest.mark.parametrize("verb", ["beat", "claim", "unknown_leases", "prune", "publish"])
@pytest.mark.parametrize("error", [BackendError, RuntimeError])
async def test_a9_errors_of_the_store_are_reported_and_the_worker_goes_on(
    make_faulty: MakeApp, faults: Faults, verb: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each loop of the worker, and for expected and unexpected exceptions."""
    monkeypatch.setattr(prune, "INTERVAL", 0.05)

    @work(name="echo")
    async def echo(n: int) -> int:
        return n

    errors = Errors()
    async with make_faulty(echo, on_error=errors, lease=0.25) as app:
        fault = faults.fail(verb, error=lambda: error("strange"), times=2)
        if verb == "unknown_leases":
            faults.fail("claim", when="after")
        if verb == "publish":
            await app.enqueue(echo(1))
        await fault.reached()
        phase = {"beat": "renew", "publish": "signal"}.get(verb, "claim")
        assert isinstance(await errors.until(phase), BackendError | error)
        assert await app.enqueue(echo(2)).result(PATIENCE) == 2
        await app.worker.stop()
    assert all(isinstance(seen, BackendError | error) for seen, _ in errors.seen)


@pytest.mark.parametrize(
    ("loop", "phase"), [(HeartbeatLoop, "renew"), (Claimer, "claim"), (prune.Pruner, "claim")]
)
async def test_the_end_of_a_loop_is_reported_with_its_phase(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, loop: type, phase: str
) -> None:
    async def broken(_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(loop, "run", broken)
    errors = Errors()
    async with make_app(on_error=errors):
        assert str(await errors.until(phase)) == "broken"
    assert errors.phases() == [phase]


@pytest.mark.parametrize("error", [BackendError, RuntimeError])
async def test_a9_a_failed_query_for_ended_items_is_repeated(
    make_faulty: MakeApp, make_app: MakeApp, faults: Faults, error: type[Exception]
) -> None:
    """The waiter gets its result after three failed queries. Its handle is made from an id: no wake-up has
    the result for it."""

    @work(name="echo")
    async def echo(n: int) -> int:
        return n

    errors = Errors()
    fault = faults.fail("ended", error=lambda: error("strange"), times=3)
    client = make_faulty(echo, on_error=errors, poll_interval=0.02)
    async with make_app(echo):
        handle = client.handle((await client.enqueue(echo(1))).id)
        assert await handle.result(PATIENCE) == 1
    assert (fault.hits, errors.phases()) == (3, ["signal"] * 3)


async def test_a9_an_unexpected_error_while_settling_loses_no_item(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """The driver raises a RuntimeError twice and then works. All items succeed."""

    @work(name="echo")
    async def echo(n: int) -> int:
        return n

    fault = faults.fail("settle", error=lambda: RuntimeError("strange"), times=2)
    async with make_faulty(echo) as app:
        handles = await asyncio.gather(*(app.enqueue(echo(n)) for n in range(20)))
        assert await asyncio.gather(*(handle.result(PATIENCE) for handle in handles)) == list(range(20))
    assert fault.hits == 2
