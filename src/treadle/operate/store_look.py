"""StoreLook: what `app.problems()`, `treadle status` and `treadle doctor` read, and the problems in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from treadle.backend import Backend, left_out
from treadle.bulk_action import BULK_TYPE, BulkState
from treadle.define.dependency import BUILT_IN
from treadle.engine.core import Core
from treadle.item import TELL_TYPE, UNSATISFIABLE, Filter, ItemState, Status
from treadle.item_facts import DeadMark, Overview, QueueAge, Release
from treadle.problems import (
    BLOCKED_LOOKED_AT,
    DYING_LEAST,
    DYING_SHARE,
    DYING_STILL,
    DYING_WITHIN,
    FLOOD_WAIT,
    MAX_WAIT,
    RELEASE_LEAST,
    Flood,
    Problem,
    ReadyCounts,
    TypeDeaths,
    began_with,
    find_floods,
    find_problems,
    late_queues,
)
from treadle.records import HOUR, MINUTE, ScheduleRun
from treadle.store.fleet import Fleet
from treadle.store.rules.records import begin_of
from treadle.store.rules.settlement import KEPT_ATTEMPTS

from .bulk_states import open_requeues
from .schedule_state import DYING, ScheduleState, StoredSchedules
from .tenant_view import read_overview, seen_workers
from .why.fleet import WorkerFleet
from .why.wording import command

RUNNING_LOOKED_AT: Final = 500
"""Running items that are looked at for those that run where a worker is blocked."""
KILLERS_LOOKED_AT: Final = 100
"""Items that ended workers that are looked at, the oldest."""
SCHEDULED_LOOKED_AT: Final = 1000
"""Scheduled items that are looked at for suspended ones: this many of the newest, and as many of the oldest.
Also the most held items that are counted."""
LATE_LOOKED_AT: Final = 20
"""Late queues with items that cannot run, those with the oldest, of which lines are looked at. Also floods,
the largest."""
LINES_LOOKED_AT: Final = 20
"""Lines of a queue, the first by tenant and lane, that are looked at for items that could run."""
TYPES_LOOKED_AT: Final = 3
"""Types beside a flood that are looked at for how long they wait, the largest."""
MARKS_LOOKED_AT: Final = 5
"""Marks that may have begun with a release that are looked at, the largest."""
DEAD_LOOKED_AT: Final = 100
"""Items of each of these that are looked at for failures of earlier releases, the oldest."""
GONE_WITHIN: Final = 7 * 86_400.0
"""Seconds before the start of a release in which other deaths of the type are looked for."""
SURE: Final = 10
"""A release is said to be the cause of more deaths than this many times those that are gone."""
QUICK_REACH: Final = 10_000
"""Open items, the oldest, among which blocked ones are found in some milliseconds."""


class ScheduledPart(msgspec.Struct, frozen=True):
    """How many of the scheduled items are of one sort."""

    count: int = 0
    more: bool = False
    """Whether not all scheduled items were looked at."""


class ScheduledParts(NamedTuple):
    """Scheduled items that do not wait for their time alone."""

    suspended: ScheduledPart = ScheduledPart()
    held: ScheduledPart = ScheduledPart()


class StoreLook(NamedTuple):
    """What one look at the store has found."""

    overview: Overview
    fleet: WorkerFleet
    problems: tuple[Problem, ...]
    """The most urgent first."""
    schedules: tuple[ScheduleState, ...]
    """Those that have not ended."""
    unseen: str = ""
    """What was not looked for, in a sentence. Empty: all was."""
    requeues: tuple[BulkState, ...] = ()
    """Bulk actions that run dead items again now."""
    several_marks: bool | None = None
    """Whether there are dead items of several marks. None: it was not looked at."""


async def look_at(
    core: Core,
    tenant: str | None,
    max_wait: float = MAX_WAIT,
    *,
    quick: bool = False,
    given: Overview | None = None,
) -> StoreLook:
    """Look at the store as a client of a tenant may see it, by at most nine reads; more if a release may be
    the cause of deaths, or a type dies, or if items of a queue are late, and others of it cannot run, or if
    there is a flood.

    quick: look at no more than `QUICK_REACH` open items for those that wait for ids that were never
        submitted: `unseen` says so.
    given: the overview, as this tenant may see it. None: it is read.
    """
    backend = core.backend
    overview = given
    if overview is None:
        stored = await read_overview(backend, tenant)
        overview = replace(stored, workers=seen_workers(stored.workers, tenant))
    fleet = WorkerFleet(overview.workers, overview.now)
    ready = ReadyCounts(overview, fleet)
    # At the same time, in a store that can do that.
    (stuck, unseen), items, (schedules, dying), ages, (marks, several), deaths = await asyncio.gather(
        _read_stuck(backend, tenant, overview, max_wait, QUICK_REACH if quick else None),
        _read_items(backend, tenant, overview, fleet),
        _read_schedules(core, tenant, overview),
        _read_ages(backend, tenant, overview, fleet, ready, max_wait),
        _read_marks(backend, tenant, overview),
        _read_deaths(backend, tenant, overview),
    )
    requeues = await open_requeues(backend, tenant) if _changes_many(overview) else []
    aged = replace(overview, ages=ages)
    floods = sorted(find_floods(ready.able), key=lambda each: -each.items)[:LATE_LOOKED_AT]
    found = find_problems(
        aged,
        fleet,
        max_wait,
        stuck,
        items=items,
        schedules=schedules,
        dying=dying,
        marks=marks,
        deaths=deaths,
        requeues=requeues,
        waits={each.queue: await _others_waited(backend, tenant, aged, each) for each in floods},
        ready=ready,
        tenant=tenant,
        away=sorted(left_out()),
    )
    return StoreLook(overview, fleet, tuple(found), schedules, unseen, tuple(requeues), several)


def _changes_many(overview: Overview) -> bool:
    """Whether a bulk action is under way, and there are dead items."""
    open_type = any(each.type == BULK_TYPE and each.status != "dead" for each in overview.counts)
    return open_type and any(each.status == "dead" for each in overview.counts)


async def _read_schedules(
    core: Core, tenant: str | None, overview: Overview
) -> tuple[tuple[ScheduleState, ...], list[ScheduleRun]]:
    """The schedules that have not ended, and runs of those whose items die."""
    if "schedules" not in core.backend.capabilities:
        return (), []
    reader = StoredSchedules(core, tenant)
    rows = await reader.rows()
    if not rows:
        return (), []
    runs = await reader.runs(rows, DYING + 1)
    errors = {name: those[0].error for name, those in runs.items()}
    # A tenant is not told who has which schedule.
    workers = overview.workers if tenant is None else await core.backend.workers()
    states = reader.states(rows, Fleet(workers, overview.now), overview.now, errors)
    schedules = tuple(each for each in states if not each.ended)
    return schedules, reader.dying(schedules, runs)


async def count_scheduled(backend: Backend, tenant: str | None, most: int | None = None) -> ScheduledParts:
    """How many of the scheduled items are suspended, and how many are held, by three reads at most. most:
    items of each read, `SCHEDULED_LOOKED_AT` unless given."""
    most = most or SCHEDULED_LOOKED_AT
    if "operating" not in backend.capabilities:
        return ScheduledParts(await _count_suspended(backend, tenant, most))
    where = Filter(tenant=tenant, held=True)
    held, suspended = await asyncio.gather(
        backend.list(where, limit=most, reach=QUICK_REACH), _count_suspended(backend, tenant, most)
    )
    return ScheduledParts(suspended, ScheduledPart(len(held.items), held.cursor is not None))


async def _count_suspended(backend: Backend, tenant: str | None, most: int) -> ScheduledPart:
    if "steps" not in backend.capabilities:
        return ScheduledPart()
    where, seen = Filter(tenant=tenant, status=("scheduled",)), dict[tuple[str, str], bool]()
    looked_at, more = 0, True
    for oldest_first in (False, True):
        page = await backend.list(where, limit=most, oldest_first=oldest_first, reach=QUICK_REACH)
        looked_at += len(page.items)
        seen |= {(each.tenant, each.id): each.suspended for each in page.items}
        # If the newest and the oldest have met, there are no others between them.
        more = page.cursor is not None and len(seen) == looked_at
        if not more:
            break
    return ScheduledPart(sum(seen.values()), more)


async def _read_ages(
    backend: Backend,
    tenant: str | None,
    overview: Overview,
    fleet: WorkerFleet,
    ready: ReadyCounts,
    max_wait: float,
) -> tuple[QueueAge, ...]:
    """Since when items have waited that could run. Ages of queues with others besides are read anew, if they
    are long, and the oldest item is not known to be one that could run. What waits behind an item that cannot
    run is not known, nor in the queues that are not looked at: such an age is left out."""
    ages = {each.queue: each for each in overview.ages}
    able = {(each.tenant, each.queue, each.type) for each in ready.able}
    others = {
        each.queue for each in (*ready.held, *ready.free) if (each.tenant, each.queue, each.type) not in able
    }
    late = late_queues(overview, fleet, ready, max_wait, tenant)

    async def read(age: QueueAge) -> QueueAge | None:
        tenants = {name for name, queue, _ in able if queue == age.queue}
        lines = [
            each
            for each in await backend.lines(age.queue, tenant=tenant, count=LINES_LOOKED_AT, cap=1)
            if each.tenant in tenants
        ]
        for line in sorted(lines, key=lambda each: each.oldest_ready):
            (first,) = await backend.get([line.first], tenant=line.tenant)
            if first is not None and (line.tenant, age.queue, first.type) in able:
                return replace(age, oldest_ready=line.oldest_ready)
        return None

    asked = [
        age
        for age in sorted(late, key=lambda each: each.oldest_ready)
        if (age.tenant, age.queue, age.type) not in able and age.queue in others
    ]
    for age in asked:
        del ages[age.queue]
    found = await asyncio.gather(*(read(age) for age in asked[:LATE_LOOKED_AT]))
    return (*ages.values(), *(age for age in found if age is not None))


async def _others_waited(backend: Backend, tenant: str | None, overview: Overview, flood: Flood) -> float:
    """For how long, in seconds, an item has waited that is not of the flood. 0: not for long, or it is not
    known, since too many of the flood were submitted before and after it."""
    since = overview.now
    if flood.by == "tenant":
        lines = await backend.lines(flood.queue, cap=1)
        since = min((each.oldest_ready for each in lines if each.tenant in flood.others), default=since)
    else:
        for type in flood.others[:TYPES_LOOKED_AT]:
            where = Filter(
                tenant=tenant,
                queue=flood.queue,
                type=type,
                status=("ready",),
                until=overview.now - FLOOD_WAIT,
            )
            for oldest_first in (True, False):
                page = await backend.list(where, limit=1, oldest_first=oldest_first, reach=QUICK_REACH)
                since = min([since, *(max(each.due_at, each.queued_at) for each in page.items)])
                if page.items:
                    break
    return overview.now - since


async def _read_marks(
    backend: Backend, tenant: str | None, overview: Overview
) -> tuple[list[DeadMark], bool | None]:
    """The marks of dead items that may have begun with the newest release, if there are others; and whether
    there are several marks, if that was looked at. A mark forgets those that were requeued or deleted:
    nothing is said if an earlier release may have had them."""
    if len(overview.releases) < 2 or not any(each.status == "dead" for each in overview.counts):
        return [], None
    newest = overview.releases[0]
    # Some deaths of each mark tell of most marks that they began before.
    some = await backend.marks(tenant=tenant, cap=RELEASE_LEAST, release=newest.name)
    several = len(some) > 1
    if not any(_may_be_of(each, newest) for each in some):
        return [], several
    marks = await backend.marks(tenant=tenant)
    found = [each for each in marks if _may_be_of(each, newest)]
    if not found:
        return [], several
    gone = await _read_gone(backend, newest, marks if tenant is None else await backend.marks())
    found = [each for each in found if each.count > SURE * gone.get(each.type, 0)]
    found.sort(key=lambda each: -each.count)
    began = [
        each for each in found[:MARKS_LOOKED_AT] if not await _failed_before(backend, tenant, newest, each)
    ]
    return began, several


def _may_be_of(mark: DeadMark, newest: Release) -> bool:
    return mark.type != TELL_TYPE and began_with(mark, newest.name)


async def _read_deaths(backend: Backend, tenant: str | None, overview: Overview) -> list[TypeDeaths]:
    """The types that die now, as workers counted. That is not known of one tenant."""
    dead = any(each.status == "dead" for each in overview.counts)
    if tenant is not None or not dead or "recording" not in backend.capabilities:
        return []
    since = begin_of(overview.now - DYING_WITHIN, MINUTE) + MINUTE
    found: dict[str, TypeDeaths] = {}
    for stat in await backend.stats(since, by="type"):
        ended = stat.succeeded + stat.dead + stat.cancelled
        if stat.dead >= max(DYING_LEAST, DYING_SHARE * ended) and stat.type not in BUILT_IN:
            found[stat.type] = TypeDeaths(stat.type, stat.dead, ended, overview.now - since)
    if not found:
        return []
    last = begin_of(overview.now - DYING_STILL, MINUTE)
    still = {stat.type for stat in await backend.stats(last, by="type") if stat.dead}
    marks = await backend.marks()
    shown: list[TypeDeaths] = []
    for type in still & set(found):
        fresh = [each for each in marks if each.type == type and each.last_at >= since]
        causes = [each for each in fresh if each.error_type != UNSATISFIABLE]
        if causes or not fresh:  # otherwise they follow from the deaths of others
            cause = max(causes, key=lambda each: each.count, default=None)
            shown.append(found[type]._replace(mark=cause))
    return shown


async def _read_gone(backend: Backend, newest: Release, marks: Sequence[DeadMark]) -> dict[str, int]:
    """How many items of each type died before a release began, and are dead no more."""
    if "recording" not in backend.capabilities:
        return {}
    hour, minute = (begin_of(newest.began_at, step) for step in (HOUR, MINUTE))
    stats = [*await backend.stats(hour - GONE_WITHIN, until=hour, step=HOUR, by="type")]
    stats += await backend.stats(hour, until=minute, by="type")
    found = Counter[str]()
    for stat in stats:
        found[stat.type] += stat.dead
    for mark in marks:
        found[mark.type] -= mark.count - sum(
            each.count for each in mark.releases if each.release == newest.name
        )
    return {type: count for type, count in found.items() if count > 0}


async def _failed_before(backend: Backend, tenant: str | None, newest: Release, mark: DeadMark) -> bool:
    """Whether items of a mark, the oldest, have failed alike under another release, or may have."""
    where = Filter(tenant=tenant, status=("dead",), mark=mark.mark)
    page = await backend.list(where, limit=DEAD_LOOKED_AT, oldest_first=True, history=True)
    return any(
        (each.queued_at < newest.began_at and len(each.history) >= KEPT_ATTEMPTS)
        or any(one.release != newest.name and one.error_type == mark.error_type for one in each.history)
        for each in page.items
    )


async def _read_items(
    backend: Backend, tenant: str | None, overview: Overview, fleet: WorkerFleet
) -> list[ItemState]:
    """Items that ended workers and, if a worker is blocked, some that run."""
    there = {count.status for count in overview.counts}
    found: dict[tuple[str, str], ItemState] = {}
    reads: list[tuple[Filter, int]] = []
    if there.intersection(_BEGUN):
        reads.append((Filter(tenant=tenant, killing=True), KILLERS_LOOKED_AT))
    if fleet.blocked:
        reads.append((Filter(tenant=tenant, status=("running",)), RUNNING_LOOKED_AT))
    for where, limit in reads:
        page = await backend.list(where, limit=limit, oldest_first=True, reach=QUICK_REACH)
        found |= {(each.tenant, each.id): each for each in page.items}
    return list(found.values())


_BEGUN: Final[frozenset[Status]] = frozenset(("running", "scheduled", "ready"))


async def _read_stuck(
    backend: Backend, tenant: str | None, overview: Overview, max_wait: float, reach: int | None
) -> tuple[list[ItemState], str]:
    """Blocked items that have waited for too long for ids that were never submitted: some of the oldest.
    Also what was not looked at."""
    if not any(count.status == "blocked" for count in overview.counts):
        return [], ""
    where = Filter(tenant=tenant, status=("blocked",), until=overview.now - max_wait)
    page = await backend.list(where, limit=BLOCKED_LOOKED_AT, oldest_first=True, history=True, reach=reach)
    unseen = (
        ""
        if page.reached_at is None
        else (
            f"only the {QUICK_REACH:,} oldest open items were looked at for ids that were never submitted: "
            f"{command('doctor', tenant=tenant)} looks at all"
        )
    )
    return [each for each in page.items if each.waiting_for], unseen
