"""`make bench-peers`: treadle and its peers in the same rounds, each measurement in a process of its own.

`python -m benchmarks.peers one PEER FUNCTION URL N` is such a process.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import chart, must
from benchmarks.__main__ import RESULTS, must_table
from benchmarks.measure import Case, Figure, machine, rounds
from benchmarks.stores import Stores, stores

ON = {"postgres": ("pgqueuer", "procrastinate"), "sqlite": ("huey",), "memory": ("huey",)}
FUNCTIONS = {"one_by_one": 2_000, "bulk": 20_000, "drain": 20_000, "awaited": 1_000}
console = Console()


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(one(*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round")
    parser.add_argument("--on", action="append", choices=tuple(ON), help="only these stores")
    given = parser.parse_args()
    kinds = tuple(given.on or ON)
    console.print(f"[bold]treadle and its peers[/] on {machine()}")
    with stores(kinds) as opened:
        figures = asyncio.run(measured(opened, kinds, 1 if given.quick else 3, 4 if given.quick else 1))
    results = {"peers": {kind: {f.name: f.values for f in each} for kind, each in figures.items()}}
    show(figures, results)


async def measured(
    opened: Stores, kinds: tuple[str, ...], times: int, divisor: int
) -> dict[str, list[Figure]]:
    return {kind: await rounds(cases(opened, kind, divisor), times, f"peers on {kind}") for kind in kinds}


def cases(opened: Stores, kind: str, divisor: int) -> list[tuple[str, str, Case]]:
    """Function by function, ours beside theirs."""
    found: list[tuple[str, str, Case]] = []
    for function, count in FUNCTIONS.items():
        for peer in ("ours", *ON[kind]):
            module = _module(peer)
            if hasattr(module, function):
                name = "treadle" if peer == "ours" else peer
                few = 1 if function == "awaited" else divisor * getattr(module, "SMALL", 1)
                label = f"{name}: {function.replace('_', ' ')}"
                found.append((label, "/s", _case(opened, kind, peer, function, count // few)))
    return found


def _case(opened: Stores, kind: str, peer: str, function: str, count: int) -> Case:
    async def case() -> float:
        async with opened.fresh(kind) as url:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "benchmarks.peers",
                *("one", peer, function, url, str(count)),
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await asyncio.wait_for(process.communicate(), 180)
            return float(json.loads(out))

    return case


def _module(peer: str) -> Any:
    return importlib.import_module(f"benchmarks.peers.{peer}")


def one(peer: str, function: str, url: str, count: str) -> float:
    module = _module(peer)
    call = getattr(module, function)(url, int(count))
    if getattr(module, "UVLOOP", False):
        import uvloop

        return float(uvloop.run(call))
    return float(asyncio.run(call))


def show(figures: dict[str, list[Figure]], results: dict[str, Any]) -> None:
    table = Table("store", "who, what", "median (low-high)", "treadle's is", title="peers")
    for kind, each in figures.items():
        ours = {f.name.removeprefix("treadle: "): f for f in each if f.name.startswith("treadle: ")}
        for figure in each:
            same = ours[figure.name.partition(": ")[2]]
            ratio = "" if same is figure else f"{same.median / figure.median:.2f} x"
            table.add_row(kind, figure.name, f"{figure} {figure.unit}", ratio)
        table.add_section()
    console.print(table)
    for peer in sorted({peer for kind in figures for peer in ON[kind]}):
        console.print(f"{peer}: {_module(peer).TUNED}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%d-%H%M%S')}-peers.json"
    path.write_text(json.dumps({"machine": machine(), **results}, indent=2))
    kept = must.rows(results)
    console.print(must_table(kept))
    path.with_suffix(".svg").write_text(chart.svg(kept, machine()))
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
