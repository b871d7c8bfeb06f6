"""What uvloop saves: processor time per item of the same programs, on asyncio's event loop and on uvloop.

`python -m benchmarks.loops LOOP URL COUNT` runs them once.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.engine import noop
from benchmarks.measure import Figure
from benchmarks.stores import Stores
from benchmarks.tracing import ProcessorTime
from treadle import Treadle
from treadle.cli.child import run_on

LOOPS = ("asyncio", "uvloop")
CASES = ("drain", "enqueue and await, one at a time")


async def loops(stores: Stores, kinds: Sequence[str], count: int, times: int) -> dict[str, list[Figure]]:
    """Both loops in each round, in turn."""
    found: dict[str, list[Figure]] = {}
    for kind in kinds:
        figures = {(case, loop): Figure(f"{case}, {loop}", "us") for case in CASES for loop in LOOPS}
        for number in range(times):
            for loop in LOOPS if number % 2 else reversed(LOOPS):
                async with stores.fresh(kind) as url:
                    taken = await _child(loop, url, count)
                for case in CASES:
                    figures[case, loop].values.append(taken[case])
        found[kind] = list(figures.values())
    return found


async def _child(loop: str, url: str, count: int) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.loops", loop, url, str(count)), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the program on {loop} ended with code {process.returncode}")
    found: dict[str, float] = json.loads(out)
    return found


async def _measure(url: str, count: int) -> dict[str, Any]:
    app = Treadle(url, work=[noop])
    for start in range(0, count, 1000):
        await app.enqueue_many([noop(i) for i in range(start, min(start + 1000, count))])
    with ProcessorTime() as draining:
        await app.start()
        await app.worker.drain()
    singly = max(100, count // 20)
    await app.enqueue(noop(0)).result()
    with ProcessorTime() as awaiting:
        for i in range(singly):
            await app.enqueue(noop(i)).result()
    await app.stop()
    return dict(zip(CASES, (draining.seconds / count * 1e6, awaiting.seconds / singly * 1e6), strict=True))


if __name__ == "__main__":
    print(json.dumps(run_on(sys.argv[1], _measure(sys.argv[2], int(sys.argv[3])))), flush=True)
