"""Limits that the fleet shares, and keys that one owner claims."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Lease, Limit, PermitHolder, PermitReply, PermitRequest
from treadle.store.rules.limits import LimitState, idle_at, permit

from .statements import Tx, statements

_SQL = statements("limits")


def take_permits(tx: Tx, requests: Sequence[PermitRequest], worker: str) -> list[PermitReply]:
    number = tx.value(_SQL["worker_number"], worker)
    return [_take(tx, request, number) for request in requests]


def _take(tx: Tx, request: PermitRequest, worker: int | None) -> PermitReply:
    if request.lease is not None:
        if _has_permit(tx, request, request.lease.token):
            return PermitReply(1)
        if tx.value(_SQL["leased_to"], request.lease.ref, request.lease.token) != worker:
            return PermitReply(0)
    stored = {limit: state for limit in request.limits if (state := _state(tx, limit)) is not None}
    reply, states = permit(request, stored, tx.now, alive=worker is not None)
    for limit, state in states.items():
        if limit.algorithm != "slots":
            columns = *state, idle_at(limit, state), limit.limit, limit.window
            tx.run(_SQL["set_limit_state"], limit.name, limit.algorithm, *columns)
        elif worker is not None and reply.count:
            _add_permits(tx, limit.name, worker, reply.count)
            if request.lease is not None:
                tx.run(_SQL["add_lease_permit"], limit.name, request.lease.token, worker, request.lease.ref)
    if request.lease is not None and not reply.count:
        return PermitReply(0, reply.retry_after, _holders(tx, request))
    return reply


def _has_permit(tx: Tx, request: PermitRequest, token: int) -> bool:
    return any(tx.value(_SQL["lease_permit"], limit.name, token) is not None for limit in request.limits)


def _holders(tx: Tx, request: PermitRequest) -> tuple[PermitHolder, ...]:
    return tuple(
        PermitHolder(*row) for limit in request.limits for row in tx.rows(_SQL["permit_holders"], limit.name)
    )


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
            if limit.algorithm == "slots" and _drop_lease_permit(tx, limit.name, number, request.lease):
                _add_permits(tx, limit.name, number, -request.count)


def keep_permits(tx: Tx, held: Sequence[PermitRequest], counted: int, worker: str) -> int:
    number = tx.value(_SQL["worker_number"], worker)
    found: int = 0 if number is None else tx.value(_SQL["all_of_worker"], number)
    if number is None or found != counted:
        return found
    tx.run(_SQL["delete_all_of_worker"], number)
    tx.run(_SQL["delete_leases_of_worker"], number)
    for request in held:
        for limit in request.limits:
            _add_permits(tx, limit.name, number, request.count)
            if request.lease is not None:
                tx.run(_SQL["add_lease_permit"], limit.name, request.lease.token, number, request.lease.ref)
    return found


def _drop_lease_permit(tx: Tx, name: str, worker: int, lease: Lease | None) -> bool:
    """False: the lease has no permit to return."""
    if lease is None:
        return True
    if tx.value(_SQL["lease_permit"], name, lease.token) != worker:
        return False
    tx.run(_SQL["delete_lease_permit"], name, lease.token)
    return True


def _add_permits(tx: Tx, name: str, worker: int, count: int) -> None:
    total = (tx.value(_SQL["permits_of_worker"], name, worker) or 0) + count
    if total > 0:
        tx.run(_SQL["set_permits"], name, worker, total)
    else:
        tx.run(_SQL["delete_permits"], name, worker)


def key_owner(tx: Tx, key: str, tenant: str) -> str | None:
    found: str | None = tx.value(_SQL["key_owner"], key, tenant, tx.now)
    return found


def claim_key(tx: Tx, key: str, owner: str, ttl: float, tenant: str) -> bool:
    found = key_owner(tx, key, tenant)
    if found is not None:
        return found == owner
    tx.run(_SQL["claim_key"], key, tenant, owner, tx.now + ttl)
    return True
