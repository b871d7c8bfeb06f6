"""`make simulate SEEDS=20000`, or `SEED=86` to see one history. Exits 1 at the first violation."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.simulation.world import World

console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay one, and show what happened")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        sys.exit(not replay(given.seed))
    sys.exit(not simulate(range(given.first, given.first + given.seeds)))


def replay(seed: int) -> bool:
    world = World(seed)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001  whatever it is, it is what we are looking for
        console.print("\n".join(world.watch.timeline), markup=False)
        console.print(f"[red]seed {seed}: {type(error).__name__}:[/] {error}")
        return False
    console.print("\n".join(world.watch.timeline), markup=False)
    console.print(f"[green]seed {seed}: nothing wrong;[/] history {world.history}")
    return True


def simulate(seeds: range) -> bool:
    coverage: Counter[str] = Counter()
    hours = kills = steps = 0.0
    for seed in track(seeds, "seeds", console=console):
        world = World(seed)
        try:
            coverage.update(world.run().coverage)
        except Exception as error:  # noqa: BLE001  as above
            console.print(f"[red]seed {seed}: {type(error).__name__}:[/] {error}")
            console.print(f"see it again: make simulate SEED={seed}")
            return False
        hours += world.loop.now / 3600
        kills += world.kills
        steps += world.watch.steps
    table = Table("what happened", "times", title=f"{len(seeds):,} seeds, nothing wrong")
    table.add_row("simulated hours", f"{hours:,.1f}")
    table.add_row("workers killed", f"{kills:,.0f}")
    table.add_row("steps of the store", f"{steps:,.0f}")
    for what, times in sorted(coverage.items()):
        table.add_row(what, f"{times:,}")
    console.print(table)
    return True


if __name__ == "__main__":
    main()
