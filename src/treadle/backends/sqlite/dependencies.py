"""Dependencies: what items wait for when they are stored, and whom an ended item releases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from treadle.item import GROUP_MARK, Item, Ref, Rejected, ReleasedItem, Status
from treadle.store.rules.submission import (
    Dependencies,
    count_dependencies,
    dependency_cycle,
    dependency_state,
    joined_group,
)

from .rows import BLOCKED, READY, SCHEDULED, STATUS, SUCCESS, decode_ids, doomed
from .statements import NULL, Row, Tx, array, statements

_SQL = statements("dependencies")
ANY_BLOCKED: Final = _SQL["any_blocked"]
"""Gives 1 if an item is blocked."""

KnownItems: TypeAlias = "Mapping[Ref, tuple[int, int | None]]"
"""The number of an item, and its outcome if it has ended. The number of a whole group is negated."""

# -- when items are stored -----------------------------------------------------------------------------


def dependencies(item: Item, tenant: str, known: KnownItems) -> Dependencies:
    """The dependencies of an item that is stored now."""
    return count_dependencies(item, lambda name: _ended(known, (tenant, name)))


def _ended(known: KnownItems, ref: Ref) -> Status | None:
    _, outcome = known.get(ref, (0, None))
    return None if outcome is None else STATUS[outcome]


def find_prerequisites(tx: Tx, waiting: Iterable[tuple[str, Item]]) -> dict[Ref, tuple[int, int | None]]:
    """Those of the items and groups that these items (each with its tenant) wait for which exist."""
    return find_known(tx, {(tenant, name) for tenant, item in waiting for name in item.after})


def find_known(tx: Tx, wanted: Collection[Ref]) -> dict[Ref, tuple[int, int | None]]:
    """Those of these items and groups which exist."""
    found = tx.rows_of(_SQL["prerequisites"], wanted)
    known = {(tenant, id): (no, outcome) for tenant, (id, no, outcome) in found}
    groups = [(tenant, name[1:]) for tenant, name in wanted if name.startswith(GROUP_MARK)]
    for tenant, (id, no, outcome) in tx.rows_of(_SQL["prerequisite_groups"], groups):
        # The root of an earlier group of this id was removed. The new root has a higher number.
        if no < known.get((tenant, GROUP_MARK + id), (0, None))[0]:
            known[tenant, GROUP_MARK + id] = no, outcome
    return known


def find_cycle(tx: Tx, new: Mapping[Ref, Item], group_id: str | None = None) -> tuple[str, ...] | None:
    """The ids of items that would wait for each other if these were stored. `group_id`: the group that they
    join; None for roots."""
    blocked = {ref: item for ref, item in new.items() if item.after}
    if not blocked:
        return None
    known = find_prerequisites(tx, ((tenant, item) for (tenant, _), item in blocked.items()))

    def waits_for(ref: Ref) -> list[Ref]:
        tenant, name = ref
        if name.startswith(GROUP_MARK):
            no = find_known(tx, [ref]).get(ref, (0, None))[0]
            rows = tx.rows(_SQL["blocked_members"], -no)
        else:
            rows = tx.rows(_SQL["waits_for"], name, tenant)
        return [(tenant, other) for (other,) in rows]

    @cache
    def awaited() -> set[Ref]:
        joined = {
            (tenant, GROUP_MARK + joined_group(item, group_id)) for (tenant, _), item in blocked.items()
        }
        return _awaited(tx, (*blocked, *joined), find_known(tx, joined))

    return dependency_cycle(
        new, lambda ref: _ended(known, ref), lambda ref: ref in awaited(), waits_for, group_id
    )


def _awaited(tx: Tx, refs: Sequence[Ref], stored: KnownItems) -> set[Ref]:
    """Those of these items and groups that another item waits for. `stored`: those of them that exist."""
    rows = tx.rows(_SQL["waiting_for_missing"], array(name for _, name in refs))
    awaited = {no for (no,) in tx.rows(_SQL["awaited"], array(no for no, _ in stored.values()))}
    waited_for = {ref for ref, (no, _) in stored.items() if no in awaited}
    return waited_for | {(tenant, name) for name, tenant, _, _ in rows}


def is_closed(items: Sequence[Item]) -> bool:
    """Whether children of one settlement have no keys, and wait only for each other and for groups that they
    form: nothing that is stored matters to them."""
    names = {name for item in items for name in _own_names(item)}
    return all(item.key is None and names.issuperset((*item.after, *item.must_exist)) for item in items)


def _own_names(item: Item) -> tuple[str, ...]:
    return (item.id, GROUP_MARK + item.id) if item.closes_group else (item.id,)


def _in_order(items: Sequence[Item]) -> bool:
    """Whether no item of a nested group waits, and the others wait only for earlier ones. Then there is no
    cycle: most children are like that, and this takes a tenth of the time."""
    blocked = {item.id for item in items if item.after}
    for item in items:
        if item.after:
            if item.group_id is not None or not blocked.isdisjoint(item.after):
                return False
            blocked.discard(item.id)
    return True


def refuse_cycle(items: Sequence[Item], tenant: str, group_id: str) -> Rejected | None:
    """Refuse items that wait for each other. They wait for nothing else."""
    if _in_order(items):
        return None
    new = {(tenant, item.id): item for item in items}
    found = dependency_cycle(new, lambda _: None, lambda _: False, lambda _: (), group_id)
    return None if found is None else Rejected("cycle", found)


class WaitingItem(NamedTuple):
    """What an item waits for."""

    no: int
    tenant: str
    after: Sequence[str]
    tolerant: bool
    counted: Dependencies


def store_dependencies(tx: Tx, waiting: Iterable[WaitingItem], known: KnownItems) -> None:
    """Write what these items wait for: items and groups that exist, and names that do not."""
    existing: list[tuple[int, int, int, int, int]] = []
    missing: list[tuple[str, str, int, int]] = []
    for no, tenant, after, tolerant, counted in waiting:
        # Keys can make two names mean one item, which then counts twice.
        for id, weight in Counter(after).items():
            if (tenant, id) in known:
                existing.append((known[tenant, id][0], no, id not in counted.pending, weight, tolerant))
            elif id in counted.pending:
                missing.append((id, tenant, no, tolerant))
    tx.run_rows(_SQL["insert_dependency"], existing)
    tx.run_rows(_SQL["insert_missing"], missing)


def replace_dependencies(tx: Tx, waiting: Sequence[WaitingItem], known: KnownItems) -> None:
    """Write what these items wait for now, instead of what they waited for before."""
    nos = array(one.no for one in waiting)
    tx.run(_SQL["delete_dependencies"], nos)
    tx.run(_SQL["delete_missing_of"], nos)
    store_dependencies(tx, waiting, known)


def connect_waiting(tx: Tx, stored: Mapping[Ref, int]) -> None:
    """Items that waited for missing ids now wait for these new items, which have those ids."""
    ids = dict.fromkeys(id for _, id in stored)  # several tenants may use one id
    for id, tenant, dependent, tolerant in tx.rows(_SQL["waiting_for_missing"], array(ids)):
        if (tenant, id) in stored:
            tx.run(_SQL["insert_dependency"], stored[tenant, id], dependent, 0, 1, tolerant)
            tx.run(_SQL["delete_missing"], id, tenant)


# -- when items end ------------------------------------------------------------------------------------


class CountedEnds(NamedTuple):
    """What the ends of prerequisites caused."""

    released: list[ReleasedItem]
    doomed: int


def tolerated(tx: Tx, nos: Iterable[int]) -> set[int]:
    """Those of these items whose death would be tolerated."""
    return {no for (no,) in tx.rows(_SQL["tolerated"], array(nos))}


def count_ends(tx: Tx, outcomes: Mapping[int, int]) -> CountedEnds:
    """Count these ends (numbers and outcomes) for the items that wait for them."""
    nos = array(outcomes)
    dependents = _count(tx.rows(_SQL["dependents"], nos), outcomes)
    tx.run(_SQL["mark_counted"], nos)
    if not dependents:
        return CountedEnds([], 0)
    released = [one.no for one in dependents if one.state == "released"]
    first = tx.numbers(seq=len(released)).seq if released else 0
    places = {no: first + place for place, no in enumerate(released)}
    tx.run_rows(_SQL["update_dependents"], [one.row(tx.now, places.get(one.no, 0)) for one in dependents])
    return CountedEnds(_released(tx, released), sum(one.state == "doomed" for one in dependents))


def _count(rows: Sequence[Row], outcomes: Mapping[int, int]) -> list[_Dependent]:
    found: dict[int, _Dependent] = {}
    for row in rows:
        found.setdefault(row[1], _Dependent(row)).count(outcomes[row[0]], row[2])
    return list(found.values())


class _Dependent:
    """A blocked item, while the ends of its prerequisites are counted."""

    __slots__ = ("_any_end_counts", "_due", "_met", "_need", "_pending", "no")

    def __init__(self, row: Row) -> None:
        self.no: int = row[1]
        self._need, self._met, self._pending, self._any_end_counts, self._due = row[3:]

    def count(self, outcome: int, weight: int) -> None:
        self._pending -= weight
        if outcome == SUCCESS or self._any_end_counts:
            self._met += weight

    @property
    def state(self) -> str:
        return dependency_state(self._need, self._met, self._pending)

    def row(self, now: float, seq: int) -> tuple[Any, ...]:
        status, verdict = BLOCKED, NULL
        since: float | str = NULL
        if self.state == "released":
            status, since = (SCHEDULED, NULL) if self._due > now else (READY, now)
        elif self.state == "doomed":
            status, verdict = doomed(BLOCKED), "unsatisfiable"
        return self.no, self._met, self._pending, status, seq if status == READY else 0, since, verdict


def _released(tx: Tx, nos: Sequence[int]) -> list[ReleasedItem]:
    return [
        ReleasedItem(id, tenant, type, group_id, queue, parent, decode_ids(after))
        for id, tenant, type, group_id, queue, parent, after in tx.rows(_SQL["released"], array(nos))
    ]
