"""An app whose workers are busy with everything that needs the store: for the log of an outage."""

from __future__ import annotations

import asyncio
import os

from treadle import Context, Retry, Treadle, Work

app = Treadle(os.environ.get("OUTAGE_URL", "memory://"), lease=4, poll_interval=0.5)


@app.work(name="tick")
async def tick() -> None:
    await asyncio.sleep(0.2)


@app.work(name="steady", retry=Retry(attempts=None, max_losses=None))
async def steady(ctx: Context) -> None:
    """Run for longer than any outage: its lease is lost meanwhile."""
    await asyncio.sleep(3600)


def _tick() -> Work[None, None]:
    return tick()


app.schedule("every second", every=1, run=_tick)
