"""From rows to nouns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from treadle.item import Attempt, ErrorInfo, ItemState, Lease

from .codes import STATUS
from .statements import Statements
from .tx import Row, Tx, array

_SQL = Statements("state")

_ids = msgspec.json.Decoder(tuple[str, ...])


def ids(stored: str | None) -> tuple[str, ...]:
    """A stored JSON array of ids; NULL stands for none."""
    return () if stored is None else _ids.decode(stored)


def stored_ids(values: Sequence[str]) -> str | None:
    return array(values) if values else None


def text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


def stored_text(value: str) -> bytes:
    """As bytes: an error's text may hold lone surrogates, which no database takes for text."""
    return value.encode("utf-8", "surrogatepass")


# -- items ---------------------------------------------------------------------------------------------


def numbers(tx: Tx, wanted: Sequence[str], tenant: str | None) -> dict[str, int]:
    """The numbers of these ids, as seen by a tenant; by an operator: of the one submitted first."""
    if tenant is None:
        found = tx.rows(_SQL["numbers_of_ids"], array(set(wanted)))
    else:
        found = tx.rows(_SQL["numbers_of_ids_in_tenant"], array(set(wanted)), tenant)
    return dict(found)


def states(tx: Tx, nos: Iterable[int]) -> dict[int, ItemState]:
    """The items of these numbers as they stand, in this order, without their history."""
    return {row[0]: _state(row) for row in tx.rows(_SQL["states"], array(nos))}


def full_states(tx: Tx, nos: Iterable[int]) -> dict[int, ItemState]:
    """The same, with history and what they wait for that does not exist."""
    found = states(tx, nos)
    wanted = array(found)
    history: defaultdict[int, list[Attempt]] = defaultdict(list)
    for row in tx.rows(_SQL["histories"], wanted):
        history[row[0]].append(_attempt(row))
    for no, attempts in history.items():
        found[no].history = tuple(attempts)
    waiting: defaultdict[int, set[str]] = defaultdict(set)
    for dst, id in tx.rows(_SQL["awaited"], wanted):
        waiting[dst].add(id)
    for no, missing in waiting.items():
        found[no].waiting_for = tuple(id for id in found[no].after if id in missing)
    return found


def _state(row: Row) -> ItemState:
    failed = row[26] is not None
    error_type = text(row[26]) if failed else None
    return ItemState(
        id=row[1],
        tenant=row[2],
        type=row[3],
        queue=row[4],
        lane=row[5],
        priority=row[6],
        attempts=row[7],
        group_id=row[8],
        parent=row[9],
        workflow=row[10],
        workflow_type=row[11],
        key=row[12],
        queued_at=row[13],
        after=ids(row[14]),
        options=row[15],
        input=row[16],
        status=STATUS[row[17]],
        attempt=row[18],
        due_at=row[19],
        deadline=row[20],
        started_at=row[21],
        worker=row[22],
        ended_at=row[23],
        reason=row[24],
        result=row[25],
        error_type=error_type,
        error=None if error_type is None else str(ErrorInfo(error_type, text(row[27]))),
    )


def _attempt(row: Row) -> Attempt:
    return Attempt(row[1], text(row[2]), text(row[3]), text(row[4]), row[5], row[6])


# -- leases --------------------------------------------------------------------------------------------


def leases(tx: Tx, nos: Sequence[int]) -> list[Lease]:
    """The leases on these items, in this order."""
    return [_lease(row) for row in tx.rows(_SQL["leases"], tx.now, array(nos))] if nos else []


def _lease(row: Row) -> Lease:
    """A row whose columns come in the order of a lease's fields, by position: see there."""
    (
        id, tenant, token, type, input, attempt, group_id, queue, lane, priority, attempts, parent, workflow,
        workflow_type, after, options, queued_at, due_at, claimed_at, deadline, verdict, ref,
    ) = row  # fmt: skip
    return Lease(
        id, tenant, token, type, input, attempt, id if group_id is None else group_id, queue, lane, priority,
        attempts, parent, workflow, workflow_type, () if after is None else ids(after), options, queued_at,
        due_at, claimed_at, deadline, verdict, ref,
    )  # fmt: skip
