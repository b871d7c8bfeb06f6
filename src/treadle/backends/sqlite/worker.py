"""Workers: their leases, and what becomes of what they held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.item import Heartbeat, HeartbeatReply, Lease, Loss, WorkerState
from treadle.rules import PORTION, budget_spent, loss_delay, lost_attempt

from .beside import Beside
from .codes import READY, SCHEDULED, doomed, leased
from .history import record
from .rows import ids, leases
from .settle import loss, owned
from .statements import Statements
from .tx import NULL, Row, Tx, array

_SQL = Statements("worker")

# Whoever cannot write cannot beat. If this process had to wait for the lock, so may the others.
_WAITED = 1.0


def beat(tx: Tx, beat: Heartbeat, beside: Beside) -> HeartbeatReply:
    look_for_dead(tx, beside)
    found = tx.row(_SQL["known"], beat.worker)
    until = tx.now + beat.lease
    if found is None:
        tx.run(_SQL["register"], beat.worker, until, beside.lock, _stored_types(beat.types))
    else:
        types = found[3] if beat.types is None else _stored_types(beat.types)
        tx.run(_SQL["keep"], until, types, found[0])
        if types != found[3]:
            _note_forgotten(tx, found[3])
    return HeartbeatReply(found is None, _lost(tx, beat.held))


def keep(tx: Tx, beat: Heartbeat) -> None:
    """Only that: the worker is alive."""
    found = tx.row(_SQL["known"], beat.worker)
    if found is not None:
        tx.run(_SQL["keep"], tx.now + beat.lease, found[3], found[0])


def remove_worker(tx: Tx, worker: str) -> int:
    """Free all that a worker was running."""
    found = tx.row(_SQL["known"], worker)
    if found is None:
        return 0
    _begin_burial(tx, found[0], found[3])
    return _free(tx, found[0], worker, None)


def bury_lapsed(tx: Tx) -> bool:
    """Take away the leases that have lapsed. What they held is freed in portions; True: there is more.

    A worker that is gone is not known any more, and its tokens are stale, freed or not.
    """
    grace = tx.waited if tx.waited > _WAITED else 0.0
    for no, _, types in tx.rows(_SQL["lapsed"], tx.now - grace):
        _begin_burial(tx, no, types)
    left = PORTION
    for no, id in tx.rows(_SQL["gone"]):
        if left <= 0:
            return True
        left -= _free(tx, no, id, left)
    return left <= 0


def claiming(tx: Tx, worker: str, lock: str | None) -> int | None:
    """The number of a worker that is alive; None if it is not. It is this process that claims for it."""
    found = tx.row(_SQL["known"], worker)
    if found is None:
        return None
    if found[2] != lock:
        tx.run(_SQL["set_lock"], lock, found[0])
    return int(found[0])


def look_for_dead(tx: Tx, beside: Beside) -> None:
    """The leases of workers whose processes have died lapse at once."""
    if not beside.is_time_to_look():
        return
    names = [name for (name,) in tx.rows(_SQL["locks"])]
    dead = beside.dead_among(names)
    if dead:
        tx.run(_SQL["lapse"], tx.now - tx.waited, array(dead))
    beside.sweep(names)


def unknown_leases(tx: Tx, worker: str, known: Sequence[int]) -> list[Lease]:
    found = tx.row(_SQL["known"], worker)
    if found is None:
        return []
    theirs = set(known)
    return leases(tx, [no for no, token in tx.rows(_SQL["unknown_leases"], found[0]) if token not in theirs])


def workers(tx: Tx) -> list[WorkerState]:
    return [
        WorkerState(id, until, None if types is None else ids(types), running)
        for id, until, types, running in tx.rows(_SQL["workers"])
    ]


def _lost(tx: Tx, held: Sequence[Lease]) -> dict[int, Loss]:
    if not held:
        return {}
    mine = owned(tx, held)
    found: dict[int, Loss] = {}
    for lease in held:
        # One that was settled by its very token is not lost: the worker knows, or will hear.
        if lease.token not in mine and (why := loss(tx, lease)) is not None:
            found[lease.token] = why
    return found


# -- types ---------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """The types that live workers have."""

    every: bool
    types: frozenset[str]

    def has(self, type: str) -> bool:
        return self.every or type in self.types


def known_types(tx: Tx) -> Known:
    stored = [types for (types,) in tx.rows(_SQL["live_types"])]
    named = frozenset(type for types in stored if types is not None for type in ids(types))
    return Known(None in stored, named)


def _note_forgotten(tx: Tx, types: str | None) -> None:
    """A worker no longer has these types: remember since when nobody does."""
    known = known_types(tx)
    if not known.every:
        for type in ("",) if types is None else ids(types):
            if not known.has(type):
                tx.run(_SQL["forget_type"], type, tx.now)


def _stored_types(types: Sequence[str] | None) -> str | None:
    return None if types is None else array(types)


# -- burying -------------------------------------------------------------------------------------------


def _begin_burial(tx: Tx, no: int, types: str | None) -> None:
    tx.run(_SQL["mark_gone"], no)
    tx.run(_SQL["drop_slots"], no)
    _note_forgotten(tx, types)


def _free(tx: Tx, no: int, worker: str, most: int | None) -> int:
    """Free what a worker holds, or so much of it; with the last of it, its row goes."""
    held = [job for (job,) in tx.rows(_SQL["held"], no, -1 if most is None else most)]
    rows = tx.rows(_SQL["leased"], array(held))
    tx.run_rows(_SQL["free"], [_freed(row, tx.now) for row in rows])
    record(tx, [(row[0], lost_attempt(row[2], tx.now, worker)) for row in rows if row[5] is None])
    if most is None or len(held) < most:
        tx.run(_SQL["forget"], no)
    return len(held)


def _freed(row: Row, now: float) -> tuple[Any, ...]:
    """(no, status, losses, due, since, seq, verdict)"""
    no, status, attempt, attempts, losses, verdict, seq, deadline = row
    if verdict is not None:
        return no, leased(status), losses, NULL, NULL, 0, verdict
    losses += 1
    if budget_spent(attempt, attempts):
        return no, doomed(READY), losses, NULL, now, seq, "lease_lost"
    expired = deadline is not None and deadline <= now
    verdict = "expired" if expired else NULL
    delay = loss_delay(losses)
    if delay:
        return no, doomed(SCHEDULED) if expired else SCHEDULED, losses, now + delay, NULL, 0, verdict
    return no, doomed(READY) if expired else READY, losses, NULL, now, seq, verdict
