"""Look for a mutant: with the tests that it names, or with the simulator and then the contract suite."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tests.mutants import (
    combined,
    engine,
    groups,
    moves,
    operate,
    rules,
    steps,
    store,
    threads,
    time,
    waiting,
)
from tests.mutants.kit import MUTANTS, Mutant
from tests.simulation.shrink import attempt
from tests.simulation.simulation import Simulation
from tests.simulation.two_stores import MovingSimulation

__all__ = ["MUTANTS", "Find", "hunt"]
assert combined
assert engine
assert groups
assert moves
assert operate
assert rules
assert steps
assert store
assert threads
assert time
assert waiting


FAILED = 1
"""The exit code of pytest if tests failed, or took too long."""
CONTRACT = ("tests/backends/test_memory.py", "-k", "Contract")


class Find(NamedTuple):
    mutant: Mutant
    by: str | None
    seeds: int
    evidence: str = ""


def hunt(mutant: Mutant, seeds: int, *, contract: bool = True) -> Find:
    if mutant.tests:
        return by_tests(mutant, [mutant.tests])
    found = by_simulator(mutant, seeds)
    if found.by is None and contract and not mutant.two_stores:
        return by_tests(mutant, CONTRACT, seeds)
    return found


def by_simulator(mutant: Mutant, seeds: int) -> Find:
    for seed in range(seeds):
        with mutant.planted():
            failing = attempt(seed, of=MovingSimulation if mutant.two_stores else Simulation)
        if failing is not None:
            return Find(mutant, "simulator", seed + 1, str(failing.error))
    gc.collect()
    return Find(mutant, None, seeds)


def by_tests(mutant: Mutant, tests: Sequence[str], seeds: int = 0) -> Find:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "tests.mutants.planted",
        "--timeout",
        "60",
        *tests,
    ]
    done = subprocess.run(
        [*command, "--mutant", mutant.name], capture_output=True, text=True, check=False, timeout=600
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    by = "contract" if tests == CONTRACT else "tests"
    evidence = failed[0] if failed else (done.stdout + done.stderr)[-200:]
    return Find(mutant, by if done.returncode == FAILED else None, seeds, evidence)
