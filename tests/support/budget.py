"""How long one test may take. A run names the tests that took longer than tests/budget.toml allows, and fails
if one took twice as long. Less is no failure: the same machine is slower by half some minutes later.

Time that the threads of a test wait for a core does not count, where the system tells. Servers and processes
of a test wait too, so a test may take longer beside others. One that exceeds that is measured again, alone.
Alone, time counts only while a core is free, or this process and those that it has waited for use one: other
work on the machine lets no test fail.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.tiers import QUICK_ROOMS, room_of, tier_of

FILE = Path(__file__).parents[1] / "budget.toml"
THREADS = Path("/proc/self/task")
CORES = Path("/proc/stat")
FAILS = 2.0
"""How many times as long as allowed a test may take before the run fails."""


class Overrun(NamedTuple):
    """A test that took too long."""

    test: str
    seconds: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.test} took {self.seconds:.1f} s, and {self.allowed:g} s are allowed"

    @property
    def fails(self) -> bool:
        """Whether no slow machine explains it."""
        return self.seconds > FAILS * self.allowed


class Budget:
    """Measures tests, and keeps those that took too long in the directory of the run."""

    def __init__(self, directory: Path, jobs: int = 1) -> None:
        self._directory = directory
        self._limits: dict[str, float] = tomllib.loads(FILE.read_text())["limits"]
        self._listed: dict[str, float] = {entry["test"]: entry["seconds"] for entry in self.entries()}
        self._share = max(1.0, jobs / (os.cpu_count() or 1))
        """How many tests share a core."""
        self._is_alone = jobs < 2

    @staticmethod
    def entries() -> list[dict[str, Any]]:
        """The tests that may take longer, each with its reason."""
        return tomllib.loads(FILE.read_text()).get("longer", [])

    @contextmanager
    def measured(self, item: pytest.Item) -> Iterator[None]:
        began, worked, waited = time.monotonic(), time.process_time(), _waits()
        free = _free_time() if self._is_alone else 0.0
        yield
        seconds = max(
            time.monotonic() - began - _sum_of_growth(waited, _waits()),
            time.process_time() - worked,  # threads that wait at the same time
        )
        if self._is_alone:
            seconds = min(seconds, _free_time() - free)
        allowed = self._allowed(item)
        if seconds > allowed * self._share:
            with (self._directory / f"overruns-{os.getpid()}").open("a") as file:
                file.write(json.dumps(Overrun(item.nodeid, seconds, allowed)) + "\n")

    def _allowed(self, item: pytest.Item) -> float:
        if os.environ.get("TREADLE_TEST_CHOICE") == "proof":
            return float("inf")  # here tests have more examples
        name, tier = item.nodeid.split("[")[0], tier_of(item)
        if tier == "quick" and room_of(item) not in QUICK_ROOMS:
            tier = "test"
        return self._listed.get(name, self._limits.get(tier, float("inf")))

    def measure_again(self) -> None:
        """Forget the tests that took too long beside others: they are measured again, alone."""
        self._share, self._is_alone = 1.0, True
        for file in self._directory.glob("overruns-*"):
            file.unlink()

    def overruns(self) -> list[Overrun]:
        """The tests of the whole run that took too long."""
        lines = [
            line for file in self._directory.glob("overruns-*") for line in file.read_text().splitlines()
        ]
        return sorted(Overrun(*json.loads(line)) for line in lines)


def _waits() -> dict[str, float]:
    """How long each thread of this process has waited for a core, in seconds."""
    found: dict[str, float] = {}
    with suppress(OSError):  # not every system tells
        for thread in THREADS.iterdir():
            with suppress(OSError):  # it has ended
                found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


def _sum_of_growth(before: dict[str, float], after: dict[str, float]) -> float:
    return sum(seconds - before.get(thread, 0.0) for thread, seconds in after.items())


def _free_time() -> float:
    """A clock that goes on while a core is free or works for this process. Free cores add up."""
    try:
        idle, waiting = CORES.read_text().split("\n", 1)[0].split()[4:6]
    except OSError:
        return time.monotonic()
    return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK") + sum(os.times()[:4])
