"""Seeds: each one a fleet with a bad day. A failing one is replayed by `make simulate SEED=...`."""

from __future__ import annotations

import pytest

from tests.simulation.world import World


@pytest.mark.parametrize("block", range(20))
def test_seeds(block: int) -> None:
    for seed in range(block * 5, block * 5 + 5):
        World(seed).run()


@pytest.mark.parametrize("seed", [1, 7])
def test_a_seed_is_a_history(seed: int) -> None:
    first, second = World(seed), World(seed)
    first.run()
    second.run()
    assert first.history == second.history
