"""Submit: resolve keys, refuse what cannot be stored, store the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from treadle.item import Item, Lease, Ref, Rejected, Submission, Submitted
from treadle.rules import deadline_at, due_at, find_cycle, key_answers
from treadle.rules import gate as standing

from . import gates
from .groups import join
from .moves import doom, lease, leave_pile, wait, watch_deadline
from .quick import store_plain
from .rows import Group, Row
from .store import KeyRef, Store


def submit(
    store: Store, submissions: Sequence[Submission], now: float
) -> list[tuple[Submitted, ...] | Rejected]:
    answers: list[tuple[Submitted, ...] | Rejected] = []
    for submission in submissions:
        items = submission.items
        if len(items) == 1 and store.quick and (stored := store_plain(store, items[0], now)) is not None:
            answers.append((stored,))
        else:
            answers.append(submit_together(store, items, now))
    return answers


def submit_together(store: Store, items: Sequence[Item], now: float) -> tuple[Submitted, ...] | Rejected:
    """Store these items, or none of them."""
    plan = make_plan(store, items, now)
    if isinstance(plan, Rejected):
        return plan
    rows = {ref: admit(store, item, now) for ref, item in plan.new.items()}
    return tuple(
        _existing(store, ref) if existing else _stored(store, rows[ref], now)
        for ref, existing in plan.answers
    )


def _existing(store: Store, ref: Ref) -> Submitted:
    row = store.find(*ref)
    assert row is not None
    return Submitted(row.item.id, existing=True, status=row.status, group_id=row.group_id)


def _stored(store: Store, row: Row, now: float) -> Submitted:
    id = row.item.id
    started = None if row.item.lease_to is None else _start(store, row, now)
    return Submitted(id, False, row.status, started, id)


def _start(store: Store, row: Row, now: float) -> Lease | None:
    """Lease it at once to the worker that it names, if nothing stands in the way."""
    worker = store.workers.get(row.item.lease_to or "")
    overdue = row.deadline is not None and row.deadline <= now
    if worker is None or worker.until <= now or row.status != "ready" or overdue:
        return None
    leave_pile(row)
    return lease(store, row, worker, now)


# ---------------------------------------------------------------------------------------------------- storing


def admit(store: Store, item: Item, now: float, group: Group | None = None) -> Row:
    """Store a new item, which nothing speaks against: blocked, scheduled, ready or doomed."""
    store.number += 1
    due = due_at(item, now) if item.delay or item.run_at is not None else now
    row = Row(item, store.kind(item), store.number, "blocked", now, due)
    store.insert(row)
    if group is not None:
        join(group, row)
    deadline = deadline_at(item, now)
    if deadline is not None:
        watch_deadline(store, row, deadline)
    if item.after:
        _wait_for_others(store, row, now)
    else:
        wait(store, row, now)
    return row


def _wait_for_others(store: Store, row: Row, now: float) -> None:
    found = gates.close(store, row)
    match standing(found.need, found.met, found.open):
        case "released":
            wait(store, row, now)
        case "doomed":
            doom(store, row, "unsatisfiable")
        case "waiting":
            pass


# --------------------------------------------------------------------------------------------------- planning


class Plan:
    """What a submission comes to: what is to be stored, and who answers for each of its items."""

    __slots__ = ("answers", "keys", "new")

    def __init__(self) -> None:
        self.new: dict[Ref, Item] = {}
        self.answers: list[tuple[Ref, bool]] = []
        """For each item asked for, in order: who answers, and whether that is an earlier item."""
        self.keys: dict[KeyRef, Ref] = {}


def make_plan(store: Store, items: Iterable[Item], now: float) -> Plan | Rejected:
    """Changes nothing."""
    plan = Plan()
    renamed: dict[Ref, str] = {}
    taken: dict[str, None] = {}
    for item in items:
        ref = (item.tenant, item.id)
        earlier = _holder(store, plan, item, now)
        if earlier is not None:
            renamed[ref] = earlier[1]
        elif ref in plan.new or store.find(*ref) is not None:
            taken[item.id] = None
        else:
            plan.new[ref] = item
        plan.answers.append((earlier or ref, earlier is not None))
    if taken:
        return Rejected("duplicate_id", tuple(taken))
    if renamed:
        _rename(plan, renamed)
    cycle = _cycle(store, plan.new)
    return plan if cycle is None else Rejected("cycle", tuple(id for _, id in cycle))


def _holder(store: Store, plan: Plan, item: Item, now: float) -> Ref | None:
    """The earlier item that answers for this one by its key. None: this one is to hold it."""
    if item.key is None:
        return None
    key = (item.tenant, item.type, item.key)
    if key in plan.keys:
        return plan.keys[key]
    row = store.keys.get(key)
    if row is not None:
        age = now - row.queued_at
        if key_answers(item.key_scope, group_open=row.group_open, age=age):
            return row.ref
    plan.keys[key] = (item.tenant, item.id)
    return None


def _rename(plan: Plan, renamed: dict[Ref, str]) -> None:
    """Who waits for an item that was not stored waits for the one that answered instead.

    Two of them may come to mean the same item: it is named twice then, and counts twice."""
    for ref, item in plan.new.items():
        after = tuple(renamed.get((item.tenant, id), id) for id in item.after)
        if after != item.after:
            plan.new[ref] = replace(item, after=after)


def _cycle(store: Store, new: dict[Ref, Item]) -> tuple[Ref, ...] | None:
    """New items that would wait for each other, directly or through stored ones."""
    gated = {ref: item for ref, item in new.items() if item.after}
    named = {(item.tenant, id) for item in gated.values() for id in item.after}
    if named.isdisjoint(gated) and store.waiters.keys().isdisjoint(gated):
        return None

    def waits_for(ref: Ref) -> list[Ref]:
        if ref in gated:
            found = gates.assess(store, gated[ref])
            waiting = standing(found.need, found.met, found.open) == "waiting"
            return [(ref[0], id) for id in found.pending] if waiting else []
        row = store.find(*ref)
        if row is None or row.gate is None or row.status != "blocked" or row.doom is not None:
            return []
        return [(ref[0], id) for id in row.gate.pending]

    return find_cycle(gated, waits_for)
