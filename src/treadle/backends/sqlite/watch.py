"""Watch: why an item waits, how far limits are used, what has died."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from treadle.item import GROUP_MARK, Counting, ItemState, Status, Verdict
from treadle.item_facts import DeadMark, Explanation, LimitHolder, LimitUse
from treadle.store.rules.limits import LimitState
from treadle.store.rules.settlement import group_status
from treadle.store.rules.watching import (
    MOST_AHEAD,
    MOST_LANES,
    MOST_WORKERS,
    rate_use,
    shown_prerequisites,
    slots_use,
    unserved_since,
    why_again,
)

from .read import root
from .rows import decode_text, full_states, numbers
from .statements import Row, Tx, array, statements
from .status_codes import STATUS
from .workers import workers

_SQL = statements("watch")
_FAIRNESS = statements("fairness")

_PAGE = 500
_MOST_DEATHS = (200, 5000)
"""How many of the newest deaths are looked at for their marks: at first, and if these have too few."""
_MOST_MARKED = 10_000
"""How many items are counted in all, those of the newest marks first."""
_LEAST_MARKED = 100
"""How many items of each mark are counted in any case, if it has so many."""

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
    shown, paused = tuple(fleet[:MOST_WORKERS]), tuple(_pauses_of(tx, state))
    stored = tx.row(_SQL["open_item"], no)
    if stored is None:
        return Explanation(now=tx.now, item=state, paused=paused, workers=shown)
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
        paused=paused,
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


def pauses(tx: Tx, tenant: str | None) -> list[tuple[str, str | None]]:
    """The pauses for all tenants, and those of one tenant or of all."""
    found = [(queue, owner or None) for queue, owner in tx.rows(_SQL["pauses"])]
    return [pause for pause in found if tenant is None or pause[1] in (None, tenant)]


def _pauses_of(tx: Tx, state: ItemState) -> list[str | None]:
    return [owner for queue, owner in pauses(tx, state.tenant) if queue == state.queue]


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


def marks(tx: Tx, tenant: str | None, count: int, cap: int) -> list[DeadMark]:
    found: list[_Mark] = []
    left = _MOST_MARKED
    for name in _newest_marks(tx, tenant, count):
        found.append(_mark(tx, name, tenant, cap, max(left, _LEAST_MARKED)))
        left -= found[-1].total
    deaths = {row[0]: row for row in tx.rows(_SQL["deaths"], array(one.newest for one in found))}
    queued: dict[int, float] = dict(tx.rows(_SQL["queued_at"], array(one.first for one in found)))
    shown = [_dead_mark(one, deaths[one.newest], queued[one.first]) for one in found]
    return sorted(shown, key=lambda mark: mark.last_at, reverse=True)


def _newest_marks(tx: Tx, tenant: str | None, count: int) -> list[str]:
    """The marks of the newest deaths, then any others."""
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
    )
