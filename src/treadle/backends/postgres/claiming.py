"""Claim, beat, remove_worker, unknown_leases: who runs what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.item import Claim, Demand, Heartbeat, HeartbeatReply, Lease, Loss

from .base import Verbs
from .calls import Record
from .codes import LOSSES, SETTLED, VERDICTS
from .columns import NAMES, call_of, names, numbers
from .rotation import Rotation

CLAIM: Final = call_of(
    "claim", "text", "int", NAMES, "int[]", NAMES, NAMES, NAMES, NAMES, "float8", "text", *(NAMES,) * 5
)
BEAT: Final = "select * from treadle.beat($1, $2, $3::text[], $4, $5::bigint[], $6::bigint[], $7::text[])"
BURY: Final = "select treadle.remove_worker($1)"
ORPHANS: Final = "select * from treadle.unknown_leases($1, $2::bigint[])"

FIELDS: Final = len(Lease.__struct_fields__)


class Claiming(Verbs):
    async def claim(self, demand: Demand) -> Claim:
        rotation = demand.rotation if isinstance(demand.rotation, Rotation) else Rotation()
        queue, *others = rotation.cursors(demand.limit)
        rows = await self._calls.rows(CLAIM, *_asked(demand), queue, *map(_listed, others), repeatable=False)
        if not rows:
            return Claim(alive=False)
        last = rows.pop()
        leases = _in_turn([lease_of(row) for row in rows], last["picks"])
        rotation.served([(one.queue, one.tenant, one.lane) for one in leases if one.verdict is None])
        return Claim(tuple(leases), rotation, last["next_due"])

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        held = beat.held
        record = await self._calls.row(
            BEAT,
            beat.worker,
            beat.lease,
            beat.types,
            beat.types is None,
            [lease.ref for lease in held] if held else None,
            [lease.token for lease in held] if held else None,
            [lease.tenant for lease in held] if held else None,
            vital=True,
        )
        if record["l_row"] is None:
            return HeartbeatReply(record["fresh"])
        lost: dict[int, Loss] = {}
        found: list[tuple[int, int]] = list(zip(record["l_row"], record["l_loss"], strict=True))
        for row, loss in found:
            if loss != SETTLED:
                lost[held[row - 1].token] = LOSSES[loss]
        return HeartbeatReply(record["fresh"], lost)

    async def remove_worker(self, worker: str) -> int:
        freed: int = await self._calls.value(BURY, worker, vital=True)
        return freed

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return await self._leases_of(worker, known)

    async def _leases_of(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return [lease_of(row) for row in await self._calls.rows(ORPHANS, worker, list(known))]


def _asked(demand: Demand) -> tuple[object, ...]:
    types = demand.types
    avoid = sorted(demand.avoid)
    return (
        demand.worker,
        demand.limit,
        None if types is None else _listed(tuple(types)),
        None if types is None else numbers(tuple(types.values()), whole=True),
        _listed(demand.queues),
        _listed(demand.tenants),
        _listed([tenant for tenant, _ in avoid] or None),
        _listed([lane for _, lane in avoid] or None),
        demand.unknown_grace,
    )


def _listed(given: Sequence[str] | None) -> str | None:
    """Names as one text. None at all are one that nobody has."""
    return None if given is None else names(given or ("",), whole=True)


def _in_turn(leases: list[Lease], order: Sequence[int]) -> list[Lease]:
    """The store looks items up by number; their turns are another matter."""
    by_number = {lease.ref: lease for lease in leases}
    return [by_number[no] for no in order]


def lease_of(row: Record) -> Lease:
    """A row whose columns come in the order of a lease's fields, by position: see there."""
    (
        id, tenant, token, type, input, attempt, group_id, queue, lane, priority, attempts, parent, workflow,
        workflow_type, after, options, queued_at, due_at, claimed_at, deadline, verdict, ref,
    ) = row[:FIELDS]  # fmt: skip
    return Lease(
        id, tenant, token, type, input, attempt, group_id, queue, lane, priority, attempts, parent, workflow,
        workflow_type, () if after is None else tuple(after), options, queued_at, due_at, claimed_at,
        deadline, None if verdict is None else VERDICTS[verdict], ref,
    )  # fmt: skip
