"""submit: plan new items (keys, duplicate ids, cycles), then store them with their keys and dependencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice
from math import inf
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from treadle.item import GROUP_MARK, EndedGroup, Item, Lease, Ref, Rejected, Submission, Submitted
from treadle.store.rules.orders import is_paused
from treadle.store.rules.records import changed_by, noted_submission
from treadle.store.rules.settlement import shortest_keep, token_step
from treadle.store.rules.submission import (
    Dependencies,
    KeyHolder,
    KeyRef,
    SubmitPlan,
    is_tolerant,
    plan_submission,
)
from treadle.store.rules.times import deadline_at, due_at

from .dependencies import (
    WaitingItem,
    connect_waiting,
    dependencies,
    find_cycle,
    find_known,
    find_prerequisites,
    store_dependencies,
)
from .groups import insert_nested
from .operate import take_over
from .orders import paused
from .records import record
from .rows import BLOCKED, READY, RUNNING, SCHEDULED, STATUS, SUCCESS, decode_ids, doomed
from .statements import NULL, Tx, array, blob, random_bits, statements

_SQL = statements("submit")


def submit(tx: Tx, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...] | Rejected]:
    """Store each submission, in order. Consecutive plain ones are stored together."""
    answers: list[tuple[Submitted, ...] | Rejected] = []
    plain: list[Submission] = []
    for submission in submissions:
        if submission.note is None and is_plain(submission.items):
            plain.append(submission)
            continue
        answers += _submit_plain(tx, plain)
        plain = []
        answers.append(_submit_one(tx, submission))
    return answers + _submit_plain(tx, plain)


def is_plain(items: Iterable[Item]) -> bool:
    """Whether only the ids have to be checked: the items have no keys and wait for nothing."""
    for item in items:  # noqa: SIM110  with any() this takes three times as long
        if item.key is not None or item.after:
            return False
    return True


def _submit_plain(tx: Tx, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...] | Rejected]:
    """Store plain submissions together, except those with an id that is taken. Almost none has one, so that
    is looked into only if the insert finds one."""
    if not submissions:
        return []
    refusals: Sequence[Rejected | None] = [None] * len(submissions)
    stored = store_unless_taken(tx, [(item, None) for one in submissions for item in one.items])
    if stored is None:
        refusals = _clashes(tx, submissions)
        accepted = [one for one, refused in zip(submissions, refusals, strict=True) if refused is None]
        stored = store(tx, [(item, None) for one in accepted for item in one.items])
    answers = iter(stored)
    return [
        refused or tuple(islice(answers, len(one.items)))
        for refused, one in zip(refusals, submissions, strict=True)
    ]


def _clashes(tx: Tx, submissions: Sequence[Submission]) -> list[Rejected | None]:
    """Why each of these submissions is refused. None: it is not."""
    refs = [[(item.tenant, item.id) for item in one.items] for one in submissions]
    ids = TakenIds(tx, chain.from_iterable(refs))
    refusals: list[Rejected | None] = []
    for its_refs in refs:
        refused = ids.clash(its_refs)
        refusals.append(refused)
        if refused is None:
            ids.add(its_refs)
    return refusals


def _submit_one(tx: Tx, submission: Submission) -> tuple[Submitted, ...] | Rejected:
    planned = plan(tx, submission.items)
    if isinstance(planned, Rejected):
        return planned
    if (change := noted_submission(submission)) is not None and (count := changed_by(planned.plan)):
        record(tx, change, count)
    stored = store(tx, [(item, None) for item in planned.plan.new.values()])
    new = dict(zip(planned.plan.new, stored, strict=True))
    if planned.plan.changes:
        planned.change(tx, new)
    return tuple(planned.answer(ref, new) if existing else new[ref] for ref, existing in planned.plan.answers)


# -- planning: nothing is written ----------------------------------------------------------------------


class TakenIds:
    """Which ids are taken: stored already, or about to be stored. Knows only the ids it was created for. A
    name with `GROUP_MARK` is taken if that group exists."""

    def __init__(self, tx: Tx, refs: Iterable[Ref], groups: Collection[Ref] = ()) -> None:
        found = tx.rows_of(_SQL["existing_ids"], refs)
        self._taken: set[Ref] = {(tenant, id) for tenant, (id,) in found}
        if groups:
            self._taken.update(find_known(tx, groups))

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._taken

    def clash(self, refs: Sequence[Ref]) -> Rejected | None:
        """Refuse a batch of plain items if one of its ids is taken, or stands there twice."""
        if len(set(refs)) == len(refs) and self._taken.isdisjoint(refs):
            return None
        seen = Counter(refs)
        ids = dict.fromkeys(ref[1] for ref in refs if ref in self._taken or seen[ref] > 1)
        return Rejected("duplicate_id", tuple(ids))

    def add(self, refs: Iterable[Ref]) -> None:
        """These ids are about to be stored."""
        self._taken.update(refs)


class PlannedItems(NamedTuple):
    """A plan, and the stored items that answer for some of its items by their keys."""

    plan: SubmitPlan
    holders: dict[Ref, Submitted]

    def answer(self, ref: Ref, new: dict[Ref, Submitted]) -> Submitted:
        """The answer of an earlier item: a stored one, or one of the new ones."""
        return (
            self.holders[ref]
            if ref not in new
            else replace(new[ref], existing=True, lease=None, queued_at=0.0)
        )

    def change(self, tx: Tx, new: dict[Ref, Submitted]) -> None:
        """Let items take over what others with the same key have. Their answers have the new status."""
        take_over(tx, self.plan.changes)
        for ref in self.plan.changes:
            status: int = tx.value(_SQL["status_of"], ref[1], ref[0])
            for answers in (new, self.holders):
                if ref in answers:
                    answers[ref] = replace(answers[ref], status=STATUS[status])


def plan(
    tx: Tx, items: Sequence[Item], tenant: str | None = None, group_id: str | None = None
) -> PlannedItems | Rejected:
    """Plan a batch of items. Everything that was planned before must be stored. For children: the tenant and
    the group of the settled item."""
    holders: dict[Ref, Submitted] = {}

    def find_holder(key: KeyRef) -> KeyHolder | None:
        row = tx.row(_SQL["key_holder"], key[2], key[0], key[1])
        if row is None:
            return None
        id, group_id, queued_at, status, group_open, unstarted, changed_by = row
        holders[key[0], id] = Submitted(id, existing=True, status=STATUS[status], group_id=group_id)
        return KeyHolder(id, bool(group_open), queued_at, bool(unstarted), decode_ids(changed_by), group_id)

    named = [(tenant or item.tenant, id) for item in items for id in (item.id, *item.must_exist)]
    taken = TakenIds(tx, named, [ref for ref in named if ref[1].startswith(GROUP_MARK)])
    planned = plan_submission(items, tx.now, find_holder, taken.__contains__, tenant)
    if isinstance(planned, Rejected):
        return planned
    cycle = find_cycle(tx, planned.new, group_id)
    return PlannedItems(planned, holders) if cycle is None else Rejected("cycle", cycle)


# -- where new items belong ----------------------------------------------------------------------------
#
# Roots form groups of their own, children join a group that exists, or
# one that is nested in it and is stored with them.


class Home(NamedTuple):
    """Where the children of a settlement belong."""

    tenant: str
    group: int
    group_id: str
    queued_by: int
    parent: str
    outermost: int
    """The outermost group around that group, or itself."""


PlacedItem: TypeAlias = "tuple[Item, Home | None]"
"""An item and where it belongs: None for the root of its own group."""


def tenant_of(item: Item, home: Home | None) -> str:
    return item.tenant if home is None else home.tenant


class _NestedGroup(Struct):
    no: int
    """The number of the item that closes it."""
    closer: Item
    home: Home
    """Where that item belongs: in the outer group."""
    members: int = 0
    keep: float = inf

    def row(self, now: float) -> tuple[Any, ...]:
        """As `insert_nested` takes it. A group without members has ended at once."""
        closer, home, members = self.closer, self.home, self.members
        keep, ended = (self.keep, NULL) if members else (closer.keep, now)
        known = self.no, closer.id, home.tenant, closer.type, members, members
        return *known, keep, ended, home.group, home.outermost


class NestedGroups:
    """The nested groups that are stored together with the items that close them."""

    def __init__(self, placed: Sequence[PlacedItem], first: int) -> None:
        """`first`: the number of the first of these items. The others follow."""
        self._groups: dict[Ref, _NestedGroup] = {}
        for no, (item, home) in enumerate(placed, start=first):
            if home is not None and item.closes_group:
                self._groups[home.tenant, item.id] = _NestedGroup(no, item, home)
        self.placed: list[PlacedItem] = [(item, home and self._join(item, home)) for item, home in placed]
        """The same items, in the groups that they join."""
        for group in self._groups.values():
            group.home = self.placed[group.no - first][1] or group.home

    def _join(self, item: Item, home: Home) -> Home:
        group = self._groups.get((home.tenant, item.group_id or ""))
        if group is None:
            return home
        group.members += 1
        group.keep = min(group.keep, shortest_keep(item.keep, item.keep_dead))
        return home._replace(group=group.no, group_id=group.closer.id)

    def store(self, tx: Tx) -> None:
        insert_nested(tx, [group.row(tx.now) for group in self._groups.values()])

    def ended(self) -> dict[int, EndedGroup]:
        """Those without members, by their negated numbers."""
        return {
            -group.no: EndedGroup(id, tenant, None, group.closer.type, 0)
            for (tenant, id), group in self._groups.items()
            if not group.members
        }

    def known(self) -> dict[Ref, tuple[int, int | None]]:
        """These groups by their names in `after`: their numbers, negated, and their outcomes."""
        return {
            (tenant, GROUP_MARK + id): (-group.no, None if group.members else SUCCESS)
            for (tenant, id), group in self._groups.items()
        }


# -- storing items, table by table ---------------------------------------------------------------------


def store_children(tx: Tx, placed: Sequence[PlacedItem]) -> dict[int, EndedGroup]:
    """As `store`, for the children of settlements. Return the nested groups that have ended at once."""
    storage = _ItemStorage(tx, placed)
    stored = storage.run()
    assert stored is not None, "the ids were checked"
    return storage.ended_groups()


def store(tx: Tx, placed: Sequence[PlacedItem]) -> list[Submitted]:
    """Write these items, in this order. Everything was checked before."""
    stored = store_unless_taken(tx, placed)
    assert stored is not None, "the ids were checked"
    return stored


def store_unless_taken(tx: Tx, placed: Sequence[PlacedItem]) -> list[Submitted] | None:
    """Write these items, in this order. None: one of the ids is taken, or two are the same, and nothing was
    written."""
    return _ItemStorage(tx, placed).run() if placed else []


class _ItemStorage:
    """Writes a batch of items, table by table."""

    def __init__(self, tx: Tx, placed: Sequence[PlacedItem]) -> None:
        self._tx = tx
        self._placed = placed
        leased = closing = False
        self._waiting = self._keyed = False
        usual = True
        for item, _ in placed:
            if item.lease_to is not None:
                leased = True
            if item.after:
                self._waiting = True
            elif usual and not _is_usual(item):
                usual = False
            if item.key is not None:
                self._keyed = True
            if item.closes_group:
                closing = True
        self._usual = usual and not (leased or closing)
        """Whether the rows in `treadle_open` of those that wait for nothing follow from `treadle_item`."""
        self._workers: dict[str, int] = dict(tx.rows(_SQL["live_workers"], tx.now)) if leased else {}
        self._paused = paused(tx) if leased else set[tuple[str, str]]()
        leases = sum(item.lease_to in self._workers for item, _ in placed) if leased else 0
        count = len(placed)
        tx.run(_SQL["take_numbers"], count, count, token_step(leases, random_bits) if leases else 0)
        no, seq, token, any_missing = tx.rows(_SQL["numbers_taken"])[0]
        self._first = no - count + 1
        """The number of the first item."""
        self._place = seq - count + 1
        """The place of the first item in its lane."""
        self._token = token - leases + 1
        self._any_missing = bool(any_missing)
        self._dependencies: dict[int, Dependencies] = {}
        self._open_rows: list[tuple[Any, ...]] = []
        self._nested: NestedGroups | None = None
        if closing and placed[0][1] is not None:
            self._nested = NestedGroups(placed, self._first)
            self._placed = self._nested.placed

    def run(self) -> list[Submitted] | None:
        """None: an id is taken, and nothing was written."""
        tx, placed = self._tx, self._placed
        rows = [self._item_row(no, *one) for no, one in enumerate(placed, self._first)]
        if tx.run_rows(_SQL["insert_item"], rows) < len(placed):
            tx.run(_SQL["delete_inserted"], self._first, self._first + len(placed))
            return None
        if self._waiting:
            self._store_dependencies()
        if self._usual:
            answers = self._open_usual()
        else:
            answers = [self._open(place, *one) for place, one in enumerate(placed)]
        if self._open_rows:
            tx.run_rows(_SQL["insert_open"], self._open_rows)
        if self._nested is not None:
            self._nested.store(tx)
        if self._keyed:
            self._set_key_holders()
        if self._any_missing:
            connect_waiting(tx, {**self._numbers(), **{ref: no for ref, (no, _) in self._groups().items()}})
        return answers

    def ended_groups(self) -> dict[int, EndedGroup]:
        """The nested groups that have ended at once, by their negated numbers."""
        return {} if self._nested is None else self._nested.ended()

    def _item_row(self, no: int, item: Item, home: Home | None) -> tuple[Any, ...]:
        return (
            no,
            item.id,
            item.tenant if home is None else home.tenant,
            item.type,
            item.queue,
            item.lane,
            item.priority,
            NULL if item.attempts is None else item.attempts,
            home.group if home else no,
            home.queued_by if home else NULL,
            item.parent or (home.parent if home else NULL),
            item.workflow or NULL,
            item.workflow_type or NULL,
            item.key or NULL,
            self._tx.now,
            item.keep,
            NULL if item.keep_dead is None else item.keep_dead,
            array(item.after) if item.after else NULL,
            blob(item.options),
            blob(item.input),
        )

    def _store_dependencies(self) -> None:
        blocked = [
            (place, tenant_of(item, home), item)
            for place, (item, home) in enumerate(self._placed)
            if item.after
        ]
        known = find_prerequisites(self._tx, [(tenant, item) for _, tenant, item in blocked])
        known.update({ref: (no, None) for ref, no in self._numbers().items()})
        known.update(self._groups())
        self._dependencies = {place: dependencies(item, tenant, known) for place, tenant, item in blocked}
        store_dependencies(
            self._tx,
            [
                WaitingItem(
                    self._first + place,
                    tenant,
                    item.after,
                    is_tolerant(item.counting, item.need, item.after),
                    self._dependencies[place],
                )
                for place, tenant, item in blocked
            ],
            known,
        )

    def _open_usual(self) -> list[Submitted]:
        """As `_open`, for items that have nothing but the usual, and may wait for others. A submit of 500
        takes 6 ms, not 10."""
        first, now = self._first, self._tx.now
        self._tx.run(_SQL["open_usual"], self._place - first, first, first + len(self._placed))
        answers = [
            Submitted(item.id, False, "ready", None, home.group_id if home else item.id, now)
            for item, home in self._placed
        ]
        for place in self._dependencies:
            answers[place] = self._open(place, *self._placed[place])
        return answers

    def _open(self, place: int, item: Item, home: Home | None) -> Submitted:
        """Add the row of an open item. Return the answer for it."""
        now, no = self._tx.now, self._first + place
        due = due_at(item, now) if item.delay or item.run_at is not None else now
        deadline = None
        if item.deadline is not None or item.expires_in is not None:
            deadline = deadline_at(item, now)
        waits = self._dependencies.get(place) if self._waiting else None
        status, verdict = (SCHEDULED if due > now else READY), NULL
        if waits is not None:
            status, verdict = _status_of_dependent(waits, status)
        worker = self._workers.get(item.lease_to or "") if self._workers and status == READY else None
        if worker is not None and is_paused(self._paused, item.queue, item.tenant):
            worker = None
        lease = None
        if worker is not None and not (deadline is not None and deadline <= now):
            status = RUNNING
            lease = self._lease(item, home, no, due, deadline)
            self._token += 1
        self._open_rows.append(
            (
                no,
                status,
                item.queue,
                item.tenant if home is None else home.tenant,
                item.type,
                item.lane,
                -item.priority,
                self._place + place if status in (READY, RUNNING) else 0,
                due,
                now if status in (READY, RUNNING) else NULL,
                NULL if deadline is None else deadline,
                1 if lease else 0,
                home.group if home else NULL,
                1 if waits else 0,
                item.need,
                waits.met if waits else 0,
                waits.open if waits else 0,
                1 if item.counting == "done" else 0,
                1 if item.contributes else 0,
                verdict,
                lease.token if lease else NULL,
                worker if lease else NULL,
                now if lease else NULL,
            )
        )
        group_id = home.group_id if home else item.id
        return Submitted(item.id, False, STATUS[status], lease, group_id, now)

    def _lease(self, item: Item, home: Home | None, no: int, due: float, deadline: float | None) -> Lease:
        parent = item.parent or (home.parent if home else None)
        return Lease(
            item.id, tenant_of(item, home), self._token, item.type, item.input, 1,
            home.group_id if home else item.id, item.queue, item.lane, item.priority, item.attempts, parent,
            item.workflow, item.workflow_type, item.after, item.options, self._tx.now, due, self._tx.now,
            deadline, ref=no, ready_at=self._tx.now,
        )  # fmt: skip

    def _set_key_holders(self) -> None:
        keyed = [
            (item.key, tenant_of(item, home), item.type, self._first + place)
            for place, (item, home) in enumerate(self._placed)
            if item.key is not None
        ]
        self._tx.run_rows(_SQL["set_key_holder"], keyed)

    def _groups(self) -> dict[Ref, tuple[int, int | None]]:
        """The groups that begin with these items, by their names in `after`: their numbers, negated, and the
        outcomes of those that have ended."""
        roots: dict[Ref, tuple[int, int | None]] = {
            (item.tenant, GROUP_MARK + item.id): (-no, None)
            for no, (item, home) in enumerate(self._placed, start=self._first)
            if home is None
        }
        return roots if self._nested is None else {**roots, **self._nested.known()}

    def _numbers(self) -> dict[Ref, int]:
        return {
            (tenant_of(item, home), item.id): self._first + place
            for place, (item, home) in enumerate(self._placed)
        }


def _is_usual(item: Item) -> bool:
    """Whether an item that waits for nothing is ready at once, and its other options are the usual ones."""
    return (
        item.run_at is None
        and not item.delay
        and item.deadline is None
        and item.expires_in is None
        and item.contributes
        and not item.need
        and item.counting == "success"
    )


def _status_of_dependent(waits: Dependencies, released: int) -> tuple[int, str]:
    """The status and the verdict with which an item begins. `released`: the status if it need not wait."""
    match waits.state:
        case "waiting":
            return BLOCKED, NULL
        case "doomed":
            return doomed(BLOCKED), "unsatisfiable"
        case "released":
            return released, NULL
