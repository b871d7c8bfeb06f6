"""The tier of a test follows from what it uses, and a test that takes too long fails the run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.budget import Budget
from tests.support.tiers import (
    QUICK_ROOMS,
    is_class_left_out,
    memory_and_one_of,
    one_of,
    pairs_of,
    seeds,
    some_of,
    tier_of,
)

PROJECT = Path(__file__).parents[2]
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")


class Fake:
    """A collected test, as far as tiers look at it."""

    def __init__(self, *fixtures: str, path: str = "tests/engine/test_x.py", **params: object) -> None:
        self.nodeid = f"{path}::test_it[{'-'.join(map(str, params.values()))}]"
        self.fixturenames = fixtures
        indices = dict.fromkeys(params, 0)
        self.callspec = type("Callspec", (), {"params": params, "indices": indices})
        self.marks: dict[str, Any] = {}

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)


def tier(*fixtures: str, path: str = "tests/engine/test_x.py", **params: object) -> str:
    test: Any = Fake(*fixtures, path=path, **params)
    return tier_of(test)


def test_what_a_test_uses_decides_its_tier() -> None:
    assert tier("tmp_path") == "quick"
    assert tier("store", store="sqlite") == "quick"
    assert tier("store", store="redis") == "test"
    assert tier("warm_url", "postgres") == "test"
    assert tier("processes") == "test"
    assert tier("browser") == "test"
    assert tier("processes", "cluster") == "proof"
    assert tier("another_form") == "proof"
    assert tier(path="tests/chaos/test_kills.py") == "proof"


def test_a_test_runs_on_one_of_the_stores_and_later_on_the_others() -> None:
    tiers: dict[str, list[str]] = {}
    for number in range(30):
        for param in one_of("sqlite", "postgres", "redis"):
            (store,) = param.values
            test: Any = Fake(store=f"{number}-{store}")
            (test.marks["one_of"],) = param.marks
            tiers.setdefault(str(number), []).append(store if tier_of(test) != "proof" else "later")
    assert all(sorted(each)[:2] == ["later", "later"] for each in tiers.values())
    assert {store for each in tiers.values() for store in each} == {"later", "sqlite", "postgres", "redis"}


def test_the_engine_runs_in_memory_and_the_first_case_of_some_tests_on_another_store() -> None:
    """If it starts processes, in memory only. If the stores differ, each case on each of them."""
    memory, *others = memory_and_one_of("sqlite", "postgres", "redis")
    assert memory == "memory"

    def stores(*fixtures: str, name: int, case: int = 0, marks: tuple[str, ...] = ()) -> list[str]:
        """The other stores that `make test` runs a case on."""
        path = f"tests/engine/test_{name}.py"
        tests: list[Any] = [Fake(*fixtures, path=path, store=param.values[0], case=case) for param in others]
        for test, param in zip(tests, others, strict=True):
            test.callspec.indices["case"] = case
            test.marks = {"one_of": param.marks[0], **dict.fromkeys(marks, True)}
        return [test.callspec.params["store"] for test in tests if tier_of(test) != "proof"]

    found = [stores(name=name) for name in range(200)]
    assert {tuple(each) for each in found} == {(), ("sqlite",), ("postgres",), ("redis",)}
    assert 30 < sum(map(len, found)) < 70
    some = next(name for name, each in enumerate(found) if each)
    assert stores(name=some, case=1) == []
    assert stores("processes", name=some) == []
    assert stores("processes", name=some, case=1, marks=("every_store",)) == ["sqlite", "postgres", "redis"]


def test_the_first_seed_runs_and_later_the_others() -> None:
    first, *others = seeds(3)
    assert first == 0
    assert [(param.values, param.marks[0].name) for param in others] == [
        ((1,), "another_seed"),
        ((2,), "another_seed"),
    ]


def test_few_of_many_steps_run_and_later_the_others() -> None:
    assert [step for step in some_of(range(1, 6), 2, 5) if isinstance(step, int)] == [2, 5]
    later = [param for param in some_of(range(1, 6), 2, 5) if not isinstance(param, int)]
    assert [param.values for param in later] == [(1,), (3,), (4,)]
    assert {param.marks[0].name for param in later} == {"another_seed"}


def test_each_store_is_left_once_and_reached_once_and_later_by_all_ways() -> None:
    ways = [(each.values, bool(each.marks)) for each in pairs_of("sqlite", "postgres", "redis")]
    assert len(ways) == 6
    assert [way for way, is_later in ways if not is_later] == [
        ("sqlite", "postgres"),
        ("postgres", "redis"),
        ("redis", "sqlite"),
    ]


def test_a_class_that_uses_another_form_is_not_collected() -> None:
    left_out = pytest.mark.usefixtures("tmp_path", "another_form")(type("Left", (), {}))
    kept = pytest.mark.usefixtures("tmp_path")(type("Kept", (), {}))
    assert is_class_left_out(left_out, "test")
    assert not is_class_left_out(left_out, "proof")
    assert not is_class_left_out(kept, "test")
    assert not is_class_left_out(Fake, "test")


@pytest.mark.usefixtures("processes")
def test_a_test_that_starts_a_process_without_saying_so_fails(tmp_path: Path) -> None:
    done = run_one(tmp_path, "import subprocess, sys\ndef test_it(): subprocess.run([sys.executable, '-V'])")
    assert "starts a process: let it use the fixture `processes`" in done.stdout


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("seconds", "code"), [(1.1, 0), (2.1, 1)])
def test_a_test_that_takes_too_long_is_named_and_twice_as_long_fails_the_run(
    seconds: float, code: int, tmp_path: Path
) -> None:
    busy = f"""
import time
def test_it():
    until = time.process_time() + {seconds}
    while time.process_time() < until:
        pass
"""
    done = run_one(tmp_path, busy)
    assert done.returncode == code, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    took = r"test_it\.py::test_it took [12]\.\d s, and 1 s are allowed \(tests/budget"
    assert re.search(took, done.stdout)


@pytest.mark.usefixtures("processes")
def test_a_test_that_took_too_long_beside_others_is_measured_alone(tmp_path: Path) -> None:
    """Here it takes long once only."""
    slow = """
import pathlib, time
def test_it():
    if not pathlib.Path("ran").exists():
        pathlib.Path("ran").touch()
        time.sleep(1.1)
def test_beside(): pass
"""
    done = run_one(tmp_path, slow, "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ran").exists()


def run_one(directory: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test with the fixtures and hooks of all tests."""
    (directory / "conftest.py").write_text("from tests.conftest import *")
    path = directory / "tests" / "engine" / "test_it.py"
    path.parent.mkdir(parents=True)
    path.write_text(test)
    return subprocess.run(
        [*PYTEST, "--rootdir", str(directory), "--tier", "quick", *options, str(path)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def test_make_quick_runs_the_rooms_with_a_limit_of_its_own() -> None:
    assert f"QUICK := {' '.join(QUICK_ROOMS)}\n" in (PROJECT / "Makefile").read_text()


def test_time_without_a_core_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says how long each thread waited for one: here one that is not the main thread."""
    waited = tmp_path / "threads" / "2" / "schedstat"
    waited.parent.mkdir(parents=True)
    monkeypatch.setattr("tests.support.budget.THREADS", tmp_path / "threads")
    monkeypatch.setattr("time.monotonic", ticking(3.0))
    monkeypatch.setenv("TREADLE_TEST_CHOICE", "test")
    test: Any = Fake()
    for nanoseconds, overruns in ((0, 1), (2_500_000_000, 1)):
        waited.write_text("0 0 0")
        budget = Budget(tmp_path, jobs=2)
        with budget.measured(test):
            waited.write_text(f"0 {nanoseconds} 0")
        assert len(budget.overruns()) == overruns


def test_time_in_which_others_had_all_cores_does_not_count_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of the test waited for a core, and the test for the process."""
    cores = tmp_path / "stat"
    monkeypatch.setattr("tests.support.budget.CORES", cores)
    monkeypatch.setattr("tests.support.budget.THREADS", tmp_path / "none")
    monkeypatch.setattr("time.monotonic", ticking(3.0))
    monkeypatch.setenv("TREADLE_TEST_CHOICE", "test")
    test: Any = Fake()
    for is_free, is_alone, overruns in (
        (True, False, 1),
        (False, False, 2),
        (False, True, 0),
        (True, True, 1),
    ):
        cores.write_text("cpu  9 0 9 0 0 0\n")
        budget = Budget(tmp_path, jobs=2)
        if is_alone:
            budget.measure_again()
        with budget.measured(test):
            cores.write_text(f"cpu  9 0 9 {is_free * 400} 0 0\n")
        assert len(budget.overruns()) == overruns


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by this much each time it is asked."""
    now = iter(n * seconds for n in range(1000))
    return lambda: next(now)


def test_every_entry_of_the_budget_names_a_test_and_a_reason() -> None:
    for entry in Budget.entries():
        path, *_, name = entry["test"].split("::")
        cases = (PROJECT / "src" / "treadle" / "testing" / "contract").glob("*.py")
        files = [PROJECT / path, *cases]
        assert any(f"def {name}(" in file.read_text() for file in files), entry
        assert entry["why"].strip()
