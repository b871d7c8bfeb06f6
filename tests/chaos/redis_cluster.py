"""`make redis-cluster`: the owner of a namespace in a cluster is killed, or suspended, below a load.

Its replica takes over, and the load goes on by itself. With `replicas=1` nothing that was acknowledged is
lost. A primary that is suspended for longer than the node timeout is a primary still when it wakes, for a
moment, beside its successor.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.redis_durability import PAUSES, DurabilityReport, count
from tests.chaos.redis_load import PREFIX, RedisLoad
from tests.support.records import record
from tests.support.valkey import ValkeyServer
from tests.support.valkey_cluster import NODE_TIMEOUT_MS, ValkeyCluster, wait_until
from treadle.backends.redis.topology import slot_of

SLOT = slot_of(PREFIX)
PATIENCE = 30.0


@dataclass
class ClusterReport(DurabilityReport):
    outages: list[float] = field(default_factory=list[float])
    """Seconds from each kill until the store acknowledged settlements again."""


class ClusterRun:
    """replicas: how many have to acknowledge each step. suspends: suspend servers, do not kill them."""

    def __init__(self, cluster: ValkeyCluster, *, replicas: int, suspends: bool, seed: int) -> None:
        self._cluster = cluster
        self._suspends = suspends
        self._replicas = replicas
        self._chance = random.Random(seed)
        self._load = RedisLoad(f"{cluster.url}?replicas={replicas}&patience=5", seed=seed)
        what = "suspended" if suspends else "killed"
        name = f"owner {what}, replicas={replicas}"
        self.report = ClusterReport(name, replicas > 0, self._load.tally, two_primaries=suspends)

    async def run(self, kills: int) -> ClusterReport:
        async with self._load.running():
            while self.report.kills < kills:
                await asyncio.sleep(self._chance.uniform(*PAUSES))
                await self._fail_over()
                self.report.kills += 1
                await self._load.hold()
                await count(self.report, self._load, self._owner())
                self._load.resume()
            await self._load.hold()
        return self.report

    def _owner(self) -> ValkeyServer:
        return self._cluster.owner_of(SLOT)

    async def _fail_over(self) -> None:
        old, began = self._owner(), time.monotonic()
        await asyncio.to_thread(old.freeze if self._suspends else old.kill)
        others = [server for server in self._cluster.servers if server is not old]
        await until(lambda: any(owns(server, others) for server in others))
        if self._replicas or self._suspends:  # the new owner has no replica but the old one
            await self._bring_back(old)
        settled = self._load.tally.settlements
        await until(lambda: self._load.tally.settlements > settled + 100)
        self.report.outages.append(time.monotonic() - began)
        if not (self._replicas or self._suspends):
            await self._bring_back(old)
        await asyncio.to_thread(wait_until, self._cluster.is_whole)

    async def _bring_back(self, old: ValkeyServer) -> None:
        await asyncio.to_thread(old.thaw if self._suspends else old.start)


def owns(server: ValkeyServer, seen_by: list[ValkeyServer]) -> bool:
    """Whether all of these say that the server has the slot."""
    for each in seen_by:
        rows = each.call("CLUSTER", "SLOTS")
        if not any(row[0] <= SLOT <= row[1] and row[2][1] == server.port for row in rows):
            return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  a cluster has no event
            await asyncio.sleep(0.02)


async def measure(kills: int, seed: int) -> list[ClusterReport]:
    with tempfile.TemporaryDirectory(prefix="treadle-cluster-") as name:
        cluster = ValkeyCluster(Path(name))
        try:
            await asyncio.to_thread(cluster.start)
            reports: list[ClusterReport] = []
            for replicas in (0, 1):
                for suspends in (False, True):
                    run = ClusterRun(cluster, replicas=replicas, suspends=suspends, seed=seed)
                    reports.append(await run.run(kills))
                    cluster.owner_of(SLOT).call("FLUSHALL")
            return reports
        finally:
            cluster.stop()


def show(reports: list[ClusterReport]) -> None:
    table = Table(
        "Valkey cluster", "times", "submits", "settlements", "no answer", "submits lost", "settlements lost",
        "ended twice", "leases refused", "audit", "outage, longest",
        caption=f"node timeout {NODE_TIMEOUT_MS} ms",
    )  # fmt: skip
    for each in reports:
        outage = f"{max(each.outages):.1f} s"
        table.add_row(each.name, f"{each.kills}", *each.cells(), f"{len(each.problems)}", outage)
    console = Console(width=160)
    console.print(table)
    for each in reports:
        for problem in each.problems[:5]:
            console.print(f"{each.name}: {problem}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="redis-cluster", description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    reports = asyncio.run(measure(given.kills, given.seed))
    show(reports)
    for each in reports:
        outage = f"at most {max(each.outages):.1f} s"
        command = f"make redis-cluster KILLS={given.kills}"
        record(f"Valkey cluster, {each.name}", command, times=each.kills, **each.figures(), outage=outage)
    sys.exit(not all(each.is_good for each in reports))


if __name__ == "__main__":
    main()
