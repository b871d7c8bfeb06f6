"""More of what breaks other engines (A10 to A16, A23): scripts, days, restarts, keys, deadlines."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.engine.kit import PATIENCE, Gate, MakeApp, Seen, failure, until, until_status
from treadle import Context, Result, Retry, work
from treadle.events import Expired, GroupDone
from treadle.flow_control import UnhandledGroup
from treadle.item import Settlement
from treadle.testing import Faults, ManualClock, drain

DAY = 86_400.0
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("flags", [(), ("-W", "error")], ids=["plain", "strict"])
def test_a10_the_quick_start_is_a_script(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """It prints 3 and exits 0; with everything that Python can complain about, it says nothing else."""
    block = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    (tmp_path / "quick.py").write_text(block[1])
    ran = subprocess.run(
        [sys.executable, *flags, "quick.py"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("3\n", "", 0)


async def test_a11_skip_queue_does_not_skip_time(make_timed: MakeApp, clock: ManualClock) -> None:
    """A delay is waited for, a deadline that has passed is kept."""
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


async def test_a12_keys_of_the_user_are_not_the_engines(make_app: MakeApp, sound: None) -> None:
    """Whatever a handler claims: groups end, hooks are called, other tenants' claims are their own."""
    told: list[UnhandledGroup] = []
    claims: dict[str, bool] = {}

    @work(name="thief")
    async def thief(ctx: Context, group: str) -> None:
        names = (f"group:{group}:done", f"treadle:unhandled:{group}", group, f"user:{group}")
        for name in names:
            claims[f"{ctx.tenant} {name}"] = await ctx.claim(name)

    gate = Gate()

    @work(name="victim")
    async def victim() -> str:
        await gate.passing()
        return "mine"

    async with make_app(thief, victim, on_unhandled_group=told.append, unhandled_grace=0.01) as app:
        handle = await app.enqueue(victim())
        await gate.reached()
        await app.enqueue(thief(handle.id)).result(PATIENCE)
        await app.tenant("other").enqueue(thief(handle.id)).result(PATIENCE)
        assert (await handle.state()).status == "running"
        gate.go.set()
        await until(lambda: told)
        assert [(each.group_id, each.result) for each in told] == [(handle.id, "mine")]
    assert len(claims) == 8
    assert all(claims.values())


async def test_a13_a_group_over_days(make_timed: MakeApp, clock: ManualClock) -> None:
    """Done once, after both, also if the worker was started anew in between."""
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


async def test_a14_who_waits_for_more_than_an_hour_waits(make_timed: MakeApp, clock: ManualClock) -> None:
    """A group that somebody waits for in another process is not unhandled, however long it takes."""
    told: list[str] = []

    @work(name="slow")
    async def slow() -> str:
        return "at last"

    def unhandled(info: UnhandledGroup) -> None:
        told.append(info.group_id)

    client, wanted = make_timed(slow), slow()
    waiting = asyncio.ensure_future(client.enqueue(wanted, delay=2 * 3600).group())
    async with make_timed(slow, on_unhandled_group=unhandled) as app:
        await until_status(app, wanted.id, "scheduled")
        ignored = await app.enqueue(slow(), delay=2 * 3600)
        for _ in range(8):
            await clock.advance(900)
            await drain(app)
        await clock.advance(1)
        await until(lambda: told)
        await clock.advance(60)
        assert await waiting == "at last"
        assert told == [ignored.id]


async def test_a15_a_restart_between_a_child_and_its_gate(make_faulty: MakeApp, faults: Faults) -> None:
    """The process died the moment the last child was settled: what waits for it runs in the next one."""
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
async def test_a16_folds_are_exact_through_lost_answers(
    make_faulty: MakeApp, faults: Faults, when: str
) -> None:
    """20 appends of 1 on two workers give 20, although every third settle fails; what was final stays."""

    @work(name="plus")
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


async def test_a23_a_handler_that_ends_after_its_deadline(make_faulty: MakeApp, faults: Faults) -> None:
    """It swallows the cancellation and returns: expired, not a success, although the store was away."""
    seen = Seen()
    ended = asyncio.Event()

    @work(name="stubborn", retry=Retry(attempts=5))
    async def stubborn() -> str:
        for _ in range(3):
            try:
                await asyncio.sleep(0.15)
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    faults.fail("settle", times=2)
    async with make_faulty(stubborn, on_event=seen) as app:
        handle = await app.enqueue(stubborn(), expires_in=0.1)
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts) == ("expired", 1)
        await ended.wait()
        assert (await handle.state()).status == "dead"
        assert len(seen.of(Expired)) == 1


async def test_a_machine_that_was_suspended(make_timed: MakeApp, clock: ManualClock) -> None:
    """It slept for many leases, and nobody took over: what it was running goes on, as the same attempt."""
    attempts: list[int] = []
    gate = Gate()

    @work(name="held")
    async def held(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        await gate.passing()
        return ctx.attempt

    async with make_timed(held, poll_interval=0.1) as app:
        handle = await app.enqueue(held())
        await gate.reached()
        assert app.worker._runtime is not None
        for _ in range(3):
            await app.worker._runtime.claimer.until_empty()  # no claim is under way
            await clock.advance(3600)
            await app.worker._runtime.claimer.until_empty()
            (state,) = await app.get([handle.id])
            assert state is not None
            assert (state.status, state.attempt) == ("running", 1)
        gate.go.set()
        assert await handle.result(PATIENCE) == 1
    assert attempts == [1]
