"""The plan of one seed: all actions, drawn before the simulation begins.

Each action has its own random seed, so that leaving one out does not change the others. `shrink` uses this.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.simulation.program import MAKERS, NAMES
from tests.simulation.step_program import STEP_TYPES

LEASE = 5.0
TENANTS = ("acme", "beta")


class Action(NamedTuple):
    number: int
    at: float
    kind: str
    seed: float

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} at {self.at:.2f}"


class Plan:
    """Each seed has its own mix: some kinds of actions are absent, others are frequent."""

    def __init__(self, rng: random.Random) -> None:
        self.span = rng.uniform(5, 35)
        self.kinds = _kinds(rng)
        """The types of each kind of worker. None means all types."""
        self.workers = max(rng.randint(1, 4), len(self.kinds))
        self.roomy = rng.random() < 0.5
        """Every worker has room for everything."""
        self.supervised = rng.random() < 0.5
        """A supervisor frees the items of a dead process at once."""
        self.poll_interval = rng.choice((1.0, 1.0, 5.0))
        self.mix = rng.sample(sorted(MAKERS), rng.randint(3, len(MAKERS)))
        self.schedules = rng.choice((None, None, "none", "one", "all"))
        self.every = rng.uniform(2, 8)
        actions = [(rng.uniform(0, self.span), "submit") for _ in range(rng.randint(3, 30))]
        rates = {
            "operate": rng.choice((0.0, 0.2, 0.8)),
            "kill": rng.choice((0.0, 0.1, 0.3)),
            "stop": rng.choice((0.0, 0.0, 0.15)),
            "pause": rng.choice((0.0, 0.0, 0.0, 0.12)),
            "jump_clock": rng.choice((0.0, 0.0, 0.0, 0.0, 0.08)),
            "pause_queue": rng.choice((0.0, 0.0, 0.1)),
            "burst": rng.choice((0.0, 0.1, 0.2)),
            "poison": rng.choice((0.0, 0.0, 0.0, 0.08)),
            "reuse": rng.choice((0.0, 0.0, 0.5)),
        }
        for kind, rate in rates.items():
            actions += [(rng.uniform(0, self.span), kind) for _ in range(_times(rng, rate * self.span))]
        actions.sort()
        self.actions = [Action(number, at, kind, rng.random()) for number, (at, kind) in enumerate(actions)]
        self._add_journeys(random.Random(rng.random()))

    def _add_journeys(self, rng: random.Random) -> None:
        """In half of the seeds some items have steps. The other seeds are what they would be without."""
        if rng.random() < 0.5:
            return
        rates = {"journey": rng.choice((0.2, 0.8)), "signal": rng.choice((0.3, 1.0, 2.0))}
        for kind, rate in rates.items():
            for _ in range(_times(rng, rate * self.span)):
                self.add(kind, rng.uniform(0, self.span), rng.random())
        self.actions.sort(key=lambda action: action.at)

    def add(self, kind: str, at: float, seed: float) -> None:
        self.actions.append(Action(len(self.actions), at, kind, seed))

    def has(self, *kinds: str) -> bool:
        return any(action.kind in kinds for action in self.actions)

    def without(self, numbers: frozenset[int]) -> None:
        self.actions = [action for action in self.actions if action.number not in numbers]


def _kinds(rng: random.Random) -> list[frozenset[str] | None]:
    """One kind of worker with all types, or several of which each has some."""
    count = rng.choice((1, 1, 2, 3))
    if count == 1:
        return [None]
    kinds: list[set[str]] = [set() for _ in range(count)]
    for name in (*NAMES, *(type.name for type in STEP_TYPES)):
        for kind in kinds if rng.random() < 0.1 else [rng.choice(kinds)]:
            kind.add(name)
    return [frozenset(kind) for kind in kinds]


def _times(rng: random.Random, expected: float) -> int:
    whole = int(expected)
    return whole + (rng.random() < expected - whole)
