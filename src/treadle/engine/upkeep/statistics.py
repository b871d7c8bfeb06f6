"""Statistics: add what this process has counted to what the store keeps, for the whole fleet.

The counts are those of the metrics. What changed since the last time is sent about every 10 seconds, and when
a worker stops. A process that is killed loses what it had not sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias
from zlib import crc32

from treadle.backend import Backend
from treadle.engine.hooks import Hooks
from treadle.engine.settings import Settings
from treadle.engine.store_retry import wait_briefly
from treadle.engine.timers import StoreClock
from treadle.metrics import Metrics
from treadle.metrics.series import QueueMetrics
from treadle.records import MINUTE, Stat
from treadle.store.rules.records import stat_of

INTERVAL = 10.0
"""Seconds between two times that counts are sent."""
NOT_SENT: Final = "could not add to the statistics: what was counted in the last seconds is missing there"

_Label: TypeAlias = tuple[str, str]
"""Type and queue."""


class Statistics:
    """What a process has counted and not sent yet. All workers of the process share it."""

    def __init__(
        self, backend: Backend, settings: Settings, hooks: Hooks, metrics: Metrics, store_clock: StoreClock
    ) -> None:
        self._backend = backend
        self._clock = settings.clock
        self._hooks = hooks
        self._metrics = metrics
        self._store_clock = store_clock
        self._sent: dict[_Label, _Counted] = {}
        self._next_at = 0.0
        """By the monotonic clock: the workers of one process take turns."""
        self.enabled = settings.statistics and "recording" in backend.capabilities

    async def run(self, worker: str) -> None:
        """Send until cancelled. Processes that start together do not send together."""
        await self._clock.sleep(INTERVAL * (0.5 + crc32(worker.encode()) / 2**33))
        while True:
            if self._clock.monotonic() >= self._next_at:
                self._next_at = self._clock.monotonic() + INTERVAL
                await self.send()
            await self._clock.sleep(INTERVAL)

    async def send_last(self) -> None:
        """A worker stops: send what is left, if the store answers soon."""
        if self.enabled:
            await wait_briefly(self.send())

    async def send(self) -> None:
        """Send what has changed. Nothing is sent twice: if the store does not answer, it may have added the
        counts, so they are given up. While it is known to be unavailable, they are kept."""
        if self._hooks.outage.since is not None or not any(True for _ in self._changed()):
            return
        try:
            await self._store_clock.refresh()
            at = self._store_clock.now() // MINUTE * MINUTE
            stats = list(self._take(at))
            if stats:
                await self._backend.add_stats(stats)
        except Exception as error:  # noqa: BLE001  statistics are no reason to stop
            self._hooks.report(error, "claim", NOT_SENT)

    def forget(self) -> None:
        """Treat all that was counted so far as sent: in a forked process, the parent sends it."""
        for _ in self._take(0.0):
            pass

    def _changed(self) -> Iterator[tuple[_Label, QueueMetrics]]:
        for series in self._metrics.series():
            for queue, counted in series.queues.items():
                sent = self._sent.get((series.type, queue))
                if sent is None or not sent.is_like(counted):
                    yield (series.type, queue), counted

    def _take(self, at: float) -> Iterator[Stat]:
        """What was not sent yet. From now on it counts as sent."""
        for label, counted in self._changed():
            before, now = self._sent.get(label, _NOTHING), _Counted(counted)
            self._sent[label] = now
            yield now.since(before, at, label)


class _Counted:
    """What was counted for a type and a queue at some instant."""

    __slots__ = ("_counters", "_run", "_wait")

    def __init__(self, counted: QueueMetrics) -> None:
        self._counters = _counters(counted)
        self._wait = tuple(counted.wait.counts)
        self._run = tuple(counted.run.counts)

    def is_like(self, counted: QueueMetrics) -> bool:
        """Whether nothing was counted since. An attempt of which only the time is counted was deferred."""
        return self._counters == _counters(counted) and self._run == tuple(counted.run.counts)

    def since(self, before: _Counted, at: float, label: _Label) -> Stat:
        numbers = [now - then for now, then in zip(self._counters, before._counters, strict=True)]
        wait, run = _difference(self._wait, before._wait), _difference(self._run, before._run)
        return stat_of(at, label, numbers, wait, run)


def _counters(counted: QueueMetrics) -> tuple[int, ...]:
    return (
        counted.started,
        counted.succeeded,
        counted.failed,
        counted.retried,
        counted.dead,
        counted.cancelled,
        counted.lost,
    )


def _difference(now: tuple[int, ...], then: tuple[int, ...]) -> tuple[int, ...]:
    found = tuple([a - b for a, b in zip(now, then, strict=True)])
    return found if any(found) else ()


_NOTHING: Final = _Counted(QueueMetrics())
