"""Coordination: keys claimed once, limits that the fleet shares, schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.item import Algorithm, PermitReply, PermitRequest, Schedule

from .base import Verbs
from .calls import Record

ONCE: Final = "select treadle.once($1, $2, $3, $4)"
TAKE: Final = (
    "select * from treadle.take_permits($1, $2::int[], $3::int[], $4::text[], $5::smallint[], $6::int[],"
    " $7::float8[])"
)
GIVE: Final = "select treadle.give_permits($1, $2::text[], $3::int[])"
PUT_SCHEDULE: Final = "select * from treadle.put_schedule($1, $2, $3, $4, $5)"
SCHEDULES: Final = "select * from treadle.schedule order by name"
DROP_SCHEDULE: Final = "delete from treadle.schedule where name = $1 returning name"
PAUSE_SCHEDULE: Final = "update treadle.schedule set paused = $2 where name = $1 returning name"

KINDS: Final[dict[Algorithm, int]] = {
    "token_bucket": 0,
    "fixed_window": 1,
    "sliding_window": 2,
    "slots": 3,
}


class Coordinating(Verbs):
    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        given: bool = await self._calls.value(ONCE, key, tenant, owner, ttl)
        return given

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        limits = [(n, limit) for n, take in enumerate(requests, 1) for limit in take.limits]
        if not limits:
            return [PermitReply(take.count) for take in requests]
        record = await self._calls.row(
            TAKE,
            worker,
            [n for n, _ in limits],
            [take.count for take in requests],
            [limit.name for _, limit in limits],
            [KINDS[limit.algorithm] for _, limit in limits],
            [limit.limit for _, limit in limits],
            [limit.window for _, limit in limits],
            repeatable=False,
        )
        counts, waits = record["counts"], record["waits"]
        return [
            PermitReply(counts[n], waits[n]) if take.limits else PermitReply(take.count)
            for n, take in enumerate(requests)
        ]

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        slots = [
            (limit, take.count) for take in requests for limit in take.limits if limit.algorithm == "slots"
        ]
        if slots:
            names, counts = [limit.name for limit, _ in slots], [count for _, count in slots]
            await self._calls.rows(GIVE, worker, names, counts, repeatable=False)

    async def put_schedule(self, schedule: Schedule) -> Schedule:
        found = await self._calls.rows(
            PUT_SCHEDULE,
            schedule.name,
            schedule.next_at,
            schedule.last_at,
            schedule.paused,
            schedule.spec,
        )
        return _schedule(found[0]) if found else schedule

    async def schedules(self) -> Sequence[Schedule]:
        return [_schedule(row) for row in await self._calls.rows(SCHEDULES)]

    async def drop_schedule(self, name: str) -> bool:
        return bool(await self._calls.rows(DROP_SCHEDULE, name))

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        return bool(await self._calls.rows(PAUSE_SCHEDULE, name, paused))


def _schedule(row: Record) -> Schedule:
    return Schedule(
        name=row["name"],
        next_at=row["next_at"],
        spec=row["spec"],
        paused=row["paused"],
        last_at=row["last_at"],
        seen_at=row["seen_at"],
    )
