"""Make a failing seed smaller: leave out every action and fault without which it still fails."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from tests.simulation.network import FAULTS
from tests.simulation.simulation import Simulation


class Failing(NamedTuple):
    """A simulation that failed, what was left out of it, and the error."""

    simulation: Simulation
    without: frozenset[Any]
    error: Exception


def attempt(
    seed: int, without: frozenset[Any] = frozenset(), *, of: type[Simulation] = Simulation
) -> Failing | None:
    simulation = of(seed, without)
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001  any error is a finding
        return Failing(simulation, without, error)
    return None


def shrink(failing: Failing, seconds: float = 60.0) -> Failing:
    """Leave out halves, whole kinds of actions, faults, then single actions, until nothing more can go."""
    until = time.monotonic() + seconds
    smallest, changed = failing, True
    while changed:
        changed = False
        for portion in _portions(smallest):
            if time.monotonic() > until:
                return smallest
            failed = smallest.simulation
            smaller = attempt(failed.seed, smallest.without | portion, of=type(failed))
            if smaller is not None:
                smallest, changed = smaller, True
                break
    return smallest


def _portions(failing: Failing) -> list[frozenset[Any]]:
    actions = failing.simulation.plan.actions
    kinds = {action.kind for action in actions}
    whole = [frozenset(action.number for action in actions if action.kind == kind) for kind in sorted(kinds)]
    half = len(actions) // 2
    halves = [frozenset(action.number for action in some) for some in (actions[:half], actions[half:])]
    faults = [frozenset((fault,)) for fault in FAULTS if fault not in failing.without]
    single = [frozenset((action.number,)) for action in actions]
    found = [*halves, *whole, *faults, *single] if len(actions) > 1 else [*faults, *single]
    return [portion for portion in found if portion - failing.without]


def report(failing: Failing) -> str:
    """The timeline, the error, and the commands that replay it."""
    simulation = failing.simulation
    left_out = " ".join(str(one) for one in sorted(failing.without, key=str))
    actions = ", ".join(str(action) for action in simulation.plan.actions)
    lines = [
        *simulation.checker.timeline,
        f"actions left: {actions}",
        f"seed {simulation.seed}: {type(failing.error).__name__}: {failing.error}",
        f"replay the whole seed:    make simulate {simulation.options}",
    ]
    if left_out:
        lines.append(f'replay the reduced seed:  make simulate {simulation.options} WITHOUT="{left_out}"')
    return "\n".join(lines)
