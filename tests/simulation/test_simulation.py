"""Seeds: each one a fleet with a bad day. A failing one is made smaller, and tells its story."""

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
from tests.simulation.expect import missing
from tests.simulation.shrink import attempt, shrink, story
from tests.simulation.world import World

BLOCK = 25
BLOCKS = 20
"""500 seeds. In blocks: they are shared out among the processes that test."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A bad day is worth many warnings, and keeping them costs more than checking a step."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.timeout(180)
def test_seeds(block: int, run_directory: Path) -> None:
    """Whichever block ends last asks what never happened in any of them."""
    coverage: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        world = World(seed)
        try:
            coverage.update(world.run().coverage)
        except Exception:  # noqa: BLE001  whatever it is: it is shown with its story
            failing = attempt(seed)
            pytest.fail(
                story(shrink(failing, seconds=20)) if failing else f"{seed} failed once", pytrace=False
            )
    written = run_directory / f"block-{block}.json"
    written.write_text(json.dumps(coverage))
    written.rename(run_directory / f"seeds-{block}.json")  # whole, for whoever looks now
    done = list(run_directory.glob("seeds-*.json"))
    if len(done) == BLOCKS:
        total = sum((Counter(json.loads(one.read_text())) for one in done), Counter[str]())
        assert not missing(total, BLOCK * BLOCKS)


@pytest.mark.parametrize("seed", [1, 7, 14])
def test_a_seed_is_a_history(seed: int) -> None:
    first, second = World(seed), World(seed)
    first.run()
    second.run()
    assert first.history == second.history
    assert first.watch.timeline == second.watch.timeline


def test_a_history_is_the_same_in_every_process() -> None:
    """Whatever Python's own hashes are."""
    histories = {_history(14, hash_seed) for hash_seed in ("1", "2")}
    assert histories == {_here(14)}


def _here(seed: int) -> str:
    world = World(seed)
    world.run()
    return world.history


def _history(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--history"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()[-1]


def test_a_violation_is_found_made_smaller_and_told() -> None:
    """With a bug in the store a seed fails; its story is short and can be replayed."""
    with MUTANTS["again_is_stale"].planted():
        failing = next(found for seed in range(20) if (found := attempt(seed)) is not None)
        small = shrink(failing)
        assert len(small.world.fate.deeds) <= 2 < len(failing.world.fate.deeds)
        told = story(small)
        assert f"make simulate SEED={failing.world.seed} WITHOUT=" in told
        assert "by a token that is over" in told
        again = attempt(small.world.seed, small.without)
        assert again is not None
        assert again.world.watch.timeline == small.world.watch.timeline
    assert attempt(failing.world.seed) is None, "it was the bug that was found"
