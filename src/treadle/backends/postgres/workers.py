"""Workers: heartbeats, removal, and the leases that a worker holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from treadle.item import Heartbeat, HeartbeatReply, Lease, Loss, WorkerState
from treadle.worker_info import decode_worker_info

from .columns import LOSSES, SETTLED, VERDICTS
from .connection import PostgresVerbs, Record, leasing
from .statements import statements

BEAT: Final = leasing("workers", "beat")
RENEW: Final = leasing("workers", "renew")
_sql = statements("workers")

FIRST_FIELDS: Final = Lease.__struct_fields__.index("deferrals")


class PostgresWorkers(PostgresVerbs):
    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        durable = self._calls.durable_claims
        if not beat.registers:
            known = await self._calls.value(RENEW[durable], beat.worker, beat.lease, beat.info, vital=True)
            return HeartbeatReply(fresh=not known)
        held = beat.held
        record = await self._calls.row(
            BEAT[durable],
            beat.worker,
            beat.lease,
            beat.types,
            beat.types is None,
            [lease.ref for lease in held] if held else None,
            [lease.token for lease in held] if held else None,
            [lease.tenant for lease in held] if held else None,
            beat.info,
            beat.release or None,
            vital=True,
        )
        lost: dict[int, Loss] = {}
        found: list[tuple[int, int]] = list(
            zip(record["lost_row"] or (), record["lost_code"] or (), strict=True)
        )
        for row, loss in found:
            if loss != SETTLED:
                lost[held[row - 1].token] = LOSSES[loss]
        return HeartbeatReply(
            record["fresh"],
            lost,
            bool(record["drain"]),
            unknown=record["unknown"] or (),
            permits=record["permits"] or 0,
        )

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        rows = await self._calls.rows(
            _sql("begin"),
            [lease.ref for lease in leases],
            [lease.token for lease in leases],
            [lease.tenant for lease in leases],
        )
        found: list[tuple[int, int]] = [(row["place"], row["loss"]) for row in rows]
        return {leases[place - 1].token: LOSSES[loss] for place, loss in found if loss != SETTLED}

    async def remove_worker(self, worker: str) -> int:
        freed: int = await self._calls.value(_sql("remove_worker"), worker, vital=True)
        return freed

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return [lease_of(row) for row in await self._calls.rows(_sql("unknown_leases"), worker, list(known))]

    async def workers(self) -> Sequence[WorkerState]:
        return [
            WorkerState(id, until, None if types is None else tuple(types), running, decode_worker_info(info))
            for id, until, types, running, info in await self._calls.rows(_sql("workers"))
        ]


def lease_of(row: Record) -> Lease:
    """The lease in a row whose columns come in the order of its fields. By position: see `Lease`."""
    (
        id, tenant, token, type, input, attempt, group_id, queue, lane, priority, attempts, parent, workflow,
        workflow_type, after, options, queued_at, due_at, claimed_at, deadline, verdict, ref,
        failures, losses, begun, ready_at,
    ) = row[:FIRST_FIELDS]  # fmt: skip
    has_steps, resumes, deferrals = row[-3:]
    return Lease(
        id, tenant, token, type, input, attempt, group_id, queue, lane, priority, attempts, parent, workflow,
        workflow_type, () if after is None else tuple(after), options, queued_at, due_at, claimed_at,
        deadline, None if verdict is None else VERDICTS[verdict], ref, failures, losses, begun,
        ready_at, deferrals, has_steps, resumes,
    )  # fmt: skip
