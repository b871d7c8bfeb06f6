"""Storing planned items: their rows, their edges, and who was waiting for their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from treadle.item import Item, Lease, Ref, Submitted
from treadle.rules import deadline_at, due_at

from .codes import BLOCKED, READY, RUNNING, SCHEDULED, STATUS, doomed
from .gates import FREE, Gate, assess, prerequisites
from .rows import stored_ids
from .statements import Statements
from .tx import NULL, Tx, array, blob

_SQL = Statements("submit")


class Home(NamedTuple):
    """Where the children of a settlement belong."""

    tenant: str
    group: int
    group_id: str
    origin: int
    parent: str


Placed: TypeAlias = "tuple[Item, Home | None]"
"""An item and where it belongs: None for the root of its own group."""


def store(tx: Tx, placed: Sequence[Placed]) -> list[Submitted]:
    """Write these items, in this order. Everything was checked before."""
    if not placed:
        return []
    return _Storing(tx, placed).run()


def _tenant(item: Item, home: Home | None) -> str:
    return item.tenant if home is None else home.tenant


class _Storing:
    def __init__(self, tx: Tx, placed: Sequence[Placed]) -> None:
        self._tx = tx
        self._placed = placed
        asked = any(item.lease_to is not None for item, _ in placed)
        self._workers: dict[str, int] = dict(tx.rows(_SQL["live_workers"], tx.now)) if asked else {}
        leases = sum(item.lease_to in self._workers for item, _ in placed) if asked else 0
        self._next = tx.numbers(no=len(placed), seq=len(placed), token=leases)
        self._token = self._next.token
        self._gates = _gates(tx, placed, self._next.no)
        self._job_rows: list[tuple[Any, ...]] = []

    def run(self) -> list[Submitted]:
        rows = [self._item_row(place, item, home) for place, (item, home) in enumerate(self._placed)]
        self._tx.run_rows(_SQL["insert_item"], rows)
        answers = [self._job(place, item, home) for place, (item, home) in enumerate(self._placed)]
        self._tx.run_rows(_SQL["insert_job"], self._job_rows)
        self._hold_keys()
        self._insert_edges()
        self._tell_waiting()
        return answers

    def _hold_keys(self) -> None:
        keyed = [
            (item.key, _tenant(item, home), item.type, self._next.no + place)
            for place, (item, home) in enumerate(self._placed)
            if item.key is not None
        ]
        self._tx.run_rows(_SQL["hold_key"], keyed)

    def _insert_edges(self) -> None:
        edges: list[tuple[int, int, int, int]] = []
        awaited: list[tuple[str, str, int]] = []
        for place, gate in self._gates.items():
            no, tenant = self._next.no + place, _tenant(*self._placed[place])
            edges += [(edge.src, no, int(edge.counted), edge.weight) for edge in gate.edges]
            awaited += [(id, tenant, no) for id in gate.awaited]
        self._tx.run_rows(_SQL["insert_edge"], edges)
        self._tx.run_rows(_SQL["insert_awaited"], awaited)

    def _item_row(self, place: int, item: Item, home: Home | None) -> tuple[Any, ...]:
        no = self._next.no + place
        return (
            no,
            item.id,
            _tenant(item, home),
            item.type,
            item.queue,
            item.lane,
            item.priority,
            NULL if item.attempts is None else item.attempts,
            home.group if home else no,
            home.origin if home else NULL,
            item.parent or (home.parent if home else NULL),
            item.workflow or NULL,
            item.workflow_type or NULL,
            item.key or NULL,
            self._tx.now,
            item.keep,
            NULL if item.keep_dead is None else item.keep_dead,
            stored_ids(item.after) or NULL,
            blob(item.options),
            blob(item.input),
        )

    def _job(self, place: int, item: Item, home: Home | None) -> Submitted:
        """Note the job's row; answer what the item has become."""
        now, no = self._tx.now, self._next.no + place
        due, deadline = due_at(item, now), deadline_at(item, now)
        gate = self._gates.get(place, FREE)
        status, verdict = _status(gate, due, now)
        worker = self._workers.get(item.lease_to or "") if status == READY else None
        lease = None
        if worker is not None and not (deadline is not None and deadline <= now):
            status = RUNNING
            lease = self._lease(item, home, no, due, deadline)
            self._token += 1
        self._job_rows.append(
            (
                no,
                status,
                item.queue,
                _tenant(item, home),
                item.type,
                item.lane,
                -item.priority,
                self._next.seq + place if status in (READY, RUNNING) else 0,
                due,
                now if status in (READY, RUNNING) else NULL,
                NULL if deadline is None else deadline,
                NULL if item.attempts is None else item.attempts,
                1 if lease else 0,
                home.group if home else NULL,
                1 if item.after else 0,
                item.need,
                gate.met,
                gate.open,
                1 if item.counting == "done" else 0,
                verdict,
                lease.token if lease else NULL,
                worker if lease else NULL,
                now if lease else NULL,
            )
        )
        group_id = home.group_id if home else item.id
        return Submitted(item.id, status=STATUS[status], lease=lease, group_id=group_id)

    def _lease(self, item: Item, home: Home | None, no: int, due: float, deadline: float | None) -> Lease:
        return Lease(
            id=item.id,
            tenant=_tenant(item, home),
            token=self._token,
            type=item.type,
            input=item.input,
            attempt=1,
            group_id=home.group_id if home else item.id,
            queue=item.queue,
            lane=item.lane,
            priority=item.priority,
            attempts=item.attempts,
            parent=item.parent or home.parent if home else item.parent,
            workflow=item.workflow,
            workflow_type=item.workflow_type,
            after=item.after,
            options=item.options,
            queued_at=self._tx.now,
            due_at=due,
            claimed_at=self._tx.now,
            deadline=deadline,
            ref=no,
        )

    def _tell_waiting(self) -> None:
        """Whoever waited for an id that did not exist waits for its item from now on."""
        tx = self._tx
        if tx.value(_SQL["any_awaited"]) is None:
            return
        stored: dict[Ref, int] = {
            (_tenant(item, home), item.id): self._next.no + place
            for place, (item, home) in enumerate(self._placed)
        }
        ids = dict.fromkeys(id for _, id in stored)  # several tenants may use one
        for id, tenant, dst in tx.rows(_SQL["awaiting"], array(ids)):
            if (tenant, id) in stored:
                tx.run(_SQL["insert_edge"], stored[tenant, id], dst, 0, 1)
                tx.run(_SQL["drop_awaited"], id, tenant)


def _status(gate: Gate, due: float, now: float) -> tuple[int, str]:
    """The state it begins in, and its verdict."""
    match gate.standing:
        case "waiting":
            return BLOCKED, NULL
        case "doomed":
            return doomed(BLOCKED), "unsatisfiable"
        case "released":
            return (SCHEDULED if due > now else READY), NULL


def _gates(tx: Tx, placed: Sequence[Placed], first: int) -> dict[int, Gate]:
    """For each place whose item waits: what it waits for."""
    gated = {place: (_tenant(item, home), item) for place, (item, home) in enumerate(placed) if item.after}
    if not gated:
        return {}
    known = prerequisites(tx, gated.values())
    for place, (item, home) in enumerate(placed):
        known[_tenant(item, home), item.id] = first + place, None
    return {place: assess(item, tenant, known) for place, (tenant, item) in gated.items()}
