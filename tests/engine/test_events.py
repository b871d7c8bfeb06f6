"""Events: their order, their fields, and hooks that raise (SPEC §13)."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, Errors, MakeApp, Seen, failure, until
from treadle import Abort, Context, Defer, Result, Retry, Treadle, work
from treadle.errors import StoreUnavailable
from treadle.events import (
    Cancelled,
    Dead,
    Deferred,
    Event,
    Expired,
    Failed,
    GroupDone,
    ItemEvent,
    Queued,
    Started,
    Succeeded,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from treadle.testing import Faults


@work
async def value(n: int) -> int:
    return n


async def test_events_of_a_success(make_app: MakeApp) -> None:
    """§13: Each has id, type, group_id, tenant, attempt, parent, dependencies and at."""
    seen = Seen()
    async with make_app(value, on_event=seen) as app:
        before = time.time()
        handle = await app.tenant("acme").enqueue(value(5))
        await handle.group(PATIENCE)
        await seen.until(GroupDone)
    assert seen.names(handle.id) == ["Queued", "Started", "Succeeded", "GroupDone"]
    events = [event for event in seen.events if isinstance(event, ItemEvent)]
    for event in events:
        assert (event.type, event.group_id, event.tenant) == (value.name, handle.id, "acme")
        assert (event.parent, event.dependencies) == (None, ())
        assert before - 1 < event.at < time.time() + 1
    assert [event.attempt for event in events[:3]] == [0, 1, 1]
    assert [event.result for event in (*seen.of(Succeeded), *seen.of(GroupDone))] == [5, 5]


async def test_events_of_a_retry_and_a_death(make_app: MakeApp) -> None:
    """§13: `Failed(will_retry=True)`. At the death `Failed(will_retry=False)`, then `Dead`."""
    seen = Seen()
    error = LookupError("no")

    @work(name="bad", retry=Retry(attempts=2, base=0))
    async def bad() -> None:
        raise error

    async with make_app(bad, on_event=seen) as app:
        handle = await app.enqueue(bad())
        await failure(handle.group(PATIENCE))
    assert seen.names(handle.id) == ["Queued", "Started", "Failed", "Started", "Failed", "Dead", "GroupDone"]
    assert [(event.attempt, event.will_retry) for event in seen.of(Failed)] == [(1, True), (2, False)]
    assert all(event.error is error for event in seen.of(Failed))
    (dead,) = seen.of(Dead)
    assert (dead.reason, dead.error, dead.attempt) == ("exhausted", error, 2)
    assert [event.result for event in seen.of(GroupDone)] == [None]


async def test_events_of_a_deferral(make_app: MakeApp) -> None:
    """§13: `Deferred.run_at`."""
    seen = Seen()
    due: list[float] = []

    @work(name="later")
    async def later() -> None:
        if not due:
            due.append(time.time() + 0.1)
            raise Defer(run_at=due[0])

    async with make_app(later, on_event=seen) as app:
        handle = await app.enqueue(later())
        await handle.group(PATIENCE)
    assert seen.names(handle.id) == ["Queued", "Started", "Deferred", "Started", "Succeeded", "GroupDone"]
    assert [event.run_at for event in seen.of(Deferred)] == [pytest.approx(due[0], abs=0.001)]


async def test_events_of_an_abort(make_app: MakeApp) -> None:
    """§13."""
    seen = Seen()

    @work(name="bad")
    async def bad() -> None:
        raise Abort(ValueError("never"))

    async with make_app(bad, on_event=seen) as app:
        handle = await app.enqueue(bad())
        await failure(handle.group(PATIENCE))
    assert seen.names(handle.id) == ["Queued", "Started", "Failed", "Dead", "GroupDone"]
    assert [event.reason for event in seen.of(Dead)] == ["aborted"]


async def test_events_of_a_flow(make_app: MakeApp) -> None:
    """Rule 42: The parent succeeds, then its children are queued. A next work is released. One `GroupDone`
    comes last."""
    seen = Seen()
    child, after = value(1), value(2)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(child).next(after)

    async with make_app(root, value, on_event=seen) as app:
        handle = await app.enqueue(root())
        await handle.group(PATIENCE)
        await seen.until(GroupDone)
    names = {handle.id: "root", child.id: "child", after.id: "next"}
    recorded = [
        f"{type(event).__name__} {names[event.id]}" for event in seen.events if isinstance(event, ItemEvent)
    ]
    assert recorded == [
        *("Queued root", "Started root", "Succeeded root", "Queued child", "Queued next"),
        *("Started child", "Succeeded child", "Released next"),
        *("Started next", "Succeeded next", "GroupDone root"),
    ]
    queued = seen.of(Queued, after.id)[0]
    assert (queued.parent, queued.dependencies, queued.group_id) == (handle.id, (child.id,), handle.id)
    assert seen.of(Started, after.id)[0].dependencies == (child.id,)


async def test_events_of_a_cancellation(make_app: MakeApp) -> None:
    """§13: `Cancelled`, then `GroupDone`."""
    seen = Seen()
    async with make_app(value, on_event=seen) as app:
        handle = await app.enqueue(value(1), delay=60)
        await handle.cancel()
    assert seen.names(handle.id) == ["Queued", "Cancelled", "GroupDone"]
    assert seen.of(Cancelled)[0].attempt == 0


async def test_an_existing_key_gives_no_queued_event(make_app: MakeApp) -> None:
    """§12, §13."""
    seen = Seen()
    app = make_app(value, on_event=seen)
    await app.enqueue(value(1), key="k")
    await app.enqueue(value(2), key="k")
    assert seen.names() == ["Queued"]
    assert app.metrics.get("queued") == 1


async def test_the_apps_hook_is_called_before_the_types_hook(make_app: MakeApp) -> None:
    """§13."""
    order: list[str] = []

    @work(name="own", on_event=lambda event: order.append(f"type {type(event).__name__}"))
    async def own() -> None: ...

    def app_hook(event: Event) -> None:
        if isinstance(event, ItemEvent):
            order.append(f"app {type(event).__name__}")

    async with make_app(own, value, on_event=app_hook) as app:
        await app.enqueue(own()).group(PATIENCE)
        await until(lambda: "app GroupDone" in order)
        del order[order.index("app GroupDone") :]
        assert order == [
            f"{who} {name}" for name in ("Queued", "Started", "Succeeded") for who in ("app", "type")
        ]


async def test_a_type_can_have_a_hook_without_the_app(make_app: MakeApp) -> None:
    """§13."""
    seen = Seen()

    @work(name="own", on_event=seen)
    async def own() -> int:
        return 1

    async with make_app(own, value) as app:
        await app.enqueue(value(1)).group(PATIENCE)
        await app.enqueue(own()).group(PATIENCE)
        await seen.until(Succeeded)
    assert seen.names()[:3] == ["Queued", "Started", "Succeeded"]


async def test_events_of_a_worker(make_app: MakeApp) -> None:
    """§13."""
    seen = Seen()
    async with make_app(value, worker_id="w-1", on_event=seen):
        pass
    assert [type(event) for event in seen.events] == [WorkerStarted, WorkerStopping, WorkerStopped]
    assert {event.worker_id for event in seen.of(WorkerStarted)} == {"w-1"}


async def test_events_cannot_be_changed() -> None:
    """§13: They are frozen dataclasses."""
    event = Expired("id", "type", "group", "tenant", 1, None, (), 0.0, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.id = "other"  # type: ignore[misc]


# ------------------------------------------------------------------------------------------ hooks that raise


async def test_a_hook_that_raises_changes_nothing(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """T54, §13: The error is logged and reported in the phase `hook`. The item goes on."""
    errors = Errors()

    def broken(event: Event) -> None:
        raise KeyError(type(event).__name__)

    @work(name="own", on_event=broken, retry=AT_ONCE)
    async def own(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise OSError("once")
        return ctx.attempt

    with caplog.at_level(logging.WARNING, logger="treadle"):
        async with make_app(own, on_event=broken, on_error=errors) as app:
            assert await app.enqueue(own()).group(PATIENCE) == 2
    assert set(errors.phases()) == {"hook"}
    assert "on_event failed for Succeeded" in caplog.text


async def test_an_on_error_that_raises_changes_nothing(make_app: MakeApp) -> None:
    """§13."""

    def broken(*_: object) -> None:
        raise RuntimeError("hook")

    async with make_app(value, on_event=broken, on_error=broken) as app:
        assert await app.enqueue(value(1)).group(PATIENCE) == 1


@pytest.mark.parametrize(
    ("verb", "phase"), [("claim", "claim"), ("settle", "settle"), ("beat", "renew"), ("ended", "signal")]
)
async def test_errors_that_the_engine_handles_are_reported(
    make_faulty: MakeApp, faults: Faults, verb: str, phase: str
) -> None:
    """T38, T39, T54, §13: With their phase. The item goes on, and its handler runs once."""
    errors, barrier = Errors(), Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 1

    app: Treadle = make_faulty(held, on_error=errors, lease=1.0, heartbeat=0.1)
    async with app:
        fault = faults.fail(verb)
        handle = await app.enqueue(held())
        waiting = asyncio.ensure_future(handle.result(PATIENCE))
        await barrier.reached()
        if verb == "settle":
            barrier.go.set()
        assert isinstance(await errors.until(phase), StoreUnavailable)
        barrier.go.set()
        assert await waiting == 1
        assert fault.hits == 1
    assert barrier.count == 1


async def test_a_failed_submit_raises_for_the_caller(make_faulty: MakeApp, faults: Faults) -> None:
    """T37: No item and no waiter is left behind."""

    def unavailable() -> Exception:
        return StoreUnavailable("push fail")

    app: Treadle = make_faulty(value)
    async with app:
        faults.fail("submit", times=None, error=unavailable)
        one = value(1)
        with pytest.raises(StoreUnavailable, match="push fail"):
            await app.enqueue(one).result(PATIENCE)
        faults.clear()
        assert await app.get([one.id]) == [None]
        assert not app._core.waiters.items.futures
        assert await app.enqueue(one).result(PATIENCE) == 1


async def test_a_submit_that_fails_once_is_repeated(make_faulty: MakeApp, faults: Faults) -> None:
    """T39."""
    errors = Errors()
    app: Treadle = make_faulty(value, on_error=errors)
    async with app:
        faults.fail("submit")
        assert await app.enqueue(value(1)).result(PATIENCE) == 1
