"""One run of the tests, and the directory in which its servers live.

Servers outlive the process that starts them, because any worker of pytest-xdist may be the first to need
one. A lock tells when they are no longer needed: the process that began the run holds `alive` until it ends.
If it ends normally, it removes the directory. If it is killed, the keeper (keeper.py) gets the lock and
removes the directory. If both are killed, `sweep` at the start of the next run finds a free lock.

The lock is `lockf`, not `flock`: a child that a test forks must not keep the lock of its dead parent.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.support import nats, postgres, valkey
from tests.support.unprivileged import reachable

PREFIX = "treadle-run-"
MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes that must be free there."""
OWN = "own-"
"""The prefix of directories, within that of the run, for servers that only one test uses."""


class Run:
    """A run of the tests. The process that calls `begin` owns it."""

    def __init__(self, directory: Path, alive: IO[str]) -> None:
        self.directory = directory
        self._alive = alive

    @classmethod
    def begin(cls, *, in_memory: bool = False) -> "Run":
        """Create a directory for this run. Remove those of killed runs. `in_memory`: for tests, which need no
        disk, if the machine has room for it."""
        sweep()
        # Lock it before it gets the name that `sweep` of other runs looks for.
        unnamed = Path(tempfile.mkdtemp(prefix="treadle-new-", dir=(in_memory and memory()) or _home()))
        unnamed.chmod(0o755)
        alive = (unnamed / "alive").open("w")
        fcntl.lockf(alive, fcntl.LOCK_EX)
        directory = unnamed.with_name(PREFIX + unnamed.name.removeprefix("treadle-new-"))
        return cls(unnamed.rename(directory), alive)

    def end(self) -> None:
        """Stop the servers of the run and remove its directory."""
        remove(self.directory)
        self._alive.close()


def remove(directory: Path) -> None:
    """Stop the servers of a run and remove its directory."""
    for home in (directory, *directory.glob(f"{OWN}*")):
        postgres.stop(home)
        valkey.stop(home)
        nats.stop(home)
    shutil.rmtree(directory, ignore_errors=True)


def sweep() -> None:
    """Remove the directories of runs whose process has ended.

    A process that owns a run must not call this: closing any handle on a file releases its locks.
    """
    for home in (_home(), MEMORY):
        for alive in home.glob(f"{PREFIX}*/alive"):
            with _claimed(alive) as abandoned:
                if abandoned:
                    remove(alive.parent)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold an exclusive lock between processes."""
    with path.open("a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def wait_for_end(directory: Path) -> None:
    """Return when the process that began the run has ended."""
    with (directory / "alive").open("r+") as alive:
        fcntl.lockf(alive, fcntl.LOCK_EX)


@contextmanager
def _claimed(alive: Path) -> Generator[bool]:
    """Whether the owner has ended. If so, hold its lock within the block."""
    try:
        file = alive.open("r+")
    except OSError:  # of another user, or just removed
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


def memory() -> Path | None:
    """A directory in memory. There a new database takes a tenth of the processor time: it has 350 files."""
    if os.environ.get("TREADLE_TEST_PG_FSYNC") or not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    space = os.statvfs(MEMORY)
    fits = space.f_bavail * space.f_frsize >= ROOM and not space.f_flag & os.ST_NOEXEC
    return MEMORY if fits and reachable(MEMORY) else None
