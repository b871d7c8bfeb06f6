"""Coordination: keys, limits and schedules that the whole fleet shares."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.item import Fire, Limit, PermitReply, PermitRequest, Rejected, Schedule, Submission, Submitted
from treadle.rules import LimitState, idle_at, permit

from .statements import Statements
from .submit import submit
from .tx import Row, Tx

_SQL = Statements("coordinate")


def claim_key(tx: Tx, key: str, owner: str, ttl: float, tenant: str) -> bool:
    found = tx.value(_SQL["owner"], key, tenant, tx.now)
    if found is not None:
        return bool(found == owner)
    tx.run(_SQL["own"], key, tenant, owner, tx.now + ttl)
    return True


# -- limits --------------------------------------------------------------------------------------------


def take(tx: Tx, requests: Sequence[PermitRequest], worker: str) -> list[PermitReply]:
    number = tx.value(_SQL["worker"], worker)
    return [_take(tx, one, number) for one in requests]


def _take(tx: Tx, take: PermitRequest, worker: int | None) -> PermitReply:
    """A worker that is not known to be alive holds no slots: nobody would ever give them back."""
    if worker is None and any(limit.algorithm == "slots" for limit in take.limits):
        return PermitReply(0)
    stored = {limit: _gauge(tx, limit) for limit in take.limits}
    given, gauges = permit(take, {limit: gauge for limit, gauge in stored.items() if gauge}, tx.now)
    for limit, gauge in gauges.items():
        if limit.algorithm != "slots":
            idle = idle_at(limit, gauge)
            tx.run(_SQL["set_gauge"], limit.name, limit.algorithm, *gauge, idle)
        elif worker is not None and given.count:
            _hold(tx, limit.name, worker, given.count)
    return given


def _gauge(tx: Tx, limit: Limit) -> LimitState | None:
    if limit.algorithm == "slots":
        return LimitState(tx.now, tx.value(_SQL["slots_used"], limit.name))
    row = tx.row(_SQL["gauge"], limit.name, limit.algorithm)
    return None if row is None else LimitState(*row)


def give(tx: Tx, requests: Sequence[PermitRequest], worker: str) -> None:
    number = tx.value(_SQL["worker"], worker)
    if number is None:
        return
    for one in requests:
        for limit in one.limits:
            if limit.algorithm == "slots":
                _hold(tx, limit.name, number, -one.count)


def _hold(tx: Tx, name: str, worker: int, more: int) -> None:
    held = (tx.value(_SQL["slots_held"], name, worker) or 0) + more
    if held > 0:
        tx.run(_SQL["set_slots"], name, worker, held)
    else:
        tx.run(_SQL["drop_slots"], name, worker)


# -- schedules -----------------------------------------------------------------------------------------


def put_schedule(tx: Tx, schedule: Schedule) -> Schedule:
    found = _find(tx, schedule.name)
    if found is not None and found.spec == schedule.spec:
        tx.run(_SQL["seen"], tx.now, schedule.name)
        return replace(found, seen_at=tx.now)
    if schedule.next_at is None:
        return found or schedule
    stored = replace(schedule, seen_at=tx.now)
    head = (stored.name, stored.next_at, stored.spec)
    tx.run(_SQL["set_schedule"], *head, int(stored.paused), stored.last_at, stored.seen_at)
    return stored


def schedules(tx: Tx) -> list[Schedule]:
    return [_schedule(row) for row in tx.rows(_SQL["schedules"])]


def drop_schedule(tx: Tx, name: str) -> bool:
    return tx.run(_SQL["drop_schedule"], name) > 0


def pause_schedule(tx: Tx, name: str, paused: bool) -> bool:
    return tx.run(_SQL["pause_schedule"], int(paused), name) > 0


def fire(tx: Tx, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
    found = _find(tx, fire.name)
    if found is None or found.paused or found.next_at != fire.at:
        return None
    answer = submit(tx, [Submission(fire.items)])[0]
    if not isinstance(answer, Rejected):
        tx.run(_SQL["fire"], fire.next_at, fire.at, fire.name)
    return answer


def _find(tx: Tx, name: str) -> Schedule | None:
    row = tx.row(_SQL["schedule"], name)
    return None if row is None else _schedule(row)


def _schedule(row: Row) -> Schedule:
    name, next_at, spec, paused, last_at, seen_at = row
    return Schedule(
        name=name, next_at=next_at, spec=spec, paused=bool(paused), last_at=last_at, seen_at=seen_at
    )
