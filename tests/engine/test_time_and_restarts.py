"""Failure cases A10 to A16 and A23: scripts, delays over days, restarts, keys and deadlines."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.engine.kit import (
    AT_ONCE,
    PATIENCE,
    Barrier,
    MakeApp,
    Seen,
    expire_running,
    failure,
    until,
    until_status,
)
from treadle import Context, Result, Retry, Work, work
from treadle.engine import store_retry
from treadle.events import Expired, GroupDone
from treadle.flow_control import UnhandledGroup
from treadle.item import Settlement
from treadle.testing import Faults, ManualClock, drain

DAY = 86_400.0
ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("flags", [(), ("-W", "error")], ids=["plain", "strict"])
def test_a10_the_quick_start_of_the_readme_runs_as_a_script(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """It prints 3 and exits with 0. With `-W error` it prints nothing else."""
    block = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    (tmp_path / "quick.py").write_text(block[1])
    ran = subprocess.run(
        [sys.executable, *flags, "quick.py"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("3\n", "", 0)


async def test_a11_skip_queue_keeps_delays_and_deadlines(make_timed: MakeApp, clock: ManualClock) -> None:
    """A delayed item waits, and an item whose deadline has passed expires."""
    ran: list[str] = []

    @work(name="quick", skip_queue=True)
    async def quick(name: str) -> None:
        ran.append(name)

    async with make_timed(quick) as app:
        later = await app.enqueue(quick("later"), delay=500)
        late = await app.enqueue(quick("late"), deadline=clock.now() - 1)
        await drain(app)
        assert ran == []
        assert (await failure(late.result())).reason == "expired"
        assert (await later.state()).attempt == 0
        await clock.advance(500)
        await drain(app)
        assert ran == ["later"]


async def test_a12_keys_that_a_handler_claims_do_not_affect_the_engine(
    make_app: MakeApp, sound: None
) -> None:
    """Groups end and hooks are called, although a handler claims keys that look like the engine's. Each
    tenant has its own keys."""
    reported: list[UnhandledGroup] = []
    claims: dict[str, bool] = {}

    @work(name="thief")
    async def thief(ctx: Context, group: str) -> None:
        names = (f"group:{group}:done", f"treadle:unhandled:{group}", group, f"user:{group}")
        for name in names:
            claims[f"{ctx.tenant} {name}"] = await ctx.claim(name)

    barrier = Barrier()

    @work(name="victim")
    async def victim() -> str:
        await barrier.wait()
        return "mine"

    async with make_app(thief, victim, on_unhandled_group=reported.append, unhandled_grace=0.01) as app:
        handle = await app.enqueue(victim())
        await barrier.reached()
        await app.enqueue(thief(handle.id)).result(PATIENCE)
        await app.tenant("other").enqueue(thief(handle.id)).result(PATIENCE)
        assert (await handle.state()).status == "running"
        barrier.go.set()
        await until(lambda: reported)
        assert [(each.group_id, each.result) for each in reported] == [(handle.id, "mine")]
    assert len(claims) == 8
    assert all(claims.values())


async def test_a13_a_group_over_days_ends_once_after_a_restart(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """The group ends after both children. The worker is restarted between them."""
    seen = Seen()

    @work(name="step")
    async def step(n: int) -> int:
        return n

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(ctx.queue(step(2), delay=2 * DAY), ctx.queue(step(3), delay=3 * DAY))

    first = make_timed(root, step, on_event=seen, keep=DAY)
    async with first:
        handle = await first.enqueue(root())
        await drain(first)
        await clock.advance(2 * DAY)
        await drain(first)
        assert seen.of(GroupDone) == []
    async with make_timed(root, step, on_event=seen, keep=DAY) as second:
        await clock.advance(DAY)
        await drain(second)
        assert await second.handle(handle.id).group() == 3
        assert [(event.id, event.result) for event in seen.of(GroupDone)] == [(handle.id, 3)]


async def test_a14_a_group_with_a_waiter_in_another_process_is_not_unhandled(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """The wait takes two hours. Only the group without a waiter is reported."""
    reported: list[str] = []

    @work(name="slow")
    async def slow() -> str:
        return "at last"

    def unhandled(info: UnhandledGroup) -> None:
        reported.append(info.group_id)

    client, wanted = make_timed(slow), slow()
    waiting = asyncio.ensure_future(client.enqueue(wanted, delay=2 * 3600).group())
    async with make_timed(slow, on_unhandled_group=unhandled) as app:
        await until_status(app, wanted.id, "scheduled")
        ignored = await app.enqueue(slow(), delay=2 * 3600)
        for _ in range(8):
            await clock.advance(900)
            await drain(app)
        await clock.advance(1)
        await until(lambda: reported)
        await clock.advance(60)
        assert await waiting == "at last"
        assert reported == [ignored.id]


async def test_a15_a_dependent_runs_after_a_restart(
    make_faulty: MakeApp, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when the last child is settled. The next process runs the item that waits for it."""
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.05)
    ran: Counter[str] = Counter()

    @work(name="step")
    async def step(name: str) -> str:
        ran[name] += 1
        return name

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(step("a"), step("b")).next(step("end"))

    first = make_faulty(root, step)
    await first.start()
    settled = Counter[str]()

    def last_child(settlements: list[Settlement]) -> bool:
        settled.update(settlement.lease.type for settlement in settlements)
        if settled["step"] < 2:
            return False
        faults.fail("*", times=None)
        return True

    lost = faults.fail("settle", when="after", match=last_child)
    handle = await first.enqueue(root())
    await lost.reached()
    await first.stop(drain=0)
    faults.clear()
    async with make_faulty(root, step) as second:
        assert await second.handle(handle.id).group(PATIENCE) == "end"
    assert ran == {"a": 1, "b": 1, "end": 1}


@pytest.mark.parametrize("when", ["before", "after", "later"])
async def test_a16_appends_are_exact_if_answers_are_lost(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """Two workers append 1 twenty times and get 20, although every third settle fails. A final value
    stays."""

    @work(name="plus", retry=AT_ONCE)
    async def plus(ctx: Context) -> Result[int]:
        return ctx.result(1, append=lambda old: (old or 0) + 1)

    @work(name="lock")
    async def lock(ctx: Context) -> Result[str]:
        return ctx.result("locked", final=True)

    @work(name="root")
    async def root(ctx: Context, last: bool) -> Result[None, int | str]:
        first = ctx.queue([plus() for _ in range(20)])
        return first.next(lock()).next(plus()) if last else first

    calls = 0

    def third(_: object) -> bool:
        nonlocal calls
        calls += 1
        return calls % 3 == 0

    lost = faults.fail("settle", when=when, times=None, match=third)
    lost.release()
    async with make_faulty(root, plus, lock) as app, make_faulty(root, plus, lock):
        assert await app.enqueue(root(last=False)).group(PATIENCE) == 20
        assert await app.enqueue(root(last=True)).group(PATIENCE) == "locked"
    assert lost.hits


async def test_a23_a_handler_that_returns_after_its_deadline_is_expired(
    make_faulty: MakeApp, faults: Faults
) -> None:
    """The handler swallows its cancellation and returns a value. The item is expired, although the store
    failed meanwhile."""
    seen = Seen()
    began, ended = asyncio.Event(), asyncio.Event()

    @work(name="stubborn", retry=Retry(attempts=5))
    async def stubborn() -> str:
        began.set()
        for _ in range(3):
            try:
                await asyncio.sleep(0.15)
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    def failing() -> Work[str, str]:
        faults.clear()
        faults.fail("settle", times=2)
        return stubborn()

    async with make_faulty(stubborn, on_event=seen) as app:
        handle, error = await expire_running(app, failing, began.is_set)
        assert error.attempts == 1
        await asyncio.wait_for(ended.wait(), PATIENCE)
        assert (await handle.state()).status == "dead"
        assert len(seen.of(Expired, handle.id)) == 1


async def test_an_item_survives_the_suspension_of_its_machine(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """The machine sleeps for many leases, and no other worker takes over. The item goes on as the same
    attempt."""
    attempts: list[int] = []
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        await barrier.wait()
        return ctx.attempt

    async with make_timed(held, poll_interval=0.1) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        assert app.worker._runtime is not None
        for _ in range(3):
            await app.worker._runtime.claimer.until_empty()  # no claim is under way
            await clock.advance(3600)
            await app.worker._runtime.claimer.until_empty()
            (state,) = await app.get([handle.id])
            assert state is not None
            assert (state.status, state.attempt) == ("running", 1)
        barrier.go.set()
        assert await handle.result(PATIENCE) == 1
    assert attempts == [1]
