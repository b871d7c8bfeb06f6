"""StoreMetrics: how the whole store stands, for Prometheus.

The values are the same wherever they are read, so one place should serve them: `treadle worker --metrics`,
or an endpoint of one's own. The store is asked at most every 15 seconds, however often they are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from treadle.engine.core import Core
from treadle.engine.declared_limits import declared_limits, used_limit
from treadle.engine.schedule.scheduler import is_orphaned
from treadle.errors import InputError, StoreUnavailable
from treadle.item_facts import Overview
from treadle.logs.lines import WARNING, error_text, log_line
from treadle.metrics.names import STORE_METRICS
from treadle.metrics.prometheus import exposition
from treadle.metrics.rows import MetricRow
from treadle.metrics.store_rows import StoreRows, row_of_answer, rows_of_limits, rows_of_schedules
from treadle.operate.operator import Operator, core_of, tenant_of
from treadle.operate.schedule_state import StoredSchedules
from treadle.store.fleet import Fleet

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
            overview = await backend.overview()
            rows += self._labels.of_overview(overview)
            declared = declared_limits(core)
            taking = Fleet(overview.workers, overview.now).taking
            rows += rows_of_limits(await backend.limits(), lambda name: used_limit(taking, declared, name))
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
