"""Lines: the ready items of a queue, by tenant and lane."""

from __future__ import annotations

from typing import NamedTuple

from treadle.records import Line

from .statements import Tx, array, statements
from .watch import ALL_TENANTS, one_tenant, parked_lines, parked_types
from .watch import lines as lines_of_queue

_SQL = statements("lines")


class _Head(NamedTuple):
    """The first item of a line, or the first of those in it that are parked under one type."""

    rank: int
    seq: int
    no: int
    since: float
    parked: str | None
    """The type. None: it is not parked."""


def ready_lines(tx: Tx, queue: str, tenant: str | None, count: int, cap: int) -> list[Line]:
    tenants = ALL_TENANTS if tenant is None else one_tenant(tenant)
    found: dict[tuple[str, str], list[_Head]] = {}
    for type in (None, *parked_types(tx)):
        rows = (
            lines_of_queue(tx, queue, tenants, (), count)
            if type is None
            else parked_lines(tx, queue, tenants, type, count)
        )
        for owner, lane, since, rank, seq, no in rows:
            found.setdefault((owner, lane), []).append(_Head(rank, seq, no, since, type))
    lines = {name: found[name] for name in sorted(found)[:count]}
    ids: dict[int, str] = dict(tx.rows(_SQL["ids"], array(min(heads).no for heads in lines.values())))
    return [_line(tx, queue, *name, heads, ids, cap) for name, heads in lines.items()]


def _line(
    tx: Tx, queue: str, tenant: str, lane: str, heads: list[_Head], ids: dict[int, str], cap: int
) -> Line:
    first, size = min(heads), 0
    for head in heads:
        left = cap + 1 - size
        if head.parked is None:
            size += tx.value(_SQL["ready"], queue, tenant, lane, left)
        elif left > 0:
            size += tx.value(_SQL["parked"], head.parked, queue, tenant, lane, left)
    return Line(
        tenant=tenant,
        lane=lane,
        count=min(size, cap),
        capped=size > cap,
        oldest_ready=first.since,
        first=ids[first.no],
    )
