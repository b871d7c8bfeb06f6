"""Watch: why an item waits, how far limits are used, what has died, what waits in each line, and how the
store stands as a whole."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import ceil, gcd
from typing import Final, Literal, NamedTuple, TypeAlias

from treadle.item import GROUP_MARK, Counting, ItemState, Status, Verdict, WorkerState
from treadle.item_facts import (
    DeadMark,
    Explanation,
    LimitHolder,
    LimitUse,
    MarkRelease,
    Overview,
    QueueAge,
    UnservedType,
    mark_releases,
)
from treadle.records import Line, Related, RelatedItem
from treadle.store.fleet import Fleet
from treadle.store.rules.limits import LimitState
from treadle.store.rules.settlement import group_status
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

from .read import root
from .rows import BLOCKED, DEAD, PARKED, READY, SCHEDULED, STATUS, decode_text, doomed, full_states, numbers
from .statements import NEXT, Row, Tx, array, statements
from .workers import releases, workers

_SQL = statements("watch")
_FAIRNESS = statements("fairness")

_PAGE = 500
_MOST_DEATHS = (200, 5000)
"""How many of the newest deaths are looked at for their marks: at first, and if these have too few."""
_MOST_MARKED = 10_000
"""How many items are counted in all, those of the newest marks first."""
_LEAST_MARKED = 100
"""Items of each mark that are counted in any case."""

Tenants: TypeAlias = tuple[str, str | bytes]
"""The first and the last of the tenants that a statement reads, in the order of the index."""
ALL_TENANTS: Tenants = ("", b"")
"""A blob comes after all texts."""


def one_tenant(tenant: str) -> Tenants:
    return tenant, tenant


# -- one item ------------------------------------------------------------------------------------------


class _OpenRow(NamedTuple):
    status: int
    verdict: Verdict | None
    need: int
    met: int
    pending: int
    any_end_counts: int
    rank: int
    seq: int
    begun: int


def explain(tx: Tx, id: str, tenant: str | None) -> Explanation | None:
    no = numbers(tx, [id], tenant).get(id)
    if no is None:
        return None
    state = full_states(tx, [no])[no]
    fleet = workers(tx)
    shown = tuple(fleet[:MOST_WORKERS])
    stored = tx.row(_SQL["open_item"], no)
    if stored is None:
        return Explanation(now=tx.now, item=state, workers=shown)
    row = _OpenRow._make(stored)
    blocked = STATUS[row.status] == "blocked"
    counting: Counting = "done" if row.any_end_counts else "success"
    ready = state.status == "ready" and row.verdict is None
    parked = parked_types(tx) if ready else []
    again = why_again(state, row.verdict, keeps_place=row.seq != 0)
    return Explanation(
        now=tx.now,
        item=state,
        verdict=row.verdict,
        need=row.need if blocked else 0,
        met=row.met if blocked else 0,
        open=row.pending if blocked else 0,
        counting=counting if blocked else "success",
        prerequisites=shown_prerequisites(state, counting, dict(_prerequisites(tx, state)))
        if blocked or row.verdict is not None
        else (),
        begun=bool(row.begun) or state.status != "running",
        freed=again.freed,
        given_back=again.given_back,
        unknown_since=unserved_since(state.type, fleet, lost_types(tx), tx.now),
        ahead=_ahead(tx, state, row, parked) if ready else 0,
        lanes=_count_lanes(tx, state.queue, tenant, parked) if ready else 0,
        lane_holder=_lane_holder(tx, no, state) if ready else None,
        workers=shown,
    )


def _prerequisites(tx: Tx, state: ItemState) -> Iterator[tuple[str, tuple[Status, str]]]:
    """The status and type of those that exist."""
    names = list(dict.fromkeys(state.after))
    items = array(name for name in names if not name.startswith(GROUP_MARK))
    for id, status, type in tx.rows(_SQL["prerequisites"], items, state.tenant):
        yield id, (STATUS[status], type)
    for name in names:
        no = root(tx, name[1:], state.tenant) if name.startswith(GROUP_MARK) else None
        if no is not None:
            row = tx.row(_SQL["prerequisite_group"], no) or tx.row(_SQL["prerequisite_alone"], no)
            if row is not None:
                type, ended, failed, cancelled = row
                yield name, ("running" if ended is None else group_status(failed, cancelled), type)


def lost_types(tx: Tx) -> dict[str, float]:
    """When the last worker that had a type was removed; under the empty name, one that had every type."""
    return dict(tx.rows(_SQL["lost_types"]))


def parked_types(tx: Tx) -> list[str]:
    return list(tx.names(_FAIRNESS["next_parked_type"]))


def _ahead(tx: Tx, state: ItemState, row: _OpenRow, parked: Sequence[str]) -> int:
    place = state.queue, state.tenant, state.lane, row.rank, row.seq
    found: int = tx.value(_SQL["ready_ahead"], *place, MOST_AHEAD)
    for type in parked:
        if found < MOST_AHEAD:
            found += tx.value(_SQL["parked_ahead"], type, *place, MOST_AHEAD - found)
    return found


def lines(tx: Tx, queue: str, tenants: Tenants, parked: Sequence[str], most: int) -> Iterator[Row]:
    """Lines of a queue that have ready items: tenant, lane, and of its first item since when it is ready, its
    place (rank and seq) and its number. A line comes once more for each type of which it has parked items."""
    yield from tx.rows(_SQL["ready_lines"], queue, *tenants, most)
    for type in parked:
        yield from parked_lines(tx, queue, tenants, type, most)


def parked_lines(tx: Tx, queue: str, tenants: Tenants, type: str, most: int) -> list[Row]:
    """The same, of the items that are parked under one type."""
    return tx.rows(_SQL["parked_lines"], queue, *tenants, most, type)


def _count_lanes(tx: Tx, queue: str, tenant: str | None, parked: Sequence[str]) -> int:
    tenants = ALL_TENANTS if tenant is None else one_tenant(tenant)
    found: set[tuple[str, str]] = set()
    for owner, lane, *_ in lines(tx, queue, tenants, parked, MOST_LANES):
        found.add((owner, lane))
        if len(found) == MOST_LANES:
            break
    return len(found)


def _lane_holder(tx: Tx, no: int, state: ItemState) -> str | None:
    found: str | None = tx.value(_SQL["lane_holder"], state.type, state.tenant, state.lane, no)
    return found


# -- what belongs to an item ---------------------------------------------------------------------------


def related(tx: Tx, id: str, tenant: str | None, count: int) -> Related | None:
    no = numbers(tx, [id], tenant).get(id)
    if no is None:
        return None
    group, owner = tx.rows(_SQL["item"], no)[0]
    children = _queued(tx, no, group, count)
    children |= {each for (each,) in tx.rows(_SQL["named"], id, owner, count)}
    dependents = {each for (each,) in tx.rows(_SQL["dependents"], no, count)}
    group_no = root(tx, id, owner)
    if group_no is not None:
        dependents |= {each for (each,) in tx.rows(_SQL["dependents"], -group_no, count)}
    return Related(
        children=_in_short(tx, sorted(children)[:count]), dependents=_in_short(tx, sorted(dependents)[:count])
    )


def _queued(tx: Tx, no: int, group: int, count: int) -> set[int]:
    """What its settlement queued: in its group, and in the nested groups that some of these close."""
    found: set[int] = set()
    groups = [group]
    while groups and len(found) < count:
        own = [each for (each,) in tx.rows(_SQL["queued"], groups.pop(0), no, count)]
        found.update(own)
        groups += (each for (each,) in tx.rows(_SQL["closed"], array(own)))
    return found


def _in_short(tx: Tx, nos: Iterable[int]) -> tuple[RelatedItem, ...]:
    rows = tx.rows(_SQL["in_short"], array(nos))
    return tuple(RelatedItem(id, type, STATUS[status]) for id, type, status in rows)


# -- limits --------------------------------------------------------------------------------------------


def limits(tx: Tx, names: Sequence[str] | None, count: int) -> list[LimitUse]:
    if names is None:
        rates = list(islice(_rates_in_order(tx), count))
        slots = list(islice(_slots(tx, tx.names(_SQL["next_slots"])), count))
        found = sorted((*rates, *slots), key=lambda use: (use.name, use.algorithm))
        return found[:count]
    rows = tx.rows(_SQL["named_limits"], array(set(names)))
    uses = (_rate_use(row, tx.now) for row in rows)
    return [*(use for use in uses if use is not None), *_slots(tx, iter(set(names)))]


def _rates_in_order(tx: Tx) -> Iterator[LimitUse]:
    last = "", ""
    while rows := tx.rows(_SQL["limits"], *last, _PAGE):
        for row in rows:
            use = _rate_use(row, tx.now)
            if use is not None:
                yield use
        last = rows[-1][0], rows[-1][1]


def _rate_use(row: Row, now: float) -> LimitUse | None:
    name, algorithm, limit, window, *state = row
    rate = None if limit is None else (limit, window)
    return rate_use(name, algorithm, rate, LimitState(*state), now)


def _slots(tx: Tx, names: Iterator[str]) -> Iterator[LimitUse]:
    for name in names:
        items: defaultdict[int, list[str]] = defaultdict(list)
        for worker, id in tx.rows(_SQL["slots_items"], name):
            items[worker].append(id)
        held = tx.rows(_SQL["slots_holders"], name)
        use = slots_use(name, [LimitHolder(id, count, tuple(items[no])) for no, id, count in held])
        if use is not None:
            yield use


# -- deaths --------------------------------------------------------------------------------------------


class _Mark(NamedTuple):
    mark: str
    cap: int
    """How many were counted at most."""
    total: int
    """If there are more than the cap: some number above it."""
    first: int
    """The number of the item that was submitted first."""
    newest: int
    """The number of the item that died last."""
    releases: tuple[MarkRelease, ...] = ()


def marks(tx: Tx, tenant: str | None, count: int, cap: int) -> list[DeadMark]:
    found: list[_Mark] = []
    left = _MOST_MARKED
    has_releases = bool(releases(tx))
    for name in _newest_marks(tx, tenant, count):
        mark = _mark(tx, name, tenant, cap, max(left, _LEAST_MARKED))
        found.append(mark._replace(releases=_mark_releases(tx, mark, tenant)) if has_releases else mark)
        left -= mark.total
    deaths = {row[0]: row for row in tx.rows(_SQL["deaths"], array(one.newest for one in found))}
    queued: dict[int, float] = dict(tx.rows(_SQL["queued_at"], array(one.first for one in found)))
    shown = [_dead_mark(one, deaths[one.newest], queued[one.first]) for one in found]
    return sorted(shown, key=lambda mark: mark.last_at, reverse=True)


def _newest_marks(tx: Tx, tenant: str | None, count: int) -> list[str]:
    """The marks of the newest deaths, then any others. If there are few, only their index is looked at."""
    name, within = ("marks", ()) if tenant is None else ("marks_of_tenant", (tenant,))
    every: list[tuple[str, float]] = tx.rows(_SQL[name], *within, count + 1)
    if len(every) <= count:
        return [mark for mark, _ in sorted(every, key=lambda row: row[1], reverse=True)]
    tenants = ALL_TENANTS if tenant is None else one_tenant(tenant)
    found: dict[str, None] = {}
    for most in _MOST_DEATHS:
        if len(found) < count:
            rows = tx.rows(_SQL["newest_deaths"], *tenants, most)
            found = dict.fromkeys(islice(dict.fromkeys(mark for (mark,) in rows), count))
    name, within = ("next_mark", ()) if tenant is None else ("next_mark_of_tenant", (tenant,))
    others = tx.names(_SQL[name], *within)
    while len(found) < count and (mark := next(others, None)) is not None:
        found[mark] = None
    return list(found)


def _mark(tx: Tx, mark: str, tenant: str | None, cap: int, most: int) -> _Mark:
    """most: how many items may be looked at. Those of a tenant are in the order of their deaths, so the one
    that was submitted first may be beyond the cap."""
    cap = min(cap, most)
    if tenant is None:
        row = tx.rows(_SQL["mark"], mark, cap + 1)[0]
    else:
        row = tx.rows(_SQL["mark_of_tenant"], mark, most + 1, tenant)[0]
    return _Mark(mark, cap, *row)


def _mark_releases(tx: Tx, mark: _Mark, tenant: str | None) -> tuple[MarkRelease, ...]:
    within = ("mark_releases", ()) if tenant is None else ("mark_releases_of_tenant", (tenant,))
    rows = tx.rows(_SQL[within[0]], mark.mark, min(mark.cap, mark.total), *within[1])
    return mark_releases(MarkRelease(*row) for row in rows)


def _dead_mark(found: _Mark, death: Row, queued_at: float) -> DeadMark:
    _, type, tenant, ended, id, error_type, message = death
    return DeadMark(
        found.mark,
        type,
        "" if error_type is None else decode_text(error_type),
        "" if message is None else decode_text(message),
        min(found.total, found.cap),
        found.total > found.cap,
        queued_at,
        ended,
        id,
        tenant,
        found.releases,
    )


# -- the lines of a queue ------------------------------------------------------------------------------


class _Head(NamedTuple):
    """The first item of a line, or the first of those in it that are parked under one type."""

    rank: int
    seq: int
    no: int
    since: float
    parked: str | None
    """The type. None: it is not parked."""


def ready_lines(tx: Tx, queue: str, tenant: str | None, count: int, cap: int) -> list[Line]:
    tenants = ALL_TENANTS if tenant is None else one_tenant(tenant)
    found: dict[tuple[str, str], list[_Head]] = {}
    for type in (None, *parked_types(tx)):
        rows = (
            lines(tx, queue, tenants, (), count)
            if type is None
            else parked_lines(tx, queue, tenants, type, count)
        )
        for owner, lane, since, rank, seq, no in rows:
            found.setdefault((owner, lane), []).append(_Head(rank, seq, no, since, type))
    shown = {name: found[name] for name in sorted(found)[:count]}
    ids: dict[int, str] = dict(tx.rows(_SQL["ids"], array(min(heads).no for heads in shown.values())))
    return [_line(tx, queue, *name, heads, ids, cap) for name, heads in shown.items()]


def _line(
    tx: Tx, queue: str, tenant: str, lane: str, heads: list[_Head], ids: dict[int, str], cap: int
) -> Line:
    first, size = min(heads), 0
    for head in heads:
        left = cap + 1 - size
        if head.parked is None:
            size += tx.value(_SQL["size_ready"], queue, tenant, lane, left)
        elif left > 0:
            size += tx.value(_SQL["size_parked"], head.parked, queue, tenant, lane, left)
    return Line(
        tenant=tenant,
        lane=lane,
        count=min(size, cap),
        capped=size > cap,
        oldest_ready=first.since,
        first=ids[first.no],
    )


# -- how the store stands ------------------------------------------------------------------------------
#
# Open items are counted by reading their table whole, portion by portion, until the time is up. If it is up
# before the end, the portions that were read are spread over the table, and say about how many items there
# are. Each index is read then, no further than a bound: what there is little of is exact all the same. An
# index with all labels takes a tenth of the time: the dead are counted along theirs, and so are blocked and
# scheduled items where the time is up.


_WAITING = (BLOCKED, SCHEDULED, doomed(BLOCKED), doomed(SCHEDULED), doomed(READY))

COUNTING_SECONDS: Final = 1.0
"""Seconds for which an overview reads open items, and dead ones that are too many for their index."""
QUICK_SECONDS: Final = 0.02
"""The same for a quick overview."""
_PORTION = 5_000
_LONG_PORTION = 50_000
"""Of a large table: each portion answers with all labels that it has, so a few long ones are cheaper."""
_FEW_PORTIONS = 8
_MOST_PORTIONS = 1_000

# How many items are looked at along indexes, in all.
_MOST_COUNTED = 5_000
_MOST_LABELLED = 100_000
"""Where the index has all labels."""
_MOST_DEAD = 1_000_000
"""The same for the dead, unless it is quick."""
# Of these, the index does not have the type: each takes a look into the table.
_MOST_LOOKED_UP = 2_500
_MOST_HEADS = 600
_LEAST = 100
_MOST_OF_TYPE = 10_000

Kind: TypeAlias = Literal["open", "dead"]


def overview(tx: Tx, tenant: str | None, quick: bool, seconds: float | None = None) -> Overview:
    """seconds: for how long open items are read, and dead ones. 0: only what there is little of is
    counted."""
    seconds = (QUICK_SECONDS if quick else COUNTING_SECONDS) if seconds is None else seconds
    fleet, tenants = workers(tx), ALL_TENANTS if tenant is None else one_tenant(tenant)
    parked = parked_types(tx)
    counts = _Counts(tx, tenants, hurried=not seconds)
    if not counts.scan("open", seconds):
        counts.count_waiting()
        counts.count_ready()
        counts.count_parked(parked)
        counts.count_leased()
    if not counts.count_dead(_MOST_LABELLED if quick else _MOST_DEAD):
        counts.scan("dead", seconds)
    return Overview(
        now=tx.now,
        counts=shown_counts(*counts.result()),
        ages=tuple(_ages(tx, tenants, parked)),
        unserved=tuple(_unserved(tx, fleet, counts, tenant)),
        workers=tuple(fleet),
        releases=releases(tx),
    )


class _Counts:
    def __init__(self, tx: Tx, tenants: Tenants, *, hurried: bool) -> None:
        self._tx = tx
        self._tenants = tenants
        self._hurried = hurried
        """There is no time to count more than little."""
        self._found: Counter[CountKey] = Counter()
        self._cut: set[tuple[str, Status]] = set()
        """The queues and statuses of which there may be more than were counted along an index."""
        self._about: Counter[CountKey] = Counter()
        """What the portions say that were read, if these were not all."""
        self.ready: Counter[str] = Counter()
        """By type: those that wait for a worker, as far as they were counted."""
        self.about_ready: Counter[str] = Counter()

    def result(self) -> tuple[Counter[CountKey], set[tuple[str, Status]]]:
        """The counts, and the queues and statuses of which they are estimates."""
        counts = self._found.copy()
        for key, count in self._about.items():
            if (key[1], key[3]) in self._cut:
                counts[key] = max(counts[key], count)
        return counts, self._cut

    def scan(self, kind: Kind, seconds: float) -> bool:
        """Count by reading the table. Returns whether there was time for all of it. What is found of the dead
        only tells how many there are of those that were not counted along their index."""
        if self._hurried:
            return False
        first, last = _numbers(self._tx, kind)
        if first is None or last is None:
            return True
        span = last - first + 1
        longest = _LONG_PORTION if seconds >= COUNTING_SECONDS else _PORTION
        size = max(_PORTION, min(longest, ceil(span / _FEW_PORTIONS)), ceil(span / _MOST_PORTIONS))
        portions, done = ceil(span / size), 0
        seen: Counter[tuple[str, int, str, str]] = Counter()
        until = time.monotonic() + seconds
        for place in _spread(portions):
            if done and time.monotonic() > until:
                break
            begin = first + place * size
            for *labels, count in self._tx.rows(_SQL[kind], begin, begin + size - 1, *self._tenants):
                queue, status, tenant, type = labels
                seen[queue, status, tenant, type] += count
            done += 1
        for (queue, status, tenant, type), count in seen.items():
            if done == portions and kind == "open":
                self._add(queue, status, tenant, type, count)
            else:
                about = round(count * portions / done)
                self._about[tenant, queue, type, STATUS[status]] += about
                self.about_ready[type] += about if status in (READY, PARKED) else 0
        return done == portions

    def _add(self, queue: str, status: int, tenant: str, type: str, count: int) -> None:
        self._found[tenant, queue, type, STATUS[status]] += count
        if status in (READY, PARKED):
            self.ready[type] += count

    def _share(self, most: int, queues: Sequence[str]) -> int:
        """How many items of each queue are counted."""
        return _LEAST if self._hurried else max(_LEAST, most // max(1, len(queues)))

    def count_waiting(self) -> None:
        for status in _WAITING:
            queues = _queues(self._tx, _SQL["next_waiting_queue"], status)
            most = self._share(_MOST_LABELLED, queues)
            for queue in queues:
                self._count(queue, status, "waiting", (status, queue, *self._tenants), most)

    def count_dead(self, most: int) -> bool:
        """Returns whether all were counted."""
        queues = _queues(self._tx, _SQL["next_dead_queue"])
        most = self._share(most, queues)
        whole = [self._count(each, DEAD, "first_dead", (each, *self._tenants), most) for each in queues]
        return all(whole)

    def _count(self, queue: str, status: int, name: str, within: tuple[object, ...], most: int) -> bool:
        """Count up to `most` items of a queue and status, in the order of the index. Returns whether these
        are all."""
        bound = self._tx.row(_SQL[f"{name}_bound"], *within, most)
        if bound is None:
            rows = self._tx.rows(_SQL[name], *within)
        else:
            rows = self._tx.rows(_SQL[f"{name}_before"], *within, *bound)
            rows.append((*bound, most - sum(count for _, _, count in rows)))
            self._cut.add((queue, STATUS[status]))
        for tenant, type, count in rows:
            self._add(queue, status, tenant, type, count)
        return bound is None

    def count_ready(self) -> None:
        queues = _queues(self._tx, _FAIRNESS["ready_queue"])
        most = self._share(_MOST_LOOKED_UP, queues)
        for queue in queues:
            rows = self._tx.rows(_SQL["ready"], queue, *self._tenants, most)
            for tenant, type, count in rows:
                self._add(queue, READY, tenant, type, count)
            if sum(row[2] for row in rows) == most:
                self._cut.add((queue, "ready"))

    def count_parked(self, types: Sequence[str]) -> None:
        for type in types:
            queues = list(self._tx.names(_FAIRNESS["parked_queue"], type))
            most = self._share(_MOST_COUNTED // len(types), queues)
            for queue in queues:
                self._count(queue, PARKED, "parked", (type, queue, *self._tenants), most)

    def count_leased(self) -> None:
        most = _LEAST if self._hurried else _MOST_COUNTED
        rows = self._tx.rows(_SQL["leased"], most)
        for (queue, tenant, type, status), count in Counter(rows).items():
            if self._tenants in (ALL_TENANTS, one_tenant(tenant)):
                self._add(queue, status, tenant, type, count)
                if len(rows) == most:
                    self._cut.add((queue, STATUS[status]))


def _numbers(tx: Tx, kind: Kind) -> tuple[int | None, int | None]:
    """The first number and the last one. None: there is no item."""
    first, last = tx.rows(_SQL[f"{kind}_numbers"])[0]
    return first, last


def _spread(count: int) -> Iterator[int]:
    """The numbers below `count`, each once. The first of them are spread over all, however many are taken."""
    stride = ceil(count * 0.618)
    while gcd(stride, count) > 1:
        stride += 1
    return (n * stride % count for n in range(count))


def _queues(tx: Tx, sql: str, *within: int) -> list[str]:
    """The queues in an index, each found by one step."""
    found: list[str] = []
    queue = tx.value(sql, *within, "")
    while queue is not None:
        found.append(queue)
        queue = tx.value(sql, *within, queue + NEXT)
    return found


def _ages(tx: Tx, tenants: Tenants, parked: Sequence[str]) -> Iterator[QueueAge]:
    queues = {*tx.names(_FAIRNESS["ready_queue"])}
    queues |= {queue for type in parked for queue in tx.names(_FAIRNESS["parked_queue"], type)}
    most = min(MOST_AGED_LINES, _MOST_HEADS // max(1, len(queues)) + 1)
    for queue in sorted(queues):
        first: dict[tuple[str, str], tuple[int, int, float]] = {}
        for owner, lane, since, rank, seq, _ in lines(tx, queue, tenants, parked, most):
            head = (rank, seq, since)
            first[owner, lane] = min(head, first.get((owner, lane), head))
        if first:
            yield QueueAge(queue, min(since for *_, since in first.values()))


def _unserved(
    tx: Tx, workers: Sequence[WorkerState], counts: _Counts, tenant: str | None
) -> Iterator[UnservedType]:
    lost, fleet, ready = lost_types(tx), Fleet(workers, tx.now), counts.ready
    for type in tx.names(_SQL["next_ready_type"]) if tenant is None else sorted(ready):
        if not fleet.serves(type=type):
            least = tx.value(_SQL["ready_of_type"], type, _MOST_OF_TYPE) if tenant is None else 0
            count = max(ready[type], counts.about_ready[type], least)
            yield UnservedType(type, count, unserved_since(type, workers, lost, tx.now))
