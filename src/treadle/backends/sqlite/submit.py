"""submit: plan new items (keys, duplicate ids, cycles), then store them with their keys and dependencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from treadle.item import GROUP_MARK, Item, Lease, Ref, Rejected, Submission, Submitted
from treadle.rules.audits import changed_by, noted_submission
from treadle.rules.submission import (
    Dependencies,
    KeyHolder,
    KeyRef,
    SubmitPlan,
    is_tolerant,
    plan_submission,
)
from treadle.rules.times import deadline_at, due_at

from .audits import record
from .dependencies import (
    WaitingItem,
    connect_waiting,
    dependencies,
    find_cycle,
    find_known,
    find_prerequisites,
    store_dependencies,
)
from .placement import Home, NestedGroups, PlacedItem, tenant_of
from .rows import decode_ids
from .statements import NULL, Row, Tx, array, blob, statements
from .status_codes import BLOCKED, READY, RUNNING, SCHEDULED, STATUS, doomed
from .update import take_over

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
        return self.holders[ref] if ref not in new else replace(new[ref], existing=True, lease=None)

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


# -- storing -------------------------------------------------------------------------------------------


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
        for item, _ in placed:
            if item.lease_to is not None:
                leased = True
            if item.after:
                self._waiting = True
            if item.key is not None:
                self._keyed = True
            if item.closes_group:
                closing = True
        self._workers: dict[str, int] = dict(tx.rows(_SQL["live_workers"], tx.now)) if leased else {}
        self._paused: set[Row] = set(tx.rows(_SQL["paused"])) if leased else set()
        leases = sum(item.lease_to in self._workers for item, _ in placed) if leased else 0
        count = len(placed)
        no, seq, token, any_missing = tx.rows(_SQL["take_numbers"], count, count, leases)[0]
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
        answers = [self._open(place, *one) for place, one in enumerate(placed)]
        tx.run_rows(_SQL["insert_open"], self._open_rows)
        if self._nested is not None:
            self._nested.store(tx)
        if self._keyed:
            self._set_key_holders()
        if self._any_missing:
            connect_waiting(tx, {**self._numbers(), **{ref: no for ref, (no, _) in self._groups().items()}})
        return answers

    def _item_row(self, no: int, item: Item, home: Home | None) -> tuple[Any, ...]:
        return (
            no,
            item.id,
            tenant_of(item, home),
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

    def _open(self, place: int, item: Item, home: Home | None) -> Submitted:
        """Add the row of an open item. Return the answer for it."""
        now, no = self._tx.now, self._first + place
        due, deadline = due_at(item, now), deadline_at(item, now)
        waits = self._dependencies.get(place)
        status, verdict = (SCHEDULED if due > now else READY), NULL
        if waits is not None:
            status, verdict = _status_of_dependent(waits, status)
        worker = self._workers.get(item.lease_to or "") if status == READY else None
        if worker is not None and self._paused.intersection(((item.queue, ""), (item.queue, item.tenant))):
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
                tenant_of(item, home),
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


def _status_of_dependent(waits: Dependencies, released: int) -> tuple[int, str]:
    """The status and the verdict with which an item begins. `released`: the status if it need not wait."""
    match waits.state:
        case "waiting":
            return BLOCKED, NULL
        case "doomed":
            return doomed(BLOCKED), "unsatisfiable"
        case "released":
            return released, NULL
