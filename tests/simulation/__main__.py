"""`make simulate SEEDS=20000`, or `SEED=86` to replay one. Exits with 1 at the first violation."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.simulation.shrink import attempt, report, shrink
from tests.simulation.simulation import Simulation
from tests.simulation.two_stores import MovingSimulation
from tests.support.records import record

console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay one seed and print its timeline")
    parser.add_argument(
        "--without", nargs="*", default=[], help="numbers of actions, or names of faults, to leave out"
    )
    parser.add_argument("--stores", type=int, choices=(1, 2), default=1, help="2: tenants move")
    parser.add_argument("--history", action="store_true", help="print only the hash of the timeline")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    of = Simulation if given.stores == 1 else MovingSimulation
    if given.seed is not None:
        without = frozenset[Any](int(one) if one.isdigit() else one for one in given.without)
        sys.exit(not replay(of, given.seed, without, brief=given.history))
    sys.exit(not simulate(of, range(given.first, given.first + given.seeds)))


def replay(of: type[Simulation], seed: int, without: frozenset[Any], *, brief: bool) -> bool:
    failing = attempt(seed, without, of=of)
    if failing is not None:
        console.print(report(failing), markup=False, highlight=False, soft_wrap=True)
        return False
    simulation = of(seed, without)
    simulation.run()
    if not brief:
        console.print("\n".join(simulation.checker.timeline), markup=False, highlight=False, soft_wrap=True)
    console.print(f"seed {seed}: no violation; history {simulation.history}", highlight=False)
    return True


def simulate(of: type[Simulation], seeds: range) -> bool:
    coverage: Counter[str] = Counter()
    total: Counter[str] = Counter()
    began = time.process_time()
    for seed in track(seeds, "seeds", console=console):
        simulation = of(seed)
        try:
            coverage.update(simulation.run().coverage)
        except Exception:  # noqa: BLE001  any error is a finding
            return _failed(of, seed)
        total.update(simulation.figures())
    record(
        of.name,
        f"make simulate {of.setting}SEEDS={len(seeds)}",
        **{"seeds": len(seeds), "violations": 0, "simulated hours": total["seconds"] / 3600},
        **{name: int(total[name]) for name in total if name != "seconds"},
    )
    _print_totals(seeds, total, coverage, time.process_time() - began)
    if absent := of.missing(coverage, len(seeds)):
        console.print(f"[red]never happened in {len(seeds):,} seeds:[/] {', '.join(absent)}")
    return not absent


def _failed(of: type[Simulation], seed: int) -> bool:
    console.print(f"[red]seed {seed} fails[/]; reducing it")
    failing = attempt(seed, of=of)
    if failing is None:
        console.print("it does not fail when run again: the simulation is not deterministic")
        return False
    console.print(report(shrink(failing)), markup=False, highlight=False, soft_wrap=True)
    return False


def _print_totals(seeds: range, total: Counter[str], coverage: Counter[str], seconds: float) -> None:
    table = Table("event", "times", title=f"{len(seeds):,} seeds, no violations")
    table.add_row("simulated hours", f"{total.pop('seconds') / 3600:,.1f}")
    table.add_row("seeds per second of one core", f"{len(seeds) / max(seconds, 0.001):,.1f}")
    for what, times in (*total.items(), *sorted(coverage.items())):
        table.add_row(what, f"{times:,.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
