"""`import treadle` is quick, and loads nothing that is not needed yet."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

ELSEWHERE = [
    "asyncpg",
    "cffi",
    "hypothesis",
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
]
"""Drivers, command lines, web frameworks, tools for tests, and what few handlers need."""

OURS = ["treadle.backends", "treadle.cli", "treadle.dashboard", "treadle.contrib", "treadle.testing"]

TIMES = 7
MOST = 2.5


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


def test_it_is_quick() -> None:
    """Less than 2.5 times what msgspec and asyncio take, which it cannot do without. In CPU time, by turns,
    so that whatever else the machine does weighs on both."""
    pairs = [(cpu("msgspec, asyncio"), cpu("treadle")) for _ in range(TIMES)]
    needed, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert ours < MOST * needed, f"{ours * 1000:.0f} ms, where {needed * 1000:.0f} ms are needed"


def cpu(names: str) -> float:
    code = f"import time; began = time.process_time(); import {names}; print(time.process_time() - began)"
    return float(python(code))
