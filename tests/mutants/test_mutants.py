"""A few mutants that 60 seeds find. `make mutants` looks for all of them."""

from __future__ import annotations

import pytest

from tests.mutants.hunt import MUTANTS, by_simulator
from tests.simulation.shrink import attempt

QUICK = (
    "ack_before_children",
    "again_is_stale",
    "told_early",
    "no_poll",
    "loss_loses_place",
    "no_isolation",
    "mail_taken_twice",
    "undos_first_first",
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", QUICK)
def test_the_simulator_finds_the_bug(name: str) -> None:
    """The same seed passes without the bug."""
    find = by_simulator(MUTANTS[name], 60)
    assert find.by == "simulator", MUTANTS[name].bug
    assert attempt(find.seeds - 1) is None


def test_every_mutant_can_be_planted() -> None:
    assert len(MUTANTS) >= 70
    for mutant in MUTANTS.values():
        with mutant.planted():
            pass
