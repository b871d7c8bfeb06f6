"""The app of test_forgotten.py: one item at once in the whole fleet, each of which waits for its file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from treadle import Context, Treadle, work
from treadle.doers import concurrency

LEASE = 1.5


@work(name="one", doer=concurrency(1))
async def one(ctx: Context, directory: str) -> str:
    """Note that it runs, and wait for the file `go`."""
    home = Path(directory)
    with (home / "ran").open("a") as ran:
        ran.write(f"{ctx.attempt}\n")
    while not (home / "go").exists():  # noqa: ASYNC110  another process makes it
        await asyncio.sleep(0.01)
    return "done"


if "FORGETFUL_STORE" in os.environ:
    app = Treadle(os.environ["FORGETFUL_STORE"], work=[one], lease=LEASE, poll_interval=0.2)
