"""Workers in separate processes: drains by one and by two workers, their CPU use, and how soon an idle worker
starts an item of another process.

`python -m benchmarks.fleet drain URL` and `python -m benchmarks.fleet wait URL` run such a process.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psutil

from benchmarks.engine import noop
from benchmarks.measure import Case, Figure, percentile, rounds
from benchmarks.shared_floors import SHARED
from benchmarks.stores import Stores
from benchmarks.valkey import server_pid
from treadle import Client, Treadle, work

LATENCIES = 200
FLUSHES = "select sum(fsyncs) from pg_stat_io where object = 'wal'"
FLUSHES_SHOWN = 1.2
"""Seconds after which a busy process of the server has said what it did."""


@work(name="stamp")
async def stamp() -> float:
    """The start time, by a clock that all processes of the machine share."""
    return time.monotonic()


class Fleet:
    """The cases for one kind of store."""

    def __init__(self, stores: Stores, kind: str, count: int) -> None:
        self._stores = stores
        self._kind = kind
        self._count = count
        self._cpu: dict[str, float] = {}
        self._latencies: list[float] = []
        self._results: list[float] = []
        self._flushes = 0.0
        self._floor: list[float] = []

    def cases(self) -> list[tuple[str, str, Case]]:
        """Cases that are measured together are adjacent: the later ones report what the first has
        measured."""
        cases: list[tuple[str, str, Case]] = [
            ("drain, 1 process", "/s", lambda: self.drain(1)),
            ("CPU per item, worker", "us", lambda: _known(self._cpu["worker"])),
        ]
        if self._kind in SHARED:
            cases += [("CPU per item, server", "us", lambda: _known(self._cpu["server"]))]
        if self._kind in SHARED:
            cases += [("floor: drain, 1 process", "/s", self.floor_drain)]
        cases += [
            ("drain, 2 processes", "/s", lambda: self.drain(2)),
            ("latency, worker elsewhere, p50", "ms", self.latency),
            ("latency, worker elsewhere, p99", "ms", lambda: _known(percentile(self._latencies, 0.99))),
            (
                "enqueue to result, worker elsewhere, p50",
                "ms",
                lambda: _known(percentile(self._results, 0.5)),
            ),
        ]
        if self._kind == "postgres":
            cases += [
                ("waits for the disk per item", "", lambda: _known(self._flushes)),
                ("latency, claims wait for the disk, p50", "ms", lambda: self.latency("durable_claims=1")),
                ("enqueue to result, claims wait, p50", "ms", lambda: _known(percentile(self._results, 0.5))),
                ("waits for the disk per item, claims too", "", lambda: _known(self._flushes)),
            ]
        if self._kind in SHARED:
            cases += [
                ("floor: latency, worker elsewhere, p50", "ms", self.floor_latency),
                (
                    "floor: latency, worker elsewhere, p99",
                    "ms",
                    lambda: _known(percentile(self._floor, 0.99)),
                ),
            ]
        return cases

    async def drain(self, processes: int) -> float:
        """Items per second from the first start to the last end, by workers that are already connected."""
        async with self._stores.fresh(self._kind) as url:
            async with Client(url, work=[noop]) as client:
                for start in range(0, self._count, 10_000):
                    until = min(start + 10_000, self._count)
                    await client.enqueue_many([noop(i) for i in range(start, until)])
            running = [await _Child.start("drain", url) for _ in range(processes)]
            server = await server_of(url) if self._kind in SHARED else None
            before = 0.0 if server is None else used_by(server)
            for child in running:
                child.go()
            reports = [await child.report() for child in running]
            if processes == 1:
                self._cpu["worker"] = sum(report["cpu"] for report in reports) / self._count * 1e6
                self._cpu["server"] = (
                    0.0 if server is None else (used_by(server) - before) / self._count * 1e6
                )
            assert sum(report["items"] for report in reports) == self._count
            taken = max(report["end"] for report in reports) - min(report["begin"] for report in reports)
            return self._count / taken

    async def latency(self, options: str = "") -> float:
        """Milliseconds from before the enqueue to the handler's first line, one at a time. `options`: of the
        URL."""
        taken: list[tuple[float, float]] = []
        async with self._stores.fresh(self._kind) as url:
            used = f"{url}{'&' if '?' in url else '?'}{options}" if options else url
            async with _worker(used), Client(used, work=[stamp]) as client:
                before = await _flushes(url)
                for _ in range(LATENCIES + 10):
                    await asyncio.sleep(0.003)
                    sent = time.monotonic()
                    began = await client.enqueue(stamp()).result(timeout=20)
                    taken.append((began - sent, time.monotonic() - sent))
                await asyncio.sleep(FLUSHES_SHOWN)
                self._flushes = (await _flushes(url) - before) / len(taken)
        self._latencies, self._results = (
            [each * 1000 for each in one] for one in zip(*taken[10:], strict=True)
        )
        return percentile(self._latencies, 0.5)

    async def floor_drain(self) -> float:
        async with self._stores.fresh(self._kind) as url:
            async with Client(url, work=[noop]):
                pass  # makes the tables
            floor = SHARED[self._kind]
            await floor.submit(url, self._count)
            return await floor.drain(url, self._count)

    async def floor_latency(self) -> float:
        async with self._stores.fresh(self._kind) as url:
            async with Client(url, work=[stamp]):
                pass  # makes the tables
            self._floor = await SHARED[self._kind].notified(url, LATENCIES)
        return percentile(self._floor, 0.5)


async def _known(value: float) -> float:
    return value


async def fleet(stores: Stores, kinds: tuple[str, ...], count: int, times: int) -> dict[str, list[Figure]]:
    return {
        kind: await rounds(Fleet(stores, kind, count).cases(), times, f"fleet on {kind}")
        for kind in kinds
        if kind != "memory"
    }


# -- the server's share ------------------------------------------------------------------------------------


async def server_of(url: str) -> psutil.Process:
    """The postmaster, or the Valkey server."""
    if url.startswith("redis"):
        return psutil.Process(server_pid(url))
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        parent = psutil.Process(connection.get_server_pid()).parent()
    finally:
        await connection.close()
    assert parent is not None
    return parent


async def _flushes(url: str) -> float:
    """How often PostgreSQL has waited for its disk to take the log. Other stores do not say: 0."""
    if not url.startswith("postgres"):
        return 0.0
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return float(await connection.fetchval(FLUSHES))
    finally:
        await connection.close()


def used_by(process: psutil.Process) -> float:
    """The CPU seconds of a process and all its children, including those that have ended."""
    own = process.cpu_times()
    used = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used


# -- the other side ----------------------------------------------------------------------------------------


class _Child:
    """A worker process. It reports when it is ready, starts on request, and reports its figures at the
    end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, what: str, url: str) -> _Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.fleet",
            what,
            url,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        child = cls(process)
        assert await child.line() == "ready"
        return child

    async def line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.line())
        self.go()
        await self._process.wait()
        return found


@asynccontextmanager
async def _worker(url: str) -> AsyncGenerator[None]:
    child = await _Child.start("wait", url)
    try:
        yield
    finally:
        child.go()
        await child.report()


async def _request() -> None:
    """Wait for a line from the parent process."""
    await asyncio.to_thread(sys.stdin.readline)


async def _drain(url: str) -> dict[str, Any]:
    app = Treadle(url, work=[noop])
    await app.connect()
    print("ready", flush=True)
    await _request()
    began, cpu = time.monotonic(), time.process_time()
    await app.start()
    await app.worker.drain()
    ended, used = time.monotonic(), time.process_time() - cpu
    items = app.metrics.of("noop").succeeded
    await app.stop()
    return {"begin": began, "end": ended, "cpu": used, "items": items}


async def _wait(url: str) -> dict[str, Any]:
    # With this interval a latency that comes from polling is visible.
    async with Treadle(url, work=[stamp], poll_interval=5.0):
        print("ready", flush=True)
        await _request()
    return {}


async def _main(what: str, url: str) -> None:
    found = await (_drain(url) if what == "drain" else _wait(url))
    print(json.dumps(found), flush=True)
    await _request()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
