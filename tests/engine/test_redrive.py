"""Redrive: dead items get another chance while a worker has nothing else to do, and only so often (A19)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Gate, MakeApp, Seen, failure, until_status
from treadle import Abort, Context, InputError, Redrive, Result, Retry, Treadle, UnsupportedError, work
from treadle.backends.memory import MemoryBackend
from treadle.engine.upkeep.redrive import Redriver
from treadle.events import Dead, Started, Succeeded
from treadle.testing import ManualClock

ONCE = Retry(attempts=1)
NEVER: dict[str, Any] = {"poll_interval": 3600}
"""A worker that does not redrive by itself: only signals wake it, and no loop comes round."""


def redriver(app: Treadle, redrive: Redrive) -> Redriver:
    """What a running worker would use, to be run by hand."""
    runtime = app.worker._runtime
    assert runtime is not None
    return runtime.loops.redriver(redrive)


async def test_what_always_fails_comes_to_rest(make_app: MakeApp) -> None:
    """A19: tried once, and `max_times` more; then it is left alone, dead."""
    runs: Counter[str] = Counter()
    seen = Seen()

    @work(name="bad", retry=ONCE)
    async def bad(name: str) -> None:
        runs[name] += 1
        raise ValueError(name)

    redrive = Redrive(count=10, max_times=3, backoff=0)
    async with make_app(bad, on_event=seen, redrive=redrive) as app:
        await app.enqueue_many([bad("a"), bad("b")])
        await seen.until(Dead, count=8)
        assert await redriver(app, redrive).run_once() == 0
    assert runs == {"a": 4, "b": 4}


async def test_what_was_down_is_up_again(make_app: MakeApp) -> None:
    """The attempts begin anew, and the group is open until it ends again."""
    up = asyncio.Event()
    attempts: list[int] = []
    seen = Seen()

    @work(name="flaky", retry=Retry(attempts=2, base=0))
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if not up.is_set():
            raise ConnectionError("down")
        return "up"

    async with make_app(flaky, on_event=seen, redrive=Redrive(max_times=100, backoff=0)) as app:
        handle = await app.enqueue(flaky())
        await seen.until(Dead)
        up.set()
        await seen.until(Succeeded)
        assert await handle.group(PATIENCE) == "up"
    assert attempts[:3] == [1, 2, 1]


async def test_only_what_may_go_better_another_time(make_app: MakeApp) -> None:
    """Not what gave up for good, nor what was to follow a success that never came."""
    runs: Counter[str] = Counter()

    @work(name="aborts")
    async def aborts() -> None:
        runs["aborts"] += 1
        raise Abort("pointless")

    @work(name="follows")
    async def follows() -> None:
        runs["follows"] += 1

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(aborts()).next(follows())

    async with make_app(root, aborts, follows, **NEVER) as app:
        await failure(app.enqueue(root()).group(PATIENCE))
        assert len((await app.dead.list()).items) == 2
        assert await redriver(app, Redrive(backoff=0)).run_once() == 0
    assert runs == {"aborts": 1}


async def test_so_many_at_once(make_app: MakeApp) -> None:
    """`count` bounds a round; with 0 there is none."""

    @work(name="bad", retry=ONCE)
    async def bad() -> None:
        raise ValueError("bad")

    async with make_app(bad, **NEVER) as app:
        handles = await app.enqueue_many([bad() for _ in range(5)])
        await asyncio.gather(*(failure(handle.result(PATIENCE)) for handle in handles))
        assert await redriver(app, Redrive(count=0, backoff=0)).run_once() == 0
        some = redriver(app, Redrive(count=3, max_times=1, backoff=3600))
        assert [await some.run_once() for _ in range(3)] == [3, 2, 0]


async def test_only_what_is_its_own(make_app: MakeApp) -> None:
    """A worker revives its own types, of its own queues and tenants."""

    @work(name="bad", retry=ONCE)
    async def bad() -> None:
        raise ValueError("bad")

    @work(name="foreign", retry=ONCE)
    async def foreign() -> None:
        raise ValueError("bad")

    mine: dict[str, Any] = {"queues": ["q"], "tenants": ["acme"], **NEVER}
    async with make_app(bad, foreign) as other, make_app(bad, **mine) as app:
        for tenant in ("acme", "else"):
            for queue in ("q", "r"):
                for new in (bad(), foreign()):
                    await failure(other.tenant(tenant).enqueue(new, queue=queue).result(PATIENCE))
        await other.worker.stop()
        assert await redriver(app, Redrive(max_times=1, backoff=3600)).run_once() == 1
        (moved,) = (await other.list("scheduled")).items
        assert (moved.type, moved.queue, moved.tenant) == ("bad", "q", "acme")


async def test_each_time_it_waits_twice_as_long(
    make_timed: Callable[..., Treadle], clock: ManualClock
) -> None:
    """`backoff`, doubled each time it was moved."""

    @work(name="bad", retry=ONCE)
    async def bad() -> None:
        raise ValueError("bad")

    seen = Seen()
    async with make_timed(bad, on_event=seen) as app:
        handle = await app.enqueue(bad())
        for times, wait in enumerate((10, 20, 40), start=1):
            await seen.until(Dead, count=times)
            assert await redriver(app, Redrive(backoff=timedelta(seconds=10))).run_once() == 1
            state = await handle.state()
            assert state.due_at - await app.backend.now() == pytest.approx(wait)
            assert app.worker._runtime is not None
            await app.worker._runtime.claimer.until_empty()  # it knows by now when to wake
            clock.advance(wait + 1)
        await seen.until(Dead, count=4)
        assert await redriver(app, Redrive(backoff=10)).run_once() == 0


async def test_a_busy_worker_does_not_redrive(make_app: MakeApp) -> None:
    """Only when it is idle."""
    gate, seen = Gate(), Seen()

    @work(name="bad", retry=ONCE)
    async def bad() -> None:
        raise ValueError("bad")

    @work(name="busy")
    async def busy() -> None:
        await gate.passing()

    redrive = Redrive(max_times=1, backoff=0)
    async with make_app(bad, busy, poll_interval=0.01, redrive=redrive, on_event=seen) as app:
        await app.enqueue(busy())
        await gate.reached()
        handle = await app.enqueue(bad())
        await seen.until(Dead)
        await asyncio.sleep(0.2)  # that nothing happens can only be waited for
        assert len(seen.of(Started, handle.id)) == 1
        gate.go.set()
        await seen.until(Dead, count=2)


async def test_a_store_that_fails_is_asked_again(make_faulty: MakeApp, faults: Any) -> None:
    """A redrive that failed is reported, and the worker lives."""
    seen = Seen()
    errors: list[str] = []

    @work(name="bad", retry=ONCE)
    async def bad() -> None:
        raise ValueError("bad")

    faults.fail("requeue")
    redrive = Redrive(max_times=1, backoff=0)
    async with make_faulty(
        bad, on_event=seen, on_error=lambda _, phase: errors.append(phase), redrive=redrive
    ) as app:
        handle = await app.enqueue(bad())
        await seen.until(Dead, count=2)
        await until_status(app, handle.id, "dead")
    assert errors == ["claim"]


async def test_a_store_without_operators_has_no_redrive() -> None:
    """It says so when the worker starts, not in the middle of a night."""
    backend = MemoryBackend()
    backend.capabilities = backend.capabilities - {"operating"}
    app = Treadle(backend, redrive=Redrive())
    with pytest.raises(UnsupportedError, match="operating"):
        await app.start()
    await app.stop()


@pytest.mark.parametrize(
    "wrong", [{"count": -1}, {"max_times": 1.5}, {"max_times": True}, {"backoff": -1}, {"backoff": "1"}]
)
def test_what_a_redrive_refuses(wrong: Any) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Redrive(**wrong)
