"""Limits that the fleet shares, and keys that one owner claims."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Limit, PermitReply, PermitRequest
from treadle.rules.limits import LimitState, idle_at, permit

from .statements import Tx, statements

_SQL = statements("limits")


def take_permits(tx: Tx, requests: Sequence[PermitRequest], worker: str) -> list[PermitReply]:
    number = tx.value(_SQL["worker_number"], worker)
    return [_take(tx, request, number) for request in requests]


def _take(tx: Tx, request: PermitRequest, worker: int | None) -> PermitReply:
    stored = {limit: state for limit in request.limits if (state := _state(tx, limit)) is not None}
    reply, states = permit(request, stored, tx.now, alive=worker is not None)
    for limit, state in states.items():
        if limit.algorithm != "slots":
            tx.run(_SQL["set_limit_state"], limit.name, limit.algorithm, *state, idle_at(limit, state))
        elif worker is not None and reply.count:
            _add_permits(tx, limit.name, worker, reply.count)
    return reply


def _state(tx: Tx, limit: Limit) -> LimitState | None:
    if limit.algorithm == "slots":
        return LimitState(tx.now, tx.value(_SQL["all_permits"], limit.name))
    row = tx.row(_SQL["limit_state"], limit.name, limit.algorithm)
    return None if row is None else LimitState(*row)


def return_permits(tx: Tx, requests: Sequence[PermitRequest], worker: str) -> None:
    number = tx.value(_SQL["worker_number"], worker)
    if number is None:
        return
    for request in requests:
        for limit in request.limits:
            if limit.algorithm == "slots":
                _add_permits(tx, limit.name, number, -request.count)


def _add_permits(tx: Tx, name: str, worker: int, count: int) -> None:
    total = (tx.value(_SQL["permits_of_worker"], name, worker) or 0) + count
    if total > 0:
        tx.run(_SQL["set_permits"], name, worker, total)
    else:
        tx.run(_SQL["delete_permits"], name, worker)


def claim_key(tx: Tx, key: str, owner: str, ttl: float, tenant: str) -> bool:
    found = tx.value(_SQL["key_owner"], key, tenant, tx.now)
    if found is not None:
        return bool(found == owner)
    tx.run(_SQL["claim_key"], key, tenant, owner, tx.now + ttl)
    return True
