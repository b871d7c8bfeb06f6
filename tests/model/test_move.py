"""The protocol of a move keeps its promises, and the checks of its model find what would break them."""

from __future__ import annotations

import pytest

from tests.model.move import MISTAKES, Mistake, walk
from tests.support.tiers import examples

WALKS = examples(6000, few=150)


@pytest.mark.usefixtures("random_examples")
def test_nothing_is_lost_and_nothing_ends_twice() -> None:
    """With crashes, movers beside each other, moves that are given up, thaws, and answers that are lost."""
    moved = {walk(seed).stores["A"].number for seed in range(WALKS)}
    assert max(moved) > 8  # there and back, in one walk


@pytest.mark.parametrize("planted", MISTAKES)
def test_a_planted_mistake_is_found(planted: str) -> None:
    """So the walks could find others."""
    with pytest.raises(Mistake):
        walk(MISTAKES[planted].seed, planted)
