"""Partitions of a Redis cluster of three nodes beside one namespace: `python -m benchmarks.partitions`.

For each number of partitions, in turn: processor time per item of the nodes and of the process that enqueues
and runs the items; how long one lone item takes; and, of a worker that is idle, calls per second and
connections. The nodes have replicas, whose time does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
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
IDLE: Final = 40.0
SETTLED: Final = 5.0
"""Seconds after its start from which a worker is idle."""


class Load(NamedTuple):
    """Microseconds of processor time per item."""

    nodes: list[float]
    process: float


class Idle(NamedTuple):
    calls: float
    """A second, at all nodes."""
    connections: int


async def load(cluster: ValkeyCluster, url: str, count: int) -> Load:
    async with Treadle(url, work=[noop], doer=balanced(1000), statistics=False) as app:
        await _pass(app, count // 5)  # the scripts are there, and the connections
        before, began = _times(cluster), time.process_time()
        await _pass(app, count)
        own = time.process_time() - began
        nodes = [(now - then) / count * 1e6 for then, now in zip(before, _times(cluster), strict=True)]
    return Load(nodes, own / count * 1e6)


async def _pass(app: Treadle, count: int) -> None:
    """Enqueue as many items, and wait until they have ended."""
    room = asyncio.Semaphore(AT_ONCE)

    async def portion(start: int) -> None:
        async with room:
            handles = await app.enqueue_many([noop(n) for n in range(start, start + PORTION)])
            await asyncio.gather(*(handle.result(60) for handle in handles))

    await asyncio.gather(*(portion(start) for start in range(0, count, PORTION)))


async def lone(url: str, count: int) -> list[float]:
    """Seconds from enqueue to result, one item after the other."""
    found: list[float] = []
    async with Treadle(url, work=[noop]) as app:
        for n in range(count):
            began = time.perf_counter()
            await (await app.enqueue(noop(n))).result(60)
            found.append(time.perf_counter() - began)
    return found[count // 10 :]


async def idle(cluster: ValkeyCluster, url: str) -> Idle:
    connected = _clients(cluster)
    async with Treadle(url, work=[noop]) as app:
        await (await app.enqueue(noop(0))).result(60)
        await asyncio.sleep(SETTLED)
        connections = _clients(cluster) - connected
        with counted() as calls:
            await asyncio.sleep(IDLE)
    return Idle(calls.total() / IDLE, connections)


@contextmanager
def counted() -> Generator[Counter[bytes]]:
    """Count what goes to the nodes, by the name of the command."""
    calls: Counter[bytes] = Counter()
    send, unanswered = RedisConnection.send, RedisConnection.send_unanswered

    def name(packed: bytes) -> bytes:
        return packed.split(b"\r\n", 3)[2]

    def counting(self: RedisConnection, packed: bytes) -> asyncio.Future[Any]:
        calls[name(packed)] += 1
        return send(self, packed)

    def counting_unanswered(self: RedisConnection, packed: bytes) -> None:
        calls[name(packed)] += 1
        unanswered(self, packed)

    RedisConnection.send, RedisConnection.send_unanswered = counting, counting_unanswered  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        RedisConnection.send, RedisConnection.send_unanswered = send, unanswered  # type: ignore[method-assign]


def _primaries(cluster: ValkeyCluster) -> list[ValkeyServer]:
    return cluster.servers[:3]


def _times(cluster: ValkeyCluster) -> list[float]:
    found = [_info(server, "cpu") for server in _primaries(cluster)]
    return [float(each["used_cpu_user"]) + float(each["used_cpu_sys"]) for each in found]


def _clients(cluster: ValkeyCluster) -> int:
    return sum(int(_info(server, "clients")["connected_clients"]) for server in _primaries(cluster))


def _info(server: ValkeyServer, section: str) -> dict[str, str]:
    text: str = server.call("INFO", section).decode()
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in pairs if colon}


async def measure(cluster: ValkeyCluster, partitions: list[int], count: int, rounds: int) -> None:
    urls = {
        n: f"{cluster.url}?prefix=bench" + (f".of.{n}&partitions={n}" if n > 1 else "") for n in partitions
    }
    loads: dict[int, list[Load]] = {n: [] for n in partitions}
    for _ in range(rounds):
        for n, url in urls.items():
            loads[n].append(await load(cluster, url, count))
            for server in _primaries(cluster):
                server.call("FLUSHALL")
    table = Table(
        "partitions",
        "nodes, us per item",
        "busiest",
        "of one namespace",
        "process, us",
        "lone p50, p99 ms",
        "idle calls/s",
        "connections",
    )
    one = loads[partitions[0]]
    for n, url in urls.items():
        times = [statistics.median(each.nodes[node] for each in loads[n]) for node in range(3)]
        share = statistics.median(
            max(each.nodes) / max(first.nodes) for each, first in zip(loads[n], one, strict=True)
        )
        waits = await lone(url, 500)
        quiet = await idle(cluster, url)
        table.add_row(
            str(n),
            ", ".join(map(shown, times)),
            shown(max(times)),
            f"{share:.2f}",
            shown(statistics.median(each.process for each in loads[n])),
            ", ".join(shown(percentile(waits, p) * 1000) for p in (0.5, 0.99)),
            f"{quiet.calls:.2f}",
            str(quiet.connections),
        )
    Console(width=140).print(table)
    print(machine())


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.partitions", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 3, 16])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="treadle-partitions-") as name:
        cluster = ValkeyCluster(Path(name))
        try:
            cluster.start()
            cluster.keep_primaries()
            asyncio.run(measure(cluster, given.partitions, given.items, given.rounds))
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
