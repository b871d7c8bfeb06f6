"""Planning to store items: keys, refusals, cycles. Nothing is written here, so nothing has to be undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from treadle.item import Item, Ref, Rejected, Submitted
from treadle.rules import find_cycle, key_answers

from .codes import STATUS
from .gates import assess, prerequisites
from .statements import Statements
from .tx import Tx, array

_SQL = Statements("submit")


class Plan:
    """Items that belong together and passed every check.

    `fresh` are to be stored. `answers` has one entry per item asked for: None for a fresh one, else the
    answer of the earlier item with its key, or the place among the fresh ones of the first one with it.
    `existing` maps the ids of those that are not stored to the ids that answer.
    """

    __slots__ = ("answers", "existing", "fresh")

    def __init__(self, fresh: list[Item], answers: list[Submitted | int | None]) -> None:
        self.fresh = fresh
        self.answers = answers
        self.existing: dict[str, str] = {}

    def finished(self, stored: Sequence[Submitted]) -> tuple[Submitted, ...]:
        """The answers, now that the fresh items are stored."""
        if len(stored) == len(self.answers):
            return tuple(stored)
        fresh = iter(stored)
        return tuple(next(fresh) if answer is None else _earlier(answer, stored) for answer in self.answers)


def _earlier(answer: Submitted | int, stored: Sequence[Submitted]) -> Submitted:
    return replace(stored[answer], existing=True, lease=None) if isinstance(answer, int) else answer


def is_plain(items: Iterable[Item]) -> bool:
    """Whether there is nothing to check but ids: no keys, nothing to wait for."""
    return not any(item.key is not None or item.after for item in items)


def plan_plain(items: Sequence[Item], ids: Ids, tenant: str | None = None) -> Plan | Rejected:
    """Plan one batch of plain items. `tenant`: theirs is not what they say. The ids are still to be taken."""
    refs = [(tenant or item.tenant, item.id) for item in items]
    clash = ids.clash(refs)
    if clash:
        return Rejected("duplicate_id", clash)
    return Plan(list(items), [None] * len(items))


def plan(tx: Tx, items: Sequence[Item], tenant: str | None = None) -> Plan | Rejected:
    """Plan one batch, whatever its items ask for. All that was planned before must be stored by now."""
    found = _by_keys(tx, items, tenant)
    refs = [(tenant or item.tenant, item.id) for item in found.fresh]
    clash = Ids(tx, refs).clash(refs)
    if clash:
        return Rejected("duplicate_id", clash)
    if any(item.after for item in found.fresh):
        cycle = _cycle(tx, found.fresh, tenant)
        if cycle:
            return Rejected("cycle", cycle)
    return found


class Ids:
    """Which ids are taken: stored already, or about to be. Knows only those it was made for."""

    def __init__(self, tx: Tx, refs: Iterable[Ref]) -> None:
        by_tenant: dict[str, list[str]] = {}
        for tenant, id in refs:
            by_tenant.setdefault(tenant, []).append(id)
        self._taken: set[Ref] = {
            (tenant, id)
            for tenant, ids in by_tenant.items()
            for (id,) in tx.rows(_SQL["existing"], array(ids), tenant)
        }

    def clash(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """Those that are taken, or come twice."""
        if len(refs) == 1:
            return (refs[0][1],) if refs[0] in self._taken else ()
        if len(set(refs)) == len(refs) and self._taken.isdisjoint(refs):
            return ()
        seen = Counter(refs)
        return tuple(dict.fromkeys(ref[1] for ref in refs if ref in self._taken or seen[ref] > 1))

    def take(self, items: Iterable[Item], tenant: str | None = None) -> None:
        """These are about to be stored."""
        self._taken.update((tenant or item.tenant, item.id) for item in items)


# -- keys ----------------------------------------------------------------------------------------------


def _by_keys(tx: Tx, items: Sequence[Item], tenant: str | None) -> Plan:
    plan = Plan([], [])
    first: dict[tuple[str, str, str], int] = {}
    renamed: dict[Ref, str] = {}
    for item in items:
        owner = tenant or item.tenant
        answer = None if item.key is None else _key_answer(tx, item, owner, first)
        plan.answers.append(answer)
        if answer is None:
            if item.key is not None:
                first[item.key, owner, item.type] = len(plan.fresh)
            plan.fresh.append(item)
        else:
            renamed[owner, item.id] = plan.fresh[answer].id if isinstance(answer, int) else answer.id
    if renamed:
        plan.fresh = [_renamed(item, tenant or item.tenant, renamed) for item in plan.fresh]
        plan.existing = {id: to for (_, id), to in renamed.items()}
    return plan


def _key_answer(
    tx: Tx, item: Item, owner: str, first: dict[tuple[str, str, str], int]
) -> Submitted | int | None:
    place = first.get((item.key or "", owner, item.type))
    if place is not None:
        return place
    holder = tx.row(_SQL["key_holder"], item.key, owner, item.type)
    if holder is None:
        return None
    id, group_id, queued_at, status, group_open = holder
    if not key_answers(item.key_scope, group_open=bool(group_open), age=tx.now - queued_at):
        return None
    return Submitted(id, existing=True, status=STATUS[status], group_id=group_id)


def _renamed(item: Item, owner: str, renamed: dict[Ref, str]) -> Item:
    after = tuple(renamed.get((owner, id), id) for id in item.after)
    return item if after == item.after else replace(item, after=after)


# -- cycles --------------------------------------------------------------------------------------------


def _cycle(tx: Tx, fresh: Sequence[Item], tenant: str | None) -> tuple[str, ...] | None:
    """Ids that would wait for each other. A cycle goes through one of the fresh items; it leaves them only if
    a stored item waits for one of their ids."""
    gated = {(tenant or item.tenant, item.id): item for item in fresh if item.after}
    known = prerequisites(tx, ((owner, item) for (owner, _), item in gated.items()))
    known.update({(tenant or item.tenant, item.id): (0, None) for item in fresh})
    awaited = tx.rows(_SQL["awaiting"], array(id for _, id in gated))
    deep = any((owner, id) in gated for id, owner, _ in awaited)

    def waits_for(node: Ref) -> list[Ref]:
        if node in gated:
            gate = assess(gated[node], node[0], known)
            return [(node[0], id) for id in gate.pending] if gate.standing == "waiting" else []
        if not deep:
            return []
        return [(node[0], id) for (id,) in tx.rows(_SQL["waits_for"], node[1], node[0], node[1], node[0])]

    found = find_cycle(gated, waits_for)
    return None if found is None else tuple(id for _, id in found)
