"""Shared by the peers' files: the store, and a log of the jobs that ran."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

URL = os.environ.get("PEERS_URL", "memory://")
"""The store."""

WORKER = int(os.environ.get("PEERS_WORKER", "0"))
"""Which of several workers this is, from 1; 0 in the process that measures."""

PROCESSES = int(os.environ.get("PEERS_PROCESSES", "1"))
"""How many processes run jobs together."""

PATIENCE = 10.0
"""Seconds for which the first of them waits for the others."""

TICKS = Path(os.environ.get("PEERS_TICKS", os.devnull))
_RECORD = struct.Struct("=dQ")


def tick() -> None:
    """The body of every no-op: it records the time and the process.

    It writes 16 bytes to a file in memory, which takes about a microsecond and is atomic across threads,
    forks and programs.
    """
    os.write(_file(), _RECORD.pack(time.monotonic(), os.getpid()))


@cache
def _file() -> int:
    _wait_for_all()
    return os.open(TICKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _wait_for_all() -> None:
    """Processes that run together start together: the first job of each waits for the others."""
    TICKS.with_suffix(f".{os.getpid()}").touch()
    until = time.monotonic() + PATIENCE
    while len(list(TICKS.parent.glob(f"{TICKS.stem}.*"))) < PROCESSES and time.monotonic() < until:
        time.sleep(0.001)


def clear() -> None:
    for file in TICKS.parent.glob(f"{TICKS.stem}.*"):
        file.unlink()
    TICKS.write_bytes(b"")


def count() -> int:
    return TICKS.stat().st_size // _RECORD.size


def ticks(start: int = 0) -> list[tuple[float, int]]:
    """The time of each run, by a clock that all processes of the machine share, and its process."""
    with TICKS.open("rb") as file:
        file.seek(start * _RECORD.size)
        return list(_RECORD.iter_unpack(file.read()))


def batches(numbers: range, size: int) -> Iterator[range]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
