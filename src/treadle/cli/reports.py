"""Reports: what a child tells its supervisor, over a pipe: its counts, and what it runs.

A child writes at most one report a second, and none if nothing has changed. A report has all counts since the
start of the process, so only the last one matters. If the supervisor reads too slowly, the child leaves
reports out. It never waits for the supervisor.

In the pipe, four bytes with the length come before each report.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from treadle.metrics import Metrics
from treadle.metrics.names import METRICS
from treadle.metrics.rows import MetricRow, merged_rows, rows_of_ended

INTERVAL = 1.0
"""Seconds between two reports of a child."""
PORTION = 0.05
"""Seconds until a child tries again to write the rest of a report that the pipe had no room for."""
LAST_REPORT = 1.0
"""Seconds that a child which ends takes to write its last report, if the pipe is full."""
COUNTERS = tuple(metric.name for metric in METRICS if metric.kind == "counter")
_LENGTH = struct.Struct("<I")
_CHUNK = 65536


class ChildReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a child has done since its start. All fields have defaults: a child of an earlier version may
    know fewer."""

    counts: dict[str, dict[str, float]] = {}
    """The counters of `treadle.metrics`, by type and by the name of the metric."""
    running: int = 0
    """How many items it runs, or is about to run."""
    rows: list[MetricRow] = []
    """All its metrics, if the supervisor serves them."""

    def total(self, counter: str) -> int:
        """The value of a counter, for all types."""
        return int(sum(counts.get(counter, 0) for counts in self.counts.values()))


def make_report(metrics: Metrics, running: int, *, rows: bool = False) -> ChildReport:
    """The report of this process. rows: with all metrics."""
    counts = {series.type: _counters_of(series) for series in metrics.series()}
    return ChildReport(
        counts={type: each for type, each in counts.items() if each},
        running=running,
        rows=[*metrics.rows()] if rows else [],
    )


def _counters_of(series: object) -> dict[str, float]:
    return {name: value for name in COUNTERS if (value := getattr(series, name))}


def merged(reports: Iterable[ChildReport]) -> ChildReport:
    """One report for several processes."""
    given = list(reports)
    whole = ChildReport(rows=merged_rows(report.rows for report in given))
    for report in given:
        whole.running += report.running
        for type, counts in report.counts.items():
            sums = whole.counts.setdefault(type, {})
            for name, value in counts.items():
                sums[name] = sums.get(name, 0) + value
    return whole


def of_ended(report: ChildReport) -> ChildReport:
    """What stays of the report of processes that have ended."""
    return msgspec.structs.replace(report, running=0, rows=rows_of_ended(report.rows))


class ReportWriter:
    """The child's end of the pipe. `make` makes the report."""

    def __init__(self, descriptor: int, make: Callable[[], ChildReport]) -> None:
        self._descriptor = descriptor
        self._make = make
        self._rest = b""
        """What the pipe had no room for, of the report that is being written."""
        self._last = b""
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)

    async def run(self) -> None:
        """Write reports until cancelled."""
        while True:
            self.write()
            await asyncio.sleep(PORTION if self._rest else INTERVAL)

    def write(self) -> None:
        """Write a report, if the last one is written and something has changed. Otherwise its rest."""
        if not self._rest and (report := msgspec.msgpack.encode(self._make())) != self._last:
            self._last = report
            self._rest = _LENGTH.pack(len(report)) + report
        if self._rest:
            self._write_rest()

    def _write_rest(self) -> None:
        try:
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        except BlockingIOError:
            pass
        except OSError:  # the supervisor is gone
            self._rest = b""

    def finish(self) -> None:
        """Write the last report, and close the pipe."""
        end = time.monotonic() + LAST_REPORT
        while self._rest and time.monotonic() < end:
            self._write_rest()
            time.sleep(0.005 if self._rest else 0)
        self.write()
        while self._rest and time.monotonic() < end:
            time.sleep(0.005)
            self._write_rest()
        os.close(self._descriptor)


class ReportReader:
    """The supervisor's end of the pipe of one child."""

    def __init__(self) -> None:
        self.last = ChildReport()
        """The last report that came. Empty before the first."""
        self._reading, self.writing = os.pipe()
        """`writing` is for the child: call `passed` when the child has it."""
        self._received = bytearray()
        os.set_blocking(self._reading, False)

    def passed(self) -> None:
        """Close this process's copy of the child's end."""
        os.close(self.writing)

    def read(self) -> None:
        """Read what has come, without waiting."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reading, _CHUNK):
                self._received += chunk
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            report, self._received = self._received[_LENGTH.size : end], self._received[end:]
            with contextlib.suppress(msgspec.MsgspecError):
                self.last = msgspec.msgpack.decode(report, type=ChildReport)

    def close(self) -> None:
        os.close(self._reading)


LIVENESS_INTERVAL = 0.2
"""Seconds between two times that a child writes."""
_TIME = struct.Struct("d")


class LoopLiveness:
    """What a supervisor and a child tell each other without a message: whether the child's event loop runs.

    A file of sixteen bytes is mapped into the memory of both processes. The child writes there, a few times a
    second, the time: its event loop runs. The supervisor writes the time of its last heartbeat for the child:
    the child's lease is alive. All processes of a machine share its monotonic clock.

    The child calls `run` and `last_beat`, the supervisor the others.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * _TIME.size)

    async def run(self) -> None:
        """Write the time until cancelled."""
        while True:
            _TIME.pack_into(self._memory, 0, time.monotonic())
            await asyncio.sleep(LIVENESS_INTERVAL)

    def blocked_for(self) -> float | None:
        """Seconds since the child last wrote the time; None before the first time."""
        (last,) = _TIME.unpack_from(self._memory, 0)
        return None if last == 0.0 else time.monotonic() - last

    def beat_sent(self, at: float) -> None:
        """A heartbeat for the child that was sent then has been answered."""
        _TIME.pack_into(self._memory, _TIME.size, at)

    def last_beat(self) -> float:
        """When the supervisor's last heartbeat that was answered was sent, by the monotonic clock."""
        (last,) = _TIME.unpack_from(self._memory, _TIME.size)
        return float(last)

    def close(self) -> None:
        self._memory.close()
