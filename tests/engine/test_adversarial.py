"""What breaks other engines: a store that fails at the worst moment, workers that die, two that run the same.

The numbers A1 to A24 are those of the cases that this design set out to pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.engine.kit import (
    AT_ONCE,
    PATIENCE,
    Errors,
    Gate,
    MakeApp,
    MakeBackend,
    Seen,
    failure,
)
from treadle import Context, Result, Retry, work
from treadle.engine.upkeep import prune
from treadle.errors import BackendError
from treadle.events import Dead, GroupDone, LeaseLost, Succeeded
from treadle.item import Settlement
from treadle.testing import Faults, FaultyBackend

WHEN = pytest.mark.parametrize("when", ["before", "after", "later"])
"""The request is lost; the answer is lost; the request is late, after it was repeated."""


def settles(kind: str) -> Callable[[list[Settlement]], bool]:
    return lambda settlements: any(settlement.kind == kind for settlement in settlements)


@WHEN
async def test_a1_the_store_fails_while_a_retry_is_settled(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """It is retried, once; nothing is lost, nothing is doubled."""
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
async def test_a2_the_store_fails_when_a_gate_opens(make_faulty: MakeApp, faults: Faults, when: str) -> None:
    """The dependents run exactly once."""
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


async def test_a3_a_gate_that_cannot_open_ends_at_once(make_faulty: MakeApp) -> None:
    """A dead child: what waits for its success is dead, and the group is done."""

    @work(name="bad", retry=Retry(attempts=1))
    async def bad() -> None:
        raise ValueError("bad")

    @work(name="then")
    async def then() -> None: ...

    gated = then()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(bad()).next(gated)

    async with make_faulty(root, bad, then) as app:
        handle = await app.enqueue(root())
        await failure(handle.group(PATIENCE))
        error = await failure(app.handle(gated.id).result(PATIENCE))
        assert error.reason == "unsatisfiable"


@WHEN
async def test_a4_the_store_fails_while_a_parent_is_settled(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """The parent ran once, its three children once each."""
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


async def test_a5_two_workers_finish_the_same_item(
    make_faulty: MakeApp, store: MakeBackend, make_app: MakeApp
) -> None:
    """The first one's lease was taken away and it does not know: its outcome is refused, all of it."""
    gates = {1: Gate(), 2: Gate()}

    @work(name="child")
    async def child() -> int:
        return 0

    @work(name="contested")
    async def contested(ctx: Context) -> Result[None, int]:
        await gates[ctx.attempt].passing()
        return ctx.queue(child(), ctx.result(ctx.attempt, final=True))

    cut = Faults()
    seen = [Seen(), Seen()]
    first = make_app(contested, child, backend=FaultyBackend(store(), cut), on_event=seen[0])
    second = make_app(contested, child, on_event=seen[1])
    async with first:
        handle = await first.enqueue(contested())
        await gates[1].reached()
        for verb in ("beat", "claim"):
            cut.fail(verb, times=None)
        async with second:
            assert await second.backend.remove_worker(first.worker.id) == 1
            await gates[2].reached()
            gates[1].go.set()
            lost = await seen[0].until(LeaseLost)
            assert (lost.id, lost.attempt, lost.reason) == (handle.id, 1, "taken")
            gates[2].go.set()
            assert await second.handle(handle.id).group(PATIENCE) == 2
            assert len((await second.list(type="child")).items) == 1
            await seen[1].until(GroupDone)
        cut.clear()
    assert [len(each.of(Succeeded, handle.id)) for each in seen] == [0, 1]
    assert sum(len(each.of(GroupDone)) for each in seen) == 1


async def test_a6_a_job_that_kills_its_workers(make_app: MakeApp, store: MakeBackend, sound: None) -> None:
    """Ten of them could be had; its budget is two."""
    started: list[int] = []
    gate = Gate()

    @work(name="killer", retry=Retry(attempts=2))
    async def killer(ctx: Context) -> None:
        started.append(ctx.attempt)
        gate.started.set()
        await asyncio.Event().wait()

    client = make_app(killer)
    handle = await client.enqueue(killer())
    for _ in range(2):
        cut = Faults()
        doomed = make_app(killer, backend=FaultyBackend(store(), cut))
        await doomed.start()
        await gate.reached()
        gate.started.clear()
        with cut.outage():  # it dies: not another word
            await client.backend.remove_worker(doomed.worker.id)
            await doomed.stop(drain=0)
    seen = Seen()
    async with make_app(killer, on_event=seen):
        dead = await seen.until(Dead, handle.id)
    assert (dead.reason, started) == ("lease_lost", [1, 2])
    error = await failure(handle.result(PATIENCE))
    assert (error.reason, error.attempts) == ("lease_lost", 2)


async def test_a7_an_outcome_that_the_store_will_not_have(make_faulty: MakeApp, faults: Faults) -> None:
    """Its item ends dead, its handler ran once, its neighbours are not touched."""
    ran: Counter[int] = Counter()

    @work(name="echo")
    async def echo(n: int) -> int:
        ran[n] += 1
        return n

    works = [echo(n) for n in range(10)]
    faults.fail(
        "settle",
        times=None,
        error=lambda: BackendError("value too strange"),
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


async def test_a7_an_item_that_the_store_will_not_end(make_faulty: MakeApp, faults: Faults) -> None:
    """Not even dead: it is tried again and again, without its handler, and ends when the store lets it. It is
    the store that was wrong, so it ends as it should have."""
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
async def test_a7_a_refusal_by_mistake(make_faulty: MakeApp, faults: Faults, error: type[Exception]) -> None:
    """One refusal proves nothing: what the handler said still stands."""

    @work(name="echo")
    async def echo(n: int) -> int:
        return n

    fault = faults.fail("settle", times=2, error=lambda: error("lost track"))
    async with make_faulty(echo) as app:
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
    assert fault.hits == 2


async def test_a8_a_type_that_nobody_has(make_app: MakeApp, sound: None) -> None:
    @work(name="ghost")
    async def ghost() -> None: ...

    @work(name="other")
    async def other() -> None: ...

    client = make_app(ghost)
    handle = await client.enqueue(ghost())
    async with make_app(other, unknown_type_grace=0.05):
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts) == ("unknown_type", 0)


async def test_a8_without_a_grace_it_waits(make_app: MakeApp, sound: None) -> None:
    """And is there for the worker that has it."""

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
async def test_a9_errors_are_reported_and_the_worker_lives(
    make_faulty: MakeApp, faults: Faults, verb: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the store raises, in whichever loop."""
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


@pytest.mark.parametrize("error", [BackendError, RuntimeError])
async def test_a9_a_look_that_fails_is_repeated(
    make_faulty: MakeApp, make_app: MakeApp, faults: Faults, error: type[Exception]
) -> None:
    """Whoever waits hears of it in the end."""

    @work(name="echo")
    async def echo(n: int) -> int:
        return n

    errors = Errors()
    fault = faults.fail("ended", error=lambda: error("strange"), times=3)
    client = make_faulty(echo, on_error=errors)
    async with make_app(echo):
        handle = await client.enqueue(echo(1))
        assert await handle.result(PATIENCE) == 1
    assert (fault.hits, errors.phases()) == (3, ["signal"] * 3)


async def test_a9_an_error_that_only_settling_meets(make_faulty: MakeApp, faults: Faults) -> None:
    """A driver that fails by mistake, and then does not: nothing is lost, the item does not die of it."""

    @work(name="echo")
    async def echo(n: int) -> int:
        return n

    fault = faults.fail("settle", error=lambda: RuntimeError("strange"), times=2)
    async with make_faulty(echo) as app:
        handles = await asyncio.gather(*(app.enqueue(echo(n)) for n in range(20)))
        assert await asyncio.gather(*(handle.result(PATIENCE) for handle in handles)) == list(range(20))
    assert fault.hits == 2
