"""Metrics while items run (SPEC §13, §17)."""

from __future__ import annotations

import time

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, Seen, failure, until
from treadle import Abort, Context, Defer, Treadle, work
from treadle.doers import concurrency, priority
from treadle.engine.run import loops


@work
async def value(n: int) -> int:
    return n


async def test_metrics_count_each_outcome(make_app: MakeApp) -> None:
    """T49, §13: A success, a retry, a death, a deferral and an expiry. The running counts return to zero."""

    @work(name="mixed", retry=AT_ONCE)
    async def mixed(ctx: Context, how: str) -> str:
        match how:
            case "retry" if ctx.attempt == 1:
                raise OSError("once")
            case "defer" if not deferred:
                deferred.append(1)
                raise Defer(delay=0)
            case "die":
                raise Abort("die")
            case _:
                return how

    deferred: list[int] = []
    seen = Seen()
    async with make_app(mixed, on_event=seen) as app:
        for how in ("ok", "retry", "defer"):
            assert await app.enqueue(mixed(how)).result(PATIENCE) == how
        await failure(app.enqueue(mixed("die")).result(PATIENCE))
        await failure(app.enqueue(mixed("late"), delay=5, expires_in=0.01).result(PATIENCE))
        expected = {
            "queued": 5,
            "started": 6,
            "succeeded": 3,
            "failed": 2,
            "retried": 1,
            "deferred": 1,
            "expired": 1,
            "dead": 2,
            "active": 0,
            "pending": 0,
            "running": 0,
        }
        assert {name: app.metrics.get(name, type="mixed") for name in expected} == expected
        # A retried item may be claimed again before the answer to its settlement was read.
        assert app.metrics.get("peak_active", type="mixed") in (1, 2)
        stats = app.stats()
        assert (stats["attempts_count"], stats["run_count"]) == (5, 6)
        assert stats["last_succeeded_at"] == pytest.approx(time.time(), abs=60)
        text = app.metrics.prometheus()
        assert 'treadle_dead_total{type="mixed",reason="aborted"} 1' in text
        assert 'treadle_dead_total{type="mixed",reason="expired"} 1' in text
        assert 'treadle_started_total{type="mixed",queue="default"} 6' in text
        for call in ("claim", "settle", "submit"):
            assert stats[f"{call}_count"] > 0
        assert app.metrics.process.batch_sizes["settle"].sum >= 7


async def test_cancelled_and_dropped_items_are_counted(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work(name="alone", doer=concurrency(1, on_full="drop"))
    async def alone() -> None:
        await barrier.wait()

    async with make_app(alone) as app:
        first = await app.enqueue(alone(), queue="mail")
        await until(lambda: barrier.count == 1)
        await failure(app.enqueue(alone()).result(PATIENCE))
        await app.cancel((await app.enqueue(alone(), delay=60)).id)
        await app.cancel(first.id)
        await until(lambda: not app.active())
        counts = {name: app.metrics.get(name) for name in ("cancelled", "dropped", "lease_lost", "started")}
        assert counts == {"cancelled": 3, "dropped": 1, "lease_lost": 1, "started": 1}
        assert 'treadle_lease_lost_total{type="alone",reason="cancelled"} 1' in app.metrics.prometheus()
        assert 'treadle_started_total{type="alone",queue="mail"} 1' in app.metrics.prometheus()


async def test_a_late_event_loop_is_measured(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LAG_INTERVAL", 0.01)

    @work(name="blocking")
    async def blocking() -> None:
        time.sleep(0.06)  # noqa: ASYNC251  that is what is measured

    async with make_app(blocking) as app:
        await app.enqueue(blocking()).result(PATIENCE)
        await until(lambda: app.metrics.process.loop_lag.sum >= 0.05)


async def test_active_shows_running_items(make_app: MakeApp) -> None:
    """T28: Five items, two at once. Afterwards `active()` is empty."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    async with make_app(held, doer=priority(2)) as app:
        handles = await app.enqueue_many([held() for _ in range(5)])
        await until(lambda: barrier.count == 2)
        assert len(app.active()) == 2
        assert app.metrics.get("running") == 2
        barrier.go.set()
        for handle in handles:
            await handle.result(PATIENCE)
        await until(lambda: not app.active())
        assert (app.metrics.get("active"), app.metrics.get("running")) == (0, 0)


async def test_metrics_subscribers_get_combined_changes(make_app: MakeApp) -> None:
    """§17."""
    changes: list[tuple[str, ...]] = []
    app: Treadle = make_app(value)
    end = app.metrics.subscribe(changes.append)
    async with app:
        await app.enqueue(value(1)).result(PATIENCE)
        await until(lambda: bool(changes))
        end()
        before = len(changes)
        await app.enqueue(value(1)).result(PATIENCE)
        assert len(changes) == before
    assert set(changes) == {(value.name,)}
