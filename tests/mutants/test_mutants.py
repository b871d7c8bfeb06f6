"""A few mutants that 60 seeds find. `make mutants` looks for all of them."""

from __future__ import annotations

import pytest

from tests.mutants.hunt import MUTANTS, by_simulator
from tests.simulation.shrink import attempt
from tests.simulation.simulation import Simulation
from tests.simulation.two_stores import MovingSimulation

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


MOVES = ("leases_left_behind", "claimed_keys_left_behind", "does_not_follow", "tokens_stay_below")
"""Found by a few seeds with two stores."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [*QUICK, *MOVES])
def test_the_simulator_finds_the_bug(name: str) -> None:
    """The same seed passes without the bug."""
    find = by_simulator(MUTANTS[name], 60)
    assert find.by == "simulator", MUTANTS[name].bug
    of = MovingSimulation if MUTANTS[name].two_stores else Simulation
    assert attempt(find.seeds - 1, of=of) is None


def test_every_mutant_can_be_planted() -> None:
    assert len(MUTANTS) >= 70
    for mutant in MUTANTS.values():
        with mutant.planted():
            pass
