"""Tables of a run: ratios first, figures second."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.table import Table

from benchmarks.measure import shown

Found = dict[str, dict[str, dict[str, list[float]]]]
"""By store, by peer, by case: a value for each round."""

CASES = (
    "one by one",
    "bulk",
    "drain, 1 process",
    "drain, 2 processes",
    "latency, p50",
    "latency, p99",
    "awaited",
    "awaited, one process",
    "fan-in",
)


def named(peer: str) -> str:
    return "treadle" if peer == "ours" else peer


def ratios(found: Found, ours: str) -> Table:
    table = Table("store", "peer", *CASES, title="how many times as fast as the peer treadle is")
    for kind, peers in found.items():
        for peer, cases in peers.items():
            if peer != ours:
                own = peers.get(ours, {})
                table.add_row(kind, peer, *(_ratio(case, own.get(case), cases.get(case)) for case in CASES))
        table.add_section()
    return table


def _ratio(case: str, ours: Sequence[float] | None, theirs: Sequence[float] | None) -> str:
    if not ours or not theirs:
        return "-"
    ratio = statistics.median(ours) / statistics.median(theirs)
    return shown(1 / ratio if case.startswith("latency") else ratio)


def figures(found: Found) -> Table:
    table = Table("store", "who", *CASES, title="jobs per second; latency in ms: median (low-high)")
    for kind, peers in found.items():
        for peer, cases in peers.items():
            table.add_row(kind, named(peer), *(_figure(cases.get(case)) for case in CASES))
        table.add_section()
    return table


def _figure(values: Sequence[float] | None) -> str:
    if not values:
        return "-"
    return f"{shown(statistics.median(values))} ({shown(min(values))}-{shown(max(values))})"
