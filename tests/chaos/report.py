"""The report of a chaos run: what happened to every item, and how long recovery took."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.ledger import WEIGHTS, Ledger
from tests.chaos.stores import DurableStore
from treadle import Client
from treadle.item import Filter, ItemState
from treadle.testing.contract.check import consistent

RECENT = 5.0
"""Seconds. An attempt that began earlier had ended before its process was killed."""


@dataclass
class ChaosReport:
    kills: int = 0
    pauses: int = 0
    cuts: int = 0
    restarts: int = 0
    seconds: float = 0.0
    acknowledged: int = 0
    items: int = 0
    runs: int = 0
    overtaken: int = 0
    lost: list[str] = field(default_factory=list[str])
    not_successful: list[str] = field(default_factory=list[str])
    wrong_effects: dict[str, int] = field(default_factory=dict[str, int])
    announced_twice: list[str] = field(default_factory=list[str])
    closed_twice: list[str] = field(default_factory=list[str])
    wrong_families: list[str] = field(default_factory=list[str])
    miscounted: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    recoveries: list[float] = field(default_factory=list[float])

    def check(self) -> None:
        """Assert that nothing is wrong."""
        assert not self.lost, f"acknowledged and lost: {self.lost[:5]}"
        assert not self.not_successful, f"not successful: {self.not_successful[:5]}"
        assert not self.wrong_effects, (
            f"effects not done exactly once: {list(self.wrong_effects.items())[:5]}"
        )
        assert not self.announced_twice, f"settled twice: {self.announced_twice[:5]}"
        assert not self.closed_twice, f"groups closed twice: {self.closed_twice[:5]}"
        assert not self.wrong_families, f"children lost or doubled: {self.wrong_families[:5]}"
        assert not self.miscounted, f"counters that a recount contradicts: {self.miscounted}"

    def __str__(self) -> str:
        return (
            f"{self.items:,} items in {self.seconds:.0f} s, {self.acknowledged:,} acknowledged submissions\n"
            f"{self.kills} kills, {self.pauses} processes suspended ({self.overtaken} items overtaken),"
            f" {self.cuts} connections cut, {self.restarts} restarts of the server\n"
            f"{self.runs - self.items:,} attempts more than items; lost {len(self.lost)}, settled twice"
            f" {len(self.announced_twice)}, effects not exactly once {len(self.wrong_effects)}, groups closed"
            f" twice {len(self.closed_twice)}, counters wrong {len(self.miscounted)}\n"
            f"{recovery(self.recoveries)}\n"
        )


def recovery(seconds: list[float]) -> str:
    if not seconds:
        return "no item lost its worker"
    ordered = sorted(seconds)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.99))
    return (
        f"{len(ordered)} items ran again after their worker was killed:"
        f" p50 {p50:.2f} s, p99 {p99:.2f} s, max {ordered[-1]:.2f} s"
    )


async def fill_report(report: ChaosReport, client: Client, store: DurableStore, ledger: Ledger) -> None:
    """Compare the store, the ledger of the processes, and the user's own table."""
    states = {state.id: state async for state in everything(client)}
    report.items = len(states)
    for kind, id in ledger.lines(*WEIGHTS):
        report.acknowledged += 1
        if id not in states:
            report.lost.append(f"{kind} {id}")
    report.not_successful = [
        f"{state.type} {id} {state.status} {state.reason} {state.error}"
        for id, state in states.items()
        if state.status != "success"
    ]
    report.wrong_families = wrong_families(states)
    wanted = Counter(id for id, state in states.items() if state.type == "effect")
    if store.transactions:
        report.wrong_effects = differences(Counter(await store.effects()), wanted)
    report.announced_twice = recorded_twice(ledger, "done")
    report.closed_twice = recorded_twice(ledger, "closed")
    report.runs = len(ledger.lines("run"))
    await consistent(client.backend)
    report.miscounted = await store.recount()


async def everything(client: Client) -> AsyncIterator[ItemState]:
    """All items in the store."""
    cursor = None
    while True:
        page = await client.backend.list(Filter(), limit=1000, cursor=cursor)
        for state in page.items:
            yield state
        cursor = page.cursor
        if cursor is None:
            return


def wrong_families(states: dict[str, ItemState]) -> list[str]:
    """Each pair must have three effects in its group, and every other group exactly one item."""
    members = Counter(state.group_id for state in states.values())
    return [
        f"{state.type} {id} has {members[id]} members"
        for id, state in states.items()
        if state.group_id == id and members[id] != WEIGHTS[state.type]
    ]


def differences(found: Counter[str], wanted: Counter[str]) -> dict[str, int]:
    return {id: found[id] for id in found.keys() | wanted.keys() if found[id] != wanted[id]}


def recorded_twice(ledger: Ledger, kind: str) -> list[str]:
    return [id for id, times in Counter(id for _, id in ledger.lines(kind)).items() if times > 1]


class Runs:
    """When and in which process each attempt began."""

    def __init__(self, ledger: Ledger) -> None:
        self._by_item: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
        for _, id, pid, at, attempt in ledger.lines("run"):
            self._by_item[id].append((float(at), int(pid), int(attempt)))
        for runs in self._by_item.values():
            runs.sort()

    def after(self, pid: int, moment: float) -> list[float]:
        """Seconds until the second attempt began, for each item whose first attempt this process began
        shortly before `moment`. Items that were lost twice are left out: they have to wait."""
        found: list[float] = []
        for runs in self._by_item.values():
            n = bisect_left(runs, (moment, 0, 0))
            if not 0 < n < len(runs) or moment - runs[n - 1][0] > RECENT:
                continue
            if runs[n - 1][1] == pid and (runs[n - 1][2], runs[n][2]) == (1, 2):
                found.append(runs[n][0] - moment)
        return found
