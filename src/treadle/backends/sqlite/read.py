"""Reads: items, groups, what has ended, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treadle.item import Count, Ended, GroupState, ItemState, Ref
from treadle.store.rules.settlement import LONE_VERSION, SHOWN_DEATHS

from .rows import STATUS, full_states, numbers, states
from .statements import Tx, statements

_SQL = statements("read")


def get(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[ItemState | None]:
    by_id = numbers(tx, ids, tenant)
    found = full_states(tx, by_id.values())
    return [found[by_id[id]] if id in by_id else None for id in ids]


def group(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[GroupState | None]:
    roots = {id: root(tx, id, tenant) for id in ids}
    found = {id: _group(tx, no) for id, no in roots.items() if no is not None}
    return [found.get(id) for id in ids]


def ended(tx: Tx, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
    found = _look_up(tx, "ended_items", items)
    shown = full_states(tx, [no for no, has_ended in found.values() if has_ended])
    roots = _look_up(tx, "ended_groups", groups)
    for tenant, id in set(groups) - roots.keys():
        no = tx.value(_SQL["group_without_root"], id, tenant)
        if no is not None:
            roots[tenant, id] = no, True
    states_of = {ref: _group(tx, no) for ref, (no, has_ended) in roots.items() if has_ended}
    return Ended(
        {ref: shown[no] for ref, (no, has_ended) in found.items() if has_ended},
        {ref: state for ref, state in states_of.items() if state.ended_at is not None},
        frozenset((set(items) - found.keys()) | (set(groups) - roots.keys())),
    )


def _look_up(tx: Tx, name: str, refs: Sequence[Ref]) -> dict[Ref, tuple[int, bool]]:
    """The number of each, and whether it has ended."""
    found = tx.rows_of(_SQL[name], refs)
    return {(tenant, id): (no, bool(has_ended)) for tenant, (id, no, has_ended) in found}


def counts(tx: Tx, tenant: str | None, *, with_ended: bool) -> list[Count]:
    found: Counter[tuple[str, str, str, str]] = Counter()
    rows = tx.rows(_SQL["counts_open"], tenant)
    rows += tx.rows(_SQL["counts_ended" if with_ended else "counts_dead"], tenant)
    for owner, queue, type, status, count in rows:
        found[owner, queue, type, STATUS[status]] += count
    return [Count(*key, count) for key, count in sorted(found.items())]  # type: ignore[arg-type]


# -- groups --------------------------------------------------------------------------------------------


def root(tx: Tx, id: str, tenant: str | None) -> int | None:
    """The number of a group. Without a tenant: of the one that was submitted first."""
    no: int | None = (
        tx.value(_SQL["first_root"], id) if tenant is None else tx.value(_SQL["root"], id, tenant)
    )
    return tx.value(_SQL["group_without_root"], id, tenant) if no is None else no


def _group(tx: Tx, no: int) -> GroupState:
    row = tx.row(_SQL["group"], no)
    if row is not None:
        id, tenant, type, open, failed, cancelled, version, final, ended_at, value, outer, total = row
    else:
        # The item is alone in its group.
        id, tenant, type, open, failed, cancelled, contributed, ended_at, result = tx.rows(
            _SQL["lone_item"], no
        )[0]
        value = result if contributed else None
        version, final = LONE_VERSION if contributed else 0, contributed == 3
        outer, total = None, 1
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
        total=total,
        failed=failed,
        deaths=_deaths(tx, no) if failed else (),
        cancelled=_cancelled_member(tx, no) if cancelled and not open else None,
        outer=outer,
    )


def _deaths(tx: Tx, group: int, most: int = SHOWN_DEATHS) -> tuple[ItemState, ...]:
    found = states(tx, (no for (no,) in tx.rows(_SQL["deaths"], group, most)))
    return tuple(found.values())


def first_death(tx: Tx, group: int) -> ItemState | None:
    return next(iter(_deaths(tx, group, 1)), None)


def _cancelled_member(tx: Tx, group: int) -> ItemState | None:
    no = tx.value(_SQL["cancelled_member"], group, group)
    return None if no is None else states(tx, [no])[no]


# -- the children of an item, and the items that wait for it -------------------------------------------
