"""An app for the tests of the command line. Its store and its ledger are named by the environment."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from tests.chaos.ledger import Ledger
from treadle import Context, MemoryBackend, Retry, Treadle
from treadle.cli import supervisor
from treadle.item import Claim, Demand

LEASE = float(os.environ.get("SHOP_LEASE", "2"))
DRAIN = float(os.environ.get("SHOP_DRAIN", "2"))
app = Treadle(os.environ.get("SHOP_URL", "memory://"), lease=LEASE, poll_interval=0.2, drain=DRAIN)
if "SHOP_END_GRACE" in os.environ:
    supervisor.END_GRACE = float(os.environ["SHOP_END_GRACE"])
ledger = Ledger(Path(os.environ.get("SHOP_LEDGER", os.devnull)))


class BrokenClaim(BaseException):
    """No loop expects it: it ends the one that claims."""


class BrokenBackend(MemoryBackend):
    async def claim(self, demand: Demand) -> Claim:
        raise BrokenClaim


broken = Treadle(BrokenBackend())
"""An app that cannot claim."""


@contextlib.asynccontextmanager
async def _missing() -> AsyncGenerator[None]:
    raise LookupError("no such resource")
    yield


unready = Treadle(os.environ.get("SHOP_URL", "memory://"), lifespan=_missing)
"""An app whose workers cannot start."""


@app.work(name="greet")
async def greet(name: str) -> str:
    ledger.write(f"greet {name} {os.getpid()}")
    return f"hello {name}"


@app.work(name="block", retry=Retry(attempts=3, base=0.1))
async def block(seconds: float) -> int:
    """Block the event loop."""
    ledger.write(f"block {os.getpid()}")
    time.sleep(seconds)  # noqa: ASYNC251  the test needs a blocked loop
    return os.getpid()


@app.work(name="hold_gil", retry=Retry(attempts=None, base=0.1))
def hold_gil(ctx: Context, seconds: float) -> int:
    """Hold the GIL in one C call: no thread of the process goes on."""
    ledger.write(f"hold_gil {os.getpid()}")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return ctx.attempt


@app.work(name="linger", retry=Retry(attempts=None, base=0.1))
async def linger(ctx: Context, seconds: float) -> int:
    ledger.write(f"linger {os.getpid()} {ctx.attempt}")
    await asyncio.sleep(seconds)
    return ctx.attempt


@app.work(name="sleep", retry=Retry(attempts=None, base=0.1))
def sleep(ctx: Context, seconds: float) -> int:
    """Sleep in a thread."""
    ledger.write(f"sleep {os.getpid()} {ctx.attempt}")
    time.sleep(seconds)
    return ctx.attempt


@app.work(name="leave", retry=Retry(max_losses=0))
async def leave() -> None:
    """End the process as if nothing was wrong."""
    ledger.write(f"leave {os.getpid()}")
    os._exit(0)


@app.work(name="crash", retry=Retry(max_losses=1))
async def crash() -> None:
    ledger.write(f"crash {os.getpid()}")
    os.kill(os.getpid(), signal.SIGSEGV)
