"""A worker process that obeys orders: `python -m tests.engine.ordered_worker URL FILE`.

It appends a line to the file whenever a handler begins: when, its type and what it was given.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from treadle import Treadle, work
from treadle.doers import concurrency, rate_limited

FILE = sys.argv[2] if len(sys.argv) > 2 else ""


def note(type: str, n: int) -> None:
    file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{time.time()} {type} {n}\n".encode())
    os.close(file)


@work(name="free")
async def free(n: int) -> None:
    note("free", n)
    await asyncio.sleep(0.01)


@work(name="rated", doer=rate_limited(100_000, 1.0))
async def rated(n: int) -> None:
    note("rated", n)
    await asyncio.sleep(0.01)


@work(name="slotted", doer=concurrency(40))
async def slotted(n: int) -> None:
    note("slotted", n)
    await asyncio.sleep(0.05)


TYPES = [free, rated, slotted]


async def main(url: str) -> None:
    await Treadle(url, work=TYPES).worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
