"""Workers: their leases, the types they have, and what becomes of their items when they are gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.item import MOST_UNKNOWN, Heartbeat, HeartbeatReply, Lease, Loss, WorkerState
from treadle.item_facts import KEPT_RELEASES, Release
from treadle.store.rules import PORTION
from treadle.store.rules.settlement import Counters, after_loss, lost_attempt
from treadle.worker_info import decode_worker_info

from .endings import record_attempts
from .process_directory import ProcessDirectory
from .rows import decode_ids, leased, leases
from .settle import loss, owned, waiting_columns
from .statements import NULL, Row, Tx, array, statements

_SQL = statements("workers")


def beat(tx: Tx, beat: Heartbeat, directory: ProcessDirectory) -> HeartbeatReply:
    if directory.probe_is_due():
        end_leases_of_dead(tx, directory)
    found = tx.row(_SQL["worker_to_renew"], beat.worker)
    until = tx.now + beat.lease
    if found is None and not beat.registers:
        return HeartbeatReply(fresh=True)
    if found is None:
        types = _encode_types(beat.types)
        lease, release = (until, beat.lease), beat.release or None
        tx.run(_SQL["register"], beat.worker, *lease, directory.lock_file, types, beat.info, release)
        if release is not None and tx.run(_SQL["note_release"], release, tx.now):
            tx.run(_SQL["forget_releases"], KEPT_RELEASES)
    else:
        types = found[1] if beat.types is None else _encode_types(beat.types)
        tx.run(_SQL["renew"], until, beat.lease, types, beat.info, found[0])
        if types != found[1]:
            _record_unknown_types(tx, found[1])
    if found is None:
        return HeartbeatReply(True, _lost(tx, beat.held))
    _, _, drain, permits, leases = found
    mine = set(map(int, leases.split(","))) if leases else set[int]()
    lost = _lost(tx, [lease for lease in beat.held if lease.token not in mine])
    unknown = sorted(mine.difference([lease.token for lease in beat.held]))[:MOST_UNKNOWN]
    return HeartbeatReply(False, lost, bool(drain), unknown=unknown, permits=permits)


def drain_worker(tx: Tx, worker: str) -> bool:
    """Ask a worker to stop. False: it is not known."""
    return tx.run(_SQL["drain"], worker) > 0


def renew_lease(tx: Tx, beat: Heartbeat) -> None:
    """Only renew the lease of a worker."""
    found = tx.row(_SQL["worker"], beat.worker)
    if found is not None:
        tx.run(_SQL["renew"], tx.now + beat.lease, beat.lease, found[3], beat.info, found[0])


def begin(tx: Tx, leases: Sequence[Lease]) -> dict[int, Loss]:
    removed = {no for (no,) in tx.rows(_SQL["removed"])}
    tx.run(_SQL["begin"], array([item.no for item in owned(tx, leases, removed).values()]))
    return _lost(tx, leases)


def _lost(tx: Tx, held: Sequence[Lease]) -> dict[int, Loss]:
    if not held:
        return {}
    removed = {no for (no,) in tx.rows(_SQL["removed"])}
    mine = owned(tx, held, removed)
    found: dict[int, Loss] = {}
    for lease in held:
        # A lease that was settled by its own token is not lost: the worker gets that answer.
        if lease.token not in mine and (why := loss(tx, lease)) is not None:
            found[lease.token] = why
    return found


def unknown_leases(tx: Tx, worker: str, known: Sequence[int]) -> list[Lease]:
    found = tx.row(_SQL["worker"], worker)
    if found is None:
        return []
    tokens = set(known)
    return leases(tx, [no for no, token in tx.rows(_SQL["leases_of"], found[0]) if token not in tokens])


def workers(tx: Tx) -> list[WorkerState]:
    return [
        WorkerState(
            id, until, None if types is None else decode_ids(types), running, decode_worker_info(info)
        )
        for id, until, types, running, info in tx.rows(_SQL["workers"])
    ]


def releases(tx: Tx) -> tuple[Release, ...]:
    """All releases, the newest first."""
    return tuple(Release(*row) for row in tx.rows(_SQL["releases"]))


# -- what a claim does first ---------------------------------------------------------------------------


def end_leases_of_dead(tx: Tx, directory: ProcessDirectory) -> None:
    """End the leases of workers whose processes have died."""
    names = [name for (name,) in tx.rows(_SQL["lock_files"])]
    dead = directory.dead_among(names)
    if dead:
        tx.run(_SQL["end_leases"], tx.lapsed_until, array(dead))
    directory.sweep(names)


def set_lock_file(tx: Tx, no: int, directory: ProcessDirectory) -> None:
    """Note that this process claims for a worker."""
    tx.run(_SQL["set_lock_file"], directory.lock_file, no)


def remove_lapsed(tx: Tx) -> bool:
    """Remove the workers whose leases have lapsed. Their items are freed in portions; True: there are more.

    The tokens of a removed worker are stale at once, whether its items are freed already or not.
    """
    found = tx.rows(_SQL["lapsed_or_removed"], tx.lapsed_until, tx.now)
    rows: list[Row] = []
    for no, id, types, removed, renewed_at, release in found:
        if not removed and renewed_at is not None and renewed_at > tx.now:
            tx.run(
                _SQL["shorten_lease"], tx.now, no
            )  # the clock went back: see `is_far` in treadle.store.rules
            continue
        if not removed:
            _mark_removed(tx, no, types)
        rows.append((no, id, release))
    left = PORTION
    for no, id, release in rows:
        if left <= 0:
            return True
        left -= _free(tx, no, id, release, left)
    return left <= 0


# -- removing ------------------------------------------------------------------------------------------


def remove_worker(tx: Tx, worker: str) -> int:
    """Free all items of a worker."""
    found = tx.row(_SQL["worker"], worker)
    if found is None:
        return 0
    _mark_removed(tx, found[0], found[3])
    return _free(tx, found[0], worker, found[5], None)


def _mark_removed(tx: Tx, no: int, types: str | None) -> None:
    tx.run(_SQL["mark_removed"], no)
    tx.run(_SQL["delete_permits"], no)
    tx.run(_SQL["delete_lease_permits"], no)
    _record_unknown_types(tx, types)


def _free(tx: Tx, no: int, worker: str, release: str | None, most: int | None) -> int:
    """Free items of a removed worker, at most this many. Delete the worker with its last item."""
    nos = [item for (item,) in tx.rows(_SQL["items_of"], no, -1 if most is None else most)]
    rows = tx.rows(_SQL["leased"], array(nos))
    tx.run_rows(_SQL["free"], [_freed(row, tx.now) for row in rows])
    lost = [(no, attempt) for no, _, attempt, _, _, begun, _, _, _, verdict in rows if begun and not verdict]
    record_attempts(tx, [(no, lost_attempt(attempt, tx.now, worker, release)) for no, attempt in lost])
    if most is None or len(nos) < most:
        tx.run(_SQL["delete_worker"], no)
    return len(nos)


def _freed(row: Row, now: float) -> tuple[Any, ...]:
    """(no, status, losses, due, ready_since, seq, verdict)"""
    no, status, attempt, failures, losses, begun, due, seq, deadline, verdict = row
    if verdict is not None:
        return no, leased(status), losses, due, NULL, 0, verdict
    again = after_loss(now, Counters(attempt, failures, losses, begun == 1), no, due=due, deadline=deadline)
    code, since = waiting_columns(again, now)
    ready_since = NULL if since is None else since
    return no, code, again.losses, again.due, ready_since, seq, again.verdict or NULL


# -- types ---------------------------------------------------------------------------------------------


class LiveTypes(NamedTuple):
    """The types that live workers have."""

    every: bool
    types: frozenset[str]

    def has(self, type: str) -> bool:
        return self.every or type in self.types


def live_types(tx: Tx) -> LiveTypes:
    stored = [types for (types,) in tx.rows(_SQL["live_types"])]
    named = frozenset(type for types in stored if types is not None for type in decode_ids(types))
    return LiveTypes(None in stored, named)


def _record_unknown_types(tx: Tx, types: str | None) -> None:
    """A worker no longer has these types: store since when no live worker has them."""
    live = live_types(tx)
    if not live.every:
        for type in ("",) if types is None else decode_ids(types):
            if not live.has(type):
                tx.run(_SQL["set_unknown_type"], type, tx.now)


def _encode_types(types: Sequence[str] | None) -> str | None:
    return None if types is None else array(types)
