"""Tables of a run: ratios first, figures second. Narrow enough for any terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from benchmarks.measure import ratio, shown

Cases = dict[str, list[float]]
"""A value for each round."""
Found = dict[str, dict[str, Cases]]
"""By store, by peer."""

CASES = {
    "one by one": "one\nby one",
    "bulk": "\nbulk",
    "drain, 1 process": "\ndrain",
    "drain, 2 processes": "drain\nby 2",
    "CPU, worker": "CPU\nworker",
    "CPU, server": "CPU\nserver",
    "latency, p50": "\np50",
    "latency, p99": "\np99",
    "awaited": "await-\ned",
    "awaited, one process": "...\ninside",
    "fan-in": "fan-\nin",
}
"""The cases, and their names in tables."""


def named(peer: str) -> str:
    return "treadle" if peer == "ours" else peer


def ratios(found: Found, ours: str) -> Table:
    def cells(kind: str, peer: str) -> list[str] | None:
        own, theirs = found[kind].get(ours, {}), found[kind][peer]
        return None if peer == ours else [_ratio(case, own.get(case), theirs.get(case)) for case in CASES]

    return _table("how many times as fast as the peer treadle is", found, cells)


def figures(found: Found) -> Table:
    def cells(kind: str, peer: str) -> list[str]:
        return [_figure(found[kind][peer].get(case)) for case in CASES]

    return _table(
        "jobs per second, microseconds of CPU, milliseconds of latency: median and spread", found, cells
    )


def _table(title: str, found: Found, cells: Callable[[str, str], list[str] | None]) -> Table:
    table = Table("", *CASES.values(), title=title, box=box.HORIZONTALS, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, peers in found.items():
        table.add_row(f"[bold]{kind}[/]")
        for peer in peers:
            row = cells(kind, peer)
            if row is not None:
                table.add_row(named(peer), *row)
        table.add_section()
    return table


def _ratio(case: str, ours: Sequence[float] | None, theirs: Sequence[float] | None) -> str:
    if not ours or not theirs:
        return "-"
    return shown(ratio(theirs, ours) if case.startswith(("latency", "CPU")) else ratio(ours, theirs))


def _figure(values: Sequence[float] | None) -> str:
    if not values:
        return "-"
    median = statistics.median(values)
    spread = (max(values) - min(values)) / 2 / median
    return shown(median) if len(values) == 1 else f"{shown(median)}\n[dim]±{spread:.0%}[/]"
