"""claim: hand out items fairly, at a cost that depends on how many are handed out."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.bulk_action import BULK_TYPE
from treadle.item import Claim, Demand
from treadle.store.rules import MOST_DOOMED, PORTION

from .fairness import LastServed, pick_items
from .process_directory import ProcessDirectory
from .rows import leases
from .statements import Row, Tx, array, statements
from .workers import LiveTypes, begin_claim, live_types

_SQL = statements("claim")


def claim(tx: Tx, demand: Demand, directory: ProcessDirectory) -> Claim:
    worker, more = begin_claim(tx, demand.worker, directory)
    if worker is None:
        return Claim(alive=False)
    due, expired = _make_due_ready(tx), tx.rows(_SQL["overdue"], tx.now, PORTION)
    _doom(tx, "expired", expired)
    more = more or PORTION in (due, len(expired))
    if demand.unknown_grace is not None:
        _doom_unknown_types(tx, demand.unknown_grace)
    last = demand.fairness if isinstance(demand.fairness, LastServed) else LastServed()
    picked = pick_items(tx, demand, last)
    _doom(tx, "expired", [(no,) for no in picked.overdue])
    doomed = _doomed(tx, demand)
    nos = picked.nos + doomed
    if nos:
        _lease(tx, picked.nos, doomed, worker)
        if demand.buffered:
            tx.run(_SQL["lease_buffered"], array(picked.nos), array(demand.buffered))
        if demand.strict:
            tx.run(_SQL["hold_lanes"], array(picked.nos), array(demand.strict))
    next_due = 0.0 if more or picked.exhausted else _next_due(tx, demand)
    return Claim(tuple(leases(tx, nos)) if nos else (), last, next_due)


# -- what time has done --------------------------------------------------------------------------------


def _make_due_ready(tx: Tx) -> int:
    due = tx.rows(_SQL["due"], tx.now, PORTION)
    if due:
        first = tx.numbers(seq=len(due)).seq
        tx.run(_SQL["make_ready"], first, array([no for (no,) in due]))
    return len(due)


def _doom(tx: Tx, verdict: str, rows: Sequence[Row]) -> None:
    if rows:
        tx.run(_SQL["doom"], verdict, array([no for (no,) in rows]))


def _doom_unknown_types(tx: Tx, grace: float) -> None:
    """Doom items that waited longer than the grace for a live worker that has their type. The time counts
    from when the last worker that had the type was gone."""
    live = live_types(tx)
    if live.every:
        return
    unknown: dict[str, float] = dict(tx.rows(_SQL["unknown_types"]))
    for type in tx.names(_SQL["next_ready_type"]):
        since = max(unknown.get(type, 0.0), unknown.get("", 0.0))
        if not live.has(type) and type != BULK_TYPE and tx.now - since > grace:
            _doom(tx, "unknown_type", tx.rows(_SQL["ready_too_long"], type, tx.now - grace, PORTION))


def _next_due(tx: Tx, demand: Demand) -> float | None:
    """Seconds until the next scheduled item of this demand is due. If a whole portion of other items is due
    before, only until the last of those."""
    if demand.queues is None and demand.tenants is None:
        first: float | None = tx.value(_SQL["next_due"], 1)
        return None if first is None else max(0.0, first - tx.now)
    found = tx.rows(_SQL["next_due"], PORTION)
    wanted = (due for due, queue, tenant in found if _is_demanded(demand, queue, tenant))
    due: float | None = next(wanted, found[-1][0] if len(found) == PORTION else None)
    return None if due is None else max(0.0, due - tx.now)


def _is_demanded(demand: Demand, queue: str, tenant: str) -> bool:
    return (demand.queues is None or queue in demand.queues) and (
        demand.tenants is None or tenant in demand.tenants
    )


# -- doomed items --------------------------------------------------------------------------------------


def _doomed(tx: Tx, demand: Demand) -> list[int]:
    """Doomed items whose type this worker has, or no live worker has."""
    live: LiveTypes | None = None
    found: list[int] = []
    for type in tx.names(_SQL["next_doomed_type"]):
        if demand.types is not None and type not in demand.types:
            live = live or live_types(tx)
            if live.has(type):
                continue
        found += _doomed_of_type(tx, demand, type, MOST_DOOMED - len(found))
        if len(found) >= MOST_DOOMED:
            break
    return found


def _doomed_of_type(tx: Tx, demand: Demand, type: str, most: int) -> list[int]:
    if demand.queues is None and demand.tenants is None:
        return [no for (no,) in tx.rows(_SQL["doomed"], type, most)]
    found: list[int] = []
    for queue in tx.names(_SQL["next_doomed_queue"], type) if demand.queues is None else demand.queues:
        if demand.tenants is None:
            found += [no for (no,) in tx.rows(_SQL["doomed_in_queue"], type, queue, most - len(found))]
            continue
        for tenant in demand.tenants:
            rows = tx.rows(_SQL["doomed_in_tenant"], type, queue, tenant, most - len(found))
            found += [no for (no,) in rows]
    return found


def _lease(tx: Tx, nos: Sequence[int], doomed: Sequence[int], worker: int) -> None:
    first = tx.numbers(token=len(nos) + len(doomed)).token
    if nos:
        tx.run(_SQL["lease"], first, worker, tx.now, array(nos))
    if doomed:
        tx.run(_SQL["lease_doomed"], first + len(nos), worker, array(doomed))
