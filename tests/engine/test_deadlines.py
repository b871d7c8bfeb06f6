"""Timeouts of attempts and deadlines of items (SPEC §5)."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, Seen, expire_running, failure, until
from treadle import Context, Defer, Result, Retry, WorkFailed, work
from treadle.engine.run import attempt
from treadle.events import Expired
from treadle.testing import ManualClock, drain, run_inline

# ------------------------------------------------------------------------------------------------- timeouts


async def test_a_timeout_fails_the_attempt(make_app: MakeApp) -> None:
    """§5: The handler is cancelled. The attempt fails with AttemptTimeout and is retried as usual."""
    ends: list[str] = []

    @work(name="slow", timeout=0.05, retry=Retry(attempts=2, base=0))
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(f"cancelled {ctx.attempt}")

    async with make_app(slow) as app:
        handle = await app.enqueue(slow())
        error = await failure(handle.result(PATIENCE))
        assert (error.error_type, error.reason, error.attempts) == ("AttemptTimeout", "exhausted", 2)
        assert "0.05" in error.error
        assert [each.error_type for each in (await handle.state()).history] == ["AttemptTimeout"] * 2
    assert ends == ["cancelled 1", "cancelled 2"]


async def test_a_timeout_is_classified_like_any_error(make_app: MakeApp) -> None:
    """§5: `on_failure` gets it."""

    @work(name="slow", timeout=0.02, on_failure=lambda *_: "abort")
    async def slow() -> None:
        await asyncio.Event().wait()

    async with make_app(slow) as app:
        error = await failure(app.enqueue(slow()).result(PATIENCE))
        assert (error.reason, error.error_type) == ("aborted", "AttemptTimeout")


async def test_each_attempt_has_its_own_timeout(make_timed: MakeApp, clock: ManualClock) -> None:
    """§5: `timeout` limits one attempt, not the whole item. `timeout` at enqueue wins, and None removes
    it."""
    barrier = Barrier()

    @work(name="slow", timeout=10, retry=AT_ONCE)
    async def slow(ctx: Context) -> int:
        if ctx.attempt < 3:
            await barrier.wait()
        return ctx.attempt

    # Time never jumps past the lease: a claim under way would find that its own worker is dead.
    async with run_inline(make_timed(slow, lease=1000)) as app:
        handle = await app.enqueue(slow())
        for attempt in (1, 2):
            await until(lambda: barrier.count == attempt)  # noqa: B023  called in this iteration
            await clock.advance(9.9)
            assert barrier.count == attempt
            await clock.advance(0.2)
        assert await handle.result(PATIENCE) == 3
        longer = await app.enqueue(slow(), timeout=100)
        never = await app.enqueue(slow(), timeout=None)
        await until(lambda: barrier.count == 4)
        await clock.advance(50)
        assert ((await longer.state()).attempt, (await never.state()).attempt) == (1, 1)
        barrier.go.set()
        assert await longer.result(PATIENCE) == await never.result(PATIENCE) == 1


async def test_a_handler_that_ignores_its_timeout_is_settled_without_it(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§5: The value that it returns later is refused."""
    monkeypatch.setattr(attempt, "CANCEL_GRACE", 0.05)
    barrier = Barrier()

    @work(name="stubborn", timeout=0.02, retry=Retry(attempts=1))
    async def stubborn() -> str:
        while not barrier.go.is_set():
            try:
                await barrier.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    async with make_app(stubborn) as app:
        handle = await app.enqueue(stubborn())
        error = await failure(handle.result(PATIENCE))
        assert error.error_type == "AttemptTimeout"
        barrier.go.set()
        await drain(app)
        state = await handle.state()
        assert (state.status, state.result) == ("dead", None)


# ------------------------------------------------------------------------------------------------ deadlines


async def test_an_item_that_is_not_started_in_time_expires(make_app: MakeApp) -> None:
    """T23: The handler never runs. The events are `Expired`, then `Dead`."""
    ran: list[int] = []
    seen = Seen()

    @work(name="late")
    async def late() -> None:
        ran.append(1)

    async with make_app(late, on_event=seen) as app:
        handle = await app.enqueue(late(), delay=0.2, expires_in=0.03)
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts) == ("expired", 0)
        assert isinstance(error, WorkFailed)
        assert seen.names(handle.id) == ["Queued", "Expired", "Dead", "GroupDone"]
        (event,) = seen.of(Expired)
        assert event.deadline == (await handle.state()).deadline
    assert not ran


async def test_an_item_whose_deadline_has_passed_is_accepted_and_expires(make_app: MakeApp) -> None:
    """§5."""
    ran: list[int] = []

    @work(name="late")
    async def late() -> None:
        ran.append(1)

    async with make_app(late) as app:
        handle = await app.enqueue(late(), deadline=datetime(2001, 1, 1, tzinfo=UTC))
        assert (await failure(handle.result(PATIENCE))).reason == "expired"
    assert not ran


async def test_an_item_of_a_queue_that_is_named_twice_expires_once(make_app: MakeApp) -> None:
    """It ends, and each event of its end comes once."""
    seen = Seen()

    @work(name="late", queue="mail")
    async def late() -> int:
        return 1

    mail, tenants = ["mail", "mail"], ["default", "default"]
    async with make_app(late, on_event=seen, queues=mail, tenants=tenants) as app:
        handle = await app.enqueue(late(), deadline=datetime(2001, 1, 1, tzinfo=UTC))
        assert (await failure(handle.result(PATIENCE))).reason == "expired"
        assert await app.enqueue(late()).result(PATIENCE) == 1
        await drain(app)
    assert seen.names(handle.id) == ["Queued", "Expired", "Dead", "GroupDone"]


async def test_a_retry_past_the_deadline_expires_at_once(make_timed: MakeApp, clock: ManualClock) -> None:
    """T22: The item keeps the last error, and the handler is called once."""
    calls: list[int] = []
    seen = Seen()

    @work(name="always", retry=Retry(base=50, max=50, jitter=0))
    async def always() -> None:
        calls.append(1)
        raise RuntimeError("always")

    async with run_inline(make_timed(always, on_event=seen)) as app:
        handle = await app.enqueue(always(), expires_in=30)
        await drain(app)
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts) == ("expired", 1)
        assert "deadline" in str(error)
        assert [each.message for each in (await handle.state()).history] == ["always"]
    assert calls == [1]
    assert seen.names(handle.id) == ["Queued", "Started", "Expired", "Dead", "GroupDone"]


async def test_a_deferral_past_the_deadline_expires_at_once(make_timed: MakeApp, clock: ManualClock) -> None:
    """§5."""

    @work(name="later")
    async def later() -> None:
        raise Defer(delay=31)

    async with run_inline(make_timed(later)) as app:
        handle = await app.enqueue(later(), expires_in=30)
        await drain(app)
        assert (await failure(handle.result(PATIENCE))).reason == "expired"


async def test_a_handler_that_runs_at_the_deadline_is_cancelled(make_app: MakeApp) -> None:
    """A23: The interrupt's reason is `deadline`. The item is expired and not retried."""
    reasons: list[object] = []
    seen = Seen()

    began = asyncio.Event()

    @work(name="slow", retry=AT_ONCE)
    async def slow(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.interrupt.reason)

    async with make_app(slow, on_event=seen) as app:
        handle, error = await expire_running(app, slow, began.is_set)
        assert error.attempts == 1
        assert seen.names(handle.id) == ["Queued", "Started", "Expired", "Dead", "GroupDone"]
    assert reasons == ["deadline"]


async def test_a_result_after_the_deadline_is_ignored(make_app: MakeApp) -> None:
    """A23: A handler that swallows its cancellation is expired too."""

    began = asyncio.Event()

    @work(name="stubborn")
    async def stubborn() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        return "never"

    async with make_app(stubborn) as app:
        handle, _ = await expire_running(app, stubborn, began.is_set)
        assert (await handle.state()).result is None


async def test_children_do_not_inherit_the_deadline(make_timed: MakeApp, clock: ManualClock) -> None:
    """§4: A child outlives its parent's deadline."""

    @work(name="child")
    async def child() -> int:
        return 1

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(child(), delay=100)

    async with run_inline(make_timed(root, child)) as app:
        handle = await app.enqueue(root(), expires_in=10)
        await drain(app)
        await clock.advance(100)
        await drain(app)
        assert await handle.group(PATIENCE) == 1


async def test_a_blocked_item_expires(make_app: MakeApp) -> None:
    """§17: An item that waits for an unknown id waits until its deadline."""

    @work(name="waits")
    async def waits() -> None: ...

    app = make_app(waits)
    handle = await app.enqueue(waits(), after=["never-submitted"], expires_in=0.1)
    assert (await handle.state()).status == "blocked"
    assert (await handle.state()).waiting_for == ("never-submitted",)
    async with app:
        assert (await failure(handle.result(PATIENCE))).reason == "expired"


# ---------------------------------------------------------------------------------------- threads, processes


async def test_a_timed_out_thread_counts_as_running_until_it_ends(make_app: MakeApp) -> None:
    """§5: A thread cannot be stopped. Its late settlement is refused, and the next item waits for a free
    thread."""
    release = threading.Event()
    ran: list[str] = []

    @work(name="stuck", timeout=PATIENCE, retry=Retry(attempts=1))
    def stuck(ctx: Context, name: str) -> str:
        ran.append(name)
        if name == "first":
            ctx.extend(0.05)
            release.wait(PATIENCE)
        return name

    async with make_app(stuck, threads=1) as app:
        first = await app.enqueue(stuck("first"))
        try:
            assert (await failure(first.result(PATIENCE))).error_type == "AttemptTimeout"
            second = await app.enqueue(stuck("second"))
            await asyncio.sleep(0.15)
            assert ran == ["first"]
        finally:
            release.set()
        assert await second.result(PATIENCE) == "second"
        assert (await first.state()).status == "dead"


async def test_a_threads_item_is_settled_at_its_deadline(make_app: MakeApp) -> None:
    """§5: The thread goes on. It can read the reason of the interrupt."""
    began, release = threading.Event(), threading.Event()
    reasons: list[object] = []

    @work(name="stuck")
    def stuck(ctx: Context) -> str:
        began.set()
        ctx.interrupt.wait(PATIENCE)
        reasons.append(ctx.interrupt.reason)
        release.wait(PATIENCE)
        return "late"

    async with make_app(stuck) as app:
        try:
            handle, _ = await expire_running(app, stuck, began.is_set)
        finally:
            release.set()
        await drain(app)
        assert ((await handle.state()).status, (await handle.state()).result) == ("dead", None)
    assert reasons == ["deadline"]


@work(run_in="process", retry=Retry(attempts=1))
def sleep_in_process(marker: str, seconds: float) -> str:
    time.sleep(seconds)
    with open(marker, "w") as file:  # noqa: PTH123  in another process
        file.write("it went on")
    return "done"


@work(run_in="process")
def double_in_process(n: int) -> int:
    return 2 * n


@pytest.mark.usefixtures("processes")
async def test_run_in_process_returns_the_result(make_app: MakeApp) -> None:
    """§1."""
    async with make_app(double_in_process, processes=1) as app:
        assert await app.enqueue(double_in_process(4)).result(PATIENCE) == 8


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("how", ["timeout", "expires_in"])
async def test_a_process_is_killed_at_its_timeout_and_deadline(
    make_app: MakeApp, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    """§5: The handler does not go on."""
    marker = tmp_path_factory.mktemp("process") / "marker"
    options = {how: 1.5 if how == "expires_in" else 0.3}
    async with make_app(sleep_in_process, processes=1) as app:
        handle = await app.enqueue(sleep_in_process(str(marker), 2.5), **options)
        error = await failure(handle.result(PATIENCE))
        assert (error.error_type, error.reason) == (
            ("AttemptTimeout", "exhausted") if how == "timeout" else ("DeadlineExceeded", "expired")
        )
    assert not marker.exists()
