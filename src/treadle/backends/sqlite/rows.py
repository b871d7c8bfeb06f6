"""Rows: turn them into items and leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Final

import msgspec

from treadle.item import Attempt, ErrorInfo, ItemState, Lease, SettlementKind, Status, Verdict
from treadle.store.rules.times import is_held, shown_due

from .statements import Row, Tx, array, statements

_SQL = statements("rows")

_ids = msgspec.json.Decoder(tuple[str, ...])


def decode_ids(stored: str | None) -> tuple[str, ...]:
    """A stored JSON array of ids. NULL stands for an empty one."""
    return () if stored is None else _ids.decode(stored)


def decode_text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


def encode_text(value: str) -> bytes:
    """As bytes: the text of an error may hold lone surrogates, which SQLite does not store as text."""
    return value.encode("utf-8", "surrogatepass")


# -- items ---------------------------------------------------------------------------------------------


def numbers(tx: Tx, ids: Sequence[str], tenant: str | None) -> dict[str, int]:
    """The numbers of these ids in a tenant. Without a tenant: of the item that was submitted first."""
    if tenant is None:
        found = tx.rows(_SQL["numbers_of_ids"], array(set(ids)))
    else:
        found = tx.rows(_SQL["numbers_of_ids_in_tenant"], array(set(ids)), tenant)
    return dict(found)


def states(tx: Tx, nos: Iterable[int]) -> dict[int, ItemState]:
    """The items of these numbers, in this order, without their history."""
    wanted = list(nos)
    return {row[0]: _state(row) for row in tx.rows(_SQL["states"], array(wanted))} if wanted else {}


def full_states(tx: Tx, nos: Iterable[int]) -> dict[int, ItemState]:
    """As `states`, with their history and the ids that they wait for and that do not exist."""
    found = states(tx, nos)
    if not found:
        return found
    history: defaultdict[int, list[Attempt]] = defaultdict(list)
    for row in tx.rows(_SQL["histories"], array(found)):
        history[row[0]].append(_attempt(row))
    for no, attempts in history.items():
        found[no].history = tuple(attempts)
    wanted = array(found)
    missing: defaultdict[int, set[str]] = defaultdict(set)
    for dependent, id in tx.rows(_SQL["missing"], wanted):
        missing[dependent].add(id)
    for no, ids in missing.items():
        found[no].waiting_for = tuple(id for id in found[no].after if id in ids)
    return found


def _state(row: Row) -> ItemState:
    """An item without its history. (Fields given by name take twice as long.)"""
    (
        _, id, tenant, type, queue, lane, priority, attempts, group_id, parent, workflow, workflow_type, key,
        queued_at, after, options, input, status, attempt, due_at, deadline, claimed_at, worker, ended_at,
        reason, result, error_type, message, failures, losses, started_at, mark, deferrals, records, release,
    ) = row  # fmt: skip
    state = ItemState(id=id, type=type, status=STATUS[status], tenant=tenant)
    state.reason = reason
    state.attempt = attempt
    state.attempts = attempts
    state.failures = failures
    state.losses = losses
    state.deferrals = deferrals
    state.result = result
    if error_type is not None and status != SUCCESS:
        kind = decode_text(error_type)
        state.error_type = kind
        state.error = str(ErrorInfo(kind, decode_text(message)))
        state.release = release or ""
    state.queued_at = queued_at
    state.due_at = shown_due(due_at, ended_at)
    state.claimed_at = claimed_at
    state.started_at = started_at
    state.ended_at = ended_at
    state.deadline = deadline
    state.priority = priority
    state.lane = lane
    state.queue = queue
    state.group_id = group_id
    state.parent = parent
    state.workflow = workflow
    state.workflow_type = workflow_type
    if after is not None:
        state.after = decode_ids(after)
    state.key = key
    state.worker = worker
    state.input = input
    state.options = options
    state.mark = mark or ""
    state.has_steps = records & HAS_STEPS > 0
    state.suspended = records & SUSPENDED > 0
    state.held = ended_at is None and is_held(due_at)
    return state


def _attempt(row: Row) -> Attempt:
    error_type, message, traceback = map(decode_text, row[2:5])
    return Attempt(row[1], error_type, message, traceback, row[5], row[6], row[7] or "")


# -- leases --------------------------------------------------------------------------------------------


def leases(tx: Tx, nos: Sequence[int]) -> list[Lease]:
    """The leases on these items, in this order."""
    return [_lease(*row) for row in tx.rows(_SQL["leases"], tx.now, array(nos))] if nos else []


def new_leases(
    rows: Iterable[Row], line: tuple[str, str, str], token: int, now: float, buffered: Container[str]
) -> list[Lease]:
    """The leases on the items of one line that a claim hands out now, as it has read them before."""
    queue, tenant, lane = line
    return [
        _lease(
            id, tenant, number, type, input, attempt, queue, lane, priority, attempts, options, queued_at,
            due_at, now, deadline, no, ready_at, rare, type not in buffered,
        )
        for number, (
            no, _, _, type, deadline, id, input, attempt, priority, attempts, options, queued_at, due_at,
            ready_at, rare,
        ) in enumerate(rows, token)
    ]  # fmt: skip


def _lease(
    id: str, tenant: str, token: int, type: str, input: bytes, attempt: int, queue: str, lane: str,
    priority: int, attempts: int | None, options: bytes, queued_at: float, due_at: float, claimed_at: float,
    deadline: float | None, ref: int, ready_at: float | None, rare: str | None, begun: bool = True,
) -> Lease:  # fmt: skip
    """By position, which is four times as fast as by keyword: see `Lease`."""
    if rare is None:
        return Lease(
            id, tenant, token, type, input, attempt, id, queue, lane, priority, attempts, None, None, None,
            (), options, queued_at, due_at, claimed_at, deadline, None, ref, 0, 0, begun, ready_at or 0.0,
        )  # fmt: skip
    more = _rare_fields.decode(rare)
    return Lease(
        id, tenant, token, type, input, attempt, more.group_id or id, queue, lane, priority, attempts,
        more.parent, more.workflow, more.workflow_type, more.after or (), options, queued_at, due_at,
        claimed_at, deadline, more.verdict, ref, more.failures, more.losses, begun and more.begun == 1,
        ready_at or 0.0, more.deferrals, more.has_steps > 0, more.resumes > 0,
    )  # fmt: skip


class RareFields(msgspec.Struct, array_like=True, gc=False):
    """The fields of a lease that few have."""

    group_id: str | None
    """None for an item that is alone."""
    parent: str | None
    workflow: str | None
    workflow_type: str | None
    after: tuple[str, ...] | None
    verdict: Verdict | None
    failures: int
    losses: int
    begun: int
    deferrals: int
    has_steps: int
    resumes: int


_rare_fields = msgspec.json.Decoder(RareFields)


# -- the numbers that stand for statuses in the tables -------------------------------------------------


BLOCKED: Final = 0
SCHEDULED: Final = 1
READY: Final = 2
PARKED: Final = 3
RUNNING: Final = 4

SUCCESS: Final = 10
DEAD: Final = 11
CANCELLED: Final = 12

HAS_STEPS: Final = 1
SUSPENDED: Final = 2
"""Flags of the column `records`. See the migration for the others."""

STATUS: Final[dict[int, Status]] = {
    -3: "ready",
    -2: "scheduled",
    -1: "blocked",
    BLOCKED: "blocked",
    SCHEDULED: "scheduled",
    READY: "ready",
    PARKED: "ready",
    RUNNING: "running",
    5: "blocked",
    6: "scheduled",
    7: "ready",
    SUCCESS: "success",
    DEAD: "dead",
    CANCELLED: "cancelled",
}
"""The status that is shown. A doomed item keeps the one it had, also while it is leased with its verdict."""

OUTCOME: Final[dict[SettlementKind, int]] = {"success": SUCCESS, "dead": DEAD, "cancelled": CANCELLED}
"""The code of an item that a settlement ends."""


def doomed(status: int) -> int:
    """The code of a doomed item that waited with this code. A freed item is ready."""
    return {BLOCKED: -1, SCHEDULED: -2}.get(status, -3)


def leased(status: int) -> int:
    """The code of a doomed item while it is leased with its verdict, and back."""
    return 4 - status


def codes(statuses: tuple[Status, ...]) -> list[int]:
    """All codes that are shown as one of these statuses."""
    return [code for code, shown in STATUS.items() if shown in statuses]
