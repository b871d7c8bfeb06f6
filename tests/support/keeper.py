"""Starts the servers of a test run, and stops them when the run has ended without doing so.

`start_server` runs this file as a program, which ends when the server answers. It leaves a copy of itself,
the keeper, which has no terminal and no parent, so that a signal that kills the run does not kill it too.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import nats, postgres, valkey
from tests.support.run import locked, remove, wait_for_end

PROJECT = Path(__file__).parents[2]


STARTS = {"nats": nats.start, "postgres": postgres.start, "valkey": valkey.start}
"""What starts each kind of server in the directory of a run, and returns its URL."""


def start_postgres(directory: Path) -> str:
    """The URL of the run's PostgreSQL. The first caller starts it."""
    return start_server(directory, "postgres")


def start_server(directory: Path, kind: str) -> str:
    """The URL of one of the run's servers. The first caller starts it."""
    url = directory / f"{kind}.url"
    with locked(directory / "starting"):
        if not url.exists():
            _start(directory, kind)
        return url.read_text()


def _start(directory: Path, kind: str) -> None:
    program = [sys.executable, "-m", "tests.support.keeper", str(directory), kind]
    done = subprocess.run(
        program, cwd=PROJECT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{kind} did not start:\n{done.stdout}{done.stderr}")


def main(directory: Path, kind: str) -> None:
    """Start the server, leave a keeper, and write the URL."""
    url = STARTS[kind](directory)
    _leave_keeper(directory)
    (directory / f"{kind}.url").write_text(url)


def _leave_keeper(directory: Path) -> None:
    """One keeper is enough for all servers of a run."""
    note = directory / "keeper.pid"
    if note.exists():
        return
    pid = os.fork()
    if pid == 0:
        _detach()
        wait_for_end(directory)
        remove(directory)
        os._exit(0)
    note.write_text(str(pid))


def _detach() -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
