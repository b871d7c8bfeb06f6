"""Redrive: an idle worker requeues dead items a limited number of times (A19)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, Seen, failure, until_status
from treadle import Abort, Context, InputError, Redrive, Result, Retry, Treadle, UnsupportedError, work
from treadle.backends.memory import MemoryBackend
from treadle.engine.upkeep.redrive import Redriver
from treadle.events import Dead, Started, Succeeded
from treadle.testing import ManualClock

ONCE = Retry(attempts=1)
NEVER: dict[str, Any] = {"poll_interval": 3600}
"""A worker that does not redrive by itself. It polls once an hour, so only wake-ups start it."""


def redriver(app: Treadle, redrive: Redrive) -> Redriver:
    """What a running worker would use, to be run by hand."""
    runtime = app.worker._runtime
    assert runtime is not None
    return runtime.loops.redriver(redrive)


async def test_an_item_that_always_fails_is_redriven_max_times(make_app: MakeApp) -> None:
    """A19: It runs once and `max_times` more. Then it stays dead."""
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


async def test_a_redriven_item_can_succeed(make_app: MakeApp) -> None:
    """Its attempts start again, and its group is open until it ends."""
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


async def test_aborted_and_unsatisfiable_items_are_not_redriven(make_app: MakeApp) -> None:
    """Another run would not help them."""
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


async def test_count_limits_one_round(make_app: MakeApp) -> None:
    """With 0 nothing is redriven."""

    @work(name="bad", retry=ONCE)
    async def bad() -> None:
        raise ValueError("bad")

    async with make_app(bad, **NEVER) as app:
        handles = await app.enqueue_many([bad() for _ in range(5)])
        await asyncio.gather(*(failure(handle.result(PATIENCE)) for handle in handles))
        assert await redriver(app, Redrive(count=0, backoff=0)).run_once() == 0
        some = redriver(app, Redrive(count=3, max_times=1, backoff=3600))
        assert [await some.run_once() for _ in range(3)] == [3, 2, 0]


async def test_a_worker_redrives_only_its_own_types_queues_and_tenants(make_app: MakeApp) -> None:
    """A worker revives its own types, of its own queues and tenants."""

    @work(name="bad", retry=ONCE)
    async def bad() -> None:
        raise ValueError("bad")

    @work(name="other_type", retry=ONCE)
    async def other_type() -> None:
        raise ValueError("bad")

    mine: dict[str, Any] = {"queues": ["q"], "tenants": ["acme"], **NEVER}
    async with make_app(bad, other_type) as other, make_app(bad, **mine) as app:
        for tenant in ("acme", "else"):
            for queue in ("q", "r"):
                for new in (bad(), other_type()):
                    await failure(other.tenant(tenant).enqueue(new, queue=queue).result(PATIENCE))
        await other.worker.stop()
        assert await redriver(app, Redrive(max_times=1, backoff=3600)).run_once() == 1
        (moved,) = (await other.list("scheduled")).items
        assert (moved.type, moved.queue, moved.tenant) == ("bad", "q", "acme")


async def test_the_backoff_doubles_with_each_redrive(
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
    """Only an idle worker does."""
    barrier, seen = Barrier(), Seen()

    @work(name="bad", retry=ONCE)
    async def bad() -> None:
        raise ValueError("bad")

    @work(name="busy")
    async def busy() -> None:
        await barrier.wait()

    redrive = Redrive(max_times=1, backoff=0)
    async with make_app(bad, busy, poll_interval=0.01, redrive=redrive, on_event=seen) as app:
        await app.enqueue(busy())
        await barrier.reached()
        handle = await app.enqueue(bad())
        await seen.until(Dead)
        await asyncio.sleep(0.2)  # there is no event for nothing happening
        assert len(seen.of(Started, handle.id)) == 1
        barrier.go.set()
        await seen.until(Dead, count=2)


async def test_a_failed_redrive_is_reported_and_repeated(make_faulty: MakeApp, faults: Any) -> None:
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


async def test_redrive_needs_a_store_with_operating() -> None:
    """The start of the worker is refused."""
    backend = MemoryBackend()
    backend.capabilities = backend.capabilities - {"operating"}
    app = Treadle(backend, redrive=Redrive())
    with pytest.raises(UnsupportedError, match="operating"):
        await app.start()
    await app.stop()


@pytest.mark.parametrize(
    "wrong", [{"count": -1}, {"max_times": 1.5}, {"max_times": True}, {"backoff": -1}, {"backoff": "1"}]
)
def test_bad_redrive_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Redrive(**wrong)
