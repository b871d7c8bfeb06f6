"""Reads: items, groups, what has ended, how many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treadle.item import Count, Ended, GroupState, ItemState, Ref

from .codes import CANCELLED, DEAD, STATUS, SUCCESS
from .rows import full_states, numbers, states
from .statements import Statements
from .tx import Tx, array

_SQL = Statements("read")


def get(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[ItemState | None]:
    by_id = numbers(tx, ids, tenant)
    found = full_states(tx, by_id.values())
    return [found[by_id[id]] if id in by_id else None for id in ids]


def group(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[GroupState | None]:
    roots = {id: root(tx, id, tenant) for id in ids}
    found = {id: _group(tx, no) for id, no in roots.items() if no is not None}
    return [found.get(id) for id in ids]


def ended(tx: Tx, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
    found = _looked_up(tx, "ended_items", items)
    shown = full_states(tx, [no for no, over in found.values() if over])
    roots = _looked_up(tx, "ended_groups", groups)
    for tenant, id in set(groups) - roots.keys():
        # The root may have been removed before the rest.
        no = tx.value(_SQL["rootless"], id, tenant)
        if no is not None:
            roots[tenant, id] = no, True
    states_of = {ref: _group(tx, no) for ref, (no, over) in roots.items() if over}
    return Ended(
        {ref: shown[no] for ref, (no, over) in found.items() if over},
        {ref: state for ref, state in states_of.items() if state.ended_at is not None},
        frozenset((set(items) - found.keys()) | (set(groups) - roots.keys())),
    )


def _looked_up(tx: Tx, name: str, refs: Sequence[Ref]) -> dict[Ref, tuple[int, bool]]:
    """The number of each, and whether it has ended."""
    by_tenant: dict[str, list[str]] = {}
    for tenant, id in refs:
        by_tenant.setdefault(tenant, []).append(id)
    return {
        (tenant, id): (no, bool(over))
        for tenant, ids in by_tenant.items()
        for id, no, over in tx.rows(_SQL[name], array(ids), tenant)
    }


def counts(tx: Tx, tenant: str | None, *, with_ended: bool) -> list[Count]:
    found: Counter[tuple[str, str, str, str]] = Counter()
    rows = tx.rows(_SQL["counts_open"], tenant)
    rows += tx.rows(_SQL["counts_ended" if with_ended else "counts_dead"], tenant)
    for owner, queue, type, status, count in rows:
        found[owner, queue, type, STATUS[status]] += count
    return [Count(*key, count) for key, count in sorted(found.items())]  # type: ignore[arg-type]


# -- groups --------------------------------------------------------------------------------------------


def root(tx: Tx, id: str, tenant: str | None) -> int | None:
    """The number of a group; the one submitted first, if several tenants use the id."""
    no: int | None = (
        tx.value(_SQL["first_root"], id) if tenant is None else tx.value(_SQL["root"], id, tenant)
    )
    return tx.value(_SQL["rootless"], id, tenant) if no is None else no


def _group(tx: Tx, no: int) -> GroupState:
    row = tx.row(_SQL["group"], no)
    if row is None:
        return _alone(tx, no)
    id, tenant, type, open, failed, version, final, ended_at, value = row
    return GroupState(
        id=id,
        tenant=tenant,
        type=type,
        open=open,
        value=value,
        contributed=version > 0,
        final=bool(final),
        version=version,
        ended_at=ended_at,
        failed=_failed(tx, no) if failed and not open else None,
    )


def _alone(tx: Tx, no: int) -> GroupState:
    """The group of an item that is alone in it."""
    id, tenant, type, open, outcome, gave, ended_at, result = tx.rows(_SQL["alone"], no)[0]
    return GroupState(
        id=id,
        tenant=tenant,
        type=type,
        open=open,
        value=result if gave else None,
        contributed=bool(gave),
        final=gave == 3,
        version=1 if gave else 0,
        ended_at=ended_at,
        failed=None if open or outcome == SUCCESS else states(tx, [no])[no],
    )


def _failed(tx: Tx, no: int) -> ItemState | None:
    for outcome in (DEAD, CANCELLED):
        found = tx.value(_SQL["failed_member"], no, outcome, outcome, no)
        if found is not None:
            return states(tx, [found])[found]
    return None
