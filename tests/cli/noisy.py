"""An app whose items fail in all ways, for the tests of what `treadle worker` prints."""

from __future__ import annotations

import asyncio
import os
import signal

from treadle import Context, Retry, Treadle

app = Treadle(os.environ.get("NOISY_URL", "memory://"), drain=30)


@app.work(name="mail.send", retry=Retry(attempts=2, base=0, jitter=0))
async def send(ctx: Context, to: str) -> str:
    ctx.log.warning("sending to %s", to)
    if to.startswith("bad"):
        raise ConnectionError(f"no such user\n{to}\x1b[2J")
    return to


@app.work(name="crash", retry=Retry(max_losses=0))
async def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@app.work(name="wait")
async def wait(ctx: Context) -> None:
    ctx.log.warning("waiting")
    await asyncio.sleep(3600)
