"""Seeds of the simulator on a store that forgets its last steps, or its last claims."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.forgetful import CrashingSimulation, ForgetfulSimulation
from tests.support.tiers import some_of

FEW = (*some_of(range(8), 1, 2, 3), 46, 66)
"""The first seeds, and those that find planted bugs (`make mutants`)."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A seed logs many warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_seed(simulation: ForgetfulSimulation) -> None:
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001  any error is reported
        timeline = "\n".join(simulation.checker.timeline)
        pytest.fail(f"{timeline}\nseed {simulation.seed}: {type(error).__name__}: {error}", pytrace=False)


@pytest.mark.parametrize("seed", FEW)
def test_a_fleet_recovers_from_a_store_that_forgets(seed: int) -> None:
    run_seed(ForgetfulSimulation(seed))


@pytest.mark.parametrize("seed", some_of((*range(1, 6), *range(7, 10)), 2, 3, 5, 9))
def test_a_fleet_recovers_from_a_store_that_forgets_claims(seed: int) -> None:
    simulation = CrashingSimulation(seed)
    run_seed(simulation)
    assert simulation.voided


@pytest.mark.another_seed
@pytest.mark.parametrize("first", range(0, 100, 10))
@pytest.mark.timeout(180)
def test_a_fleet_recovers_from_a_store_that_forgets_in_many_seeds(first: int) -> None:
    for seed in range(first, first + 10):
        run_seed(ForgetfulSimulation(seed))
        run_seed(CrashingSimulation(seed))
