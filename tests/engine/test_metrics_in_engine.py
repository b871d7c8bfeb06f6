"""Metrics while items run (SPEC §13, §17)."""

from __future__ import annotations

import time

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, Seen, failure, until
from treadle import Abort, Context, Defer, Treadle, work
from treadle.doers import priority


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
        assert app.metrics.get("peak_active", type="mixed") == 1
        stats = app.stats()
        assert (stats["attempts_count"], stats["run_count"]) == (5, 6)
        assert stats["last_succeeded_at"] == pytest.approx(time.time(), abs=60)
        assert "treadle_succeeded_total" in app.metrics.prometheus()


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
