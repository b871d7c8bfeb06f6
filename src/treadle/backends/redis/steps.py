"""Steps: what running items record, their mailboxes and streams. `suspend.lua` suspends items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from treadle.errors import UnsupportedError
from treadle.item import MOST_UNREAD, AuditNote, Chunk, Loss, Record, Recorded, Signal, Signalled

from .item_bytes import Argument
from .link import RedisLink
from .operate import tenant_argument
from .read import portions
from .record_bytes import pack_note
from .scripts import RedisScript
from .step_bytes import read_chunk, read_recorded, read_signalled, record_arguments, signal_arguments
from .workers import RedisWorkers

_RECORD: Final = RedisScript("record")
_STEPS: Final = RedisScript("steps")
_STREAM: Final = RedisScript("stream")
_LOGS: Final = RedisScript("logs")
_SIGNAL: Final = RedisScript("signal")

PORTION: Final = 300
"""Steps and chunks that one script writes, and chunks that it reads. A record is written as a whole."""
PORTION_BYTES: Final = 1_000_000
"""Bytes of them."""
SIGNALS: Final = 100
"""Signals that one script stores."""
ITEMS: Final = 50
"""Items whose steps one script reads."""


class RedisSteps(RedisWorkers):
    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        lost = await write_records(self._link, records)
        if not lost:
            return [None] * len(records)
        leases = {one.lease.token: one.lease for one in records if one.lease.token in lost}
        why = await self._why_lost([*leases.values()])
        return [why.get(one.lease.token, "taken") if one.lease.token in lost else None for one in records]

    async def steps(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[Recorded | None]:
        found: list[Recorded | None] = []
        for some in portions(ids, ITEMS):
            answers = await self._link.run(_STEPS, [tenant or "", *some], on="read")
            found += [None if answer is None else read_recorded(answer) for answer in answers]
        return found

    async def stream(
        self, id: str, *, since: int = 0, limit: int = 1000, tenant: str | None = None
    ) -> Sequence[Chunk]:
        first = since = max(0, since)
        found: list[Chunk] = []
        while (most := min(first + limit - since, PORTION)) > 0:
            chunks = await self._link.run(_STREAM, [tenant or "", id, since, most], on="read")
            numbered = enumerate(chunks, since + 1)  # None: the store has lost it
            found += [read_chunk(number, data) for number, data in numbered if data is not None]
            since += most
            if len(chunks) < most:
                break
        return found

    async def logs(self, id: str, *, tenant: str | None = None) -> Sequence[bytes]:
        found = await self._link.run(_LOGS, [tenant or "", id], on="read")
        return [log for log in found if log is not None]  # None: the store has lost it

    async def signal(
        self,
        signals: Sequence[Signal],
        *,
        tenant: str | None = None,
        tx: object = None,
        note: AuditNote | None = None,
    ) -> Sequence[Signalled]:
        if tx is not None:
            raise UnsupportedError("transactions", "RedisBackend")
        packed = pack_note(note, "signal", [one.id for one in signals], tenant)
        answers: list[Signalled] = []
        entry = b""
        for some in portions(signals, SIGNALS):
            head: list[Argument] = [packed, entry, tenant_argument(tenant), MOST_UNREAD]
            found, entry = await self._link.run(_SIGNAL, [*head, *signal_arguments(some)])
            answers += map(read_signalled, found)
        return answers


async def write_records(link: RedisLink, records: Sequence[Record]) -> set[int]:
    """Write them. Returns the tokens that do not own their items."""
    lost: set[int] = set()
    for some in _portions(records):
        arguments = [part for one in some for part in record_arguments(one)]
        lost.update(int.from_bytes(token, "big") for token in await link.run(_RECORD, arguments))
    return lost


def _portions(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Cut them so that no call holds the server for long."""
    portion: list[Record] = []
    count = size = 0
    for one in records:
        own = len(one.steps) + len(one.chunks) + 1
        weight = sum(len(step.value or b"") for step in one.steps) + sum(map(len, one.chunks))
        weight += len(one.log or b"")
        if portion and (count + own > PORTION or size + weight > PORTION_BYTES):
            yield portion
            portion, count, size = [], 0, 0
        portion.append(one)
        count, size = count + own, size + weight
    if portion:
        yield portion
