"""Records for operators: statistics and audit entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from math import ceil
from struct import Struct as Bytes
from typing import Final

from msgspec import msgpack

from treadle.records import HOUR, MINUTE, QUARTER, AuditEntry, AuditPage, BacklogSample, Stat, StatsBy
from treadle.store.rules.listing import page_size
from treadle.store.rules.records import (
    COUNTERS,
    StatKey,
    StatRow,
    audit_page,
    begin_of,
    kept_step,
    labels,
    number_of_audit,
    rows_to_add,
    stat_of,
    sum_of,
)

from .item_bytes import Argument
from .link import RedisVerbs
from .read import portions
from .record_bytes import read_audit
from .scripts import RedisScript

PORTION: Final = 300
"""Rows that one script adds."""
READ_PORTION: Final = 1000
MOST_REMEMBERED: Final = 512
"""Sums of statistics that are not made again, by the rows of which they are, as they are stored."""
MOST_NAMED: Final = 5000
"""Samples that are read by their names, at most, whether they are there or not."""
MOST_SAMPLES: Final = 4096
"""Samples that are not decoded again."""
MOST_ROWS: Final = 150
"""Rows of such a sum, at most."""

LETTERS: Final = {MINUTE: b"m", QUARTER: b"q", HOUR: b"h"}
STAT_HEAD: Final = Bytes(">cd")

_ADD_STATS: Final = RedisScript("add_stats")
_STATS: Final = RedisScript("stats")
_AUDITS: Final = RedisScript("audits")

_encode: Final = msgpack.Encoder().encode
pack_sample: Final = _encode
_decode: Final = msgpack.Decoder(list[int]).decode
decode_sample: Final = msgpack.Decoder(BacklogSample).decode
_read_sample: Final = lru_cache(maxsize=MOST_SAMPLES)(decode_sample)


class RedisRecords(RedisVerbs):
    async def add_stats(self, stats: Sequence[Stat]) -> None:
        await self._put([(stat_name(key), pack_counts(stat)) for key, stat in rows_to_add(stats)])

    async def _put(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        for first in range(0, len(rows), PORTION):
            arguments: list[Argument] = []
            for row in rows[first : first + PORTION]:
                arguments += row
            await self._link.run(_ADD_STATS, arguments)

    async def stats(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        by: StatsBy = "time",
        type: str | None = None,
        queue: str | None = None,
    ) -> Sequence[Stat]:
        # Thousands of rows for some dozens of sums: what is not asked for is not decoded.
        found: defaultdict[tuple[float, str], list[bytes]] = defaultdict(list)
        queues = () if queue is None else (queue,)
        async for rows in self._read_rows(LETTERS[kept_step(step)], since, until, queues):
            if by == "time" and type is None:
                for head, some in groupby(rows, _head_of):
                    found[begin_of(STAT_HEAD.unpack(head)[1], step), ""] += [counts for _, counts in some]
                continue
            for name, counts in rows:
                at, its_type, its_queue = _read_names(name)
                if type in (None, its_type):
                    if by == "time":
                        key = begin_of(at, step), ""
                    else:
                        key = since, its_type if by == "type" else its_queue
                    found[key].append(counts)
        return [
            stat_of(at, labels(by, type, queue, name), *_sum_of(rows))
            for (at, name), rows in sorted(found.items())
        ]

    async def put_samples(self, samples: Sequence[BacklogSample]) -> None:
        heads = (STAT_HEAD.pack(LETTERS[each.step].upper(), each.at) for each in samples)
        rows = zip(heads, samples, strict=True)
        await self._put([(head + each.queue.encode(), pack_sample(each)) for head, each in rows])

    async def samples(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        queues: Sequence[str] | None = None,
    ) -> Sequence[BacklogSample]:
        if queues is not None and until is not None:
            first, last = (ceil(max(0.0, at) / step) for at in (since, until))
            if (last - first) * len(queues) <= MOST_NAMED:
                return await self._named_samples(range(first, last), step, queues)
        if queues is not None and not queues:
            return []
        found: list[BacklogSample] = []
        async for rows in self._read_rows(LETTERS[step].upper(), since, until, queues or ()):
            found += [_read_sample(body) for _, body in rows]
        return found

    async def _named_samples(self, steps: range, step: int, queues: Sequence[str]) -> Sequence[BacklogSample]:
        """The same without a look at those of other queues: the names of rows are known."""
        key, letter = self._link.key("stats"), LETTERS[step].upper()
        ends = sorted({queue.encode() for queue in queues})
        names = [STAT_HEAD.pack(letter, number * step) + end for number in steps for end in ends]
        found: list[BacklogSample] = []
        for some in portions(names, READ_PORTION):
            bodies = await self._link.command(b"HMGET", key, *some, on="read")
            found += [_read_sample(body) for body in bodies if body is not None]
        return found

    async def _read_rows(
        self, letter: bytes, since: float, until: float | None, queues: Sequence[str] = ()
    ) -> AsyncIterator[Iterable[tuple[bytes, bytes]]]:
        """The rows of a step, by time: their names, and what is in them. Portions of `READ_PORTION` at most.
        queues: only those of these."""
        first = b"[" + STAT_HEAD.pack(letter, max(0.0, since))
        last = b"(" + (bytes((letter[0] + 1,)) if until is None else STAT_HEAD.pack(letter, max(0.0, until)))
        while first:
            given: list[Argument] = [first, last, READ_PORTION, *queues]
            found: list[bytes] = await self._link.run(_STATS, given, on="read")
            yield zip(found[1::2], found[2::2], strict=True)
            first = b"(" + found[0] if found[0] else b""

    async def audits(
        self,
        *,
        tenant: str | None = None,
        bulk: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        most = page_size(limit)
        before: Argument = b"" if cursor is None else number_of_audit(cursor)
        filters: list[Argument] = [int(tenant is not None), tenant or b"", int(bulk is not None), bulk or b""]
        found: list[AuditEntry] = []
        while len(found) <= most:
            arguments = [before, most + 1 - len(found), *filters]
            before, *entries = await self._link.run(_AUDITS, arguments, on="read")
            found += map(read_audit, entries[::2], entries[1::2])
            if not before:
                break
        return audit_page(found, most)


def stat_name(key: StatKey) -> bytes:
    step, at, type, queue = key
    return STAT_HEAD.pack(LETTERS[step], at) + f"{type}\0{queue}".encode()


def pack_counts(stat: Stat) -> bytes:
    counters = (getattr(stat, name) for name in COUNTERS)
    return _encode([*counters, len(stat.wait), *stat.wait, *stat.run])


def read_stat(name: bytes, counts: bytes) -> Stat:
    at, type, queue = _read_names(name)
    return stat_of(at, (type, queue), *_read_counts(counts))


def _read_names(name: bytes) -> tuple[float, str, str]:
    """When it begins, the type and the queue."""
    _, at = STAT_HEAD.unpack_from(name)
    type, queue = name[STAT_HEAD.size :].decode().split("\0")
    return at, type, queue


def _read_counts(counts: bytes) -> StatRow:
    numbers = _decode(counts)
    first = len(COUNTERS) + 1
    run = first + numbers[first - 1]
    return tuple(numbers[: len(COUNTERS)]), tuple(numbers[first:run]), tuple(numbers[run:])


def _head_of(row: tuple[bytes, bytes]) -> bytes:
    """The step of a row, and when it begins."""
    return row[0][: STAT_HEAD.size]


def _sum_of(rows: Sequence[bytes]) -> StatRow:
    return _remembered(tuple(rows)) if len(rows) <= MOST_ROWS else sum_of(map(_read_counts, rows))


@lru_cache(maxsize=MOST_REMEMBERED)
def _remembered(rows: tuple[bytes, ...]) -> StatRow:
    """Pages read the same hour again and again, and only its last minute changes."""
    return sum_of(map(_read_counts, rows))
