"""Reads: items, groups, what has ended, how many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treadle.item import Count, Ended, GroupState, ItemState, Ref

from .codes import CANCELLED, DEAD, STATUS, SUCCESS
from .rows import full_states, numbers, states
from .statements import Statements
from .tx import Tx

_SQL = Statements("read")


def get(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[ItemState | None]:
    by_id = numbers(tx, ids, tenant)
    found = full_states(tx, by_id.values())
    return [found[by_id[id]] if id in by_id else None for id in ids]


def group(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[GroupState | None]:
    found = {id: _group(tx, id, tenant) for id in dict.fromkeys(ids)}
    return [found[id] for id in ids]


def ended(tx: Tx, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
    nos: dict[Ref, int] = {}
    missing: set[Ref] = set()
    for tenant, id in items:
        found = tx.row(_SQL["ended_numbers"], id, tenant)
        if found is None:
            missing.add((tenant, id))
        elif found[1]:
            nos[tenant, id] = found[0]
    shown = full_states(tx, nos.values())
    done: dict[Ref, GroupState] = {}
    for tenant, id in groups:
        state = _group(tx, id, tenant)
        if state is None:
            missing.add((tenant, id))
        elif state.ended_at is not None:
            done[tenant, id] = state
    return Ended({ref: shown[no] for ref, no in nos.items()}, done, frozenset(missing))


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


def _group(tx: Tx, id: str, tenant: str | None) -> GroupState | None:
    no = root(tx, id, tenant)
    if no is None:
        return None
    row = tx.row(_SQL["group"], no)
    if row is None:
        return _alone(tx, no)
    id, tenant, type, open, failed, version, final, ended_at, value = row
    return GroupState(
        id=id,
        tenant=tenant or "",
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
        found = tx.value(_SQL["failed_member"], no, outcome)
        if found is not None:
            return states(tx, [found])[found]
    return None
