"""A worker process that obeys orders: `python -m tests.engine.ordered_worker URL FILE`.

It appends a line to the file whenever a handler begins: when, its type and what it was given. Its handlers
wait, and few run at once. So four workers leave the cores free: an order must not come late only because
these are full.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from treadle import Treadle, work
from treadle.doers import balanced, concurrency, rate_limited

TAKES = 0.1
"""Seconds that a handler takes."""
AT_ONCE = 2
"""How many items of a type without a doer run at once in a worker."""
FILE = sys.argv[2] if len(sys.argv) > 2 else ""


def note(type: str, n: int) -> None:
    file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{time.monotonic()} {type} {n}\n".encode())
    os.close(file)


@work(name="free")
async def free(n: int) -> None:
    note("free", n)
    await asyncio.sleep(TAKES)


@work(name="rated", doer=rate_limited(50, 1.0))
async def rated(n: int) -> None:
    note("rated", n)
    await asyncio.sleep(TAKES)


@work(name="slotted", doer=concurrency(5))
async def slotted(n: int) -> None:
    note("slotted", n)
    await asyncio.sleep(TAKES)


TYPES = [free, rated, slotted]


async def main(url: str) -> None:
    await Treadle(url, work=TYPES, doer=balanced(AT_ONCE)).worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
