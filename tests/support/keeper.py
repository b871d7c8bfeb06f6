"""Starts the servers of a test run, and stops them when the run has ended without doing so.

`start_postgres` runs this file as a program, which ends when the server answers. It leaves a copy of itself,
the keeper, which has no terminal and no parent, so that a signal that kills the run does not kill it too.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import postgres
from tests.support.run import locked, remove, wait_for_end

PROJECT = Path(__file__).parents[2]


def start_postgres(directory: Path) -> str:
    """The URL of the run's PostgreSQL. The first caller starts it."""
    url = directory / "postgres.url"
    with locked(directory / "starting"):
        if not url.exists():
            _start(directory)
        return url.read_text()


def _start(directory: Path) -> None:
    program = [sys.executable, "-m", "tests.support.keeper", str(directory)]
    done = subprocess.run(
        program, cwd=PROJECT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"PostgreSQL did not start:\n{done.stdout}{done.stderr}")


def main(directory: Path) -> None:
    """Start the server, leave a keeper, and write the URL."""
    url = postgres.start(directory)
    _leave_keeper(directory)
    (directory / "postgres.url").write_text(url)


def _leave_keeper(directory: Path) -> None:
    pid = os.fork()
    if pid == 0:
        _detach()
        wait_for_end(directory)
        remove(directory)
        os._exit(0)
    (directory / "keeper.pid").write_text(str(pid))


def _detach() -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
