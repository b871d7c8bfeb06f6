"""Counting: how many items there are, where a page has no time to count them.

A page counts for some hundredths of a second and estimates the rest. `FullCounts` counts all beside requests,
once for all who look. Then open pages are told, and show what it has found; they count only what there is
little of, and estimate nothing. Pages begin it: while none is open, nothing is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from treadle.backend import all_stores
from treadle.client import Client
from treadle.errors import TreadleError
from treadle.item import TELL_TYPE, Count
from treadle.item_facts import Overview, UnservedType, total
from treadle.logs.lines import log_error
from treadle.store.fleet import Fleet

COUNT_EVERY: Final = 5.0
"""Seconds between the beginnings of two counts at least."""
MOST_BUSY: Final = 0.1
"""Share of the time in which it counts, at most."""
MOST_EXACT: Final = 1_000_000
"""Open and dead items that are counted one by one. Of more, the numbers stay estimates."""


class FullCounts:
    """The counts of one store.

    on_counted: called when there are counts, and there were none before.
    """

    def __init__(
        self,
        client: Client,
        on_counted: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._on_counted = on_counted
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._begun_at: float | None = None
        self._interval = COUNT_EVERY
        self._found: Overview | None = None
        self._found_at = 0.0

    @property
    def fresh(self) -> Overview | None:
        """What was found lately, with all counts of all tenants. None: nothing."""
        is_old = self._clock() - self._found_at >= 2 * self._interval
        return None if is_old else self._found

    async def get(self, within: float) -> Overview | None:
        """What is known, and a count begins if it is time for one. within: seconds to wait for it, if nothing
        is known."""
        task = self._begin()
        if self.fresh is None and within and task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(task), within)
        return self.fresh

    def forget(self) -> None:
        """Something was changed here."""
        self._found = None

    def _begin(self) -> asyncio.Task[None] | None:
        """The count that is under way. None: it is not time for one."""
        task, loop = self._task, asyncio.get_running_loop()
        if task is not None and not task.done() and task.get_loop() is loop:
            return task
        if self._begun_at is not None and self._clock() - self._begun_at < self._interval:
            return None
        self._begun_at = self._clock()
        self._task = loop.create_task(self._count(self._begun_at))
        return self._task

    async def _count(self, at: float) -> None:
        known = self.fresh
        try:
            with all_stores():  # counts are kept: those without a store would be shown when it is back
                found = await self._read(known)
        except TreadleError:
            return  # pages say what is the matter
        except Exception as error:  # noqa: BLE001  no request waits for it
            log_error("the dashboard could not count all items", error)
            return
        finally:
            self._interval = max(COUNT_EVERY, (self._clock() - at) / MOST_BUSY)
        self._found, self._found_at = found, at
        if known is None:
            self._on_counted()

    async def _read(self, known: Overview | None) -> Overview:
        """known: what was found the last time. It says about how many there are, so that pages wait less for
        the store."""
        found = await self._client.overview(quick=True, brief=known is not None)
        size, _ = total((found if known is None else known).counts)
        if size > MOST_EXACT:
            return await self._client.overview()
        counts = tuple(await self._client.counts())
        if known is not None and _lacks_types(found, counts):
            found = await self._client.overview(quick=True)
        return replace(found, counts=counts)


def _lacks_types(overview: Overview, counts: Sequence[Count]) -> bool:
    """Whether items are ready whose type no worker takes, and an overview that did not look at all of them
    does not say so."""
    fleet = Fleet(overview.workers, overview.now)
    known = {TELL_TYPE, *(each.type for each in overview.unserved)}
    waiting = {each.type for each in counts if each.status == "ready"} - known
    return not all(fleet.serves(type=type) for type in waiting)


def with_counts(overview: Overview, full: Overview, tenant: str | None) -> Overview:
    """An overview of a tenant, or of all, with these counts in place of its estimates."""
    estimated = {(each.queue, each.status) for each in overview.counts if each.estimated}
    statuses = {status for _, status in estimated}
    sure = [each for each in overview.counts if (each.queue, each.status) not in estimated]
    known = {(each.queue, each.status) for each in sure}
    found = [
        each
        for each in full.counts
        if each.status in statuses
        and (each.queue, each.status) not in known
        and tenant in (None, each.tenant)
        and each.type != TELL_TYPE
    ]
    exact = tuple(sorted((*sure, *found), key=attrgetter("tenant", "queue", "type", "status")))
    unserved = overview.unserved
    if "ready" in statuses:
        ready = Counter[str]()
        for each in exact:
            ready[each.type] += each.count if each.status == "ready" else 0
        unserved = tuple(_with_ready(overview, full, ready))
    return replace(overview, counts=exact, unserved=unserved)


def _with_ready(overview: Overview, full: Overview, ready: Mapping[str, int]) -> Iterator[UnservedType]:
    """The types that no worker takes. Some were found with the counts alone. ready: items of each type."""
    fleet, seen = Fleet(overview.workers, overview.now), {each.type for each in overview.unserved}
    others = (each for each in full.unserved if each.type not in seen and not fleet.serves(type=each.type))
    found = (*overview.unserved, *(each for each in others if ready[each.type]))
    for each in sorted(found, key=lambda each: each.type):
        yield replace(each, count=ready[each.type] or each.count)
