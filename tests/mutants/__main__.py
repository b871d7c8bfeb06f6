"""`make mutants`: plant each bug, and report what finds it. Exits with 1 if a bug is not found."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants.hunt import MUTANTS, Find, hunt
from tests.support.records import record


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these bugs")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--no-contract", action="store_true", help="only the simulator")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    console = Console()
    finds: list[Find] = []
    for name, mutant in MUTANTS.items():
        if not given.names or name in given.names:
            finds.append(hunt(mutant, given.seeds, contract=not given.no_contract))
            found = finds[-1]
            console.print(f"{found.by or 'NOT FOUND':10} {found.seeds:5}  {name}", highlight=False)
            if given.json:
                given.json.write_text(json.dumps([[f.mutant.name, f.by, f.seeds] for f in finds]))
    table = Table("bug", "found by", "after seeds", "how")
    for find in finds:
        table.add_row(find.mutant.bug, find.by or "[red]not found", str(find.seeds), find.evidence[:70])
    console.print(table)
    lost = [find for find in finds if find.by is None]
    if not given.names:
        record("mutants", f"make mutants SEEDS={given.seeds}", missed=len(lost))
    console.print(f"{len(finds) - len(lost)} of {len(finds)} found")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
