"""A few mutants that a handful of seeds finds. `make mutants` hunts all of them."""

from __future__ import annotations

import pytest

from tests.mutants.hunt import MUTANTS, by_simulator
from tests.simulation.shrink import attempt

QUICK = ("ack_before_children", "again_is_stale", "told_early", "request_dropped", "no_poll")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", QUICK)
def test_it_is_found(name: str) -> None:
    """The same seeds are fine without the bug: it is the bug that was found."""
    find = by_simulator(MUTANTS[name], 12)
    assert find.by == "simulator", MUTANTS[name].bug
    assert attempt(find.seeds - 1) is None


def test_there_are_enough_and_all_can_be_planted() -> None:
    assert len(MUTANTS) >= 25
    for mutant in MUTANTS.values():
        with mutant.planted():
            pass
