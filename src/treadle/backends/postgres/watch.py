"""Reads for operators: why an item waits, how the store stands, how far limits are used, what has died.

Each is one statement, so that all of an answer is from one instant, and one round trip. The functions in
sql/functions read a bounded number of rows. Should one take long all the same, the server is told to stop
after `READ_SECONDS` and the caller gets `StoreUnavailable`: a read must never harm the store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from treadle.item import Algorithm, Counting, Status, WorkerState
from treadle.item_facts import (
    DeadMark,
    Explanation,
    LimitHolder,
    LimitUse,
    MarkRelease,
    Overview,
    Prerequisite,
    PrerequisiteStatus,
    QueueAge,
    Release,
    UnservedType,
    mark_releases,
)
from treadle.records import Line, Related, RelatedItem
from treadle.store.fleet import Fleet
from treadle.store.rules.limits import LimitState
from treadle.store.rules.watching import CountKey, rate_use, shown_counts, unserved_since, why_again
from treadle.worker_info import decode_worker_info

from .columns import ALGORITHM_CODES, VERDICTS, decoded, split, status_of
from .connection import PostgresVerbs, Record
from .read import READ_SECONDS, state_of
from .statements import statements

_sql = statements("watch")

COUNTING_SECONDS: Final = 0.8
"""Seconds for which an overview counts open items. It may count dead ones for half as long again."""
QUICK_SECONDS: Final = 0.02
"""The same for a quick overview: tens of thousands of items."""
MISSING: Final = -1
CHILD: Final = 1
DEPENDENT: Final = 2
ANY_END: Final = 1
ALGORITHMS: Final[dict[int, Algorithm]] = {code: name for name, code in ALGORITHM_CODES.items()}


class PostgresWatch(PostgresVerbs):
    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        found = (await self._read("explain", id, tenant))[0]
        return None if found["id"] is None else _explanation(found)

    async def overview(
        self, *, tenant: str | None = None, quick: bool = False, brief: bool = False
    ) -> Overview:
        seconds = None if brief else QUICK_SECONDS if quick else COUNTING_SECONDS
        return _overview((await self._read("overview", tenant, seconds))[0])

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        rows = await self._read("limits", None if names is None else list(dict.fromkeys(names)), count)
        uses = [use for row in rows if (use := _limit_use(row)) is not None]
        uses.sort(key=lambda use: (use.name, use.algorithm))
        return uses if names is not None else uses[:count]

    async def marks(
        self,
        *,
        tenant: str | None = None,
        count: int = 100,
        cap: int = 10_000,
        release: str | None = None,
    ) -> Sequence[DeadMark]:
        rows = await self._read("marks", tenant, count, cap)
        return [
            replace(
                DeadMark(mark, type, decoded(error_type) or "", decoded(error) or "", *rest),
                releases=_releases(releases),
            )
            for mark, type, error_type, error, *rest, releases in rows
        ]

    async def lines(
        self, queue: str, *, tenant: str | None = None, count: int = 200, cap: int = 1000
    ) -> Sequence[Line]:
        return [
            Line(
                tenant=tenant,
                lane=lane,
                count=min(size, cap),
                capped=size > cap,
                oldest_ready=since,
                first=first,
            )
            for tenant, lane, size, since, first in await self._read("lines", queue, tenant, count, cap + 1)
        ]

    async def related(self, id: str, *, tenant: str | None = None, count: int = 100) -> Related | None:
        rows = await self._read("related", id, tenant, count)
        if not rows:
            return None
        return Related(children=_related(rows, CHILD), dependents=_related(rows, DEPENDENT))

    async def _read(self, name: str, *arguments: object) -> list[Record]:
        return await self._calls.rows(_sql(name), *arguments, within=READ_SECONDS)


# -- one item ----------------------------------------------------------------------------------------------


def _explanation(found: Record) -> Explanation:
    item, verdict = state_of(found), VERDICTS[found["verdict"]]
    again = why_again(item, verdict, keeps_place=bool(found["keeps_place"]))
    counting: Counting = "done" if item.status == "blocked" and found["counting"] == ANY_END else "success"
    return Explanation(
        now=found["now"],
        item=item,
        verdict=verdict,
        need=found["need"] or 0,
        met=found["met"] or 0,
        open=found["open"] or 0,
        counting=counting,
        prerequisites=tuple(_prerequisites(found)),
        begun=item.status != "running" or bool(found["begun"]),
        freed=again.freed,
        given_back=again.given_back,
        unknown_since=found["lost"],
        ahead=found["ahead"] or 0,
        lanes=found["lanes"] or 0,
        lane_holder=found["lane_holder"],
        workers=_workers(found),
    )


def _prerequisites(found: Record) -> Iterator[Prerequisite]:
    columns = (found[name] or () for name in ("name", "name_state", "name_type"))
    for name, state, type in zip(*columns, strict=True):
        status: PrerequisiteStatus = "missing" if state == MISSING else status_of(state)
        yield Prerequisite(name, status, type)


def _releases(parts: str | None) -> tuple[MarkRelease, ...]:
    if parts is None:
        return ()
    found: list[tuple[str, int, float, float | None]] = json.loads(parts)
    return mark_releases(MarkRelease(*each) for each in found)


def _related(rows: Sequence[Record], wanted: int) -> tuple[RelatedItem, ...]:
    found = (row for row in rows if row["kind"] == wanted)
    return tuple(RelatedItem(row["id"], row["type"], status_of(row["status"])) for row in found)


def _workers(found: Record) -> tuple[WorkerState, ...]:
    columns = (found[f"worker_{name}"] or () for name in ("id", "until", "types", "running", "info"))
    return tuple(
        WorkerState(id, until, None if types is None else split(types), running, decode_worker_info(info))
        for id, until, types, running, info in zip(*columns, strict=True)
    )


# -- the whole ---------------------------------------------------------------------------------------------


def _overview(found: Record) -> Overview:
    counts, estimated = _counted(found)
    workers, now = _workers(found), found["now"]
    fleet = Fleet(workers, now)
    lost: dict[str, float] = dict(_rows(found, "lost_type", "lost"))
    ready: Counter[str] = Counter()
    for (_, _, type, status), count in counts.items():
        if status == "ready":
            ready[type] += count
    return Overview(
        now=now,
        counts=shown_counts(counts, estimated),
        ages=tuple(QueueAge(*age) for age in _rows(found, "age_queue", "age")),
        unserved=tuple(
            UnservedType(type, count, unserved_since(type, workers, lost, now))
            for type, count in sorted(ready.items())
            if not fleet.serves(type=type)
        ),
        workers=workers,
        releases=tuple(Release(*each) for each in _rows(found, "release_name", "release_began")),
    )


def _counted(found: Record) -> tuple[Counter[CountKey], set[tuple[str, Status]]]:
    """The counts, and the queues and statuses of which they are estimates: those that were not counted to
    their end along an index, if not all pages were read."""
    counts: Counter[CountKey] = Counter()
    cut: set[tuple[str, Status]] = set()
    cut_statuses: set[Status] = set()
    names = ("tenant", "queue", "type", "status", "count")
    for tenant, queue, type, code, count, is_cut in _rows(
        found, *(f"first_{name}" for name in (*names, "cut"))
    ):
        status = status_of(code)
        if queue is None:
            cut_statuses.add(status)
            continue
        counts[tenant, queue, type, status] += count
        if is_cut:
            cut.add((queue, status))
    seen: Counter[CountKey] = Counter()
    for tenant, queue, type, code, count in _rows(found, *(f"seen_{name}" for name in names)):
        seen[tenant, queue, type, status_of(code)] += count
    share = found["share"]
    cut.update((queue, status) for _, queue, _, status in (*counts, *seen) if status in cut_statuses)
    for key, count in seen.items():
        if share == 1 or (key[1], key[3]) in cut:
            counts[key] = max(counts[key], round(count / share))
    return counts, cut


def _rows(found: Record, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(found[name] or () for name in columns), strict=True)


# -- limits ------------------------------------------------------------------------------------------------


def _limit_use(row: Record) -> LimitUse | None:
    name, used = row["name"], row["used"]
    if row["worker"] is not None:
        return LimitUse(name, "slots", float(used), holders=tuple(_holders(row)))
    rate = None if row["limit_"] is None else (row["limit_"], row["window_"])
    state = LimitState(row["at"], used, row["before"])
    return rate_use(name, ALGORITHMS[row["algorithm"]], rate, state, row["now"])


def _holders(row: Record) -> Iterator[LimitHolder]:
    items: dict[str, list[str]] = {}
    for worker, item in zip(row["lease_worker"] or (), row["lease_item"] or (), strict=True):
        items.setdefault(worker, []).append(item)
    for worker, held in zip(row["worker"], row["held"], strict=True):
        yield LimitHolder(worker, held, tuple(items.get(worker, ())))
