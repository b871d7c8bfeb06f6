"""The table of scenarios names tests that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.scenarios import SCENARIOS

PROJECT = Path(__file__).parents[2]
DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


@cache
def existing() -> frozenset[str]:
    files = [*PROJECT.glob("tests/**/*.py"), *PROJECT.glob("src/treadle/testing/contract/*.py")]
    return frozenset(name for file in files for name in DEFINED.findall(file.read_text()))


def test_the_scenarios_are_numbered_1_to_42() -> None:
    assert list(SCENARIOS) == list(range(1, 43))


@pytest.mark.parametrize("number", SCENARIOS)
def test_each_scenario_names_existing_tests(number: int) -> None:
    scenario = SCENARIOS[number]
    assert scenario.tests
    assert [name for name in scenario.tests if name not in existing()] == []
