"""Watch: why an item waits, how the store stands, how far limits are used, what has died."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from treadle.item import GROUP_MARK, Algorithm, Status, WorkerState
from treadle.item_facts import (
    DeadMark,
    Explanation,
    LimitHolder,
    LimitUse,
    MarkRelease,
    Overview,
    QueueAge,
    Release,
    UnservedType,
    mark_releases,
)
from treadle.records import Line, Related, RelatedItem
from treadle.store.fleet import Fleet
from treadle.store.rules.watching import (
    MOST_AGED_LINES,
    MOST_AHEAD,
    MOST_LANES,
    MOST_WORKERS,
    CountKey,
    rate_use,
    shown_counts,
    shown_prerequisites,
    slots_use,
    unserved_since,
    why_again,
)

from .dependencies import status_if_ended
from .fairness import FairLevel, Node, ReadyLine
from .read import counts, full_state
from .rows import MemoryGroup, Row
from .tables import MemoryTables
from .workers import list_workers

# -------------------------------------------------------------------------------------------------- one item


def explain(store: MemoryTables, id: str, tenant: str | None, now: float) -> Explanation | None:
    row = store.find(tenant, id)
    if row is None:
        return None
    state, kind, item = full_state(store, row), row.kind, row.item
    workers = _workers(store)
    waiting, open = row.dependencies, row.ended_at is None
    blocked, ready = row.status == "blocked", row.status == "ready" and row.verdict is None
    again = why_again(state, row.verdict, keeps_place=row.place != 0)
    return Explanation(
        now=now,
        item=state,
        verdict=row.verdict,
        need=waiting.need if blocked and waiting is not None else 0,
        met=waiting.met if blocked and waiting is not None else 0,
        open=waiting.open if blocked and waiting is not None else 0,
        counting=item.counting if blocked else "success",
        prerequisites=shown_prerequisites(state, item.counting, dict(_prerequisites(store, row)))
        if blocked or row.verdict is not None
        else (),
        begun=row.begun or row.status != "running",
        freed=again.freed,
        given_back=again.given_back,
        unknown_since=unserved_since(kind.type, workers, _lost_types(store), now) if open else None,
        ahead=_ahead(store, row) if ready else 0,
        lanes=_count_lanes(store, kind.queue, tenant) if ready else 0,
        lane_holder=_lane_holder(store, row) if ready else None,
        workers=tuple(workers[:MOST_WORKERS]),
    )


def _prerequisites(store: MemoryTables, row: Row) -> Iterator[tuple[str, tuple[Status, str]]]:
    """The status and type of those that exist."""
    tenant = row.kind.tenant
    for name in row.item.after:
        if name.startswith(GROUP_MARK):
            group = store.find_group(tenant, name[1:])
            if group is not None:
                type = group.type if isinstance(group, MemoryGroup) else group.kind.type
                yield name, (status_if_ended(store, (tenant, name)) or "running", type)
        else:
            found = store.find(tenant, name)
            if found is not None:
                yield name, (found.status, found.kind.type)


def _ahead(store: MemoryTables, row: Row) -> int:
    kind, found = row.kind, 0
    lines = [parked.find(kind.queue, kind.tenant, kind.lane) for parked in store.parked.values()]
    for line in (kind.line, *lines):
        if line is not None and found < MOST_AHEAD:
            found += line.count_before(-row.item.priority, row.place, MOST_AHEAD - found)
    return found


def _count_lanes(store: MemoryTables, queue: str, tenant: str | None) -> int:
    found: set[tuple[str, str]] = set()
    for line in _lines(store, queue):
        if tenant in (None, line.tenant):
            found.add((line.tenant, line.lane))
            if len(found) == MOST_LANES:
                break
    return len(found)


def _lines(store: MemoryTables, queue: str) -> Iterator[ReadyLine]:
    """The lines of a queue that are not empty. A line with parked items comes several times."""
    for items in (store.ready, *store.parked.values()):
        nodes: list[Node] = [node] if (node := items.queues.find(queue)) is not None else []
        while nodes:
            node = nodes.pop()
            if isinstance(node, FairLevel):
                nodes += [*node.nodes.values(), *node.left_out.values()]
            else:
                yield node


def _lane_holder(store: MemoryTables, row: Row) -> str | None:
    kind = row.kind
    holder = store.strict_lanes.holders.get(kind.type, {}).get((kind.tenant, kind.lane))
    return None if holder is None or holder is row else holder.item.id


def related(store: MemoryTables, id: str, tenant: str | None, count: int) -> Related | None:
    row = store.find(tenant, id)
    if row is None:
        return None
    owner = row.kind.tenant
    names = [(owner, id), (owner, GROUP_MARK + id)]
    tables = store.waiters, store.tolerant, store.unmet
    dependents = {each: None for table in tables for name in names for each in table.get(name, ())}
    return Related(children=_in_short(row.children or (), count), dependents=_in_short(dependents, count))


def _in_short(rows: Iterable[Row], count: int) -> tuple[RelatedItem, ...]:
    first = heapq.nsmallest(count, rows, key=lambda row: row.number)
    return tuple(RelatedItem(row.item.id, row.kind.type, row.status) for row in first)


# --------------------------------------------------------------------------------------------------- a queue


def ready_lines(store: MemoryTables, queue: str, tenant: str | None, count: int, cap: int) -> list[Line]:
    found = _parts_by_line(line for line in _lines(store, queue) if tenant in (None, line.tenant))
    return [_line(*name, found[name], cap) for name in sorted(found)[:count]]


def _parts_by_line(lines: Iterable[ReadyLine]) -> dict[tuple[str, str], list[ReadyLine]]:
    """By tenant and lane: the items in line, and those of them that are parked, by type."""
    found: dict[tuple[str, str], list[ReadyLine]] = {}
    for line in lines:
        if line:
            found.setdefault((line.tenant, line.lane), []).append(line)
    return found


def _first(parts: Sequence[ReadyLine]) -> Row:
    heads = [head for part in parts if (head := part.first()) is not None]
    first: Row = min(heads, key=lambda head: head[:2])[2]
    return first


def _line(tenant: str, lane: str, parts: Sequence[ReadyLine], cap: int) -> Line:
    first, size = _first(parts), sum(map(len, parts))
    return Line(
        tenant=tenant,
        lane=lane,
        count=min(size, cap),
        capped=size > cap,
        oldest_ready=first.ready_at,
        first=first.item.id,
    )


# ------------------------------------------------------------------------------------------------- the store


def overview(store: MemoryTables, tenant: str | None, now: float) -> Overview:
    found: dict[CountKey, int] = {
        (one.tenant, one.queue, one.type, one.status): one.count for one in counts(store, tenant, ended=False)
    }
    workers = _workers(store)
    return Overview(
        now=now,
        counts=shown_counts(found),
        ages=tuple(_ages(store, tenant)),
        unserved=tuple(_unserved(store, tenant, workers, now)),
        workers=tuple(workers),
        releases=tuple(Release(*each) for each in reversed(store.releases.items())),
    )


def _workers(store: MemoryTables) -> list[WorkerState]:
    return sorted(list_workers(store), key=lambda worker: worker.id)


def _lost_types(store: MemoryTables) -> dict[str, float]:
    return {type or "": at for type, at in store.unknown_since.items()}


def _ages(store: MemoryTables, tenant: str | None) -> Iterator[QueueAge]:
    queues = {name for items in (store.ready, *store.parked.values()) for name in _names(items.queues)}
    for queue in sorted(queues):
        lines = (line for line in _lines(store, queue) if tenant in (None, line.tenant))
        parts = _parts_by_line(islice(lines, MOST_AGED_LINES)).values()
        oldest = min(map(_first, parts), key=lambda each: each.ready_at, default=None)
        if oldest is not None:
            yield QueueAge(queue, oldest.ready_at, oldest.kind.tenant, oldest.kind.type)


def _names(level: FairLevel) -> Iterable[str]:
    return [*level.nodes, *level.left_out]


def _unserved(
    store: MemoryTables, tenant: str | None, workers: Sequence[WorkerState], now: float
) -> Iterator[UnservedType]:
    lost, fleet = _lost_types(store), Fleet(workers, now)
    doomed = Counter(row.kind for row in _doomed(store) if row.status == "ready")
    for type, kinds in sorted(store.types.items()):
        found = [kind for kind in kinds if tenant in (None, kind.tenant)]
        ready = sum(kind.counts["ready"] - doomed[kind] for kind in found)
        if ready and not fleet.serves(type=type):
            yield UnservedType(type, ready, unserved_since(type, workers, lost, now))


def _doomed(store: MemoryTables) -> Iterator[Row]:
    """The doomed rows, also those that are leased with their verdicts."""
    yield from store.doomed
    for worker in store.workers.values():
        for lease in worker.held.values():
            row = store.find(lease.tenant, lease.id)
            if lease.verdict is not None and row is not None:
                yield row


# ---------------------------------------------------------------------------------------------------- limits


def limits(store: MemoryTables, names: Sequence[str] | None, count: int, now: float) -> list[LimitUse]:
    stored, held = store.limits.limits, store.limits.held
    wanted: set[tuple[str, Algorithm]] = {*stored, *((name, "slots") for name in held)}
    if names is not None:
        wanted = {key for key in wanted if key[0] in names}
    uses = (_limit_use(store, *key, now) for key in sorted(wanted))
    found = (use for use in uses if use is not None)
    return list(found if names is not None else islice(found, count))


def _limit_use(store: MemoryTables, name: str, algorithm: Algorithm, now: float) -> LimitUse | None:
    if algorithm == "slots":
        return slots_use(name, list(_holders(store, name)))
    stored = store.limits.limits[name, algorithm]
    return rate_use(name, algorithm, (stored.limit.limit, stored.limit.window), stored.state, now)


def _holders(store: MemoryTables, name: str) -> Iterator[LimitHolder]:
    for worker in store.workers.values():
        held = worker.permits.get(name, 0)
        if held:
            leases = (worker.held.get(token) for token in sorted(worker.leases_with_permits.get(name, ())))
            yield LimitHolder(worker.id, held, tuple(lease.id for lease in leases if lease is not None))


# ----------------------------------------------------------------------------------------------------- deaths


def marks(store: MemoryTables, tenant: str | None, count: int, cap: int) -> list[DeadMark]:
    newest: dict[str, Row] = {}
    first: dict[str, Row] = {}
    totals: Counter[str] = Counter()
    releases: dict[str, list[MarkRelease]] = {}
    for row in reversed(store.dead):
        if tenant in (None, row.kind.tenant) and (row.mark in newest or len(newest) < count):
            newest.setdefault(row.mark, row)
            totals[row.mark] += 1
            if row.number <= first.setdefault(row.mark, row).number:
                first[row.mark] = row
            release = row.history[-1].release if row.history else ""
            if release and totals[row.mark] <= cap:
                died = MarkRelease(release, 1, row.ended_at or 0.0, store.releases.get(release))
                releases.setdefault(row.mark, []).append(died)
    return [
        _dead_mark(row, first[mark], totals[mark], cap, mark_releases(releases.get(mark, ())))
        for mark, row in newest.items()
    ]


def _dead_mark(newest: Row, first: Row, total: int, cap: int, releases: tuple[MarkRelease, ...]) -> DeadMark:
    last = newest.history[-1] if newest.history else None
    return DeadMark(
        newest.mark,
        newest.kind.type,
        "" if last is None else last.error_type,
        "" if last is None else last.message,
        min(total, cap),
        total > cap,
        first.queued_at,
        newest.ended_at or 0.0,
        newest.item.id,
        newest.kind.tenant,
        releases,
    )
