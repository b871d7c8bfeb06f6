"""`make redis-durability`: what a killed Redis server, and a failover, cost.

A load of submitters and workers is under way when the server is killed. While it is held, what the store has
acknowledged is looked for, and the audit recounts the store. Then the load goes on.

In a failover the replica is 20 ms behind, or more. What is on its way to it when the primary dies is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.backends.redis_audit import Row, audit, read
from tests.chaos.redis_load import LEASE, PREFIX, RedisLoad, Tally
from tests.support.records import record
from tests.support.redis_proxy import RedisProxy
from tests.support.valkey import ValkeyServer, free_ports
from tests.support.valkey_cluster import wait_until
from treadle.backends.redis import RedisBackend
from treadle.item import Demand, Heartbeat, Item, Lease, Settlement, Submission

LOGS = "appendonlydir"
PAUSES = (0.5, 1.5)
"""The shortest and the longest time between two kills, in seconds."""
DELAY = 0.02
"""Seconds by which a replica is behind at least."""


@dataclass
class DurabilityReport:
    """What a number of kills came to.

    keeps: nothing that was acknowledged may be lost.
    looks: what was acknowledged is looked for.
    two_primaries: there were two for a moment. What one of them has acknowledged and the other does not know
    is done again.
    """

    name: str
    keeps: bool
    tally: Tally
    two_primaries: bool = False
    looks: bool = True
    kills: int = 0
    problems: list[str] = field(default_factory=list[str])
    """What the audits have found."""
    refused: int = 0
    """Leases that the new primary does not know, and refuses."""
    wrong: int = 0
    """Leases that it should have refused, or not."""

    @property
    def lost(self) -> int:
        return self.tally.lost_submits + self.tally.lost_settlements

    def cells(self) -> list[str]:
        """The figures of a load as cells of a table."""
        tally = self.tally
        load = (tally.submits, tally.settlements, tally.failures)
        found = (tally.lost_submits, tally.lost_settlements, tally.twice, tally.stale + self.refused)
        cells = [f"{figure:,}" for figure in (*load, *found)]
        return cells if self.looks else [*cells[: len(load)], *[""] * len(found)]

    def figures(self) -> dict[str, object]:
        """The figures of a load for the record of a run."""
        tally, found = self.tally, dict[str, object]()
        if self.looks:
            refused = tally.stale + self.refused
            found = {"lost": self.lost, "twice": tally.twice, "leases refused": refused}
        audit = f"{len(self.problems)} problems" if self.problems else "clean"
        return {"submits": tally.submits, "settlements": tally.settlements, **found, "audit": audit}

    @property
    def is_good(self) -> bool:
        broken = self.keeps and (self.lost or self.tally.stale or self.refused)
        twice = self.tally.twice if self.keeps or not self.two_primaries else 0
        return not (broken or self.problems or twice or self.wrong)


# -- a server that is killed and started again -----------------------------------------------------------


async def kill_server(home: Path, sync: str, kills: int, seed: int) -> DurabilityReport:
    """sync: `appendfsync` of the server."""
    server = ValkeyServer(home / f"valkey-{sync}", settings={"appendfsync": sync})
    chance = random.Random(seed)
    server.start()
    load = RedisLoad(server.url, seed=seed)
    report = DurabilityReport(f"killed, {sync}", sync == "always", load.tally)
    try:
        async with load.running():
            while not load.tally.settlements:  # noqa: ASYNC110  a busy machine needs longer for the first one
                await asyncio.sleep(0.01)
            while report.kills < kills:
                await asyncio.sleep(chance.uniform(*PAUSES))
                if report.kills % 2:  # the log is being rewritten when the server dies
                    server.call("BGREWRITEAOF")
                    await asyncio.sleep(chance.uniform(0.0, 0.1))
                await asyncio.to_thread(server.kill)
                report.kills += 1
                await load.hold()
                await asyncio.to_thread(server.start)
                await count(report, load, server)
                load.resume()
            await load.hold()
    finally:
        server.remove()
    return report


async def cut_log(home: Path, cuts: int, seed: int) -> DurabilityReport:
    """Cut the log of a server at any byte, as a loss of power may, and start a server with what is left."""
    server = ValkeyServer(home / "valkey-log")
    chance = random.Random(seed)
    server.start()
    load = RedisLoad(server.url, seed=seed)
    report = DurabilityReport("log cut", False, load.tally, looks=False)
    try:
        async with load.running():
            await asyncio.sleep(PAUSES[1])
            await load.hold()
        await asyncio.to_thread(server.kill)
        while report.kills < cuts:
            report.kills += 1
            report.problems += await asyncio.to_thread(audit_cut, server, chance.random())
    finally:
        server.remove()
    return report


def audit_cut(server: ValkeyServer, share: float) -> list[str]:
    """What the audit finds if only this share of the log is left."""
    copy = ValkeyServer(server.home.with_name("valkey-cut"))
    shutil.copytree(server.home / LOGS, copy.home / LOGS)
    (log,) = (copy.home / LOGS).glob("*.incr.aof")
    os.truncate(log, int(log.stat().st_size * share))
    try:
        copy.start()
        with copy.client() as client:
            return audit(client, PREFIX)
    finally:
        copy.remove()


async def count(report: DurabilityReport, load: RedisLoad, server: ValkeyServer) -> None:
    """Look for everything that was acknowledged, and recount the store. The load is held."""
    with server.client() as client:
        report.problems += audit(client, PREFIX)
    async with opened(server.url) as backend:
        await load.look_for_lost(backend)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[RedisBackend]:
    backend = RedisBackend(url, prefix=PREFIX, notify=False)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


# -- failovers -------------------------------------------------------------------------------------------


class Pair:
    """A primary, and a replica that is behind. Clients reach the primary by `front`."""

    def __init__(self, home: Path) -> None:
        settings = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
        self.primary, self.replica = (
            ValkeyServer(home / f"valkey-{port}", port, settings) for port in free_ports(2)
        )
        self.front = RedisProxy(self.primary.socket)
        self.wire = RedisProxy(self.primary.socket, delay=DELAY)
        """What the primary sends to its replica."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        try:
            await asyncio.to_thread(self.primary.start)
            async with self.front, self.wire:
                await self.join()
                yield
        finally:
            self.primary.remove()
            self.replica.remove()

    async def join(self) -> None:
        """Start the replica, and wait until it follows."""
        await asyncio.to_thread(self.replica.start)
        self.replica.call("REPLICAOF", "127.0.0.1", self.wire.port)
        await asyncio.to_thread(wait_until, self._follows)

    def _follows(self) -> bool:
        """Both have to say so: one of them knows it first."""
        return self.replica.call("ROLE")[3] == b"connected" and len(self.primary.call("ROLE")[2]) == 1

    async def fail_over(self) -> None:
        """The primary dies, with all that is on its way to the replica. The replica takes over."""
        await self.wire.cut()
        await asyncio.to_thread(self.primary.kill)
        self.replica.call("REPLICAOF", "NO", "ONE")
        self.primary, self.replica = self.replica, self.primary
        for proxy in (self.front, self.wire):
            proxy.switch(self.primary.socket)


async def fail_over(home: Path, replicas: int, kills: int, seed: int) -> DurabilityReport:
    """replicas: how many have to acknowledge each step."""
    pair = Pair(home)
    chance = random.Random(seed)
    async with pair.running():
        load = RedisLoad(f"redis://127.0.0.1:{pair.front.port}?replicas={replicas}", seed=seed)
        report = DurabilityReport(f"failover, replicas={replicas}", replicas > 0, load.tally)
        async with load.running():
            while report.kills < kills:
                await asyncio.sleep(chance.uniform(*PAUSES))
                await pair.fail_over()
                report.kills += 1
                await load.hold()
                await count(report, load, pair.primary)
                await use_old_leases(report, load, pair.primary)
                await pair.join()
                load.resume()
            await load.hold()
    return report


async def use_old_leases(report: DurabilityReport, load: RedisLoad, server: ValkeyServer) -> None:
    """Settle with all leases that workers hold. The new primary may have given the same items away again,
    and the same numbers to other items. It must apply the settlement of exactly those that it knows."""
    async with opened(server.url) as backend:
        await backend.submit([Submission((Item(load.new_id(), "a", b""),)) for _ in range(100)])
        await backend.beat(Heartbeat(worker="judge", lease=LEASE))
        claimed = (await backend.claim(Demand(worker="judge", limit=5000))).leases
        held = [lease for worker in load.workers for lease in worker.held]
        with server.client() as client:
            rows = read(client, PREFIX).rows
        known = [is_known(lease, rows.get(lease.ref.to_bytes(6, "big"))) for lease in held]
        settled = await backend.settle([success(lease) for lease in held])
        for lease, knows, outcome in zip(held, known, settled.outcomes, strict=True):
            applied = outcome.verb == "applied" and not outcome.again
            report.refused += not applied
            report.wrong += applied != knows
            if applied:
                load.applied(success(lease), again=False)
        settled = await backend.settle([success(lease) for lease in claimed])
        report.wrong += sum(outcome.verb != "applied" for outcome in settled.outcomes)
        await backend.remove_worker("judge")
    for worker in load.workers:
        worker.held.clear()
    await count(report, load, server)


def is_known(lease: Lease, row: Row | None) -> bool:
    """Whether the row in the store has this lease."""
    token = lease.token.to_bytes(8, "big")
    return bool(row and row.id == lease.id and row.owned and row.token == token)


def success(lease: Lease) -> Settlement:
    if lease.verdict is not None:
        return Settlement(lease=lease, kind="dead", reason=lease.verdict)
    return Settlement(lease=lease, kind="success", result=b"%d" % lease.token, ran=0.0)


# -- the run ---------------------------------------------------------------------------------------------


async def measure(kills: int, seed: int) -> list[DurabilityReport]:
    with tempfile.TemporaryDirectory(prefix="treadle-durability-") as name:
        home = Path(name)
        return [
            await kill_server(home, "always", kills, seed),
            await kill_server(home, "everysec", kills, seed),
            await cut_log(home, 5 * kills, seed),
            await fail_over(home, 0, kills, seed),
            await fail_over(home, 1, kills, seed),
        ]


def show(reports: list[DurabilityReport]) -> None:
    table = Table(
        "Valkey", "kills", "submits", "settlements", "no answer", "submits lost", "settlements lost",
        "ended twice", "leases refused", "wrongly", "audit", caption="submits and settlements: acknowledged",
    )  # fmt: skip
    for each in reports:
        table.add_row(each.name, f"{each.kills}", *each.cells(), f"{each.wrong}", f"{len(each.problems)}")
    console = Console(width=160)
    console.print(table)
    for each in reports:
        for problem in each.problems[:5]:
            console.print(f"{each.name}: {problem}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="redis-durability", description=__doc__)
    parser.add_argument("--kills", type=int, default=8, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    reports = asyncio.run(measure(given.kills, given.seed))
    show(reports)
    for each in reports:
        command = f"make redis-durability KILLS={given.kills}"
        record(f"Valkey {each.name}", command, times=each.kills, **each.figures())
    sys.exit(not all(each.is_good for each in reports))


if __name__ == "__main__":
    main()
