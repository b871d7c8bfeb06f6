"""The cost of a worker: idle CPU and memory, memory per running item, and the time to import treadle.

`python -m benchmarks.cost idle URL SECONDS` and `python -m benchmarks.cost flight URL 0` run such a worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil

from benchmarks.measure import Case, Figure, rounds
from benchmarks.stores import Stores
from treadle import Treadle, work
from treadle.base.timing import SystemClock
from treadle.connect import connect
from treadle.doers import unlimited
from treadle.testing.counting import CountingBackend

IN_FLIGHT = 10_000
FLIGHT_SECONDS = 120
"""How long it may take until all of them have started."""


class Flight:
    """Items that run until all of them have started and the benchmark lets them end."""

    def __init__(self) -> None:
        self.started = 0
        self.full = asyncio.Event()
        self.over = asyncio.Event()

    async def join(self) -> None:
        self.started += 1
        if self.started == IN_FLIGHT:
            self.full.set()
        await self.over.wait()


flight = Flight()


@work(name="held")
async def held(i: int) -> int:
    await flight.join()
    return i


class Cost:
    """The cases for one kind of store."""

    def __init__(self, stores: Stores, kind: str, seconds: float) -> None:
        self._stores = stores
        self._kind = kind
        self._seconds = seconds
        self._idle: dict[str, float] = {}

    def cases(self) -> list[tuple[str, str, Case]]:
        return [
            ("idle, calls to the store", "/s", self.idle),
            ("idle, CPU", "%", lambda: self._found("cpu")),
            ("idle, RSS", "MB", lambda: self._found("rss")),
            (f"RSS of {IN_FLIGHT:,} in flight", "MB", self.in_flight),
        ]

    async def idle(self) -> float:
        async with self._stores.fresh(self._kind) as url:
            self._idle = await _child("idle", url, str(self._seconds))
        return self._idle["calls"]

    async def _found(self, name: str) -> float:
        return self._idle[name]

    async def in_flight(self) -> float:
        async with self._stores.fresh(self._kind) as url:
            return (await _child("flight", url, "0"))["rss"]


IMPORTS = (
    ("import treadle", "import treadle"),
    ("floor: import treadle", "import asyncio, msgspec"),
    ("python alone", "pass"),
)


COMPILED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


async def cost(stores: Stores, kinds: Sequence[str], seconds: float, times: int) -> dict[str, list[Figure]]:
    found = {
        kind: await rounds(Cost(stores, kind, seconds).cases(), times, f"cost on {kind}") for kind in kinds
    }
    cases = [(name, "ms", _importing(code)) for name, code in IMPORTS]
    found["python"] = await rounds(cases, 5 + 4 * times, "imports")
    return found


def _importing(code: str) -> Case:
    async def case() -> float:
        """CPU time of importing modules that are already compiled, as installed modules are."""
        command = [sys.executable, "-c", code]
        await asyncio.to_thread(subprocess.run, command, check=True, env=COMPILED)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        await asyncio.to_thread(subprocess.run, command, check=True, env=COMPILED)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000

    return case


# -- the other side ----------------------------------------------------------------------------------------


async def _child(*args: str) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.cost", *args, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the worker of {' '.join(args)} ended with code {process.returncode}")
    found: dict[str, float] = json.loads(out)
    return found


def _megabytes() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


async def _idle(url: str, seconds: float) -> dict[str, Any]:
    """Measured after a while, because the poll slows down when no items come."""
    backend = CountingBackend(connect(url, clock=SystemClock()))
    async with Treadle(backend, work=[held]):
        await asyncio.sleep(5)
        backend.calls.clear()
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        return {
            "calls": sum(backend.calls.values()) / seconds,
            "cpu": (time.process_time() - cpu) / seconds * 100,
            "rss": _megabytes(),
        }


async def _flight(url: str) -> dict[str, Any]:
    """The memory that the running handlers add to a worker. A usual worker runs 200 at once."""
    async with Treadle(url, work=[held], doer=unlimited()) as app:
        await app.enqueue_many([held(0)])
        before = _megabytes()
        await app.enqueue_many([held(i) for i in range(1, IN_FLIGHT)])
        async with asyncio.timeout(FLIGHT_SECONDS):
            await flight.full.wait()
        found = _megabytes() - before
        flight.over.set()
        await app.worker.drain()
        return {"rss": found}


async def _main(what: str, url: str, number: str) -> None:
    found = await (_idle(url, float(number)) if what == "idle" else _flight(url))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
