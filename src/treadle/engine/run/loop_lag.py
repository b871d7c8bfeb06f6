"""Loop lag: how late the event loop of a worker is."""

from __future__ import annotations

import asyncio

from treadle.engine.outage import StoreOutage
from treadle.metrics import ProcessMetrics

INTERVAL = 0.5
"""Seconds between two measurements."""


async def measure_loop_lag(metrics: ProcessMetrics, outage: StoreOutage) -> None:
    """Measure it until cancelled: by how much a short sleep is too long. outage: hears of it, since calls to
    the store fail while the loop is blocked."""
    time = asyncio.get_running_loop().time
    while True:
        due = time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        lag = time() - due
        metrics.loop_lag.observe(lag)
        outage.note_lag(lag)
