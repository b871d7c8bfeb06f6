"""Moving: all that a namespace holds, as records, and a namespace that is filled from records.

A mark takes the keys out of sight: one script gives each key another name, `{prefix}:parked:...`, and leaves
a list in its place. So every script of every process fails (WRONGTYPE), and none has to look for a mark
before it writes. `meta` stays: it has the mark, which tells why.

Keys that are frozen come back by themselves: the first process that meets them after their time brings them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.resources import files
from struct import Struct as Bytes
from typing import Any, Final, assert_never

from msgspec import msgpack

from treadle.backend import Export, Import, unknown_move
from treadle.errors import (
    BackendError,
    InputError,
    StoreMoved,
    StoreNotEmpty,
    StoreUnavailable,
    StoreUnfinished,
    UnsupportedError,
)
from treadle.item import StepRecord
from treadle.records import StoreMark
from treadle.store import portable
from treadle.store.portable import (
    AnyRecord,
    Head,
    LostLease,
    PortableAudit,
    PortableGroup,
    PortableItem,
    PortableKey,
    PortableLease,
    PortableLimit,
    PortableOrder,
    PortableRelease,
    PortableRemoval,
    PortableRun,
    PortableSample,
    PortableSchedule,
    PortableStat,
    PortableWorker,
    leased,
    unleased,
)
from treadle.store.rules.limits import LimitState, idle_at
from treadle.store.rules.orders import read_order

from .item_bytes import (
    LETTERS,
    NO_EXTRA,
    REASONS,
    VERDICTS,
    Argument,
    ItemBody,
    ItemExtra,
    item_state,
    pack_double,
    pack_failure_texts,
    pack_number,
    pack_priority,
    read_double,
    read_item,
)
from .limits import LIMIT_STATE
from .link import KEPT, RedisLink
from .orders import paused_key
from .record_bytes import pack_audit, pack_runs, pack_schedule, read_audit, read_runs, read_schedule
from .records import LETTERS as STEP_LETTERS
from .records import STAT_HEAD, decode_sample, pack_counts, pack_sample, read_stat, stat_name
from .scripts import RedisScript, all_keys
from .step_bytes import pack_step, read_step

_EXPORT_ITEMS: Final = RedisScript("export_items")
_IMPORT_ITEMS: Final = RedisScript("import_items")
_IMPORT_GROUPS: Final = RedisScript("import_groups")
_EMPTY: Final = RedisScript("in_the_way")

FOLDER: Final = "parked:"
DEFAULT_FREEZE: Final = 30.0
"""Seconds for which an export keeps the keys of a store frozen, after each read."""
FROZEN_PATIENCE: Final = 150.0
"""Seconds for which a start waits until a store has thawed: longer than a promotion that was killed leaves it
frozen."""
JUST_THAWED: Final = 60.0
"""Seconds after which a script has failed for another reason."""
DISK_MS: Final = 5000
"""How long a mark may take until it is on the disk."""
PORTION: Final = 1000
ITEMS: Final = 100
"""Items that one script stores."""
TOKEN_BITS: Final = 24
_STEPS: Final = {letter: step for step, letter in STEP_LETTERS.items()}

_GROUP: Final = Bytes(">IdBIIddI6s4s")
_SENT_GROUP: Final = Bytes(">6sIdBIIdd6sI")
_STATE: Final = Bytes(">c8sBBBIIHH6sdddddd")
_ITEM_HEAD: Final = Bytes(">H6s6sd4sddB")
_COUNTS: Final = Bytes(">HHH")
_WAITING: Final = Bytes(">II")
_CONTRIBUTED, _FINAL, _HAS_VALUE, _HAS_CLOSER, _HAS_KEEP = 1, 2, 4, 8, 16
_BEGUN, _ROW_CONTRIBUTED, _UNRELEASED, _FAILED, _OVERDUE, _HOLDS_LANE = 1, 2, 4, 8, 16, 128
_SUSPENDED, _HAS_STEPS, _HAS_RECORDS = 1 << 15, 1 << 14, 1 << 13
_NO_TOKEN: Final = bytes(8)

log = logging.getLogger("treadle.redis")

_encode: Final = msgpack.Encoder().encode
_decode_ids: Final = msgpack.Decoder(tuple[str, ...]).decode


# ------------------------------------------------------------------------------------------------------ marks


def _lua(name: str) -> str:
    return files("treadle.backends.redis").joinpath("lua", "moving", f"{name}.lua").read_text("utf-8")


async def read_mark(link: RedisLink) -> StoreMark | None:
    """The mark of a namespace. What was frozen, and is not any more, is brought back."""
    fields = (b"part_state", b"part_move", b"part_other", b"part_until", b"part_whole", b"part_content")
    state, move, other, until, whole, content = await link.command(b"HMGET", link.key("meta"), *fields)
    if state is None:
        return None
    if state == b"frozen" and await call_moving(link, "thaw", b"frozen", move, b"1"):
        return None
    if state == b"importing":
        return StoreMark(
            state="importing", move=move.decode(), source=other.decode(), whole=whole is not None
        )
    return StoreMark(
        state="moved" if state == b"moved" else "frozen",
        move=move.decode(),
        to=other.decode(),
        content=(content or b"").decode(),
        until=float(until),
    )


async def explained(link: RedisLink) -> BackendError | None:
    """Why a script has found keys of another type: the store is marked, or was until a moment ago."""
    mark = await read_mark(link)
    if mark is not None:
        return refusal(mark)
    thawed = await link.command(b"HGET", link.key("meta"), b"part_thawed")
    seconds, _ = await link.command(b"TIME")
    if thawed is not None and int(seconds) - float(thawed) < JUST_THAWED:
        return StoreUnavailable("the store was frozen in this moment: try again")
    return None


def refusal(mark: StoreMark) -> BackendError:
    """What a marked store raises."""
    match mark.state:
        case "moved":
            return StoreMoved(mark.to)
        case "importing":
            return StoreUnfinished(mark.move, mark.source)
        case "frozen":
            return StoreUnavailable("the store is being exported, and frozen for that time: try again")
        case _:
            assert_never(mark.state)


async def check_unmarked(link: RedisLink) -> None:
    mark = await read_mark(link)
    if mark is not None:
        raise refusal(mark)


async def wait_until_thawed(link: RedisLink, patience: float = FROZEN_PATIENCE) -> None:
    """Return when the store is not frozen, or has been for too long."""
    end = time.monotonic() + patience
    is_said = False
    while (mark := await read_mark(link)) is not None and mark.state == "frozen":
        if time.monotonic() > end:
            raise StoreUnavailable(
                f"the store is being exported or promoted, and still frozen after {patience:.0f} s: "
                "start again when that has ended"
            )
        if not is_said:
            is_said = True
            log.warning(
                "the store is being exported or promoted, and frozen meanwhile: waiting for up to %.0f s",
                patience,
            )
        await asyncio.sleep(0.2)


async def call_moving(link: RedisLink, script: str, *arguments: Argument) -> Any:
    """Call one of lua/moving. It may be repeated."""
    names = [name for name in all_keys() if name not in KEPT]
    keys = [link.key(name) for name in names] + [link.key(FOLDER + name) for name in names]
    keys += [link.key("meta"), link.key("stages")]
    return await link.command(b"EVAL", _lua(script), len(keys), *keys, *arguments)


async def written(link: RedisLink) -> None:
    """Wait until the mark that this link has just set is on the disk, and warn if that cannot be known: the
    mark cannot be taken back."""
    try:
        answer = await link.command(b"WAITAOF", 1, 0, DISK_MS)
        why = "" if answer[0] else f"it is not after {DISK_MS / 1000:.0f} s"
    except BackendError as error:
        why = str(error)
    if why:
        log.warning(
            "is this step of the move on the disk of the server? %s. Until its data is saved (BGSAVE), a "
            "crash may undo that step",
            why,
        )


class MovingNamespace:
    """What the verbs of a move need to know about a namespace. Each has connections of its own."""

    def __init__(
        self,
        new_link: Callable[[str], RedisLink],
        check: Callable[[RedisLink, bool], Awaitable[None]],
        now: Callable[[RedisLink], Awaitable[float]],
        unfold: RedisScript,
        address: str,
    ) -> None:
        self._new_link = new_link
        self._check = check
        self.now = now
        self._unfold = unfold
        self.address = address

    @asynccontextmanager
    async def link(self, folder: str = "") -> AsyncGenerator[RedisLink]:
        link = self._new_link(folder)
        await link.start()
        try:
            yield link
        finally:
            await link.stop()

    def parked(self) -> AbstractAsyncContextManager[RedisLink]:
        """A link to the parked keys."""
        return self.link(FOLDER)

    # -- the verbs -------------------------------------------------------------------------------------

    async def mark(self) -> StoreMark | None:
        async with self.link() as link:
            return await read_mark(link)

    @asynccontextmanager
    async def export(
        self, *, freeze: float | None, move: str | None, tenant: str | None
    ) -> AsyncGenerator[RedisExport]:
        async with self.link() as link:
            mark = await read_mark(link)
            if mark is not None and (move is None or not mark.is_of(move)):
                raise refusal(mark)
            id = secrets.token_hex(8)
            seconds = None
            if mark is None:
                await self._check(link, False)
                seconds = DEFAULT_FREEZE if freeze is None else freeze
                await self.park(link, b"frozen", id, seconds)
            try:
                async with self.parked() as parked:
                    yield RedisExport(self, link, parked, id, seconds, tenant, may_move=freeze is not None)
            finally:
                if mark is None:
                    await call_moving(link, "thaw", b"frozen", id, b"0")

    async def park(
        self, link: RedisLink, state: bytes, move: str, seconds: float = 0.0, source: str = ""
    ) -> None:
        while True:
            answer = await call_moving(link, "park", state, move, seconds, source)
            if answer == 1:
                return
            if answer != 2:  # another has marked it in this moment
                raise StoreUnavailable("the store was marked in this moment: try again")
            while await link.run(self._unfold):
                pass

    @asynccontextmanager
    async def import_(self, move: str, source: str = "") -> AsyncGenerator[RedisImport]:
        async with self.link() as link:
            mark = await read_mark(link)
            if mark is not None and not mark.gives_way(source):
                raise refusal(mark)
            if mark is None:
                await self._check(link, True)
                found = await link.run(_EMPTY, on="read")
                if found:
                    raise StoreNotEmpty(self.address, found.decode())
                await self.park(link, b"importing", move, source=source)
            elif not await call_moving(link, "take_over", move, source):
                raise StoreUnavailable("the store was marked in this moment: try again")
            await call_moving(link, "clear", move)
            async with self.parked() as parked:
                yield RedisImport(self, link, parked, move)

    async def own(self, move: str) -> None:
        async with self.link() as link:
            if not await call_moving(link, "own", move):
                mark = await read_mark(link)
                raise unknown_move(self.address, move) if mark is None else refusal(mark)

    async def take_back(self, move: str) -> None:
        async with self.link() as link:
            if not await call_moving(link, "thaw", b"moved", move, b"0"):
                raise unknown_move(self.address, move)
            await written(link)

    async def identity(self) -> str | None:
        async with self.link() as link:
            id = await link.command(b"HGET", link.key("meta"), b"identity")
            return None if id is None else id.decode()

    async def discard(self, move: str) -> None:
        async with self.link() as link:
            mark = await read_mark(link)
            if mark is not None and mark.is_of(move):
                await call_moving(link, "clear", move)
                await call_moving(link, "thaw", b"importing", move, b"0")


class RedisMoves:
    """The verbs of the backend."""

    _moving: MovingNamespace

    async def mark(self) -> StoreMark | None:
        return await self._moving.mark()

    def export(
        self, *, freeze: float | None = None, move: str | None = None, tenant: str | None = None
    ) -> AbstractAsyncContextManager[RedisExport]:
        return self._moving.export(freeze=freeze, move=move, tenant=tenant)

    def import_(
        self, move: str, source: str = "", *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[RedisImport]:
        if tenant is not None:
            raise UnsupportedError("parts", "RedisBackend", advice="import the tenant into an empty store")
        return self._moving.import_(move, source)

    async def own(self, move: str) -> None:
        await self._moving.own(move)

    async def discard(self, move: str) -> None:
        await self._moving.discard(move)

    async def take_back(self, move: str) -> None:
        await self._moving.take_back(move)

    async def identity(self) -> str | None:
        return await self._moving.identity()


# ---------------------------------------------------------------------------------------------------- reading


class RedisExport(Export):
    """Reads parked keys. Each read puts off their return."""

    _leases = False
    """Whether they go along."""

    def __init__(
        self,
        store: MovingNamespace,
        link: RedisLink,
        parked: RedisLink,
        freeze: str,
        seconds: float | None,
        tenant: str | None,
        *,
        may_move: bool,
    ) -> None:
        self._store = store
        self._link = link
        self._parked = parked
        self._freeze = freeze
        self._seconds = seconds
        self._tenant = tenant
        self._may_move = may_move
        self._workers: set[str] = set()
        """Those that have leases which go along."""
        self._records = self._all()

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        await self._extend()
        found: list[bytes] = []
        if not limit:
            return found
        async for record in self._records:
            if portable.goes_along(record, self._tenant):
                found.append(portable.encode(record))
            if len(found) == limit:
                break
        await self._extend()
        return found

    async def _extend(self) -> None:
        if self._seconds is not None and not await call_moving(
            self._link, "extend", self._freeze, self._seconds
        ):
            raise StoreUnavailable(
                "the freeze has ended before the export: the store is in use again, try again"
            )

    async def move(self, move: str, to: str, content: str = "") -> None:
        await self._end(b"moved", move, to, content)

    async def give_back(self, move: str, source: str) -> None:
        await self._end(b"importing", move, source)

    async def _end(self, state: bytes, move: str, other: str, content: str = "") -> None:
        if not self._may_move or not await call_moving(
            self._link, "move", self._freeze, state, move, other, content
        ):
            raise StoreUnavailable("the freeze has ended: the store is in use again")
        await written(self._link)

    async def _all(self) -> AsyncIterator[AnyRecord]:
        parked = self._parked
        now = await self._store.now(self._link)
        counters = (await parked.command(b"GET", parked.key(name)) for name in ("seq", "tokens"))
        number, token = [int(value or 0) async for value in counters]
        orders = await parked.command(b"HGET", parked.key("orders"), b"")
        alive = await parked.command(b"ZRANGEBYSCORE", parked.key("workers_until"), f"({now!r}", b"+inf")
        yield Head(
            store="redis",
            tenant=self._tenant,
            at=now,
            number=number,
            place=number,
            token=(token + 1) << TOKEN_BITS,
            orders=int(orders or 0),
            workers=tuple(name.decode() for name in alive),
        )
        if not self._tenant and await parked.command(b"HLEN", parked.key("arriving")):
            raise BackendError("a tenant is on its way into this store: end its move first")
        pages = await parked.command(b"HKEYS", parked.key("pages"))
        whose, roots = ((self._tenant,), list[bytes]()) if self._tenant else ((), None)
        releases = dict([pair async for pair in self._pairs("worker_release")])
        for page in sorted(int(name) for name in pages if not name.endswith(b"e")):
            for answer in await parked.run(_EXPORT_ITEMS, [page, *whose], on="read"):
                if roots is not None and answer[_HAS_GROUP]:
                    roots.append(answer[0][0])
                item = _item(answer, releases, now, leases=self._leases)
                if item.lease is not None:
                    self._workers.add(item.lease.worker)
                yield item
        left = dict([pair async for pair in self._fields("left", roots)])
        async for g, data in self._fields("groups", roots):
            yield _group(g, data, int(left.get(g, 0)))
        async for record in self._rest(now):
            yield record

    async def _fields(self, key: str, names: Sequence[bytes] | None) -> AsyncIterator[tuple[bytes, bytes]]:
        """These fields of a hash that exist, and their values. None: all."""
        if names is None:
            async for pair in self._pairs(key):
                yield pair
            return
        for first in range(0, len(names), PORTION):
            part = names[first : first + PORTION]
            values = await self._parked.command(b"HMGET", self._parked.key(key), *part, on="read")
            for name, value in zip(part, values, strict=True):
                if value is not None:
                    yield name, value

    async def _pairs(self, key: str, pattern: str = "") -> AsyncIterator[tuple[bytes, bytes]]:
        """The fields of a hash, and their values, each once. pattern: of their names."""
        cursor, seen = b"0", set[bytes]()
        matching = (b"MATCH", pattern) if pattern else ()
        while True:
            cursor, found = await self._parked.command(
                b"HSCAN", self._parked.key(key), cursor, b"COUNT", PORTION, *matching, on="read"
            )
            for name, value in zip(found[::2], found[1::2], strict=True):
                if name not in seen:
                    seen.add(name)
                    yield name, value
            if cursor == b"0":
                return

    async def _rest(self, now: float) -> AsyncIterator[AnyRecord]:
        async for subject, row in self._pairs("orders"):
            if subject and read_double(row[8:16]) > now:
                yield PortableOrder(body=row[16:], at=read_double(row[:8]))
        async for name, row in self._pairs("schedules"):
            yield portable.portable_schedule(read_schedule(name.decode(), row))
        async for name, at in self._pairs("removed_schedules"):
            yield PortableRemoval(name=name.decode(), at=read_double(at))
        async for name, data in self._pairs("schedule_runs"):
            for run in read_runs(name.decode(), data):
                yield portable.portable_run(run)
        async for name, row in self._pairs("limits"):
            own, _, algorithm = name.decode().rpartition("\0")
            at, used, before, limit, window = LIMIT_STATE.unpack(row)
            yield portable.portable_limit(own, algorithm, at, used, before, int(limit), window)  # type: ignore[arg-type]
        async for record in self._claimed(now):
            yield record
        releases = [(read_double(began), name.decode()) async for name, began in self._pairs("releases")]
        for began, release in sorted(releases):
            yield PortableRelease(name=release, began=began)
        async for name, row in self._pairs("stats"):
            letter, _ = STAT_HEAD.unpack_from(name)
            if letter in _STEPS:
                yield portable.portable_stat(_STEPS[letter], read_stat(name, row))
            else:
                yield portable.portable_sample(decode_sample(row))
        audits = [
            (int.from_bytes(name, "big"), row)
            async for name, row in self._pairs("audits")
            if name != b"first"
        ]
        for number, row in sorted(audits):
            yield portable.portable_audit(read_audit(number, row))

    async def _claimed(self, now: float, pattern: str = "") -> AsyncIterator[PortableKey]:
        async for name, row in self._pairs("claimed", pattern):
            tenant, _, key = name.decode().partition("\0")
            if read_double(row[:8]) > now:
                yield PortableKey(key=key, tenant=tenant, owner=row[8:].decode(), until=read_double(row[:8]))


_HAS_GROUP: Final = 4
"""The place in an answer of export_items.lua."""


def _item(answer: Sequence[Any], releases: dict[bytes, bytes], now: float, *, leases: bool) -> PortableItem:
    """leases: they go along."""
    raw, waiting, changers, holds_key, has_group, recorded = answer
    found = read_item(raw)
    extra, packed = found.extra, raw[2]
    is_full = packed[:1] not in b"pqP" if packed else False
    flags = packed[9] if is_full else 0
    redrives = int.from_bytes(packed[22:24], "big") if is_full else 0
    is_open = found.ended_at is None
    waits = is_open and found.verdict is None
    blocked = waits and found.status == "blocked"
    met, pending = 0, tuple[str, ...]()
    if blocked and waiting:
        met = _WAITING.unpack_from(waiting)[0]
        is_pending = waiting[_WAITING.size :]
        pending = tuple(sorted({name for name, one in zip(extra.a, is_pending, strict=True) if one == 49}))
    group = int.from_bytes(found.group, "big")
    fields: dict[str, Any] = {
        "number": found.number,
        "group": group,
        "holds_key": bool(holds_key),
        "changed_by": _decode_ids(changers) if changers and holds_key else (),
        "keep": found.keep,
        "keep_dead": found.keep_dead,
        "need": extra.n,
        "any_end": extra.d,
        "contributes": not extra.x,
        "closes_group": extra.c,
        "verdict": found.verdict,
        "place": found.place if waits and not blocked else 0,
        "due": found.due_at,
        "ready_at": found.ready_at if waits and found.status in ("ready", "running") else None,
        "redrives": redrives % _HAS_RECORDS,
        "holds_lane": is_open and flags & _HOLDS_LANE > 0,
        "suspended": is_open and found.suspended and not found.owned,
        "met": met,
        "pending": pending,
        "contributed": found.contributed and group == found.number and not has_group,
        "unreleased": not is_open and flags & _UNRELEASED > 0,
        "failed_group": not is_open and found.failed_group,
        **_recorded(recorded),
    }
    item = portable.portable_item(item_state(found, history=True), fields)
    if found.status == "running" and found.verdict is None:
        worker = found.worker or ""
        if leases:
            resumes = found.suspended
            lease = PortableLease(worker, found.token, found.begun, found.started_at, resumes)
            return leased(item, lease)
        release = releases.get(worker.encode(), b"").decode()
        lost = LostLease(worker, release, found.begun, found.started_at, flags & _OVERDUE > 0)
        return unleased(item, lost, now)
    return item


def _recorded(answer: Sequence[Any]) -> dict[str, Any]:
    if not answer:
        return {}
    steps, keys, names, values = answer
    by_name = dict(zip(names, values, strict=True))
    box, progress, chunks, logs = (by_name.get(name) or b"" for name in (b"m", b"p", b"c", b"l"))
    unread: list[tuple[str, bytes | None]] = []
    at = 4
    while at < len(box):
        number, length = box[at : at + 6], int.from_bytes(box[at + 6 : at + 8], "big")
        unread.append((box[at + 8 : at + 8 + length].decode(), by_name.get(b"m" + number)))
        at += 8 + length
    numbers = [number.to_bytes(4, "big") for number in range(1, 1 + int.from_bytes(chunks or b"\0", "big"))]
    stored = [by_name[b"c" + number] for number in numbers]
    return {
        "steps": tuple(portable.portable_step(read_step(one[6:], by_name[b"s" + one[6:]])) for one in steps),
        "unread": tuple(unread),
        "signal_keys": tuple(sorted(map(_read_key, keys))),
        "progress": progress[8:] if progress else None,
        "progress_at": read_double(progress[:8]) if progress else None,
        "chunks": tuple((place, read_double(one[:8]), one[8:]) for place, one in enumerate(stored, 1)),
        "logs": tuple(by_name[b"l" + logs[at : at + 8]] for at in range(0, len(logs), 8)),
    }


def _read_key(data: bytes) -> tuple[str, str]:
    end = 2 + int.from_bytes(data[:2], "big")
    return data[2:end].decode(), data[end:].decode()


def _group(g: bytes, data: bytes, left: int) -> PortableGroup:
    open, version, flags, failed, cancelled, ended, keep, members, outer, _ = _GROUP.unpack_from(data)
    texts: list[str] = []
    at = _GROUP.size
    for _ in range(3):
        texts.append(data[at + 1 : at + 1 + data[at]].decode())
        at += 1 + data[at]
    return PortableGroup(
        number=int.from_bytes(g, "big"),
        id=texts[0],
        tenant=texts[1],
        type=texts[2],
        open=open,
        total=members + left,
        failed=failed,
        cancelled=cancelled,
        version=int(version),
        final=bool(flags & _FINAL),
        keep=keep if flags & _HAS_KEEP else None,
        ended_at=ended or None,
        outer=int.from_bytes(outer, "big") or None,
        value=data[at:] if flags & _HAS_VALUE else None,
    )


# ---------------------------------------------------------------------------------------------------- writing


class RedisImport(Import):
    """Fills parked keys, which no other process looks at. The mark says that they are not whole."""

    def __init__(self, store: MovingNamespace, link: RedisLink, parked: RedisLink, move: str) -> None:
        self._store = store
        self._link = link
        self._parked = parked
        self._move = move
        self._numbers = 0
        """Of steps and signals."""
        self._highest = 0
        """Of items and groups."""
        self._audits = [0, 0]
        """The first and the last number."""
        self._runs: defaultdict[str, list[PortableRun]] = defaultdict(list)

    async def write(self, records: Sequence[bytes]) -> None:
        await self._check()
        decoded = [portable.decode(data) for data in records]
        items = [record for record in decoded if isinstance(record, PortableItem)]
        for first in range(0, len(items), ITEMS):
            there = await self._parked.run(_IMPORT_ITEMS, self._item_arguments(items[first : first + ITEMS]))
            if there is not None:
                raise InputError(f"an item is there twice: {there.decode('utf-8', 'replace')}")
        groups = [record for record in decoded if isinstance(record, PortableGroup)]
        for first in range(0, len(groups), ITEMS):
            await self._parked.run(_IMPORT_GROUPS, self._group_arguments(groups[first : first + ITEMS]))
        writes: defaultdict[tuple[bytes, str], list[Argument]] = defaultdict(list)
        for record in decoded:
            for command, key, arguments in self._writes(record):
                writes[command, key] += arguments
        for (command, key), arguments in writes.items():
            await self._parked.command(command, self._parked.key(key), *arguments)

    async def _check(self) -> None:
        mark = await read_mark(self._link)
        if mark is None or not mark.is_of(self._move):
            raise StoreUnavailable("another import into this store has begun")

    async def finish(self) -> None:
        parked = self._parked
        for name, runs in self._runs.items():
            await parked.command(
                b"HSET", parked.key("schedule_runs"), name, pack_runs([portable.run_of(run) for run in runs])
            )
        seq = int(await parked.command(b"GET", parked.key("seq")) or 0)
        counters = {
            "seq": max(seq, self._highest),
            "step_numbers": self._numbers,
            "audit_numbers": self._audits[1],
        }
        for name, value in counters.items():
            if value:
                await parked.command(b"SET", parked.key(name), value)
        if self._audits[0]:
            await parked.command(b"HSET", parked.key("audits"), b"first", self._audits[0])
        now = await self._store.now(self._link)
        await parked.command(b"HSET", parked.key("unknown_since"), b"", pack_double(now))
        if not await call_moving(self._link, "whole", self._move):
            raise StoreUnavailable("another import into this store has begun")
        await written(self._link)

    def _next(self) -> bytes:
        self._numbers += 1
        return pack_number(self._numbers)

    # -- items -----------------------------------------------------------------------------------------

    def _item_arguments(self, items: Sequence[PortableItem]) -> list[Argument]:
        kinds: dict[tuple[str, str, str, str], int] = {}
        rows: list[Argument] = []
        for item in items:
            kind = kinds.setdefault((item.tenant, item.queue, item.lane, item.type), len(kinds) + 1)
            self._highest = max(self._highest, item.number, item.place)
            rows += self._item_row(item, kind)
        return [len(kinds), *(text for kind in kinds for text in kind), len(items), *rows]

    def _item_row(self, item: PortableItem, kind: int) -> list[Argument]:
        keep_dead = -1.0 if item.keep_dead is None else item.keep_dead
        head = _ITEM_HEAD.pack(
            kind,
            pack_number(item.number),
            pack_number(item.group),
            item.queued_at,
            pack_priority(item.priority),
            item.keep,
            keep_dead,
            item.holds_key,
        )
        fields, steps, keys = self._recorded(item)
        release = item.history[-1].release if item.history and item.status == "dead" else ""
        return [
            head,
            item.id,
            _encode(ItemBody(item.input, item.attempts, item.options)),
            _extra(item),
            _state(item),
            b"".join(map(_attempt, item.history)),
            _waiting(item),
            _encode(item.changed_by) if item.changed_by else b"",
            release,
            _COUNTS.pack(len(fields) // 2, len(steps), len(keys)),
            *fields,
            *steps,
            *keys,
        ]

    def _recorded(self, item: PortableItem) -> tuple[list[Argument], list[bytes], list[bytes]]:
        """Fields of `recorded` and their values, members of `steps` and of `signal_keys`."""
        fields: list[Argument] = []
        steps: list[bytes] = []
        waits: list[bytes] = []
        for step in item.steps:
            number, name = self._next(), step.name.encode()
            steps.append(number + name)
            fields += (b"s" + name, _step(number, portable.step_record(step)))
            if not step.over:
                waits.append(len(name).to_bytes(2, "big") + name)
        if waits:
            fields += (b"w", b"".join(waits))
        if item.unread:
            box = [len(item.unread).to_bytes(4, "big")]
            for signal, value in item.unread:
                number, text = self._next(), signal.encode()
                box += (number, len(text).to_bytes(2, "big"), text)
                if value is not None:
                    fields += (b"m" + number, value)
            fields += (b"m", b"".join(box))
        if item.progress is not None:
            fields += (b"p", pack_double(item.progress_at or 0.0) + item.progress)
        if item.chunks:
            fields += (b"c", len(item.chunks).to_bytes(4, "big"))
        for place, at, chunk in item.chunks:
            fields += (b"c" + place.to_bytes(4, "big"), pack_double(at) + chunk)
        tokens = [token.to_bytes(8, "big") for token in range(1, 1 + len(item.logs))]
        if tokens:
            fields += (b"l", b"".join(tokens))
        for token, log in zip(tokens, item.logs, strict=True):
            fields += (b"l" + token, log)
        keys = [
            len(name.encode()).to_bytes(2, "big") + (name + key).encode() for name, key in item.signal_keys
        ]
        return fields, steps, keys

    def _group_arguments(self, groups: Sequence[PortableGroup]) -> list[Argument]:
        arguments: list[Argument] = []
        for group in groups:
            self._highest = max(self._highest, group.number)
            flags = (
                _CONTRIBUTED * (group.version > 0)
                | _FINAL * group.final
                | _HAS_VALUE * (group.value is not None)
                | _HAS_KEEP * (group.keep is not None)
            )
            head = _SENT_GROUP.pack(
                pack_number(group.number),
                group.open,
                group.version,
                flags,
                group.failed,
                group.cancelled,
                group.ended_at or 0.0,
                group.keep or 0.0,
                pack_number(group.outer or 0),
                group.total,
            )
            arguments += (head, group.id, group.tenant, group.type, group.value or b"")
        return arguments

    # -- the rest --------------------------------------------------------------------------------------

    def _writes(self, record: AnyRecord) -> Iterable[tuple[bytes, str, list[Argument]]]:
        """Commands, keys, and further arguments."""
        match record:
            case Head():
                yield b"SET", "seq", [max(record.number, record.place)]
                yield b"SET", "tokens", [(record.token >> TOKEN_BITS) + 1]
                if record.orders:
                    yield b"HSET", "orders", [b"", record.orders]
            case PortableItem() | PortableGroup():
                pass
            case PortableOrder():
                yield from _order(record)
            case PortableSchedule():
                yield b"HSET", "schedules", [record.name, pack_schedule(portable.schedule_of(record))]
            case PortableRemoval():
                yield b"HSET", "removed_schedules", [record.name, pack_double(record.at)]
            case PortableRun():
                self._runs[record.name].append(record)
            case PortableLimit():
                state = LimitState(record.at, record.used, record.before)
                name = f"{record.name}\0{record.algorithm}"
                row = LIMIT_STATE.pack(*state, record.limit or 0, record.window or 1.0)
                yield b"HSET", "limits", [name, row]
                yield b"ZADD", "limit_names", [0, name]
                yield b"ZADD", "limits_idle", [repr(idle_at(portable.limit_of(record), state)), name]
            case PortableKey():
                name = f"{record.tenant}\0{record.key}"
                yield b"HSET", "claimed", [name, pack_double(record.until) + record.owner.encode()]
                yield b"ZADD", "claimed_until", [repr(record.until), name]
            case PortableRelease():
                yield b"HSET", "releases", [record.name, pack_double(record.began)]
            case PortableStat():
                named = stat_name((record.step, record.at, record.type, record.queue))
                yield from _stat(named, pack_counts(portable.stat_of_record(record)))
            case PortableSample():
                named = STAT_HEAD.pack(STEP_LETTERS[record.step].upper(), record.at) + record.queue.encode()
                yield from _stat(named, pack_sample(portable.sample_of(record)))
            case PortableAudit():
                self._audits = [self._audits[0] or record.no, max(self._audits[1], record.no)]
                yield b"HSET", "audits", [pack_number(record.no), pack_audit(portable.audit_of(record))]
            case PortableWorker():
                raise InputError("a worker is no record of a file")
            case _:
                assert_never(record)


def _order(record: PortableOrder) -> Iterable[tuple[bytes, str, list[Argument]]]:
    order = read_order(record.body, record.at)
    ends = pack_double(float("inf") if order.until is None else order.until)
    yield b"HSET", "orders", [order.subject, pack_double(record.at) + ends + record.body]
    part = paused_key(order)
    if part:
        yield b"HSET", "paused", [part, b"1" if order.until is None else ends]


def _stat(name: bytes, row: bytes) -> Iterable[tuple[bytes, str, list[Argument]]]:
    yield b"HSET", "stats", [name, row]
    yield b"ZADD", "stats_at", [0, name]


def _extra(item: PortableItem) -> bytes:
    extra = ItemExtra(
        k=item.key,
        w=item.workflow,
        wt=item.workflow_type,
        p=item.parent,
        a=item.after,
        n=item.need,
        d=item.any_end,
        g=item.group_id or None,
        c=item.closes_group,
        x=not item.contributes,
    )
    return b"" if extra == NO_EXTRA else _encode(extra)


def _state(item: PortableItem) -> bytes:
    flags = (
        _BEGUN
        | _ROW_CONTRIBUTED * item.contributed
        | _UNRELEASED * item.unreleased
        | _FAILED * item.failed_group
        | _HOLDS_LANE * item.holds_lane
    )
    others = item.unread or item.signal_keys or item.chunks or item.progress is not None or item.logs
    redrives = (
        item.redrives
        | _SUSPENDED * item.suspended
        | _HAS_STEPS * bool(item.steps)
        | _HAS_RECORDS * bool(others)
    )
    worker, mark = (item.worker or "").encode(), item.mark.encode()
    fixed = _STATE.pack(
        LETTERS[item.status],
        _NO_TOKEN,
        flags,
        VERDICTS.index(item.verdict),
        REASONS.index(item.reason),
        item.attempt,
        item.failures,
        item.losses,
        redrives,
        pack_number(item.place),
        item.due,
        item.ready_at or 0.0,
        item.claimed_at or 0.0,
        item.started_at or 0.0,
        item.ended_at or 0.0,
        item.deadline or 0.0,
    )
    kind = bytes((item.result is not None,))
    if item.deferrals:
        kind = bytes((kind[0] + 2,)) + item.deferrals.to_bytes(4, "big")
    texts = bytes((len(worker),)) + worker + b"\0" + bytes((len(mark),)) + mark
    return b"".join((fixed, texts, kind, item.result or b""))


def _waiting(item: PortableItem) -> bytes:
    """Empty for an item that waits for nothing, or has ended."""
    if item.ended_at is not None or not item.after:
        return b""
    open = bytes(49 if name in item.pending else 48 for name in item.after)
    met = item.met if item.status == "blocked" else item.need
    return _WAITING.pack(met, open.count(b"1")) + open


def _attempt(one: portable.PortableAttempt) -> bytes:
    worker = one.worker.encode() + (b"\0" + one.release.encode() if one.release else b"")
    texts = pack_failure_texts(one.error_type, one.message, one.traceback)
    entry = (
        b"F" + one.attempt.to_bytes(4, "big") + pack_double(one.at) + bytes((len(worker),)) + worker + texts
    )
    return len(entry).to_bytes(4, "big") + entry


def _step(number: bytes, step: StepRecord) -> bytes:
    times = step.times.to_bytes(4, "big")
    return b"".join((number, times, pack_double(step.at), step.attempt.to_bytes(4, "big"), pack_step(step)))
