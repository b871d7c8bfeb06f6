"""Workers: which are alive, which types they have, and which leases they have lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from random import random
from typing import Any, Final

from treadle.item import MOST_UNKNOWN, AuditNote, Heartbeat, HeartbeatReply, Lease, Loss, WorkerState
from treadle.worker_info import decode_worker_info

from .item_bytes import Argument, lease_of, read_double, read_item
from .link import RedisVerbs
from .record_bytes import pack_note
from .schema import VERSION
from .scripts import RedisScript

PORTION: Final = 1000
"""Leases that one script looks at."""

LOOKED_AT: Final = 1000
"""Leases of the fleet that a heartbeat looks at, on average, to find those of its worker. With more of
them, fewer heartbeats look."""
LOOKED_AT_ANEW: Final = 20_000
"""The same for two leases after a connection was lost: the server may be another one, and may have forgotten
something. Also for the heartbeat after one that has found an unknown lease."""

LOSSES: Final[Mapping[int, Loss]] = {
    ord("t"): "taken",
    ord("o"): "completed",
    ord("c"): "cancelled",
    ord("n"): "not_found",
}
"""By the letters of lua/lib/leases.lua."""

_BEAT: Final = RedisScript("beat")
_REGISTER_WORKER: Final = RedisScript("register_worker")
_BEGIN: Final = RedisScript("begin")
_LOST_LEASES: Final = RedisScript("lost_leases")
_REMOVE_WORKER: Final = RedisScript("remove_worker")
_UNKNOWN_LEASES: Final = RedisScript("unknown_leases")
_WORKERS: Final = RedisScript("workers")
_DRAIN_WORKER: Final = RedisScript("drain_worker")

_NO_CHANGE: Final = b"-"
_NOTHING_LOST: Final[Mapping[int, Loss]] = {}


class RedisWorkers(RedisVerbs):
    _store_id = b""
    """Of the store that the last registration found. Empty: not known yet."""
    _reconnected = 0
    """How often the link had connected at the last heartbeat."""
    _looks_anew_until = 0.0

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        held = beat.held
        worker: list[Argument] = [
            beat.worker,
            beat.lease,
            _NO_CHANGE if beat.types is None else b"t" + _pack_types(beat.types),
            _NO_CHANGE if beat.info is None else b"i" + beat.info,
        ]
        looked_at = self._looked_at(beat.lease) / (1.0 - random())
        answer = await self._link.run(_BEAT, [*worker, looked_at, len(held), _pack_tokens(held[:PORTION])])
        if answer:
            drain, permits, tokens, leases = answer
            lost = await self._why_lost([*_with_tokens(held[:PORTION], tokens), *held[PORTION:]])
            if unknown := _unknown(held, leases):
                self._look_anew(beat.lease / 2)  # the next heartbeat has to confirm it
            return HeartbeatReply(False, lost, bool(drain), unknown=unknown, permits=permits)
        if not beat.registers:
            return HeartbeatReply(fresh=True)
        registered: list[Argument] = [*worker, os.urandom(8), VERSION, beat.release]
        fresh, drain, store_id = await self._link.run(_REGISTER_WORKER, registered)
        if not fresh:  # it has other types now
            return await self.beat(beat)
        lost = await self._why_lost(held)
        return HeartbeatReply(True, lost, bool(drain), self._is_new_store(store_id))

    def _looked_at(self, lease: float) -> int:
        """How many leases to look at, on average."""
        if self._reconnected != self._link.reconnected:
            self._reconnected = self._link.reconnected
            self._look_anew(2 * lease)
        return LOOKED_AT_ANEW if time.monotonic() < self._looks_anew_until else LOOKED_AT

    def _look_anew(self, seconds: float) -> None:
        self._looks_anew_until = max(self._looks_anew_until, time.monotonic() + seconds)

    def _is_new_store(self, store_id: bytes) -> bool:
        """Whether a worker was registered in another store than the one before. It is said once."""
        known, self._store_id = self._store_id, store_id
        return bool(known) and known != store_id

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        unsure: list[Lease] = []
        for first in range(0, len(leases), PORTION):
            portion = leases[first : first + PORTION]
            unsure += _with_tokens(portion, await self._link.run(_BEGIN, _pack_leases(portion)))
        return await self._why_lost(unsure)

    async def remove_worker(self, worker: str) -> int:
        freed: int = await self._link.run(_REMOVE_WORKER, [worker])
        return freed

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        tokens = b"".join(token.to_bytes(8, "big") for token in known)
        now, *rows = await self._link.run(_UNKNOWN_LEASES, [worker, tokens])
        return [lease_of(read_item(row), read_double(now)) for row in rows]

    async def workers(self) -> Sequence[WorkerState]:
        return read_workers(await self._link.run(_WORKERS, on="read"))

    async def drain_worker(self, worker: str, *, note: AuditNote | None = None) -> bool:
        packed = pack_note(note, "drain_worker", [worker])
        return bool(await self._link.run(_DRAIN_WORKER, [worker, packed]))

    async def _why_lost(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        """Of leases that may be lost: which are, and why. A lost lease stays lost, so this need not be one
        step with what found it."""
        if not leases:
            return _NOTHING_LOST
        found: dict[int, Loss] = {}
        for first in range(0, len(leases), PORTION):
            portion = _pack_leases(leases[first : first + PORTION])
            for lost in await self._link.run(_LOST_LEASES, portion):
                found[int.from_bytes(lost[:8], "big")] = LOSSES[lost[8]]
        return found


def read_workers(rows: Iterable[Sequence[Any]]) -> list[WorkerState]:
    """Workers as `Workers.list` in lua/lib/worker_list.lua answers them."""
    return [
        WorkerState(
            name.decode(),
            read_double(until),
            None
            if types == _NO_CHANGE
            else tuple(sorted(types[1:].decode().split("\0")))
            if types[1:]
            else (),
            running,
            None if info == _NO_CHANGE else decode_worker_info(info[1:]),
        )
        for name, until, types, running, info in rows
    ]


def _pack_types(types: Iterable[str]) -> bytes:
    return "\0".join(sorted(set(types))).encode()


def _unknown(held: Sequence[Lease], leases: int | list[bytes]) -> list[int] | None:
    """The tokens of leases of a worker that are not in `held`. `leases`: as lua/beat.lua answers."""
    if isinstance(leases, int):
        return [] if leases else None
    tokens = {int.from_bytes(token, "big") for token in leases}
    return sorted(tokens - {lease.token for lease in held})[:MOST_UNKNOWN]


def _with_tokens(leases: Iterable[Lease], tokens: Iterable[bytes]) -> list[Lease]:
    """The leases that have one of these tokens."""
    wanted = {int.from_bytes(token, "big") for token in tokens}
    return [lease for lease in leases if lease.token in wanted] if wanted else []


def _pack_tokens(leases: Iterable[Lease]) -> bytes:
    return b"".join([lease.ref.to_bytes(6, "big") + lease.token.to_bytes(8, "big") for lease in leases])


def _pack_leases(leases: Sequence[Lease]) -> list[Argument]:
    """As lua/lib/lease_arguments.lua reads them."""
    tenants: dict[str, int] = {}
    for lease in leases:
        tenants.setdefault(lease.tenant, len(tenants) + 1)
    packed = b"".join(
        [
            lease.ref.to_bytes(6, "big")
            + lease.token.to_bytes(8, "big")
            + tenants[lease.tenant].to_bytes(2, "big")
            for lease in leases
        ]
    )
    return [len(tenants), *tenants, packed, *(lease.id for lease in leases)]
