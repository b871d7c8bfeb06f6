"""Each pair of programs in examples/moving, with real workers of both libraries at once on one server: both
print the same. `make moving` installs the libraries and runs all of them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.moving.pairs import ENVIRONMENT, PAIRS, Pair
from tests.support.valkey import ValkeyServer, free_ports

SOURCE = Path(__file__).parents[2] / "src"
REQUIRED = bool(os.environ.get("TREADLE_MOVING"))
"""`make moving`: a library that is missing is a failure."""
PATIENCE = 150


@pytest.fixture(scope="module")
def server(valkey_home: Path) -> Iterator[ValkeyServer]:
    """A server that listens on a port: not every library takes the path of a socket."""
    (port,) = free_ports(1)
    server = ValkeyServer(valkey_home / "valkey-moving", port)
    server.start()
    yield server
    server.remove()


@pytest.fixture
def url(pair: Pair, request: pytest.FixtureRequest) -> str:
    if pair.store == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    server: ValkeyServer = request.getfixturevalue("server")
    return f"{server.url}/{PAIRS.index(pair)}"


@pytest.fixture
def folder(pair: Pair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair.folder, tmp_path / "program"))


def runs_here(pair: Pair) -> None:
    """Skip the test unless the other library is installed."""
    if not pair.is_installed:
        problem = f"{pair.package or pair.name} is not installed: `make moving` installs it"
        pytest.fail(problem) if REQUIRED else pytest.skip(problem)


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_both_programs_print_the_same(pair: Pair, request: pytest.FixtureRequest) -> None:
    runs_here(pair)
    url: str = request.getfixturevalue("url")
    folder: Path = request.getfixturevalue("folder")
    before, after = Side(folder, url, pair.environment), Side(folder, url, ENVIRONMENT)
    for command in pair.prepare:
        before.run(command)
    with ExitStack() as stack:
        stack.enter_context(before.worker(pair.worker, "before"))
        stack.enter_context(after.worker(pair.after_worker, "after"))
        programs = [before.start(pair.program), after.start(pair.after_program)]
        shown = [output(each, folder) for each in programs]
        if pair.name == "celery":
            shown.append(output(after.start("python between.py"), folder))
    assert shown == [list(pair.lines)] * len(shown)


class Side:
    """One of the two libraries: its environment, in a folder with the programs."""

    def __init__(self, folder: Path, url: str, environment: Path) -> None:
        self._folder = folder
        self._url = url
        self._environment = environment

    def start(self, command: str, output: int | None = None) -> psutil.Popen:
        name, *rest = shlex.split(command.format(url=shlex.quote(self._url)))
        known = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TREADLE", "PYTEST", "COV"))
        }
        path = f"{self._environment / 'bin'}{os.pathsep}{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return psutil.Popen(
            [shutil.which(name, path=path) or name, *rest],
            cwd=self._folder,
            env={**known, "PATH": path, "STORE_URL": self._url, "PYTHONPATH": str(SOURCE)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE if output is None else output,
            text=True,
        )

    def run(self, command: str) -> None:
        process = self.start(command)
        told, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"{command}\n{told}\n{errors}"

    @contextmanager
    def worker(self, command: str, name: str) -> Iterator[None]:
        """A worker and all of its processes, until the end of the block."""
        with (self._folder / f"{name}.log").open("w") as log:
            process = self.start(command, log.fileno())
            try:
                yield
            finally:
                end(process)


def output(process: psutil.Popen, folder: Path) -> list[str]:
    """The lines that a program prints. If it fails: what it and the workers said."""
    try:
        shown, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        shown, errors = process.communicate()
        errors += "\nit did not end in time"
    logs = "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in folder.glob("*.log"))
    assert process.returncode == 0, f"{shown}\n{errors[-3000:]}\n{logs}"
    return shown.splitlines()


def end(process: psutil.Popen) -> None:
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        family = [process]
    if process.poll() is None:
        process.terminate()
    _, alive = psutil.wait_procs(family, timeout=1)
    for each in alive:
        each.kill()
    psutil.wait_procs(alive, timeout=5)
    process.wait()
