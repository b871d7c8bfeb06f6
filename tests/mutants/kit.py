"""What a mutant is: a name, the bug, and what it replaces.

A mutant replaces a public method or function whose docstring says so. A target that was renamed, or that is
called with other arguments now, is an error: the mutant would find its own failure, and not the bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import Parameter, isfunction, signature
from typing import Any, NamedTuple
from unittest.mock import patch as mock_patch

Patch = Callable[[Any, str, Any], None]
"""`patch(owner, name, replacement)` replaces an attribute of a class or module while it is planted."""


class TargetChanged(Exception):
    """The target of a mutant does not exist, or takes other arguments: adapt the mutant."""


class Mutant(NamedTuple):
    name: str
    bug: str
    plant: Callable[[Patch], None]
    tests: str = ""
    """The tests that must find it: a path for pytest. Empty: the simulator or the contract must."""
    two_stores: bool = False
    """Whether the simulator with two stores must find it."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:

            def patch(owner: Any, name: str, replacement: Any) -> None:
                self._check_target(owner, name, replacement)
                stack.enter_context(mock_patch.object(owner, name, replacement))

            try:
                self.plant(patch)
            except AttributeError as error:
                raise TargetChanged(f"mutant {self.name}: {error}; was its target renamed?") from error
            yield

    def _check_target(self, owner: Any, name: str, replacement: Any) -> None:
        target = f"{owner.__name__}.{name}"
        if not hasattr(owner, name):
            raise TargetChanged(f"mutant {self.name}: there is no {target}; was it renamed?")
        if not fits(replacement, getattr(owner, name)):
            raise TargetChanged(f"mutant {self.name}: {target} takes other arguments than its replacement")


def fits(replacement: Any, real: Any) -> bool:
    """Whether the replacement can be called with the required arguments of the real function."""
    if not (isfunction(replacement) and isfunction(real)):
        return True
    given = [one for one in signature(real).parameters.values() if one.default is Parameter.empty]
    positional = [one.name for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    try:
        signature(replacement).bind(
            *positional, **{one.name: 0 for one in given if one.kind is one.KEYWORD_ONLY}
        )
    except TypeError:
        return False
    return True


MUTANTS: dict[str, Mutant] = {}


def mutant(
    bug: str, *, tests: str = "", two_stores: bool = False
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        assert plant.__name__ not in MUTANTS
        MUTANTS[plant.__name__] = Mutant(plant.__name__, bug, plant, tests, two_stores)
        return plant

    return add
