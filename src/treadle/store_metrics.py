"""StoreMetrics: how the whole store stands, for Prometheus.

The values are the same wherever they are read, so one place should serve them: `treadle worker --metrics`,
or an endpoint of one's own. The store is asked at most every 15 seconds, however often they are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from treadle.engine.core import Core
from treadle.engine.declared_limits import uses_in_force
from treadle.engine.schedule.scheduler import is_orphaned
from treadle.errors import InputError, StoreUnavailable
from treadle.item import Schedule
from treadle.item_facts import LimitUse, Overview
from treadle.logs.lines import WARNING, error_text, log_line
from treadle.metrics.names import STORE_METRICS
from treadle.metrics.prometheus import exposition
from treadle.metrics.registry import MAX_TYPES
from treadle.metrics.rows import MetricRow
from treadle.metrics.series import MAX_QUEUES, OTHER
from treadle.operate.backlog import read_backlogs
from treadle.operate.operator import Operator, core_of, tenant_of
from treadle.operate.schedule_state import StoredSchedules
from treadle.operate.tenant_view import read_overview
from treadle.records import QueueBacklog
from treadle.store.fleet import Fleet, last_beat

EVERY: Final = 15.0
"""Seconds for which an answer of the store is used."""
TIMEOUT: Final = 2.0
"""Seconds after which the store counts as not answering."""


class StoreMetrics:
    """Values that are read from the store: items by queue, type and status, the age of the oldest, workers,
    pauses, limits, schedules.

    They are those of all tenants, so a client that is bound to one is refused.
    """

    def __init__(self, app: Operator, *, connect: bool = True) -> None:
        """connect: connect first, if need be. False is for the worker command, which has connected, and
        serves the values of all tenants for an app of one tenant too."""
        if not isinstance(app, Operator):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.of("app", app, "must be a Treadle app or a Client")
        if connect and tenant_of(app) is not None:
            raise InputError.of("app", app, "is bound to a tenant; these values are those of all tenants")
        self._core = core_of(app)
        self._connect = connect
        self._labels = StoreRows()
        self._answer = KeptAnswer(self._read)

    async def prometheus(self) -> str:
        """The text to scrape. If the store does not answer, only `treadle_store_up` is there, with 0."""
        return store_exposition(await self.rows())

    async def rows(self) -> Sequence[MetricRow]:
        """All values as plain data, up to `EVERY` seconds old."""
        return await self._answer.get(EVERY)

    async def _read(self) -> Sequence[MetricRow]:
        try:
            async with asyncio.timeout(TIMEOUT):
                rows = await self._ask()
        except (StoreUnavailable, TimeoutError):
            return (row_of_answer(False),)
        except Exception as error:  # noqa: BLE001  of any kind: there are no values
            log_line(WARNING, f"the metrics of the store could not be read: {error_text(error)}")
            return (row_of_answer(False),)
        return (row_of_answer(True), *rows)

    async def _ask(self) -> list[MetricRow]:
        core = self._core
        if self._connect:
            await core.connect()
        backend, rows = core.backend, list[MetricRow]()
        overview: Overview | None = None
        if "watching" in backend.capabilities:
            overview = await read_overview(backend)
            rows += self._labels.of_overview(overview)
            rows += self._labels.of_backlogs(await read_backlogs(backend, overview))
            uses = await backend.limits()
            taking = Fleet(overview.workers, overview.now).taking
            shown = uses_in_force(core, uses, taking, (await backend.orders()).orders)
            used = {each.name for each in uses}
            rows += rows_of_limits(each for each in shown if each.name in used)
        if "schedules" in backend.capabilities:
            rows += await _schedules(core, overview)
        if overview is None and not rows:
            await backend.now()  # whether it answers
        return rows


def store_exposition(rows: Sequence[MetricRow]) -> str:
    """The text for values of the store. Metrics without a value are left out."""
    found = {row.name for row in rows}
    return exposition(rows, [metric for metric in STORE_METRICS if metric.exported in found])


async def _schedules(core: Core, overview: Overview | None) -> list[MetricRow]:
    backend, reader = core.backend, StoredSchedules(core, None)
    schedules = await reader.rows()
    if not schedules:
        return []
    now = await backend.now() if overview is None else overview.now
    fleet = None if overview is None else Fleet(overview.workers, now)
    failed = await reader.errors(schedules)
    return rows_of_schedules(schedules, lambda schedule: is_orphaned(schedule, fleet, now), failed)


T = TypeVar("T")


class KeptAnswer(Generic[T]):
    """What `ask` has returned, used for a while. Concurrent callers share one request."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._answer: tuple[T, float] | None = None
        """The last answer, and when it came."""
        self._asking: asyncio.Task[T] | None = None

    async def get(self, seconds: float) -> T:
        """An answer that is younger than this. Raises what `ask` raises."""
        if self._answer is not None and time.monotonic() - self._answer[1] < seconds:
            return self._answer[0]
        asking = self._asking
        if asking is None or asking.done() or asking.get_loop() is not asyncio.get_running_loop():
            asking = self._asking = asyncio.ensure_future(self._renew())
        return await asyncio.shield(asking)

    async def _renew(self) -> T:
        answer = await self._ask()
        self._answer = (answer, time.monotonic())
        return answer


MOST_LIMITS: Final = 100
MOST_SCHEDULES: Final = 500
_EXPORTED: Final = {metric.name: metric.exported for metric in STORE_METRICS}


class KeptLabels:
    """The first `most` values of a label that were met. All others are shown as `OTHER`."""

    def __init__(self, most: int) -> None:
        self.known: set[str] = set()
        self._most = most

    def of(self, value: str) -> str:
        if value not in self.known:
            if len(self.known) >= self._most:
                return OTHER
            self.known.add(value)
        return value


class StoreRows:
    """Makes the rows. It remembers which queues and types are shown by name, so that series go on."""

    def __init__(self) -> None:
        self._queues = KeptLabels(MAX_QUEUES)
        self._types = KeptLabels(MAX_TYPES)

    def of_overview(self, overview: Overview) -> list[MetricRow]:
        now, queue, type = overview.now, self._queues.of, self._types.of
        fleet = Fleet(overview.workers, now)
        counts = [((queue(each.queue), type(each.type), each.status), each.count) for each in overview.counts]
        exact = [((queue(each.queue), each.status), int(not each.estimated)) for each in overview.counts]
        ages = [((queue(each.queue),), max(0.0, now - each.oldest_ready)) for each in overview.ages]
        unserved = [((type(each.type),), each.count) for each in overview.unserved]
        known = {each.queue for each in overview.counts} | {each.queue for each in overview.ages}
        stopped = {each.queue for each in overview.paused if each.queue is not None and each.tenant is None}
        paused = [((queue(name),), int(name in stopped)) for name in sorted(known | stopped)]
        beats = [beat for each in fleet.workers if (beat := last_beat(each)) is not None]
        return [
            *_rows("items", counts, sum),
            *_rows("items_exact", exact, min),
            *_rows("oldest_ready_seconds", ages, max),
            *_rows("unserved_items", unserved, sum),
            *_rows("workers", [((), len(fleet.taking))], sum),
            *_rows("worker_last_beat_timestamp_seconds", [((), beat) for beat in beats], max),
            *_rows("queue_paused", paused, max),
        ]

    def of_backlogs(self, backlogs: Sequence[QueueBacklog]) -> list[MetricRow]:
        """Queues in which nothing is due any more have 0."""
        values = [((self._queues.of(each.queue),), each.seconds) for each in backlogs]
        return _rows("backlog_seconds", [*values, *(((name,), 0.0) for name in self._queues.known)], max)


def _rows(
    name: str,
    values: Iterable[tuple[tuple[str, ...], float]],
    together: Callable[[Sequence[float]], float],
) -> list[MetricRow]:
    """One row for each set of labels. together: how values with the same labels become one."""
    found: dict[tuple[str, ...], list[float]] = {}
    for labels, value in values:
        found.setdefault(labels, []).append(value)
    return [MetricRow(_EXPORTED[name], labels, together(each)) for labels, each in found.items()]


def rows_of_limits(uses: Iterable[LimitUse]) -> list[MetricRow]:
    """A limit that is not known is left out. If there are too many, those that are used most are shown."""
    ratios: list[tuple[float, str]] = []
    for use in uses:
        if use.limit:
            full = use.retry_after > 0
            ratios.append((1.0 if full else min(1.0, use.used / use.limit), use.name))
    most = sorted(ratios, key=lambda each: (-each[0], each[1]))[:MOST_LIMITS]
    return _rows("limit_used_ratio", [((name,), ratio) for ratio, name in most], max)


def rows_of_schedules(
    schedules: Sequence[Schedule], is_orphaned: Callable[[Schedule], bool], failed: Container[str]
) -> list[MetricRow]:
    """Those that have not ended. failed: the names of those whose last run failed."""
    open = [(each, each.next_at) for each in schedules if each.next_at is not None][:MOST_SCHEDULES]

    def flags(name: str, is_set: Callable[[Schedule], bool]) -> list[MetricRow]:
        return _rows(name, [((each.name,), int(not each.paused and is_set(each))) for each, _ in open], max)

    return [
        *_rows("schedule_next_timestamp_seconds", [((each.name,), next_at) for each, next_at in open], max),
        *flags("schedule_orphaned", is_orphaned),
        *flags("schedule_failing", lambda each: each.name in failed),
    ]


def row_of_answer(answered: bool) -> MetricRow:
    return MetricRow(_EXPORTED["store_up"], (), int(answered))
