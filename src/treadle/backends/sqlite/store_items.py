"""Store new items: their rows, keys and dependencies, table by table. Everything was checked before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.item import GROUP_MARK, EndedGroup, Item, Lease, Ref, Submitted
from treadle.store.rules.settlement import token_step
from treadle.store.rules.submission import Dependencies, is_tolerant
from treadle.store.rules.times import deadline_at, due_at

from .dependencies import (
    WaitingItem,
    connect_waiting,
    dependencies,
    find_prerequisites,
    store_dependencies,
)
from .placement import Home, NestedGroups, PlacedItem, tenant_of
from .statements import NULL, Row, Tx, array, blob, random_bits, statements
from .status_codes import BLOCKED, READY, RUNNING, SCHEDULED, STATUS, doomed

_SQL = statements("submit")


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
            if usual and not _is_usual(item):
                usual = False
            if item.key is not None:
                self._keyed = True
            if item.closes_group:
                closing = True
        self._usual = usual and not (leased or closing or self._waiting)
        """Whether the rows of these items in `treadle_open` follow from those in `treadle_item`."""
        self._workers: dict[str, int] = dict(tx.rows(_SQL["live_workers"], tx.now)) if leased else {}
        self._paused: set[Row] = set(tx.rows(_SQL["paused"])) if leased else set()
        leases = sum(item.lease_to in self._workers for item, _ in placed) if leased else 0
        count = len(placed)
        tx.run(_SQL["take_numbers"], count, count, token_step(leases, random_bits))
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
        """As `_open`, for items that have nothing but the usual. A submit of 500 takes 6 ms, not 10."""
        first, now = self._first, self._tx.now
        self._tx.run(_SQL["open_usual"], self._place - first, first, first + len(self._placed))
        return [
            Submitted(item.id, False, "ready", None, home.group_id if home else item.id, now)
            for item, home in self._placed
        ]

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
