"""The process directory: lies next to the database; the processes that use it find each other there.

    work.db-treadle/<name>.lock    locked by the process of that name for as long as it lives
    work.db-treadle/<name>.fifo    the pipe on which the process of that name gets wake-ups
    work.db-treadle/writer         locked by a process that waits for the write lock (see `write_lock`)

The kernel releases a lock when its process dies, by any cause. It is a POSIX lock, not `flock`: a forked
child of a dead worker would go on holding an `flock`. But a process loses its POSIX lock by closing *any*
descriptor of the file, so a process never opens its own lock file a second time.

Correctness does not depend on this directory. Without it, a dead worker is found when its lease has lapsed,
and new work is found by polling. So a directory in which another user could create files is not used. Its
files are opened relative to a descriptor of it, and symbolic links are not followed: it cannot be exchanged.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_log = logging.getLogger("treadle")

PROBE_EVERY = 0.25
SWEEP_EVERY = 60.0
SWEEP_AGE = 10.0
LONGEST_TICK = 100_000_000
"""Nanoseconds. The times of files are no more exact than this."""

NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)
"""A flag to open files: an error if it is a symbolic link."""
# Any: type checkers know the module only on the systems that have it.
_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

# The lock files of this process, by process id: a forked child holds none of its parent's locks.
_own_locks: set[tuple[int, str]] = set()


class ProcessDirectory:
    """One process's part of the directory. Its name is new for every opening."""

    def __init__(self, database: Path) -> None:
        self._directory = database.with_name(f"{database.name}-treadle")
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._folder: int | None = None
        """The descriptor of the directory."""
        self._lock: int | None = None
        self._next_probe = 0.0
        self._next_sweep = 0.0
        self._pipes: list[str] = []
        """The pipes of other processes, as they were when the directory was changed at `_pipes_at`."""
        self._pipes_at = 0
        self.lock_file: str | None = None
        """The name by which other processes can see that this one lives; None if they cannot."""

    def open(self) -> None:
        if _fcntl is None:
            return
        try:
            self._lock = self._create_lock()
            try_lock(self._lock)
            self.lock_file = self._name
            _own_locks.add((os.getpid(), self._name))
        except _UnsafeDirectory as error:
            _log.warning("treadle: no wake-ups between processes, %s is not used: %s", self._directory, error)
            self.close()
        except OSError as error:
            _log.info("treadle: no wake-ups between processes, %s cannot be used: %s", self._directory, error)
            self.close()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = self.lock_file = None
            _own_locks.discard((os.getpid(), self._name))
        if self._folder is not None:
            self._unlink(f"{self._name}.lock")
            self._unlink(f"{self._name}.fifo")
            self._remove_if_last()
            os.close(self._folder)
            self._folder = None

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
                self._unlink(f"{name}.lock")

    def _is_old(self, name: str) -> bool:
        """A file that was created but is not locked yet looks like that of a dead process."""
        try:
            found = os.stat(f"{name}.lock", dir_fd=self._folder, follow_symlinks=False)
            return time.time() - found.st_mtime > SWEEP_AGE
        except OSError:
            return False

    def _is_dead(self, name: str) -> bool:
        """A missing file proves nothing: it may have been removed by hand."""
        if (os.getpid(), name) in _own_locks:
            return False
        try:
            lock = self._open(f"{name}.lock", os.O_RDWR)
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
        file = f"{self._name}.fifo"
        try:
            os.mkfifo(file, 0o600, dir_fd=self._folder)
            # Read and write: with its own writer, the pipe never reports that its last writer has gone.
            return self._open(file, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            _log.info("treadle: %s cannot be used for wake-ups: %s", self._directory / file, error)
            return None

    def stop_listening(self, pipe: int) -> None:
        os.close(pipe)
        self._unlink(f"{self._name}.fifo")

    def other_pipes(self) -> list[str]:
        """The pipes of other processes that listen. The directory is read again when it has changed."""
        if self._folder is None:
            return []
        changed = os.fstat(self._folder).st_mtime_ns
        if changed != self._pipes_at:
            self._pipes = [f"{name}.fifo" for name in self._names("fifo") if name != self._name]
            # Another change within the same tick of the clock would leave the time as it is.
            self._pipes_at = changed if time.time_ns() - changed > LONGEST_TICK else 0
        return self._pipes

    def send(self, pipes: Iterable[str], message: bytes) -> None:
        """Write to these pipes. Never waits: a full pipe has wake-ups enough."""
        for file in pipes:
            self._send(file, message)

    def _send(self, file: str, message: bytes) -> None:
        try:
            pipe = self._open(file, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:
                # No process has it open for reading: its process is dead.
                self._unlink(file)
            return
        try:
            os.write(pipe, message)
        except OSError:
            return
        finally:
            os.close(pipe)

    # -- the write lock --------------------------------------------------------------------------------

    def open_waiting_file(self) -> int | None:
        """Open the file that shows that a process waits for the write lock; None if there can be none."""
        try:
            return None if self._lock is None else self._open("writer", os.O_RDWR | os.O_CREAT)
        except OSError:
            return None

    # -- files -----------------------------------------------------------------------------------------

    def _open(self, file: str, flags: int) -> int:
        return os.open(file, flags | os.O_CLOEXEC | NO_LINKS, 0o600, dir_fd=self._folder)

    def _unlink(self, file: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(file, dir_fd=self._folder)

    def _names(self, kind: str) -> Iterator[str]:
        if self._folder is None:
            return iter(())
        try:
            found = os.listdir(self._folder)  # noqa: PTH208  of the descriptor
        except OSError:
            return iter(())
        return (file[: -len(kind) - 1] for file in found if file.endswith(f".{kind}"))

    def _create_lock(self) -> int:
        while True:
            with contextlib.suppress(FileExistsError):
                self._directory.mkdir(mode=0o700)
            self._folder = _open_directory(self._directory)
            try:
                return self._open(f"{self._name}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileNotFoundError:
                # Another process has just removed the directory as the last one in it.
                os.close(self._folder)
                self._folder = None

    def _remove_if_last(self) -> None:
        if any(True for _ in self._names("lock")):
            return
        self._unlink("writer")
        with contextlib.suppress(OSError):
            self._directory.rmdir()


class _UnsafeDirectory(OSError):
    """Another user could change what is in the directory."""


def _open_directory(path: Path) -> int:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | NO_LINKS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _UnsafeDirectory("it is not a directory: remove it") from error
        raise
    found = os.fstat(folder)
    if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
        return folder
    os.close(folder)
    raise _UnsafeDirectory("it must belong to the user of this process, with mode 0700: remove it")


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
