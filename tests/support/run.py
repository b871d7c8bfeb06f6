"""One run of the tests, and the directory in which its servers live.

Servers outlive the process that starts them (any worker of pytest-xdist may be the first to need
one), so something else has to tell when they are no longer wanted. That is a lock: the process that
began the run holds `alive` until it ends, in whatever way it ends. When it ends well it removes the
directory itself. When it is killed, the keeper that stands beside the servers (keeper.py) gets the
lock and removes the directory instead. When all of it is killed at once, `sweep` at the start of
the next run finds a directory whose lock is free.

The lock is `lockf` and not `flock`: a child forked by a test must not keep its dead parent's lock.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.support import postgres
from tests.support.unprivileged import reachable

PREFIX = "treadle-run-"
OWN = "own-"
"""How the directories of servers begin that a single test has for itself, within that of the run."""


class Run:
    """A run of the tests. The process that calls `begin` owns it."""

    def __init__(self, directory: Path, alive: IO[str]) -> None:
        self.directory = directory
        self._alive = alive

    @classmethod
    def begin(cls) -> "Run":
        """Make a directory for this run, after removing those of runs that were killed."""
        sweep()
        # Locked before it gets the name that others sweep.
        unnamed = Path(tempfile.mkdtemp(prefix="treadle-new-", dir=_home()))
        unnamed.chmod(0o755)
        alive = (unnamed / "alive").open("w")
        fcntl.lockf(alive, fcntl.LOCK_EX)
        directory = unnamed.with_name(PREFIX + unnamed.name.removeprefix("treadle-new-"))
        return cls(unnamed.rename(directory), alive)

    def end(self) -> None:
        """Stop the run's servers and remove all trace of it."""
        remove(self.directory)
        self._alive.close()


def remove(directory: Path) -> None:
    """Stop the servers of a run, and remove its directory."""
    for home in (directory, *directory.glob(f"{OWN}*")):
        postgres.stop(home)
    shutil.rmtree(directory, ignore_errors=True)


def sweep() -> None:
    """Remove the directories of runs that nobody owns any more.

    Not to be called by a process that owns a run: closing any handle on a file gives up its locks.
    """
    for alive in _home().glob(f"{PREFIX}*/alive"):
        with _claimed(alive) as orphaned:
            if orphaned:
                remove(alive.parent)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """One process at a time."""
    with path.open("a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def wait_for_end(directory: Path) -> None:
    """Return when the process that began the run has ended."""
    with (directory / "alive").open("r+") as alive:
        fcntl.lockf(alive, fcntl.LOCK_EX)


@contextmanager
def _claimed(alive: Path) -> Generator[bool]:
    """Whether the owner is gone; if so, hold its lock meanwhile."""
    try:
        file = alive.open("r+")
    except OSError:  # someone else's, or just removed
        yield False
        return
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def _home() -> Path:
    home = Path(tempfile.gettempdir())
    return home if reachable(home) else Path("/tmp")
