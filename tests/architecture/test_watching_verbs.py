"""Every verb that watches a store is measured and compared on each of them: the tests below call it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PORTS = PROJECT / "src/treadle/ports/backend.py"
CALLERS = (
    "tests/backends/random_calls.py",  # all stores beside each other
    "tests/backends/test_postgres_plans.py",  # no scan of a table
    "tests/backends/test_sqlite_watching.py",  # as many steps among many items
    "tests/tenancy/backend_program.py",  # what another tenant does is not seen
)
OF_NO_TENANT = ("limits",)
"""Limits belong to all tenants. Their number is that of names in the code, not of items."""


def watching() -> list[str]:
    return re.findall(r"(\w+) = _without\(\"watching\"", PORTS.read_text())


def test_they_are_found() -> None:
    assert {"explain", "overview", "lines"} <= set(watching())


@pytest.mark.parametrize("path", CALLERS)
@pytest.mark.parametrize("verb", [verb for verb in watching() if verb not in OF_NO_TENANT])
def test_it_is_called(verb: str, path: str) -> None:
    assert re.search(rf"[._]{verb}\(", (PROJECT / path).read_text())
