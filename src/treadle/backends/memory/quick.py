"""Quick: what most items do, being stored and succeeding, without looking for what most of them do not have.

A plain item has no key, no time, no family and nobody that waits for it. Each function does what `submit` or
`settle` does with one, or answers None: then the long way is taken. `Store.quick` turns them off, so that the
tests can see that both ways lead to the same.
"""

from __future__ import annotations

from treadle.item import Contribution, EndedGroup, Item, Outcome, Settlement, Submitted

from .following import Following
from .rows import Row
from .store import Store

APPLIED = Outcome(verb="applied")
OWN_RESULT = Contribution()


def store_plain(store: Store, item: Item, now: float) -> Submitted | None:
    """Store an item that is ready at once."""
    if (
        item.key is not None
        or item.after
        or item.delay
        or item.run_at is not None
        or item.deadline is not None
        or item.expires_in is not None
        or item.lease_to is not None
        or item.parent is not None
        or item.workflow is not None
        or item.id in store.items
    ):
        return None
    id = item.id
    kind = store.kinds.get((item.tenant, item.queue, item.lane, item.type)) or store.kind(item)
    store.number = number = store.number + 1
    store.place = place = store.place + 1
    row = Row(item, kind, number, "ready", now, now, now, place)
    kind.counts["ready"] += 1
    store.items[id] = row
    store.log.append(row)
    kind.line.join(row)
    return Submitted(id, False, "ready", None, id)


def succeed_plain(store: Store, settlement: Settlement, now: float, following: Following) -> Outcome | None:
    """End a running root that is alone, and that nobody waits for, with its result as the group's value."""
    lease, contribution = settlement.lease, settlement.contribution
    row = store.items.get(lease.id)
    if (
        settlement.kind != "success"
        or settlement.children
        or not isinstance(row, Row)
        or row.token != lease.token
        or row.worker is None
        or row.group is not None
        or row.doom is not None
        or row.gate is not None
        or row.deadline is not None
        or row.settled
        or (contribution is not None and contribution != OWN_RESULT)
        or (store.waiters and row.ref in store.waiters)
        or not store.quick
    ):
        return None
    kind, id, result = row.kind, row.item.id, settlement.result
    del row.worker.held[lease.token]
    row.settled = (row.token,)
    row.token = 0
    row.worker = None
    counts = kind.counts
    counts["running"] -= 1
    counts["success"] += 1
    row.status = "success"
    row.result = result
    row.ended_at = now
    bundle = following.bundle
    if bundle is None or bundle.keep != row.item.keep:
        bundle = following.bundle = store.fading.new_bundle(now, row.item.keep)
    bundle.add(row)
    if contribution is None:
        following.closed.append(EndedGroup(id, kind.tenant, None, kind.type))
        return APPLIED
    row.contributed = True
    following.closed.append(EndedGroup(id, kind.tenant, result, kind.type))
    return Outcome(verb="applied", version=1, value=result)
