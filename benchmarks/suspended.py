"""What items that wait cost: memory of a worker, time of a claim, and time from a signal to the resume.

    python -m benchmarks.suspended [--suspended 100000] [--rounds 300] [--on postgres]

A worker runs in a process of its own. It is measured with no item that waits, then with all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.stores import stores
from treadle import Context, Treadle, work
from treadle.backend import Demand, Heartbeat


@work(name="wait")
async def wait(ctx: Context, i: int) -> None:
    await ctx.signal("go", bool, timeout=86_400)


@work(name="noop")
async def noop(i: int) -> float:
    return time.time()


@work(name="resumed")
async def resumed(ctx: Context, i: int) -> float:
    await ctx.signal("go", bool, timeout=86_400)
    return time.time()


def memory() -> float:
    """MB that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


SHORT = 0.02


async def latencies(app: Treadle, rounds: int) -> tuple[float, float]:
    """Medians in milliseconds: from enqueue to start, and from signal to resume, in turn."""
    starts: list[float] = []
    resumes: list[float] = []
    for i in range(rounds):
        handle = await app.enqueue(resumed(i))
        while True:
            (item,) = await app.get([handle.id])
            if item is not None and item.suspended:
                break
            await asyncio.sleep(SHORT)
        began = time.time()
        await app.signal(handle.id, "go", True)
        await asyncio.sleep(SHORT)  # so that waiting for the result does not cost time meanwhile
        resumes.append(await handle.result() - began)
        began = time.time()
        handle = await app.enqueue(noop(i))
        await asyncio.sleep(SHORT)
        starts.append(await handle.result() - began)
    return statistics.median(starts) * 1e3, statistics.median(resumes) * 1e3


async def worker(url: str) -> None:
    """In the process of the worker: tell its memory whenever a line comes in."""
    async with Treadle(url, work=[wait, noop, resumed]):
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(memory()), flush=True)


async def claim_time(app: Treadle, rounds: int) -> float:
    """The median of a claim that finds nothing, in microseconds."""
    demand = Demand(worker="measures", types={"noop": 1}, limit=1)
    await app.backend.beat(Heartbeat(worker="measures", lease=600, types=("noop",)))
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        await app.backend.claim(demand)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


async def measure(kind: str, suspended: int, rounds: int) -> Table:
    table = Table(kind, "worker, MB", "claim, us", "enqueue to start, ms", "signal to resume, ms", "ratio")
    with stores((kind,)) as opened:
        async with opened.fresh(kind) as url:
            command = [sys.executable, "-m", "benchmarks.suspended", "--worker", url]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdin is not None
            assert process.stdout is not None
            app = Treadle(url, work=[wait, noop, resumed])
            await app.connect()
            for count in (0, suspended):
                for begin in range(0, count, 1000):
                    await app.enqueue_many([wait(begin + i) for i in range(1000)])
                while any(each.status in ("ready", "running") for each in await app.counts()):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                starts, resumes = await latencies(app, rounds)
                claim = await claim_time(app, rounds)
                process.stdin.write(b"\n")
                held = json.loads(await process.stdout.readline())
                ratio = f"{resumes / starts:.2f}"
                figures = (f"{held:.0f}", f"{claim:.0f}", f"{starts:.2f}", f"{resumes:.2f}", ratio)
                table.add_row(f"{count:,} wait", *figures)
            await app.close()
            process.stdin.close()
            await process.wait()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.suspended", description=__doc__)
    parser.add_argument("--suspended", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--on", choices=("sqlite", "postgres", "redis"), default="postgres")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        asyncio.run(worker(given.worker))
    else:
        Console().print(asyncio.run(measure(given.on, given.suspended, given.rounds)))


if __name__ == "__main__":
    main()
