"""Tests in several processes, with a real pytest: each runs once, and a process that dies is replaced."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.jobs import SHARING as MOST
from tests.support.jobs import chunks_of

PROJECT = Path(__file__).parents[2]
CONFTEST = """
import pytest
from tests.support import jobs

def pytest_addoption(parser):
    parser.addoption("--jobs", type=int, default=1)

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    return jobs.run(session)
"""
MANY = """
import os, pathlib, pytest

@pytest.mark.parametrize("n", range(100))
def test_it(n):
    with pathlib.Path("ran").open("a") as file:
        print(n, os.getpid(), file=file)
"""
DYING = """
import os, pathlib, pytest

@pytest.mark.parametrize("n", range(40))
def test_it(n):
    if n == 5:
        os._exit(3)
    with pathlib.Path("ran").open("a") as file:
        print(n, os.getpid(), file=file)
"""
FAILING = """
import pytest

@pytest.mark.parametrize("n", range(200))
def test_it(n):
    print("shown of", n)
    assert n != 7
"""
SHARING = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def shared():
    with pathlib.Path("made").open("a") as file:
        print(os.getpid(), file=file)

@pytest.mark.parametrize("n", range(60))
def test_with_it(n, shared):
    with pathlib.Path("ran").open("a") as file:
        print(n, os.getpid(), file=file)

@pytest.mark.parametrize("n", range(60))
def test_without_it(n):
    with pathlib.Path("ran").open("a") as file:
        print(60 + n, os.getpid(), file=file)
"""
STORES = """
import os, pathlib, pytest, time

@pytest.fixture(scope="session")
def postgres():
    pass

def note(kind, other):
    with pathlib.Path("ran").open("a") as file:
        print(kind, os.getpid(), file=file)
    while other not in pathlib.Path("ran").read_text():
        time.sleep(0.01)

@pytest.mark.parametrize("n", range(20))
def test_with_it(n, postgres):
    note("server", "alone")

@pytest.mark.parametrize("n", range(20))
def test_without_it(n):
    note("alone", "server")
"""

pytestmark = pytest.mark.usefixtures("processes")


def run(directory: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_it.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--jobs", "3", *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_test_runs_once_in_one_of_the_processes(tmp_path: Path) -> None:
    done = run(tmp_path, MANY)
    assert re.search(r"\b100 passed", done.stdout), done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(int(n) for n, _ in ran) == list(range(100))
    assert len({pid for _, pid in ran}) > 1


def test_a_fixture_of_a_module_is_set_up_in_one_process(tmp_path: Path) -> None:
    done = run(tmp_path, SHARING)
    assert re.search(r"\b120 passed", done.stdout), done.stdout + done.stderr
    assert len((tmp_path / "made").read_text().splitlines()) == 1
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(int(n) for n, _ in ran) == list(range(120))
    assert len({pid for _, pid in ran}) > 1


def test_half_of_the_processes_run_tests_with_postgresql(tmp_path: Path) -> None:
    """Each of these has databases of its own. Then they run what is left."""
    done = run(tmp_path, STORES, "--jobs", "2")
    assert re.search(r"\b40 passed", done.stdout), done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    first = {pid: kind for kind, pid in reversed(ran)}
    assert sorted(first.values()) == ["alone", "server"]


class Fake:
    """A collected test, as far as chunks look at it."""

    def __init__(self, file: str, *scopes: str) -> None:
        self.path, self.nodeid = file, f"tests/engine/{file}::test_it"
        fixtures = {scope: [SimpleNamespace(scope=scope)] for scope in scopes}
        self._fixtureinfo = SimpleNamespace(name2fixturedefs=fixtures)

    def get_closest_marker(self, name: str) -> None:
        """It has none."""


def test_long_chunks_begin_first_and_have_a_limit() -> None:
    """Otherwise one process is busy with them when the others have nothing left."""
    tests: Any = [Fake("a"), *(Fake("b", "module") for _ in range(MOST + 100)), Fake("c")]
    chunks = [(str(chunk[0].path), len(chunk)) for chunk in chunks_of(tests)]
    assert chunks == [("b", MOST), ("b", 100), ("a", 1), ("c", 1)]


def test_times_of_set_ups_are_reported_if_asked(tmp_path: Path) -> None:
    """Otherwise only the results are."""
    assert "setup" in run(tmp_path, SHARING, "--durations", "0", "-vv").stdout
    assert "setup" not in run(tmp_path, SHARING, "-vv").stdout


def test_a_process_that_dies_fails_its_test_only(tmp_path: Path) -> None:
    """Another process runs the tests that it had taken."""
    done = run(tmp_path, DYING)
    assert re.search(r"\b1 failed, 39 passed", done.stdout), done.stdout + done.stderr
    assert "the process of this test ended with 3" in done.stdout
    assert done.returncode == 1


def test_the_first_failure_ends_the_run_if_asked(tmp_path: Path) -> None:
    """The report has what the test printed, and no output of others."""
    done = run(tmp_path, FAILING, "-x")
    assert done.returncode == 1
    assert re.search(r"\b1 failed, \d+ passed", done.stdout), done.stdout + done.stderr
    assert re.findall(r"shown of \d+", done.stdout) == ["shown of 7"]
    assert "stopping after 1 failures" in done.stdout


def test_a_process_that_a_test_spawns_does_not_import_pytest() -> None:
    """It would import the main module of its parent, which takes as long as treadle itself."""
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(eval, ("'_pytest' in __import__('sys').modules",)) is False
