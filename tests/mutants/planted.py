"""A pytest plugin: `-p tests.mutants.planted --mutant no_fencing` runs the given tests with that bug."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.mutants.hunt import MUTANTS

_STACK = ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant", default=None)


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--mutant")
    if name is not None:
        _STACK.enter_context(MUTANTS[name].planted())


def pytest_unconfigure() -> None:
    _STACK.close()
