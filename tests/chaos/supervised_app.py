"""The app of supervised workers: short innocent items, and poison. It is configured by the environment.

CHAOS_URL, CHAOS_LEDGER   its store, and a ledger with a line for each begin and end of a handler
CHAOS_RETRY               fields of the retry policy as JSON; without it the defaults apply
CHAOS_SECONDS             how long an innocent item takes
CHAOS_AFTER               how long a poison item runs before it kills its process
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from tests.chaos.ledger import Ledger
from treadle import Context, Retry, Treadle

SECONDS = float(os.environ.get("CHAOS_SECONDS", "0.2"))
AFTER = float(os.environ.get("CHAOS_AFTER", "0"))
_fields: dict[str, Any] = json.loads(os.environ.get("CHAOS_RETRY", "{}"))

app = Treadle(os.environ.get("CHAOS_URL", "memory://"), retry=Retry(**_fields))
ledger = Ledger(Path(os.environ.get("CHAOS_LEDGER", os.devnull)))


@app.work(name="innocent")
async def innocent(ctx: Context) -> None:
    _begin(ctx)
    await asyncio.sleep(SECONDS)
    ledger.write(f"end {ctx.id}")


@app.work(name="innocent_sync")
def innocent_sync(ctx: Context) -> None:
    _begin(ctx)
    time.sleep(SECONDS)
    ledger.write(f"end {ctx.id}")


def _begin(ctx: Context) -> None:
    ledger.write(f"run {ctx.id} {os.getpid()} {time.monotonic()} {ctx.attempt}")


@app.work(name="poison")
async def poison() -> None:
    await asyncio.sleep(AFTER)
    _kill()


@app.work(name="poison_sync")
def poison_sync() -> None:
    time.sleep(AFTER)
    _kill()


def _kill() -> None:
    """End this process at once, as a crash of native code or the system's out-of-memory killer would."""
    ledger.write(f"killed {os.getpid()} {time.monotonic()}")
    os._exit(9)
