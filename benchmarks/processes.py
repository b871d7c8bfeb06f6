"""Several processes on one store: throughput, the write-ahead log, how soon another process starts an item,
and how soon it takes over from a killed worker.

`python -m benchmarks.processes load URL SECONDS` runs one process of the mixed load, and `python -m
benchmarks.processes work URL [NOTIFY PREFIX]` a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measure import percentile
from benchmarks.stores import Stores
from treadle import Client, Context, Result, Retry, Treadle, work
from treadle.doers import balanced

# --------------------------------------------------------------------------------------------- mixed load


@work(name="note", retry=Retry(attempts=3, base=0.01, max=0.05))
async def note(ctx: Context, n: int) -> int:
    """One of fifty items fails in its first attempt."""
    if n % 50 == 0 and ctx.attempt == 1:
        raise OSError("once")
    return n


@work(name="spread")
async def spread(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue([note(n + each) for each in range(1, 4)]).next(note(n + 5))


class Load:
    """Submits single items and many at once, fans out, waits, reads, cancels and works, all in one
    process."""

    def __init__(self, app: Treadle, seconds: float) -> None:
        self._app = app
        self._until = time.monotonic() + seconds
        self._random = random.Random(os.getpid())
        self.errors: Counter[str] = Counter()

    async def run(self, clients: int = 8) -> None:
        await asyncio.gather(*(self._client() for _ in range(clients)))

    async def _client(self) -> None:
        while time.monotonic() < self._until:
            try:
                await self._something()
            except Exception as error:  # noqa: BLE001  count every error that reaches a caller
                self.errors[f"{type(error).__name__}: {error}"[:200]] += 1

    async def _something(self) -> None:
        app, n = self._app, self._random.randrange(1_000_000)
        match self._random.randrange(10):
            case 0:
                await app.enqueue(spread(n)).group(30)
            case 1:
                await app.cancel(await app.enqueue(note(n), delay=60))
            case 2:
                await app.list(status="ready", limit=20)
            case 3:
                await app.counts()
            case 4:
                for handle in await app.enqueue_many([note(n + each) for each in range(20)]):
                    await handle.result(30)
            case _:
                await app.enqueue(note(n)).result(30)


async def load(url: str, seconds: float) -> None:
    app = Treadle(url, work=[note, spread], poll_interval=1.0, keep=5.0)
    async with app:
        busy = Load(app, seconds)
        await busy.run()
    settled = sum(app.metrics.get("succeeded", type=each.name) for each in (note, spread))
    print(json.dumps({"settled": settled, "errors": busy.errors}))


async def mixed(stores: Stores, kind: str, processes: int, seconds: float) -> dict[str, Any]:
    """Successful items per second of all processes together, the errors of callers, and the size of the
    log."""
    async with stores.fresh(kind) as url:
        async with Client(url):
            pass  # create the tables
        watching = asyncio.create_task(_log_size(url))
        fleet = [await _start("load", url, str(seconds)) for _ in range(processes)]
        answers = [json.loads((await each.communicate())[0]) for each in fleet]
        watching.cancel()
        largest = await watching
    settled = [answer["settled"] for answer in answers]
    errors = sum((Counter(answer["errors"]) for answer in answers), Counter[str]())
    return {"items/s": sum(settled) / seconds, "by process": settled, "errors": errors, "log": largest}


async def _log_size(url: str) -> int:
    """The maximum size in bytes of a file's write-ahead log, until this is cancelled."""
    largest = 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            largest = max(largest, _size(Path(f"{url.removeprefix('sqlite:///')}-wal")))
            await asyncio.sleep(0.05)
    return largest


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


# --------------------------------------------------------------------------------------------- starting


@work(name="stamp", retry=Retry(attempts=None))
async def stamp(hold: float) -> float:
    """The start time."""
    began = time.time()
    if hold:
        print("began", flush=True)
        await asyncio.sleep(hold)
    return began


async def worker(url: str, notify: str = "", prefix: str = "treadle") -> None:
    """`notify`: what carries wake-ups; empty for the store itself."""
    carrier = notify or True
    async with Treadle(
        url, work=[stamp], poll_interval=1.0, doer=balanced(50), notify=carrier, prefix=prefix
    ):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


async def starts(stores: Stores, kind: str, times: int = 200) -> dict[str, float]:
    """Milliseconds from enqueue in one process to the start in another, idle one, with poll_interval=1.
    Also the share of a core that an idle worker uses."""
    async with stores.fresh(kind) as url, Client(url, work=[stamp]) as client:
        other = await ready_worker(url)
        taken: list[float] = []
        for _ in range(times):
            before = time.time()
            taken.append((await client.enqueue(stamp(0.0)).result(30) - before) * 1000)
            await asyncio.sleep(0.01)
        idle = await _idle(other)
        await other.communicate(b"\n")
    return {"p50": percentile(taken, 0.5), "p99": percentile(taken, 0.99), "idle": idle}


async def _idle(other: Process, seconds: float = 5.0) -> float:
    import psutil

    process = psutil.Process(other.pid)
    await asyncio.sleep(2.0)
    before = process.cpu_times()
    await asyncio.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


async def takeovers(stores: Stores, kind: str, times: int = 20) -> dict[str, float]:
    """Seconds from `kill -9` of a worker until its items start again in another process. The lease is 10
    s."""
    taken: list[float] = []
    async with stores.fresh(kind) as url, Client(url, work=[stamp]) as client:
        victim = await ready_worker(url)
        for _ in range(times):
            handle = await client.enqueue(stamp(600.0))
            await _heard(victim, "began")
            heir = await ready_worker(url)
            killed = time.time()
            victim.kill()
            await victim.wait()
            await _heard(heir, "began")
            taken.append(time.time() - killed)
            await handle.cancel()
            victim = heir
        victim.kill()
        await victim.wait()
    return {"p50": percentile(taken, 0.5), "p99": percentile(taken, 0.99), "most": max(taken)}


async def ready_worker(url: str, notify: str = "", prefix: str = "treadle") -> Process:
    other = await _start("work", url, notify, prefix)
    await _heard(other, "ready")
    return other


async def _heard(other: Process, word: str) -> None:
    assert other.stdout is not None
    async with asyncio.timeout(60):
        assert (await other.stdout.readline()).decode().strip() == word


async def _start(*arguments: str) -> Process:
    command = (sys.executable, "-m", "benchmarks.processes", *arguments)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)


if __name__ == "__main__":
    asyncio.run(load(sys.argv[2], float(sys.argv[3])) if sys.argv[1] == "load" else worker(*sys.argv[2:]))
