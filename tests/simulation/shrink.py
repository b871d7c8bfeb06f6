"""A seed that fails, made smaller: whatever can be left out while it still fails is."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from tests.simulation.network import TROUBLES
from tests.simulation.world import World


class Failing(NamedTuple):
    """A world that ended badly: what was left out of it, and how it ended."""

    world: World
    without: frozenset[Any]
    error: Exception


def attempt(seed: int, without: frozenset[Any] = frozenset()) -> Failing | None:
    world = World(seed, without)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001  whatever it is, it is what we are looking for
        return Failing(world, without, error)
    return None


def shrink(failing: Failing, seconds: float = 60.0) -> Failing:
    """First whole kinds of deeds and of weather, then deed by deed, again and again until nothing can go."""
    until = time.monotonic() + seconds
    smallest, changed = failing, True
    while changed:
        changed = False
        for portion in _portions(smallest):
            if time.monotonic() > until:
                return smallest
            smaller = attempt(smallest.world.seed, smallest.without | portion)
            if smaller is not None:
                smallest, changed = smaller, True
                break
    return smallest


def _portions(failing: Failing) -> list[frozenset[Any]]:
    deeds = failing.world.fate.deeds
    kinds = {deed.kind for deed in deeds}
    whole = [frozenset(deed.number for deed in deeds if deed.kind == kind) for kind in sorted(kinds)]
    half = len(deeds) // 2
    halves = [frozenset(deed.number for deed in some) for some in (deeds[:half], deeds[half:])]
    weather = [frozenset((trouble,)) for trouble in TROUBLES if trouble not in failing.without]
    single = [frozenset((deed.number,)) for deed in deeds]
    found = [*halves, *whole, *weather, *single] if len(deeds) > 1 else [*weather, *single]
    return [portion for portion in found if portion - failing.without]


def story(failing: Failing) -> str:
    """What happened, in as few lines as it takes, and how to see it again."""
    world = failing.world
    left_out = " ".join(str(one) for one in sorted(failing.without, key=str))
    deeds = ", ".join(str(deed) for deed in world.fate.deeds)
    lines = [
        *world.watch.timeline,
        f"deeds left: {deeds}",
        f"seed {world.seed}: {type(failing.error).__name__}: {failing.error}",
        f"see it whole:  make simulate SEED={world.seed}",
    ]
    if left_out:
        lines.append(f'see it small:  make simulate SEED={world.seed} WITHOUT="{left_out}"')
    return "\n".join(lines)
