"""Beside: a directory next to the database in which its processes find each other.

    work.db-treadle/<name>.lock    locked by the process of that name for as long as it lives
    work.db-treadle/<name>.fifo    where the process of that name listens for signals
    work.db-treadle/writer         locked by whoever waits for the write lock (see `turn`)

The kernel lets go of a lock when its process dies, however it dies. It is a POSIX lock, not `flock`: a child
that a dead worker has forked would go on holding the latter. But then a process loses it by closing *any*
descriptor of the file, so no process ever opens its own lock file a second time.

Nothing of this is needed for correctness: without it a death is found when the lease has lapsed, and work
is found by polling.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import locks

_log = logging.getLogger("treadle")

PROBE_EVERY = 0.25
SWEEP_EVERY = 60.0
OLD = 10.0

# The lock files of this process, by the process: a forked child holds none of its parent's.
_held: set[tuple[int, str]] = set()


class Beside:
    """One process's part of the directory. A name is new for every opening."""

    def __init__(self, database: Path) -> None:
        self.directory = database.with_name(f"{database.name}-treadle")
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._lock: int | None = None
        self._next_probe = 0.0
        self._next_sweep = 0.0

    @property
    def lock(self) -> str | None:
        """The name under which others can see that this process lives; None if they cannot."""
        return None if self._lock is None else self.name

    @property
    def sign(self) -> Path | None:
        """See `turn`."""
        return None if self._lock is None else self.directory / "writer"

    def open(self) -> None:
        if not locks.AVAILABLE:
            return
        try:
            self._lock = self._create_lock()
            locks.try_lock(self._lock)
            _held.add((os.getpid(), self.name))
        except OSError as error:
            _log.info("treadle: no wake-ups between processes, %s cannot be used: %s", self.directory, error)
            self.close()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _held.discard((os.getpid(), self.name))
        self._path("lock").unlink(missing_ok=True)
        self._path("fifo").unlink(missing_ok=True)
        self._remove_if_last()

    # -- who lives -------------------------------------------------------------------------------------

    def is_time_to_look(self) -> bool:
        """Now and then it is."""
        if self._lock is None or time.monotonic() < self._next_probe:
            return False
        self._next_probe = time.monotonic() + PROBE_EVERY
        return True

    def dead_among(self, names: Iterable[str]) -> list[str]:
        """Those of these processes that have died."""
        return [name for name in names if self._is_free(name)]

    def sweep(self, names: Iterable[str]) -> None:
        """Remove the lock files of the dead that nobody asks about any more; `names` are asked about."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + SWEEP_EVERY
        for name in set(self._names("lock")) - set(names):
            if self._is_old(name) and self._is_free(name):
                self._path("lock", name).unlink(missing_ok=True)

    def _is_old(self, name: str) -> bool:
        """Between creating a file and locking it, it looks like one of the dead."""
        try:
            return time.time() - self._path("lock", name).stat().st_mtime > OLD
        except OSError:
            return False

    def _is_free(self, name: str) -> bool:
        """A file that is missing says nothing: somebody may have tidied up."""
        if (os.getpid(), name) in _held:
            return False
        try:
            lock = os.open(self._path("lock", name), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return locks.try_lock(lock)
        finally:
            os.close(lock)

    # -- who listens -----------------------------------------------------------------------------------

    def listen(self) -> int | None:
        """A descriptor on which messages to this process arrive; None if that cannot be."""
        if self._lock is None:
            return None
        path = self._path("fifo")
        try:
            os.mkfifo(path, 0o600)
            # Read and write: with a writer of its own, it never looks as if the last writer had gone.
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            _log.info("treadle: %s cannot be used for wake-ups: %s", path, error)
            return None

    def hang_up(self, listening: int) -> None:
        os.close(listening)
        self._path("fifo").unlink(missing_ok=True)

    def tell_others(self, message: bytes) -> None:
        """Write to whoever listens. Never waits: a full pipe has wake-ups enough."""
        for name in self._names("fifo"):
            if name != self.name:
                self._tell(self._path("fifo", name), message)

    def _tell(self, path: Path, message: bytes) -> None:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENXIO:
                # Nobody has it open for reading: its process is dead.
                path.unlink(missing_ok=True)
            return
        try:
            os.write(pipe, message)
        except OSError:
            return
        finally:
            os.close(pipe)

    # -- files -----------------------------------------------------------------------------------------

    def _path(self, kind: str, name: str | None = None) -> Path:
        return self.directory / f"{name or self.name}.{kind}"

    def _names(self, kind: str) -> Iterator[str]:
        try:
            found = os.listdir(self.directory)  # noqa: PTH208  called for every signal: no detour
        except OSError:
            return iter(())
        return (entry[: -len(kind) - 1] for entry in found if entry.endswith(f".{kind}"))

    def _create_lock(self) -> int:
        while True:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            try:
                return os.open(self._path("lock"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                # The last one before us has just removed the directory.
                continue

    def _remove_if_last(self) -> None:
        if any(True for _ in self._names("lock")):
            return
        with contextlib.suppress(OSError):
            (self.directory / "writer").unlink(missing_ok=True)
            self.directory.rmdir()
