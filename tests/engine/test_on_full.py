"""`concurrency(on_full=...)`: an item that is to start while its limit is reached is dropped, or replaces
what runs (SPEC §18)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, Seen, until, until_status
from treadle import Context, Result, Retry, Treadle, WorkCancelled, Worker, work
from treadle.doers import balanced, concurrency, rate_limited
from treadle.errors import InputError, UnsupportedError
from treadle.events import Cancelled
from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store
from treadle.testing import Faults


class Runs:
    """Counts the handlers that run, and notes why each ended."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now: set[int] = set()
        self.started: list[int] = []
        self.interrupted: dict[int, str | None] = {}
        self.go = asyncio.Event()

    async def run(self, ctx: Context, n: int) -> int:
        self.started.append(n)
        self.now.add(n)
        assert len(self.now) <= self.most, f"{self.now} run at once"
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.interrupted[n] = ctx.interrupt.reason
            await asyncio.sleep(0.01)  # it takes a while to end
            raise
        finally:
            self.now.remove(n)
        return n


def limited(runs: Runs, **options: Any) -> Any:
    @work(name="limited", doer=concurrency(runs.most, **options))
    async def limited(ctx: Context, n: int) -> int:
        return await runs.run(ctx, n)

    return limited


async def statuses(handles: Any) -> list[str]:
    return [(await handle.state()).status for handle in handles]


async def test_drop_ends_the_items_that_come_while_the_limit_is_reached(make_app: MakeApp) -> None:
    """In a fleet of three: of 20 items one runs, and the others end cancelled, which says why."""
    runs, seen = Runs(1), Seen()
    step = limited(runs, on_full="drop")
    apps = [make_app(step, on_event=seen) for _ in range(3)]
    for app in apps:
        await app.start()
    handles = await asyncio.gather(*(apps[n % 3].enqueue(step(n)) for n in range(20)))
    await seen.until(Cancelled, count=19)
    found = await statuses(handles)
    assert sorted(found) == ["cancelled"] * 19 + ["running"]
    dropped = [handle for handle, status in zip(handles, found, strict=True) if status == "cancelled"]
    state = await dropped[0].state()
    assert state.error == (
        "LimitReached: the limit of 1 at once was reached when it was to start (on_full='drop')"
    )
    assert (state.attempt, state.reason, [each.error_type for each in state.history]) == (
        0,
        None,
        ["LimitReached"],
    )
    assert {event.error for event in seen.of(Cancelled)} == {state.error}
    with pytest.raises(WorkCancelled, match="on_full='drop'"):
        await dropped[0].result(PATIENCE)
    runs.go.set()
    assert [await handle.result(PATIENCE) for handle in handles if handle not in dropped] == runs.started
    assert await apps[1].enqueue(step(20)).result(PATIENCE) == 20


async def test_replace_cancels_what_runs_and_the_last_one_wins(make_app: MakeApp) -> None:
    """In a fleet of three: 20 items at once. One runs at a time, and the newest one ends successfully."""
    runs = Runs(1)
    step = limited(runs, on_full="replace")
    apps = [make_app(step) for _ in range(3)]
    for app in apps:
        await app.start()
    handles = await apps[0].enqueue_many([step(n) for n in range(20)])
    await until(lambda: runs.now == {19})
    for handle in handles[:-1]:
        await until_status(apps[0], handle.id, "cancelled")
    assert set(runs.interrupted.values()) <= {"cancelled"}
    runs.go.set()
    assert await handles[-1].result(PATIENCE) == 19


async def test_replace_interrupts_the_oldest_first(make_app: MakeApp) -> None:
    """As many as needed, on whichever worker they run. The new one starts at once."""
    runs = Runs(2)
    step = limited(runs, on_full="replace")
    first, second = make_app(step), make_app(step)
    async with first, second:
        handles: list[Any] = []
        for n in range(5):
            handles.append(await (first, second)[n % 2].enqueue(step(n)))
            await until(lambda: n in runs.now)  # noqa: B023
        assert runs.now == {3, 4}
        assert runs.interrupted == {0: "cancelled", 1: "cancelled", 2: "cancelled"}
        assert await statuses(handles) == ["cancelled"] * 3 + ["running"] * 2
        assert runs.started == [0, 1, 2, 3, 4]
        runs.go.set()
        assert [await handle.result(PATIENCE) for handle in handles[3:]] == [3, 4]


@pytest.mark.parametrize("on_full", ["drop", "replace"])
async def test_each_lane_has_its_own_limit(make_app: MakeApp, on_full: Any) -> None:
    runs = Runs(1)

    @work(name="limited", doer=concurrency(1, per="lane", on_full=on_full))
    async def step(n: int) -> int:
        runs.started.append(n)
        await runs.go.wait()
        return n

    async with make_app(step) as app:
        handles = [await app.enqueue(step(n), lane=str(n)) for n in range(5)]
        await until(lambda: len(runs.started) == 5)
        late = await app.enqueue(step(5), lane="0")
        ended = late if on_full == "drop" else handles[0]
        state = await until_status(app, ended.id, "cancelled")
        assert (state.error is None) == (on_full == "replace")
        if on_full == "drop":
            assert "in its lane" in (state.error or "")
        runs.go.set()
        others = [handle for handle in (*handles, late) if handle is not ended]
        assert len([await handle.result(PATIENCE) for handle in others]) == 5


async def test_a_retry_is_dropped_if_the_limit_is_reached_by_then(make_app: MakeApp) -> None:
    """It has to start once more. What it failed with stays in its history."""
    runs = Runs(1)

    @work(name="limited", doer=concurrency(1, on_full="drop"), retry=Retry(base=0.3, jitter=0))
    async def step(n: int) -> int:
        if n == 0:
            raise RuntimeError("first")
        runs.started.append(n)
        await runs.go.wait()
        return n

    async with make_app(step) as app:
        first = await app.enqueue(step(0))
        await until_status(app, first.id, "scheduled")
        second = await app.enqueue(step(1))
        await until(lambda: runs.started)
        state = await until_status(app, first.id, "cancelled")
        assert [each.error_type for each in state.history] == ["RuntimeError", "LimitReached"]
        runs.go.set()
        assert await second.result(PATIENCE) == 1


async def test_replace_waits_for_a_handler_that_does_not_stop(make_app: MakeApp) -> None:
    """Two never run at once."""
    barrier, runs = Barrier(), Runs(1)

    @work(name="limited", doer=concurrency(1, on_full="replace"))
    async def step(n: int) -> int:
        runs.started.append(n)
        try:
            await asyncio.sleep(60 if n == 0 else 0)
        except asyncio.CancelledError:
            await barrier.wait()
        return n

    async with make_app(step) as app:
        first = await app.enqueue(step(0))
        await until(lambda: runs.started == [0])
        second = await app.enqueue(step(1))
        await until_status(app, first.id, "cancelled")
        await barrier.reached()
        await asyncio.sleep(0.1)  # it has asked several times
        assert runs.started == [0]
        barrier.go.set()
        assert await second.result(PATIENCE) == 1


@pytest.mark.parametrize("on_full", ["drop", "replace"])
async def test_a_dead_workers_items_count_until_it_is_removed(make_app: MakeApp, on_full: Any) -> None:
    runs = Runs(9)

    @work(name="limited", doer=concurrency(1, on_full=on_full))
    async def step(ctx: Context, n: int) -> int:
        runs.started.append(n)
        if n == 0 and ctx.attempt == 1:
            await asyncio.shield(runs.go.wait())
        return n

    dead, heir = make_app(step), make_app(step)
    worker = Worker(dead, id="mortal")
    await worker.start()
    first = await heir.enqueue(step(0))
    await until(lambda: runs.started == [0])
    await heir.start()
    second = await heir.enqueue(step(1))
    await until_status(heir, second.id if on_full == "drop" else first.id, "cancelled")
    await dead.backend.remove_worker("mortal")
    if on_full == "drop":
        assert await first.result(PATIENCE) == 0  # it runs again
        assert await heir.enqueue(step(2)).result(PATIENCE) == 2
    else:
        assert await second.result(PATIENCE) == 1


async def test_a_lost_answer_drops_nothing(make_faulty: MakeApp, faults: Faults) -> None:
    """The store has given the permit. The item asks again, and is not denied by its own permit."""

    @work(name="limited", doer=concurrency(1, on_full="drop"))
    async def step(n: int) -> int:
        return n

    async with make_faulty(step) as app:
        faults.fail("take_permits", when="after")
        assert await app.enqueue(step(1)).result(PATIENCE) == 1
        faults.fail("return_permits", when="after")
        assert await app.enqueue(step(2)).result(PATIENCE) == 2


async def test_what_waits_is_given_back_when_the_worker_stops(make_app: MakeApp) -> None:
    """The inner doer has no room: it was not dropped, and it is not lost."""
    runs = Runs(9)

    @work(name="limited", doer=concurrency(9, on_full="drop", inner=balanced(1)))
    async def step(n: int) -> int:
        runs.started.append(n)
        await runs.go.wait()
        return n

    async with make_app(step) as app:
        handles = await app.enqueue_many([step(n) for n in range(3)])
        await until(lambda: runs.started)
        await app.stop(drain=0)
        assert await statuses(handles) == ["ready"] * 3


def test_combinations_that_mean_nothing_are_refused() -> None:
    for make, parameter, text in (
        (lambda: concurrency(1, per="lane", strict=True, on_full="drop"), "on_full", "strict"),
        (lambda: concurrency(1, per="lane", strict=True, on_full="replace"), "on_full", "strict"),
        (lambda: concurrency(1, on_full="drop", inner=rate_limited(1)), "on_full", "another limit"),
        (lambda: concurrency(1, on_full="replace", inner=concurrency(2)), "on_full", "another limit"),
        (lambda: rate_limited(1, inner=concurrency(1, on_full="drop")), "inner", "another limit"),
        (lambda: concurrency(2, inner=concurrency(1, on_full="drop")), "inner", "another limit"),
        (lambda: concurrency(1, on_full="explode"), "on_full", "must be"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=text) as caught:
            make()
        assert caught.value.parameters == (parameter,)
        assert isinstance(caught.value, ValueError)


async def test_a_batch_cannot_be_dropped_or_replaced() -> None:
    @work.batch(size=10, name="limited", doer=concurrency(1, on_full="drop"))
    async def step(inputs: list[int]) -> list[int]:
        return inputs

    app = Treadle("memory://", work=[step])
    with pytest.raises(InputError, match="batches"):
        await app.start()


async def test_a_store_without_lease_permits_is_refused_at_the_start() -> None:
    step = limited(Runs(1), on_full="replace")
    app = Treadle(PortsBackend(memory_queue(), memory_pubsub(), memory_store()), work=[step])
    with pytest.raises(UnsupportedError, match="on_full='replace'"):
        await app.start()


async def test_what_an_ended_item_queued_is_not_cancelled(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item that is to be replaced ends before it is cancelled. Its children go on."""
    go, started = asyncio.Event(), asyncio.Event()

    @work(name="child")
    async def child() -> str:
        return "ran"

    @work(name="limited", doer=concurrency(1, on_full="replace"))
    async def step(ctx: Context, n: int) -> Result[int, Any]:
        started.set()
        await go.wait()
        return ctx.result(n).next(ctx.queue(child(), delay=3600))

    async with make_app(step, child) as app:
        first = await app.enqueue(step(0))
        await started.wait()
        cancel = app.backend.cancel

        async def cancel_late(*args: Any, **options: Any) -> Any:
            go.set()
            await until_status(app, first.id, "success")
            return await cancel(*args, **options)

        monkeypatch.setattr(app.backend, "cancel", cancel_late)
        second = await app.enqueue(step(1))
        assert await second.result(PATIENCE) == 1
        (left,) = (await app.list(type="child", group_id=first.group_id)).items
        assert left.status == "scheduled"
