"""Seeds of the simulator with two stores, between which tenants move."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.coverage import missing_moves
from tests.simulation.shrink import attempt, report, shrink
from tests.simulation.two_stores import MovingSimulation
from tests.support.tiers import some_of

BLOCK = 25
BLOCKS = 5
FEW = some_of(range(12), 3, 9, 10)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A seed logs many warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_seed(seed: int) -> Counter[str]:
    try:
        return MovingSimulation(seed).run().coverage
    except Exception:  # noqa: BLE001  any error is reported
        failing = attempt(seed, of=MovingSimulation)
        pytest.fail(report(shrink(failing, seconds=20)) if failing else f"{seed} failed once", pytrace=False)


@pytest.mark.parametrize("seed", FEW)
def test_tenants_move_below_a_fleet(seed: int) -> None:
    """Nothing is lost, nothing is in two stores, and nothing of a move is left."""
    run_seed(seed)


@pytest.mark.another_seed
@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.timeout(300)
def test_tenants_move_below_a_fleet_in_many_seeds(block: int, run_directory: Path) -> None:
    """The last block to end also checks the coverage of all of them."""
    coverage: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        coverage.update(run_seed(seed))
    written = run_directory / f"moves-block-{block}.json"
    written.write_text(json.dumps(coverage))
    written.rename(run_directory / f"moves-{block}.json")  # other blocks see the complete file or none
    done = list(run_directory.glob("moves-[0-9].json"))
    if len(done) == BLOCKS:
        total = sum((Counter(json.loads(one.read_text())) for one in done), Counter[str]())
        assert not missing_moves(total, BLOCK * BLOCKS)


@pytest.mark.usefixtures("checks_tests")
def test_a_seed_gives_the_same_history_twice() -> None:
    first, second = MovingSimulation(3), MovingSimulation(3)
    first.run()
    second.run()
    assert first.checker.timeline == second.checker.timeline


@pytest.mark.usefixtures("checks_tests")
def test_a_tenant_that_is_not_followed_is_reported() -> None:
    """The reduced seed fails again, and the report says how to replay it."""
    from tests.mutants.hunt import MUTANTS

    with MUTANTS["does_not_follow"].planted():
        failing = next(
            found for seed in range(20) if (found := attempt(seed, of=MovingSimulation)) is not None
        )
        small = shrink(failing, seconds=10)
        assert f"make simulate STORES=2 SEED={failing.simulation.seed}" in report(small)
