"""What a mutant is: a name, and what it patches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch as mock_patch

Patch = Callable[[Any, str, Any], None]


class Mutant(NamedTuple):
    name: str
    bug: str
    plant: Callable[[Patch], None]

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:

            def patch(owner: Any, name: str, value: Any) -> None:
                stack.enter_context(mock_patch.object(owner, name, value))

            self.plant(patch)
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(bug: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        assert plant.__name__ not in MUTANTS
        MUTANTS[plant.__name__] = Mutant(plant.__name__, bug, plant)
        return plant

    return add
