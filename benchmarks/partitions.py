"""Partitions of a Redis cluster of three nodes beside one namespace: `python -m benchmarks.partitions`.

For each number of partitions, in turn: processor time of the nodes per item, of a backlog that is enqueued
and then worked off, and of a flow whose results are waited for; how long one lone item takes; and of a worker
that is idle, calls per second and connections. The nodes have replicas, whose time does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.engine import noop
from benchmarks.measure import machine, percentile, shown
from tests.support.valkey import ValkeyServer
from tests.support.valkey_cluster import ValkeyCluster
from treadle import Treadle
from treadle.backends.redis.connection import RedisConnection
from treadle.doers import balanced

PORTION: Final = 100
"""Items of one `enqueue_many`, which is one step in one partition."""
AT_ONCE: Final = 20
"""Portions that are under way."""
LONE: Final = 500
SETTLED: Final = 5.0
"""Seconds after its start from which a worker is idle."""


class Times(NamedTuple):
    """Microseconds of processor time per item."""

    nodes: Sequence[float]
    process: float


class Idle(NamedTuple):
    calls: float
    """A second, at all nodes."""
    connections: int


class Bench:
    def __init__(self, cluster: ValkeyCluster, count: int) -> None:
        self._primaries: Sequence[ValkeyServer] = cluster.servers[:3]
        self._count = count

    async def backlog(self, url: str) -> Times:
        app = Treadle(url, work=[noop], doer=balanced(1000), statistics=False)

        async def run(count: int) -> None:
            await self._enqueue(app, count)
            await app.start()
            await app.worker.drain()
            await app.stop()

        return await self._measured(run)

    async def flow(self, url: str) -> Times:
        async with Treadle(url, work=[noop], doer=balanced(1000), statistics=False) as app:
            return await self._measured(lambda count: self._enqueue(app, count, waits=True))

    async def _enqueue(self, app: Treadle, count: int, *, waits: bool = False) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def portion(start: int) -> None:
            async with room:
                handles = await app.enqueue_many([noop(n) for n in range(start, start + PORTION)])
                if waits:
                    await asyncio.gather(*(handle.result(120) for handle in handles))

        await asyncio.gather(*(portion(start) for start in range(0, count, PORTION)))

    async def _measured(self, run: Callable[[int], Awaitable[None]]) -> Times:
        await run(self._count // 10)  # then the scripts are there
        before, began = self._times(), time.process_time()
        await run(self._count)
        own = time.process_time() - began
        nodes = [now - then for then, now in zip(before, self._times(), strict=True)]
        return Times([each / self._count * 1e6 for each in nodes], own / self._count * 1e6)

    def _times(self) -> list[float]:
        found = [_info(server, "cpu") for server in self._primaries]
        return [float(each["used_cpu_user"]) + float(each["used_cpu_sys"]) for each in found]

    async def idle(self, url: str, seconds: float) -> Idle:
        connected = self._clients()
        async with Treadle(url, work=[noop]) as app:
            await (await app.enqueue(noop(0))).result(60)
            await asyncio.sleep(SETTLED)
            connections = self._clients() - connected
            with counted() as calls:
                await asyncio.sleep(seconds)
        return Idle(len(calls) / seconds, connections)

    def _clients(self) -> int:
        return sum(int(_info(server, "clients")["connected_clients"]) for server in self._primaries)


async def lone(url: str) -> list[float]:
    """Seconds from enqueue to result, one item after the other."""
    found: list[float] = []
    async with Treadle(url, work=[noop]) as app:
        for n in range(LONE):
            began = time.perf_counter()
            await (await app.enqueue(noop(n))).result(60)
            found.append(time.perf_counter() - began)
    return found[LONE // 10 :]


@contextmanager
def counted() -> Generator[list[bytes]]:
    """What this process sends to the nodes."""
    sent: list[bytes] = []
    send, unanswered = RedisConnection.send, RedisConnection.send_unanswered

    def counting(self: RedisConnection, packed: bytes) -> asyncio.Future[Any]:
        sent.append(packed)
        return send(self, packed)

    def counting_unanswered(self: RedisConnection, packed: bytes) -> None:
        sent.append(packed)
        unanswered(self, packed)

    changed: Any = RedisConnection
    changed.send, changed.send_unanswered = counting, counting_unanswered
    try:
        yield sent
    finally:
        changed.send, changed.send_unanswered = send, unanswered


def _info(server: ValkeyServer, section: str) -> dict[str, str]:
    text: str = server.call("INFO", section).decode()
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in pairs if colon}


async def measure(partitions: Sequence[int], count: int, rounds: int, seconds: float) -> None:
    loads: dict[int, tuple[list[Times], list[Times]]] = {n: ([], []) for n in partitions}
    table = Table(
        "partitions", "backlog, us", "of one", "flow, us", "of one", "p50, p99 ms", "idle/s", "links"
    )
    async with running() as cluster:
        bench = Bench(cluster, count)
        urls = {n: f"{cluster.url}?prefix=of{n}" + (f"&partitions={n}" if n > 1 else "") for n in partitions}
        for _ in range(rounds):
            for n, url in urls.items():
                loads[n][0].append(await bench.backlog(url))
                loads[n][1].append(await bench.flow(url))
        for n, url in urls.items():
            shares = [
                text
                for many, one in zip(loads[n], loads[partitions[0]], strict=True)
                for text in _shown(many, one)
            ]
            waits, idle = await lone(url), await bench.idle(url, seconds)
            times = ", ".join(shown(percentile(waits, share) * 1000) for share in (0.5, 0.99))
            table.add_row(str(n), *shares, times, f"{idle.calls:.2f}", str(idle.connections))
    Console(width=150).print(table)
    print(machine())


def _shown(many: Sequence[Times], one: Sequence[Times]) -> tuple[str, str]:
    """The time of each node and of the process, and the share of the busiest node."""
    nodes = [median(each.nodes[node] for each in many) for node in range(3)]
    process = shown(median(each.process for each in many))
    share = median(max(each.nodes) / max(first.nodes) for each, first in zip(many, one, strict=True))
    return f"{', '.join(map(shown, nodes))}; process {process}", f"{share:.2f}"


@asynccontextmanager
async def running() -> AsyncGenerator[ValkeyCluster]:
    with tempfile.TemporaryDirectory(prefix="treadle-partitions-") as name:
        cluster = ValkeyCluster(Path(name))
        try:
            await asyncio.to_thread(cluster.start)
            cluster.keep_primaries()
            yield cluster
        finally:
            cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.partitions", description=__doc__)
    parser.add_argument(
        "--partitions", type=int, nargs="+", default=[1, 4, 16], help="the first is compared with"
    )
    parser.add_argument("--items", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--idle", type=float, default=60.0, help="seconds; a worker prunes once in 30 for each partition"
    )
    given = parser.parse_args()
    asyncio.run(measure(given.partitions, given.items, given.rounds, given.idle))


if __name__ == "__main__":
    main()
