"""claim: hand out items fairly, at a cost that depends on how many are handed out."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.bulk_action import BULK_TYPE
from treadle.item import Claim, Demand, Lease
from treadle.store.rules import MOST_DOOMED, PORTION
from treadle.store.rules.settlement import token_step

from .fairness import ClaimFacts, LastServed, PickedItems, pick_items
from .process_directory import ProcessDirectory
from .rows import leases, new_leases
from .statements import Row, Tx, array, random_bits, statements
from .workers import LiveTypes, end_leases_of_dead, live_types, remove_lapsed, set_lock_file

_SQL = statements("claim")


def claim(tx: Tx, demand: Demand, directory: ProcessDirectory) -> Claim:
    facts, more = _begin(tx, demand.worker, directory)
    worker = facts.worker
    if worker is None:
        return Claim(alive=False)
    if demand.orders not in (None, facts.orders):
        return Claim(fairness=demand.fairness, orders=facts.orders)
    changed, more_time = _process_time(tx, demand, facts)
    if changed:
        facts = claim_facts(tx, demand.worker)
    last = demand.fairness if isinstance(demand.fairness, LastServed) else LastServed()
    picked = pick_items(tx, demand, last, facts)
    _doom(tx, "expired", [(no,) for no in picked.overdue])
    doomed = _doomed(tx, demand) if facts.any_doomed or picked.overdue else []
    next_due = 0.0 if more or more_time or picked.exhausted else _next_due(tx, demand, facts)
    leased: list[Lease] = []
    if picked.nos or doomed:
        leased = _lease(tx, demand, picked, doomed, worker, facts)
    return Claim(tuple(leased), last, next_due)


def _begin(tx: Tx, worker: str, directory: ProcessDirectory) -> tuple[ClaimFacts, bool]:
    """Remove the workers whose leases have lapsed. True: there are more items of removed workers to free."""
    if directory.probe_is_due():
        end_leases_of_dead(tx, directory)
    facts, more = claim_facts(tx, worker), False
    if facts.any_gone:
        more = remove_lapsed(tx)
        facts = claim_facts(tx, worker)
    if facts.worker is not None and facts.lock_file != directory.lock_file:
        # Another process has claimed for this worker so far.
        set_lock_file(tx, facts.worker, directory)
    return facts, more


def claim_facts(tx: Tx, worker: str) -> ClaimFacts:
    return ClaimFacts._make(tx.rows(_SQL["facts"], tx.lapsed_until, tx.now, worker)[0])


# -- what time has done --------------------------------------------------------------------------------


def _process_time(tx: Tx, demand: Demand, facts: ClaimFacts) -> tuple[bool, bool]:
    """Process portions of the items that are due or have expired, and the items of unknown types. Return
    whether something changed, and whether there may be more."""
    due, expired = 0, list[Row]()
    if facts.first_due is not None and facts.first_due <= tx.now:
        due = _make_due_ready(tx)
    if facts.first_deadline is not None and facts.first_deadline <= tx.now:
        expired = tx.rows(_SQL["overdue"], tx.now, PORTION)
        _doom(tx, "expired", expired)
    unknown = demand.unknown_grace is not None and _doom_unknown_types(tx, demand.unknown_grace)
    return bool(due or expired or unknown), PORTION in (due, len(expired))


def _make_due_ready(tx: Tx) -> int:
    due = tx.rows(_SQL["due"], tx.now, PORTION)
    if due:
        first = tx.numbers(seq=len(due)).seq
        tx.run(_SQL["make_ready"], first, array([no for (no,) in due]))
    return len(due)


def _doom(tx: Tx, verdict: str, rows: Sequence[Row]) -> bool:
    """False: there are none."""
    if rows:
        tx.run(_SQL["doom"], verdict, array([no for (no,) in rows]))
    return bool(rows)


def _doom_unknown_types(tx: Tx, grace: float) -> bool:
    """Doom items that waited longer than the grace for a live worker that has their type. The time counts
    from when the last worker that had the type was gone. False: there are none."""
    live, found = live_types(tx), False
    if live.every:
        return False
    unknown: dict[str, float] = dict(tx.rows(_SQL["unknown_types"]))
    for type in tx.names(_SQL["next_ready_type"]):
        since = max(unknown.get(type, 0.0), unknown.get("", 0.0))
        if not live.has(type) and type != BULK_TYPE and tx.now - since > grace:
            rows = tx.rows(_SQL["ready_too_long"], type, tx.now - grace, PORTION)
            found = _doom(tx, "unknown_type", rows) or found
    return found


def _next_due(tx: Tx, demand: Demand, facts: ClaimFacts) -> float | None:
    """Seconds until the next scheduled item of this demand is due. If a whole portion of other items is due
    before, only until the last of those."""
    first = facts.first_due
    if first is None or (demand.queues is None and demand.tenants is None):
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


# -- leases --------------------------------------------------------------------------------------------


def _lease(
    tx: Tx, demand: Demand, picked: PickedItems, doomed: Sequence[int], worker: int, facts: ClaimFacts
) -> list[Lease]:
    """Lease these items to the worker, in this order."""
    nos = picked.nos
    count = len(nos) + len(doomed)
    last = facts.last_token + token_step(count, random_bits)
    tx.run(_SQL["take_tokens"], last)
    first = last - count + 1
    if nos:
        tx.run(_SQL["lease"], first, worker, tx.now, array(nos))
    if doomed:
        tx.run(_SQL["lease_doomed"], first + len(nos), worker, array(doomed))
    if demand.buffered:
        tx.run(_SQL["lease_buffered"], array(nos), array(demand.buffered))
    if demand.strict:
        tx.run(_SQL["hold_lanes"], array(nos), array(demand.strict))
    if picked.line is None:
        return leases(tx, [*nos, *doomed])
    found = new_leases(picked.rows, picked.line, first, tx.now, demand.buffered)
    return found + leases(tx, doomed)
