"""A mutant: a name, a description of the bug, and the patch that plants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import Parameter, isfunction, signature
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
                assert fits(value, getattr(owner, name)), f"{self.name}: {name} has another signature now"
                stack.enter_context(mock_patch.object(owner, name, value))

            self.plant(patch)
            yield


def fits(value: Any, real: Any) -> bool:
    """Whether the patch takes the arguments of the original. Otherwise its TypeError would be found
    instead of the bug."""
    if not (isfunction(value) and isfunction(real)):
        return True
    given = [one for one in signature(real).parameters.values() if one.default is Parameter.empty]
    positional = [one.name for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    try:
        signature(value).bind(*positional, **{one.name: 0 for one in given if one.kind is one.KEYWORD_ONLY})
    except TypeError:
        return False
    return True


MUTANTS: dict[str, Mutant] = {}


def mutant(bug: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        assert plant.__name__ not in MUTANTS
        MUTANTS[plant.__name__] = Mutant(plant.__name__, bug, plant)
        return plant

    return add
