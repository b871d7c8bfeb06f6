"""Fate: all that is going to be done to a fleet, drawn from the seed before it begins.

Each deed has chance of its own, so that one can be left out without changing the others: that is how a seed
that fails is made smaller.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.simulation.program import MAKERS

TENANTS = ("acme", "beta")


class Deed(NamedTuple):
    number: int
    at: float
    kind: str
    seed: float

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} at {self.at:.2f}"


class Fate:
    """Swarm: a seed switches some things off, and others up."""

    def __init__(self, rng: random.Random) -> None:
        self.span = rng.uniform(5, 35)
        self.workers = rng.randint(1, 4)
        self.mix = rng.sample(sorted(MAKERS), rng.randint(3, len(MAKERS)))
        self.schedules = rng.choice((None, None, "none", "one", "all"))
        self.every = rng.uniform(2, 8)
        deeds = [(rng.uniform(0, self.span), "submit") for _ in range(rng.randint(3, 30))]
        rates = {
            "operate": rng.choice((0.0, 0.2, 0.8)),
            "kill": rng.choice((0.0, 0.1, 0.3)),
            "stop": rng.choice((0.0, 0.0, 0.15)),
            "pause": rng.choice((0.0, 0.0, 0.12)),
            "jump": rng.choice((0.0, 0.0, 0.0, 0.08)),
            "hold": rng.choice((0.0, 0.0, 0.1)),
        }
        for kind, rate in rates.items():
            deeds += [(rng.uniform(0, self.span), kind) for _ in range(_times(rng, rate * self.span))]
        deeds.sort()
        self.deeds = [Deed(number, at, kind, rng.random()) for number, (at, kind) in enumerate(deeds)]

    def has(self, *kinds: str) -> bool:
        return any(deed.kind in kinds for deed in self.deeds)

    def without(self, numbers: frozenset[int]) -> None:
        self.deeds = [deed for deed in self.deeds if deed.number not in numbers]


def _times(rng: random.Random, expected: float) -> int:
    whole = int(expected)
    return whole + (rng.random() < expected - whole)
