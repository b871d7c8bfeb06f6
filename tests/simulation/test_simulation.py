"""Seeds of the simulator: 15, and 125 in `make proof`. A failing one is made smaller and reported."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.hunt import MUTANTS
from tests.simulation.coverage import missing
from tests.simulation.shrink import attempt, report, shrink
from tests.simulation.simulation import Simulation
from tests.support.tiers import seeds

FEW = (*seeds(20, first=6), 20, 24, 25, 29, 42, 50, 74, 98, 109)
"""The first seeds, and the first that find planted bugs which those do not (`make mutants`)."""
BLOCK = 25
BLOCKS = 5
"""125 seeds, in blocks that jobs can take."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A seed logs many warnings. Recording them would cost more than the checks."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_seed(seed: int) -> Counter[str]:
    """Run a seed, which must have no violation. Return what it covered."""
    try:
        return Simulation(seed).run().coverage
    except Exception:  # noqa: BLE001  any error is reported
        failing = attempt(seed)
        pytest.fail(report(shrink(failing, seconds=20)) if failing else f"{seed} failed once", pytrace=False)


@pytest.mark.parametrize("seed", FEW)
def test_no_seed_violates_an_invariant(seed: int) -> None:
    run_seed(seed)


@pytest.mark.another_seed
@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.timeout(180)
def test_no_seed_of_many_violates_an_invariant(block: int, run_directory: Path) -> None:
    """The last block to end also checks the coverage of all of them."""
    coverage: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        coverage.update(run_seed(seed))
    written = run_directory / f"block-{block}.json"
    written.write_text(json.dumps(coverage))
    written.rename(run_directory / f"seeds-{block}.json")  # other blocks see the complete file or none
    done = list(run_directory.glob("seeds-*.json"))
    if len(done) == BLOCKS:
        total = sum((Counter(json.loads(one.read_text())) for one in done), Counter[str]())
        assert not missing(total, BLOCK * BLOCKS)


@pytest.mark.usefixtures("checks_tests")
@pytest.mark.parametrize("seed", [1, 7, 23])
def test_a_seed_gives_the_same_history_twice(seed: int) -> None:
    first, second = Simulation(seed), Simulation(seed)
    first.run()
    second.run()
    assert first.history == second.history
    assert first.checker.timeline == second.checker.timeline


@pytest.mark.another_seed
@pytest.mark.usefixtures("processes")
def test_a_seed_gives_the_same_history_in_every_process() -> None:
    """With different hash seeds of Python."""
    histories = {_history_in_process(33, hash_seed) for hash_seed in ("1", "2")}
    assert histories == {_history_here(33)}


def _history_here(seed: int) -> str:
    simulation = Simulation(seed)
    simulation.run()
    return simulation.history


def _history_in_process(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--history"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()[-1]


@pytest.mark.usefixtures("checks_tests")
def test_a_planted_bug_is_found_reduced_and_reported() -> None:
    """The reduced seed has few actions, and the report says how to replay it."""
    with MUTANTS["again_is_stale"].planted():
        failing = next(found for seed in range(20) if (found := attempt(seed)) is not None)
        small = shrink(failing)
        assert len(small.simulation.plan.actions) <= 4 < len(failing.simulation.plan.actions)
        text = report(small)
        assert f"make simulate SEED={failing.simulation.seed} WITHOUT=" in text
        assert "by a token that is no longer valid" in text
        again = attempt(small.simulation.seed, small.without)
        assert again is not None
        assert again.simulation.checker.timeline == small.simulation.checker.timeline
    assert attempt(failing.simulation.seed) is None, "the seed fails without the planted bug"
