"""Starts the servers of a run, and stays to stop them when the run has ended, if nobody else did.

`start_postgres` runs this file as a program. It ends when the server answers; the copy of itself
that it leaves behind belongs to no terminal and to no parent, so that what kills the run does not
kill it too.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import postgres
from tests.support.run import locked, remove, wait_for_end

PROJECT = Path(__file__).parents[2]


def start_postgres(directory: Path) -> str:
    """The address of the run's PostgreSQL, which the first caller starts."""
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
    """Start the server, write its address, and leave a keeper."""
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
