"""Retries, aborts, deferrals, classifiers, and the history of failures (SPEC §5)."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Errors, MakeApp, Seen, Steady, failure
from treadle import Abort, Context, Defer, Retry, RetryAfter, work
from treadle.events import Deferred
from treadle.flow_control import FailureInfo
from treadle.testing import ManualClock, drain, run_inline


async def test_a_failed_attempt_is_retried(make_app: MakeApp) -> None:
    """T12: Of five attempts, the third succeeds."""
    calls: list[int] = []

    @work(name="third", retry=Retry(attempts=5, base=0.005, factor=1, jitter=0))
    async def third(ctx: Context) -> int:
        calls.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")
        return ctx.attempt

    async with make_app(third) as app:
        handle = await app.enqueue(third())
        assert await handle.result(PATIENCE) == 3
        state = await handle.state()
        assert (state.attempt, state.status) == (3, "success")
    assert calls == [1, 2, 3]


async def test_an_item_is_dead_when_its_attempts_are_spent(make_app: MakeApp) -> None:
    """T13: It keeps the error and is in the list of dead letters."""

    @work(name="always", retry=Retry(attempts=2, base=0))
    async def always() -> None:
        raise RuntimeError("always")

    async with make_app(always) as app:
        handle = await app.enqueue(always())
        error = await failure(handle.result(PATIENCE))
        assert "always" in str(error)
        assert error.reason == "exhausted"
        page = await app.dead.list()
        assert [item.id for item in page.items] == [handle.id]
        assert page.items[0].error == "RuntimeError: always"


async def test_retry_at_enqueue_wins_over_the_type(make_app: MakeApp) -> None:
    """T14: Field by field."""
    calls: list[int] = []

    @work(name="always", retry=Retry(attempts=9, base=0))
    async def always() -> None:
        calls.append(1)
        raise RuntimeError("always")

    async with make_app(always) as app:
        await failure(app.enqueue(always(), retry=Retry(attempts=2)).result(PATIENCE))
    assert len(calls) == 2


async def test_delays_grow_up_to_a_maximum(make_timed: MakeApp, clock: ManualClock) -> None:
    """T21, §5: `min(base * factor**(n-1), max) * (1 - jitter * random())`."""
    at: list[float] = []

    @work(name="always", retry=Retry(attempts=5, base=2, factor=3, max=10, jitter=0.5))
    async def always() -> None:
        at.append(clock.now())
        raise RuntimeError("always")

    async with run_inline(make_timed(always, random=Steady(0.5))) as app:
        handle = await app.enqueue(always())
        for delay in (1.5, 4.5, 7.5, 7.5):
            await drain(app)
            state = await handle.state()
            assert state.status == "scheduled"
            assert state.due_at - clock.now() == pytest.approx(delay)
            await clock.advance(delay - 0.001)
            await drain(app)
            assert (await handle.state()).status == "scheduled"
            await clock.advance(0.001)
        await drain(app)
        assert (await handle.state()).status == "dead"
    assert [b - a for a, b in itertools.pairwise(at)] == pytest.approx([1.5, 4.5, 7.5, 7.5])


async def test_the_default_policy(make_timed: MakeApp, clock: ManualClock) -> None:
    """§4: `Retry(attempts=3, base=1.0, factor=2.0, max=30.0, jitter=0.5)`."""

    @work(name="always")
    async def always() -> None:
        raise RuntimeError("always")

    async with run_inline(make_timed(always, random=Steady(0.0))) as app:
        handle = await app.enqueue(always())
        for delay in (1.0, 2.0):
            await drain(app)
            assert (await handle.state()).due_at - clock.now() == pytest.approx(delay)
            await clock.advance(delay)
        await drain(app)
        assert ((await handle.state()).status, (await handle.state()).attempt) == ("dead", 3)


async def test_backoff_can_be_a_function(make_timed: MakeApp, clock: ManualClock) -> None:
    """§17: `Retry(backoff=fn(n))`, for the type or the app."""

    @work(name="always")
    async def always() -> None:
        raise RuntimeError("always")

    app = make_timed(always, retry=Retry(attempts=4, backoff=lambda n: timedelta(minutes=n * n)))
    async with run_inline(app):
        handle = await app.enqueue(always())
        for minutes in (1, 4, 9):
            await drain(app)
            assert (await handle.state()).due_at - clock.now() == pytest.approx(60 * minutes)
            await clock.advance(60 * minutes)
        await drain(app)
        assert (await handle.state()).status == "dead"


async def test_a_backoff_function_stays_if_enqueue_changes_other_fields(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """§4: `retry` merges field by field."""

    @work(name="always", retry=Retry(backoff=lambda n: 50 * n))
    async def always() -> None:
        raise RuntimeError("always")

    async with run_inline(make_timed(always)) as app:
        handle = await app.enqueue(always(), retry=Retry(attempts=2))
        await drain(app)
        assert (await handle.state()).due_at - clock.now() == pytest.approx(50)
        await clock.advance(50)
        await drain(app)
        assert (await handle.state()).status == "dead"


@pytest.mark.parametrize("backoff", [lambda n: 1 // 0, lambda n: "soon", lambda n: -n])
async def test_a_backoff_function_that_fails_is_reported(
    make_timed: MakeApp, clock: ManualClock, backoff: Any
) -> None:
    """§13: `on_error` gets the error. The delay follows the other fields of the policy."""
    errors = Errors()

    @work(name="always", retry=Retry(base=4, jitter=0, backoff=backoff))
    async def always() -> None:
        raise RuntimeError("always")

    async with run_inline(make_timed(always, on_error=errors)) as app:
        handle = await app.enqueue(always())
        await drain(app)
        assert (await handle.state()).due_at - clock.now() == pytest.approx(4)
    assert errors.phases() == ["hook"]


async def test_delays_given_at_enqueue_are_stored(make_timed: MakeApp, clock: ManualClock) -> None:
    """§4: A worker whose type has other delays uses them."""

    @work(name="always")
    async def always() -> None:
        raise RuntimeError("always")

    producer = make_timed(always)
    handle = await producer.enqueue(always(), retry=Retry(base=20, jitter=0))

    @work(name="always", retry=Retry(base=7, jitter=0.5))
    async def other() -> None:
        raise RuntimeError("always")

    async with run_inline(make_timed(other, random=Steady(0.9))) as app:
        await drain(app)
        assert (await handle.state()).due_at - clock.now() == pytest.approx(20)


async def test_attempts_none_retries_without_limit(make_app: MakeApp) -> None:
    """§5."""

    @work(name="late", retry=Retry(attempts=None, base=0))
    async def late(ctx: Context) -> int:
        if ctx.attempt < 30:
            raise OSError("again")
        return ctx.attempt

    async with make_app(late) as app:
        assert await app.enqueue(late()).result(PATIENCE) == 30


async def test_a_failing_handler_waits_for_its_backoff(make_app: MakeApp) -> None:
    """T21: With a base of 1 s there is one call in 0.15 s."""
    calls: list[int] = []

    @work(name="flapping")
    async def flapping() -> None:
        calls.append(1)
        raise RuntimeError("again")

    async with make_app(flapping, random=Steady(0.0)) as app:
        handle = await app.enqueue(flapping())
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.15)
    assert len(calls) == 1


# ------------------------------------------------------------------------------------ abort, defer, classify


async def test_abort_makes_the_item_dead_at_once(make_app: MakeApp) -> None:
    """T15: With the text of the cause, although attempts are left."""
    calls: list[int] = []

    @work(name="permanent", retry=Retry(attempts=5, base=0))
    async def permanent(how: str) -> None:
        calls.append(1)
        raise Abort(ValueError("permanent failure") if how == "error" else "permanent failure")

    async with make_app(permanent) as app:
        error = await failure(app.enqueue(permanent("error")).result(PATIENCE))
        assert (error.reason, error.error_type, error.error) == (
            "aborted",
            "ValueError",
            "permanent failure",
        )
        error = await failure(app.enqueue(permanent("text")).result(PATIENCE))
        assert (error.reason, error.error) == ("aborted", "permanent failure")
    assert len(calls) == 2


async def test_defer_does_not_count_the_attempt(make_app: MakeApp) -> None:
    """T19: No retry is counted, and there is no limit."""
    attempts: list[int] = []
    seen = Seen()

    @work(name="busy", retry=Retry(attempts=2, base=0))
    async def busy(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) < 6:
            raise Defer(delay=0.005)
        return "ok"

    async with make_app(busy, on_event=seen) as app:
        handle = await app.enqueue(busy())
        assert await handle.result(PATIENCE) == "ok"
        assert (await handle.state()).history == ()
        assert (app.metrics.get("deferred"), app.metrics.get("retried")) == (5, 0)
    assert attempts == [1] * 6
    assert len(seen.of(Deferred)) == 5


async def test_retry_after_is_a_failed_attempt_with_its_own_delay(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """§19: Counted by `attempts`. The delay is the handler's, without jitter and without `max`."""
    start, began = clock.now(), list[tuple[int, float]]()

    @work(name="limited", retry=Retry(attempts=3, base=1, max=2))
    async def limited(ctx: Context) -> None:
        began.append((ctx.attempt, clock.now() - start))
        raise RetryAfter(timedelta(seconds=30), "429 Too Many Requests")

    async with run_inline(make_timed(limited)) as app:
        handle = await app.enqueue(limited())
        await drain(app)
        assert (await handle.state()).due_at == start + 30
        for _ in range(2):
            await clock.advance(30)
            await drain(app)
        state = await handle.state()
    assert began == [(1, 0.0), (2, 30.0), (3, 60.0)]
    assert (state.status, state.reason, state.failures) == ("dead", "exhausted", 3)
    assert state.error == "RetryAfter: 429 Too Many Requests"
    assert len(state.history) == 3


async def test_the_cause_of_a_retry_after_is_the_error(make_app: MakeApp) -> None:
    @work(name="limited", retry=Retry(attempts=1))
    async def limited() -> None:
        try:
            raise HttpError(429)
        except HttpError as error:
            raise RetryAfter(5, error) from error

    async with make_app(limited) as app:
        died = await failure(app.enqueue(limited()).result(PATIENCE))
    assert (died.error, died.reason) == ("status 429", "exhausted")
    assert died.error_type.endswith("HttpError")


async def test_a_retry_after_past_the_deadline_expires_at_once(make_timed: MakeApp) -> None:
    @work(name="limited")
    async def limited() -> None:
        raise RetryAfter(30)

    async with run_inline(make_timed(limited)) as app:
        handle = await app.enqueue(limited(), expires_in=20)
        await drain(app)
        assert (await handle.state()).reason == "expired"


async def test_a_retry_after_without_a_delay_says_so(make_app: MakeApp) -> None:
    class Mine(RetryAfter):
        def __init__(self) -> None: ...

    @work(name="limited")
    async def limited() -> None:
        raise Mine

    async with make_app(limited) as app:
        died = await failure(app.enqueue(limited()).result(PATIENCE))
    assert died.reason == "bad_result"
    assert "a Mine without a time" in died.error


async def test_deferrals_are_counted_and_bounded(make_app: MakeApp) -> None:
    """§19: `ctx.deferrals`, `ItemState.deferrals`, `Retry(max_deferrals=)` of the type or of the item."""
    seen: list[int] = []

    @work(name="busy", retry=Retry(attempts=5, base=0, max_deferrals=3))
    async def busy(ctx: Context) -> None:
        seen.append(ctx.deferrals)
        raise Defer(delay=0)

    async with make_app(busy) as app:
        handle = await app.enqueue(busy())
        died = await failure(handle.result(PATIENCE))
        state = await handle.state()
        assert (died.reason, died.error_type) == ("exhausted", "Defer")
        assert died.error == "once more than max_deferrals=3 allows: deferred by 0"
        assert (state.deferrals, state.attempt, state.failures) == (3, 1, 1)
        assert seen == [0, 1, 2, 3]
        seen.clear()
        await failure(app.enqueue(busy(), retry=Retry(max_deferrals=1)).result(PATIENCE))
        assert seen == [0, 1]
        await app.requeue(handle)
        await failure(handle.result(PATIENCE))
        assert (await handle.state()).deferrals == 3


async def test_defer_to_a_run_at(make_timed: MakeApp, clock: ManualClock) -> None:
    """§5: `Defer(run_at=)`. An instant in the past means now."""
    start = clock.now()
    seen = Seen()

    @work(name="later")
    async def later() -> str:
        if clock.now() < start + 60:
            raise Defer(run_at=start + 60)
        return "ok"

    async with run_inline(make_timed(later, on_event=seen)) as app:
        handle = await app.enqueue(later())
        await drain(app)
        assert (await handle.state()).due_at == start + 60
        assert [event.run_at for event in seen.of(Deferred)] == [start + 60]
        await clock.advance(60)
        await drain(app)
        assert await handle.result() == "ok"


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def classify(error: BaseException, info: FailureInfo) -> str | Defer | RetryAfter | None:
    match error:
        case HttpError(status=400):
            return "abort"
        case HttpError(status=429):
            return Defer(delay=0.01)
        case HttpError(status=409):
            return Defer(run_at=time.time() + 0.01)
        case HttpError(status=500):
            return "retry"
        case HttpError(status=503):
            return RetryAfter(0.01)
        case _:
            return None


@pytest.mark.parametrize("where", ["type", "app"])
@pytest.mark.parametrize(
    ("status", "attempts"), [(429, [1, 1]), (409, [1, 1]), (500, [1, 2]), (503, [1, 2]), (599, [1, 2])]
)
async def test_on_failure_can_retry_or_defer(
    make_app: MakeApp, where: str, status: int, attempts: list[int]
) -> None:
    """T17, T18: A deferral counts no attempt. "retry" and None do. For the type, else for the app."""
    seen: list[int] = []
    option = {"on_failure": classify}

    @work(name="call", retry=AT_ONCE, **(option if where == "type" else {}))
    async def call(ctx: Context) -> str:
        seen.append(ctx.attempt)
        if len(seen) == 1:
            raise HttpError(status)
        return "ok"

    async with make_app(call, **(option if where == "app" else {})) as app:
        assert await app.enqueue(call()).result(PATIENCE) == "ok"
    assert seen == attempts


async def test_on_failure_can_abort(make_app: MakeApp) -> None:
    """T16: There is one call. The type's classifier wins over the app's and gets a FailureInfo."""
    infos: list[FailureInfo] = []

    def aborting(error: BaseException, info: FailureInfo) -> str:
        infos.append(info)
        return "abort"

    @work(name="call", retry=Retry(attempts=5, base=0), on_failure=aborting)
    async def call() -> None:
        raise HttpError(400)

    async with make_app(call, on_failure=lambda *_: "retry") as app:
        handle = await app.enqueue(call())
        assert (await failure(handle.result(PATIENCE))).reason == "aborted"
    assert infos == [FailureInfo(handle.id, "call", 1, 5)]


async def test_abort_and_defer_are_not_classified(make_app: MakeApp) -> None:
    """§5."""
    seen: list[int] = []

    @work(name="call", on_failure=lambda *_: "abort")
    async def call() -> str:
        seen.append(1)
        if len(seen) == 1:
            raise Defer(delay=0)
        raise Abort("enough")

    async with make_app(call) as app:
        assert (await failure(app.enqueue(call()).result(PATIENCE))).error == "enough"
    assert len(seen) == 2


async def test_an_on_failure_that_raises_means_retry(make_app: MakeApp) -> None:
    """T18: The error is reported in the phase `hook`."""
    errors = Errors()

    def broken(*_: object) -> None:
        raise KeyError("classifier")

    @work(name="call", retry=AT_ONCE, on_failure=broken)
    async def call(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise OSError("once")
        return ctx.attempt

    async with make_app(call, on_error=errors) as app:
        assert await app.enqueue(call()).result(PATIENCE) == 2
    assert [(type(error), phase) for error, phase in errors.seen] == [(KeyError, "hook")]
