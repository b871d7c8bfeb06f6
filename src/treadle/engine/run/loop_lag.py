"""Loop lag: how late the event loop of a worker is."""

from __future__ import annotations

import asyncio

from treadle.metrics import ProcessMetrics

INTERVAL = 0.5
"""Seconds between two measurements."""


async def measure_loop_lag(metrics: ProcessMetrics) -> None:
    """Measure it until cancelled: by how much a short sleep is too long."""
    time = asyncio.get_running_loop().time
    while True:
        due = time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        metrics.loop_lag.observe(time() - due)
