"""Rates: how much of each type, or in each queue, has run lately, and how long it took."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.dashboard.visit import Visit
from treadle.records import Stat

from .overview import added_histogram, quantile


class Rate(msgspec.Struct, frozen=True):
    """What workers counted for one type or queue."""

    started: float
    """A minute."""
    ended: float
    """Items that ended, a minute: success, dead or cancelled."""
    attempts: int
    """Attempts that ended, in all."""
    failed: int
    """... of which so many failed."""
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


async def read_rates(
    visit: Visit, by: Literal["type", "queue"], seconds: int, step: int
) -> dict[str, Rate] | None:
    """The rates of all types, or of all queues, that something was counted for. None: nothing is counted for
    single tenants, or the store keeps nothing, or it was not in time."""
    if not visit.sees_fleet or "recording" not in visit.client.backend.capabilities:
        return None
    now = visit.site.now()
    since = (now - seconds) // step * step
    stats = await visit.in_time(visit.client.statistics(since, step=step, by=by))
    if stats is None:
        return None
    minutes = max(1.0, (now - since) / 60)
    return {each.type if by == "type" else each.queue: rate_of(each, minutes) for each in stats}


def rate_of(stat: Stat, minutes: float) -> Rate:
    wait, run = added_histogram((stat,), "wait"), added_histogram((stat,), "run")
    return Rate(
        started=stat.started / minutes,
        ended=(stat.succeeded + stat.dead + stat.cancelled) / minutes,
        attempts=stat.succeeded + stat.failed,
        failed=stat.failed,
        wait_p50=quantile(wait, 0.5),
        wait_p95=quantile(wait, 0.95),
        run_p50=quantile(run, 0.5),
        run_p95=quantile(run, 0.95),
    )
