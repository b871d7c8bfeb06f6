"""The process directory: lies next to the database; the processes that use it find each other there.

    work.db-treadle/<name>.lock    locked by the process of that name for as long as it lives
    work.db-treadle/<name>.fifo    the pipe on which the process of that name gets wake-ups
    work.db-treadle/writer         locked by a process that waits for the write lock (see `write_lock`)

The kernel releases a lock when its process dies, by any cause. It is a POSIX lock, not `flock`: a forked
child of a dead worker would go on holding an `flock`. But a process loses its POSIX lock by closing *any*
descriptor of the file, so a process never opens its own lock file a second time.

Correctness does not depend on this directory. Without it, a dead worker is found when its lease has lapsed,
and new work is found by polling.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_log = logging.getLogger("treadle")

PROBE_EVERY = 0.25
SWEEP_EVERY = 60.0
SWEEP_AGE = 10.0

# Any: type checkers know the module only on the systems that have it.
_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

# The lock files of this process, by process id: a forked child holds none of its parent's locks.
_own_locks: set[tuple[int, str]] = set()


class ProcessDirectory:
    """One process's part of the directory. Its name is new for every opening."""

    def __init__(self, database: Path) -> None:
        self._directory = database.with_name(f"{database.name}-treadle")
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._lock: int | None = None
        self._next_probe = 0.0
        self._next_sweep = 0.0
        self.lock_file: str | None = None
        """The name by which other processes can see that this one lives; None if they cannot."""

    @property
    def waiting_file(self) -> Path | None:
        """The file that shows that a process waits for the write lock."""
        return None if self._lock is None else self._directory / "writer"

    def open(self) -> None:
        if _fcntl is None:
            return
        try:
            self._lock = self._create_lock()
            try_lock(self._lock)
            self.lock_file = self._name
            _own_locks.add((os.getpid(), self._name))
        except OSError as error:
            _log.info("treadle: no wake-ups between processes, %s cannot be used: %s", self._directory, error)
            self.close()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = self.lock_file = None
            _own_locks.discard((os.getpid(), self._name))
        self._path("lock").unlink(missing_ok=True)
        self._path("fifo").unlink(missing_ok=True)
        self._remove_if_last()

    # -- which processes live --------------------------------------------------------------------------

    def probe_is_due(self) -> bool:
        """Whether it is time to look for dead processes again."""
        if self._lock is None or time.monotonic() < self._next_probe:
            return False
        self._next_probe = time.monotonic() + PROBE_EVERY
        return True

    def dead_among(self, names: Iterable[str]) -> list[str]:
        """Those of these processes that have died."""
        return [name for name in names if self._is_dead(name)]

    def sweep(self, names: Iterable[str]) -> None:
        """Remove the lock files of dead processes, except those in `names`, which are still asked about."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + SWEEP_EVERY
        for name in set(self._names("lock")) - set(names):
            if self._is_old(name) and self._is_dead(name):
                self._path("lock", name).unlink(missing_ok=True)

    def _is_old(self, name: str) -> bool:
        """A file that was created but is not locked yet looks like that of a dead process."""
        try:
            return time.time() - self._path("lock", name).stat().st_mtime > SWEEP_AGE
        except OSError:
            return False

    def _is_dead(self, name: str) -> bool:
        """A missing file proves nothing: it may have been removed by hand."""
        if (os.getpid(), name) in _own_locks:
            return False
        try:
            lock = os.open(self._path("lock", name), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return try_lock(lock)
        finally:
            os.close(lock)

    # -- wake-ups --------------------------------------------------------------------------------------

    def listen(self) -> int | None:
        """Open the pipe of this process. Return its descriptor; None if there can be no pipe."""
        if self._lock is None:
            return None
        path = self._path("fifo")
        try:
            os.mkfifo(path, 0o600)
            # Read and write: with its own writer, the pipe never reports that its last writer has gone.
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            _log.info("treadle: %s cannot be used for wake-ups: %s", path, error)
            return None

    def stop_listening(self, pipe: int) -> None:
        os.close(pipe)
        self._path("fifo").unlink(missing_ok=True)

    def send_to_others(self, message: bytes) -> None:
        """Write to every other process that listens. Never waits: a full pipe has wake-ups enough."""
        for name in self._names("fifo"):
            if name != self._name:
                _send(self._path("fifo", name), message)

    # -- files -----------------------------------------------------------------------------------------

    def _path(self, kind: str, name: str | None = None) -> Path:
        return self._directory / f"{name or self._name}.{kind}"

    def _names(self, kind: str) -> Iterator[str]:
        try:
            found = os.listdir(self._directory)  # noqa: PTH208  called for every wake-up, and faster
        except OSError:
            return iter(())
        return (file[: -len(kind) - 1] for file in found if file.endswith(f".{kind}"))

    def _create_lock(self) -> int:
        while True:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            try:
                return os.open(self._path("lock"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                # Another process has just removed the directory as the last one in it.
                continue

    def _remove_if_last(self) -> None:
        if any(True for _ in self._names("lock")):
            return
        with contextlib.suppress(OSError):
            (self._directory / "writer").unlink(missing_ok=True)
            self._directory.rmdir()


def _send(path: Path, message: bytes) -> None:
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            # No process has it open for reading: its process is dead.
            path.unlink(missing_ok=True)
        return
    try:
        os.write(pipe, message)
    except OSError:
        return
    finally:
        os.close(pipe)


def try_lock(file: int) -> bool:
    """Lock the whole file unless another process has it locked. A process may lock it repeatedly."""
    if _fcntl is None:
        return False
    try:
        _fcntl.lockf(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(file: int) -> None:
    if _fcntl is not None:
        _fcntl.lockf(file, _fcntl.LOCK_UN)
