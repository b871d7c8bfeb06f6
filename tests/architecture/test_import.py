"""`import treadle` is quick, and loads nothing that is not needed yet."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("processes")

ELSEWHERE = [
    "asyncpg",
    "cffi",
    "fastapi",
    "flask",
    "hypothesis",
    "jinja2",
    "multiprocessing",
    "nats",
    "prometheus_client",
    "psycopg",
    "pydantic",
    "pytest",
    "redis",
    "rich",
    "sqlalchemy",
    "sqlite3",
    "starlette",
    "typer",
    "uvicorn",
]
"""Drivers, command lines, web frameworks, tools for tests, and what few handlers need."""

OURS = ["treadle.backends", "treadle.cli", "treadle.dashboard", "treadle.contrib", "treadle.testing"]


def python(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return ran.stdout


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that are there once treadle is."""
    return set(json.loads(python("import sys, json, treadle; print(json.dumps(sorted(sys.modules)))")))


@pytest.mark.parametrize("name", [*ELSEWHERE, *OURS])
def test_it_is_not_loaded(loaded: set[str], name: str) -> None:
    assert not {module for module in loaded if module == name or module.startswith(f"{name}.")}


def test_it_starts_nothing() -> None:
    """No thread, no event loop, no output, no handler of a signal or of a log."""
    code = """
import signal, threading, logging
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
import treadle
assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
assert threading.active_count() == 1
assert not logging.getLogger().handlers
assert all(type(h).__name__ == "NullHandler" for h in logging.getLogger("treadle").handlers)
"""
    assert python(code) == ""


def test_it_loads_little(loaded: set[str]) -> None:
    """Beside ourselves, and what msgspec and asyncio load anyway. How long all of it takes: `make bench`."""
    needed = set(
        json.loads(python("import sys, json, msgspec, asyncio; print(json.dumps(list(sys.modules)))"))
    )
    others = sorted(name for name in loaded - needed if not name.startswith("treadle"))
    assert len(others) <= 40, others
