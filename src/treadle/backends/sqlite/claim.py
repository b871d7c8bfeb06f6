"""claim: hand out items, fairly, at a cost that depends on how many are handed out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.item import Claim, Demand
from treadle.rules import MOST_DOOMED, PORTION

from .beside import Beside
from .picking import Picking
from .rows import leases
from .statements import Statements
from .turns import Rotation, Source, Turns, behind
from .tx import Tx, array
from .worker import Known, bury_lapsed, claiming, known_types, look_for_dead

_SQL = Statements("claim")


def claim(tx: Tx, demand: Demand, beside: Beside) -> Claim:
    look_for_dead(tx, beside)
    more = bury_lapsed(tx)
    worker = claiming(tx, demand.worker, beside.lock)
    if worker is None:
        return Claim(alive=False)
    _promote(tx)
    _expire(tx)
    if demand.unknown_grace is not None:
        _doom_unknown(tx, demand.unknown_grace)
    rotation = demand.rotation if isinstance(demand.rotation, Rotation) else Rotation()
    picking = Picking(tx, demand)
    taken = _pick(tx, demand, picking, rotation)
    picking.set_aside()
    doomed = _doomed(tx, demand)
    _hand_out(tx, taken, doomed, worker)
    next_due = 0.0 if more or picking.exhausted else _next_due(tx, demand)
    return Claim(tuple(leases(tx, taken + doomed)), rotation, next_due)


# -- what time has done --------------------------------------------------------------------------------


def _expire(tx: Tx) -> None:
    late = tx.rows(_SQL["overdue"], tx.now, PORTION)
    if late:
        tx.run(_SQL["doom"], "expired", array(no for (no,) in late))


def _promote(tx: Tx) -> None:
    due = tx.rows(_SQL["due"], tx.now, PORTION)
    if due:
        first = tx.numbers(seq=len(due)).seq
        tx.run(_SQL["promote"], tx.now, first, array(no for (no,) in due))


def _doom_unknown(tx: Tx, grace: float) -> None:
    """What waited for too long under a type that no live worker has, counted from when the last worker that
    had it was gone."""
    known = known_types(tx)
    if known.every:
        return
    forgotten: dict[str, float] = dict(tx.rows(_SQL["forgotten"]))
    for type in _walk(tx, "next_waiting_type"):
        since = max(forgotten.get(type, 0.0), forgotten.get("", 0.0))
        if known.has(type) or tx.now - since <= grace:
            continue
        late = tx.rows(_SQL["waited"], type, tx.now - grace, PORTION)
        if late:
            tx.run(_SQL["doom"], "unknown_type", array(no for (no,) in late))


def _next_due(tx: Tx, demand: Demand) -> float | None:
    """Exact, unless a thousand items of others are due before: then so far away that those are."""
    if demand.queues is None and demand.tenants is None:
        first: float | None = tx.value(_SQL["next_due"], 1)
        return None if first is None else max(0.0, first - tx.now)
    found = tx.rows(_SQL["next_due"], PORTION)
    concerning = (due for due, queue, tenant in found if _concerns(demand, queue, tenant))
    due: float | None = next(concerning, found[-1][0] if len(found) == PORTION else None)
    return None if due is None else max(0.0, due - tx.now)


def _concerns(demand: Demand, queue: str, tenant: str) -> bool:
    return (demand.queues is None or queue in demand.queues) and (
        demand.tenants is None or tenant in demand.tenants
    )


# -- what is to be run ---------------------------------------------------------------------------------


def _pick(tx: Tx, demand: Demand, picking: Picking, rotation: Rotation) -> list[int]:
    if picking.left <= 0:
        return []
    parked = [Source(tx, type) for type in _parked_types(tx, demand, picking)]
    return Turns([Source(tx), *parked], demand, picking, rotation).take(picking.left)


def _parked_types(tx: Tx, demand: Demand, picking: Picking) -> list[str]:
    if demand.types is None:
        return list(_walk(tx, "next_parked_type"))
    wanted = [type for type in demand.types if picking.admits(type)]
    return [type for (type,) in tx.rows(_SQL["parked_types_of"], array(wanted))]


def _walk(tx: Tx, name: str, *within: str) -> Iterator[str]:
    """The distinct names in an index, each found by one step."""
    found = tx.value(_SQL[name], *within, "")
    while found is not None:
        yield found
        found = tx.value(_SQL[name], *within, behind(found))


def _hand_out(tx: Tx, taken: Sequence[int], doomed: Sequence[int], worker: int) -> None:
    if not taken and not doomed:
        return
    first = tx.numbers(token=len(taken) + len(doomed)).token
    if taken:
        tx.run(_SQL["hand_out"], first, worker, tx.now, array(taken))
    if doomed:
        tx.run(_SQL["hand_out_doomed"], first + len(taken), worker, array(doomed))


# -- what can only end ---------------------------------------------------------------------------------


def _doomed(tx: Tx, demand: Demand) -> list[int]:
    """Doomed items for a worker that has their type, or whose type nobody has."""
    known: Known | None = None
    found: list[int] = []
    for type in _walk(tx, "next_doomed_type"):
        if demand.types is not None and type not in demand.types:
            known = known or known_types(tx)
            if known.has(type):
                continue
        found += _doomed_of(tx, demand, type, MOST_DOOMED - len(found))
        if len(found) >= MOST_DOOMED:
            break
    return found


def _doomed_of(tx: Tx, demand: Demand, type: str, most: int) -> list[int]:
    if demand.queues is None and demand.tenants is None:
        return [no for (no,) in tx.rows(_SQL["doomed"], type, most)]
    found: list[int] = []
    for queue in _walk(tx, "next_doomed_queue", type) if demand.queues is None else demand.queues:
        if demand.tenants is None:
            found += [no for (no,) in tx.rows(_SQL["doomed_in_queue"], type, queue, most - len(found))]
            continue
        for tenant in demand.tenants:
            rows = tx.rows(_SQL["doomed_in_tenant"], type, queue, tenant, most - len(found))
            found += [no for (no,) in rows]
    return found
