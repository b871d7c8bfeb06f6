"""Tenants that move while they are in use: their marks, what has come of them, and how they leave.

The mark of a tenant is a claimed key. Scripts that make a kind, or claim a key, refuse what comes for
a tenant that is elsewhere (lua/lib/elsewhere.lua). A freeze parks the keys of the namespace, as for a
promotion. It has a short end, which is put off while its process lives. Others wait until the keys are back.

What is too long for one call is done in portions, while the keys are parked. One step decides it: `meta` says
then what is to be done, `leaving` or `coming`. If the process that does it dies, the next one that meets
the parked keys goes on.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from struct import Struct as Bytes
from typing import Final, TypeVar

from msgspec import Struct, json

from treadle.backend import Giving
from treadle.errors import BackendError, StoreNotEmpty, StoreUnavailable
from treadle.records import TenantMark
from treadle.store import portable
from treadle.store.portable import (
    AnyRecord,
    Head,
    PortableAudit,
    PortableGroup,
    PortableItem,
    PortableKey,
    PortableWorker,
)
from treadle.store.rules.tenant_moves import FOR_EVER, MARKS, PREFIX, decode_mark, encode_mark

from .item_bytes import Argument, pack_double, pack_number, pack_token
from .link import RedisLink
from .moving import (
    ITEMS,
    JUST_THAWED,
    PORTION,
    TOKEN_BITS,
    MovingNamespace,
    RedisExport,
    RedisImport,
    call_moving,
    check_unmarked,
    read_mark,
    written,
)
from .record_bytes import pack_audit
from .scripts import RedisScript

T = TypeVar("T")

_PUT_MARK: Final = RedisScript("put_tenant_mark")
_STAGE: Final = RedisScript("stage_records")
_LEAVE: Final = RedisScript("leave")
_RECEIVE: Final = RedisScript("receive")

SECONDS: Final = 5.0
"""Seconds after which a freeze ends, or others go on with what was decided, if its process does nothing."""
LOCK_SECONDS: Final = 5.0
"""Seconds to wait for another move."""
PATIENCE: Final = 30.0
"""Seconds for which a call waits until the keys are back."""
STAGED: Final = 250
"""Records that one call keeps."""
_DECIDED: Final = (b"leaving", b"coming")
_GLOB: Final = re.compile(r"([*?\[\]\\^-])")
_WORKER: Final = Bytes(">d4sBd")
_SOME_TYPES: Final = 2
_TIMES: Final = Bytes(">dd")
_LEASE_SECONDS: Final = 15.0
"""Of a worker that has not said for how long a heartbeat renews its lease."""
_LEASE: Final = Bytes(">H6s8sBd")


class Coming(Struct):
    """What is to be done for a tenant that comes: its mark, and the last numbers that the store had given."""

    mark: str
    number: int
    step: int


_encode: Final = json.encode
_decode: Final = json.Decoder(Coming).decode


def _name(tenant: str) -> str:
    return f"{MARKS}\0{PREFIX}{tenant}"


def _row(mark: str) -> bytes:
    """A mark as it is stored."""
    return pack_double(FOR_EVER) + mark.encode()


def _mark_of(row: bytes | None) -> TenantMark | None:
    return decode_mark(None if row is None else row[8:].decode())


async def _row_at(link: RedisLink, tenant: str) -> bytes | None:
    row: bytes | None = await link.command(b"HGET", link.key("claimed"), _name(tenant))
    return row


class Freeze(Struct, frozen=True):
    """The keys of a namespace, as one process has parked them."""

    id: str
    link: RedisLink
    parked: RedisLink


@asynccontextmanager
async def _kept(link: RedisLink, id: str) -> AsyncGenerator[None]:
    """Put off the end of a freeze again and again."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(SECONDS / 5)
            await call_moving(link, "extend", id, SECONDS)

    task = asyncio.create_task(keep(), name="treadle-freeze")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class RedisTenantMoves:
    """What `TenantMoves` asks for. link: that of the backend."""

    def __init__(self, link: RedisLink, store: MovingNamespace) -> None:
        self._link = link
        self._store = store

    # -- marks and records -----------------------------------------------------------------------------

    async def put_mark(
        self, tenant: str, expected: TenantMark | None, mark: TenantMark, *, empty: bool = False
    ) -> bool:
        row = await _row_at(self._link, tenant)
        if _mark_of(row) != expected:
            return False
        is_elsewhere = mark.state in ("away", "importing")
        new = _row(encode_mark(mark))
        arguments: list[Argument] = [tenant, row or b"", new, int(is_elsewhere), int(empty)]
        answer: int | bytes = await self._link.run(_PUT_MARK, arguments)
        if isinstance(answer, bytes):
            raise StoreNotEmpty(self._store.address, f"{answer.decode()} of {tenant}")
        return answer == 1

    async def stage(self, tenant: str, mark: TenantMark, records: Sequence[bytes]) -> bool:
        row = await _row_at(self._link, tenant)
        if row is None or _mark_of(row) != mark:
            return False
        for first in range(0, len(records), STAGED):
            if not await self._link.run(_STAGE, [tenant, row, *records[first : first + STAGED]]):
                return False
        return True

    async def staged(self, tenant: str) -> tuple[int, int]:
        checksum = portable.RecordsChecksum()
        async for portion in _arrived(self._link, tenant):
            checksum.add(portion)
        if checksum.total[0]:
            async with self._store.link() as link:  # the others need not wait for the disk
                await link.command(b"INCR", link.key("writes"))
                await written(link)
        return checksum.total

    # -- freezes ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _frozen(self, tenant: str) -> AsyncGenerator[Freeze]:
        async with self._store.link() as link:
            id = secrets.token_hex(8)
            await self._park(link, id, tenant)
            try:
                async with self._store.parked() as parked, _kept(link, id):
                    yield Freeze(id, link, parked)
            finally:
                await call_moving(link, "thaw", b"frozen", id, b"0")

    async def _park(self, link: RedisLink, id: str, tenant: str) -> None:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            await self.until_here(False)
            try:
                await check_unmarked(link)
                await self._store.park(link, b"frozen", id, SECONDS, tenant)
            except StoreUnavailable:
                if time.monotonic() > end:
                    raise
            else:
                return

    async def until_here(self, waited: bool) -> bool:
        """Wait while a tenant leaves or comes. Whether one has, or has just now and the caller has not
        `waited` for it. The keys are back then."""
        end, pause, is_parked = time.monotonic() + PATIENCE, 0.005, False
        meta = self._link.key("meta")
        fields = (b"part_state", b"part_move", b"part_other", b"part_until", b"part_thawed")
        while time.monotonic() < end:
            state, move, tenant, until, thawed = await self._link.command(b"HMGET", meta, *fields)
            seconds, micros = await self._link.command(b"TIME")
            now = int(seconds) + int(micros) / 1e6
            if state is None:
                return is_parked or (thawed is not None and now - float(thawed) < JUST_THAWED and not waited)
            if not (state in _DECIDED or (state == b"frozen" and tenant)):
                return False
            is_parked = True
            if float(until) < now:
                await self._take_over(state, move.decode())
                continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)
        return False

    async def _take_over(self, state: bytes, id: str) -> None:
        """The process that has parked the keys does nothing any more."""
        if state == b"frozen":
            await read_mark(self._link)  # and with it they are back
            return
        async with self._store.link() as link, self._store.parked() as parked:
            if await call_moving(link, "extend", id, SECONDS, b"1"):
                async with _kept(link, id):
                    await self._go_on(Freeze(id, link, parked))

    async def _go_on(self, freeze: Freeze) -> None:
        """Do what was decided, as far as it is not done."""
        link, id = freeze.link, freeze.id
        fields = (b"part_state", b"part_move", b"part_other", b"part_content", b"part_at")
        state, move, tenant, content, at = await link.command(b"HMGET", link.key("meta"), *fields)
        if state not in _DECIDED or move.decode() != id:
            return
        if state == b"leaving":
            is_done = await _leave(freeze, tenant.decode(), content.decode())
        else:
            is_done = await self._receive(freeze, tenant.decode(), _decode(content), int(at))
        if is_done:
            await call_moving(link, "thaw", state, id, b"0")

    # -- a tenant leaves -------------------------------------------------------------------------------

    @asynccontextmanager
    async def give(self, tenant: str, mark: TenantMark) -> AsyncGenerator[RedisGiving]:
        async with self._frozen(tenant) as freeze:
            if _mark_of(await _row_at(freeze.parked, tenant)) != mark:
                raise StoreUnavailable(f"another move of {tenant!r} has begun")
            yield RedisGiving(self, self._store, freeze, tenant)

    async def decide(self, freeze: Freeze, state: bytes, tenant: str, content: bytes | str) -> None:
        """The decision. What is to be done then, is done."""
        if not await call_moving(freeze.link, "move", freeze.id, state, freeze.id, tenant, content):
            raise StoreUnavailable("the freeze has ended: the store is in use again")
        await self._go_on(freeze)
        await written(freeze.link)

    # -- a tenant comes --------------------------------------------------------------------------------

    async def receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        if _mark_of(await _row_at(self._link, tenant)) != mark:
            return False
        async with self._frozen(tenant) as freeze:
            parked = freeze.parked
            if _mark_of(await _row_at(parked, tenant)) != mark:
                return False
            if not await parked.command(b"HEXISTS", parked.key("arriving"), tenant):
                raise BackendError(f"nothing of {tenant!r} is staged in {self._store.address}")
            last = [
                int(await parked.command(b"GET", parked.key(key)) or 0) for key in ("seq", "step_numbers")
            ]
            await self.decide(freeze, b"coming", tenant, _encode(Coming(encode_mark(owned), *last)))
            return True

    async def _receive(self, freeze: Freeze, tenant: str, coming: Coming, done: int) -> bool:
        data = [one async for portion in _arrived(freeze.parked, tenant) for one in portion]
        if not data:  # it was dropped, which is the last portion
            return True
        now = await self._store.now(freeze.link)
        taking = RedisTaking(self._store, freeze.link, freeze.parked, freeze.id)
        portions = taking.portions(tenant, coming, data, now)
        for place in range(done, len(portions)):
            if not await freeze.parked.run(_RECEIVE, [freeze.id, place, *portions[place]]):
                return False
        return True


async def _arrived(link: RedisLink, tenant: str) -> AsyncIterator[Sequence[bytes]]:
    """What is staged, in portions."""
    key = link.key("arriving")
    count = int(await link.command(b"HGET", key, tenant) or 0)
    for first in range(0, count, PORTION):
        numbers = range(first + 1, min(first + PORTION, count) + 1)
        names = (f"{tenant}\0".encode() + number.to_bytes(4, "big") for number in numbers)
        yield await link.command(b"HMGET", key, *names)


async def _leave(freeze: Freeze, tenant: str, mark: str) -> bool:
    """Remove what the store had of a tenant. False: another process has done it."""
    parked, whose = freeze.parked, (freeze.id, tenant)
    pages = await parked.command(b"HKEYS", parked.key("pages"))
    for page in sorted(int(name) for name in pages if not name.endswith(b"e")):
        more: int | None = 1
        while more:
            more = await parked.run(_LEAVE, [*whose, "items", page, ITEMS])
        if more is None:
            return False
    cursor: bytes | None = None
    while cursor != b"0":
        cursor = await parked.run(_LEAVE, [*whose, "keys", cursor or b"0"])
        if cursor is None:
            return False
    return await parked.run(_LEAVE, [*whose, "mark", _row(mark)]) is not None


class RedisGiving(RedisExport, Giving):
    """The keys are parked: others wait."""

    _leases = True

    def __init__(self, moves: RedisTenantMoves, store: MovingNamespace, freeze: Freeze, tenant: str) -> None:
        super().__init__(store, freeze.link, freeze.parked, freeze.id, SECONDS, tenant, may_move=False)
        self._moves = moves
        self._of = freeze
        self._whose = tenant

    async def commit(self, mark: TenantMark) -> None:
        await self._moves.decide(self._of, b"leaving", self._whose, encode_mark(mark))

    async def _rest(self, now: float) -> AsyncIterator[AnyRecord]:
        """Runs of schedules, and what the audit says, stay."""
        if self._workers:
            async for worker in self._leasing():
                yield worker
        pattern = _GLOB.sub(r"\\\1", self._whose) + "\0*"
        async for record in self._claimed(now, pattern):
            yield record

    async def _leasing(self) -> AsyncIterator[PortableWorker]:
        parked, names = self._parked, sorted(self._workers)
        keys = ("workers", "worker_info", "worker_release")
        rows, infos, releases = [await parked.command(b"HMGET", parked.key(key), *names) for key in keys]
        for name, row, info, release in zip(names, rows, infos, releases, strict=True):
            if row is None:
                continue
            until, _, flags, lease = _WORKER.unpack_from(row)
            packed = row[_WORKER.size :].decode()
            yield PortableWorker(
                id=name,
                until=until,
                lease=lease,
                types=tuple(filter(None, packed.split("\0"))) if flags >= _SOME_TYPES else None,
                info=info,
                release=(release or b"").decode(),
            )


class RedisTaking(RedisImport):
    """Makes items of what is staged, in portions. They are the same in each process."""

    def portions(
        self, tenant: str, coming: Coming, data: Sequence[bytes], now: float
    ) -> list[list[Argument]]:
        """What `receive` gets, in order: see receive.lua."""
        self._numbers = coming.step
        self._highest = coming.number
        count, token = len(data), 0
        found = portable.renumbered([portable.decode(one) for one in data])
        records = portable.Beside(tenant, coming.number, coming.number, 0).place(found)
        workers = {one.id: one for one in records if isinstance(one, PortableWorker)}
        items: list[PortableItem] = []
        groups: list[PortableGroup] = []
        keys: list[Argument] = []
        audits: list[Argument] = []
        for record in records:
            match record:
                case Head():
                    token = (record.token >> TOKEN_BITS) + 1
                case PortableItem():
                    is_leased = record.lease is None or record.lease.worker in workers
                    items.append(record if is_leased else portable.lost_lease(record, "", now))
                case PortableGroup():
                    groups.append(record)
                case PortableKey():
                    row = pack_double(record.until) + record.owner.encode()
                    keys += (f"{record.tenant}\0{record.key}", row)
                case PortableAudit():
                    audits.append(pack_audit(portable.audit_of(record)))
                case _:
                    pass
        portions: list[list[Argument]] = []
        portions += [["items", *self._item_arguments(part)] for part in _parts(items, ITEMS)]
        portions += [["groups", *self._group_arguments(part)] for part in _parts(groups, ITEMS)]
        leased = [item for item in items if item.lease is not None]
        portions += [["leases", *_lease_arguments(part, workers)] for part in _parts(leased, ITEMS)]
        portions += [["keys", *part] for part in _parts(keys, 2 * PORTION)]
        portions += [["audits", *audits]] if audits else []
        mark = _row(coming.mark)
        return [
            ["start", tenant, mark, self._highest, token, self._numbers],
            *portions,
            ["drop", tenant, 1, count],
        ]


def _parts(of: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (of[first : first + size] for first in range(0, len(of), size))


def _lease_arguments(items: Iterable[PortableItem], workers: dict[str, PortableWorker]) -> list[Argument]:
    places: dict[str, int] = {}
    leases: list[Argument] = []
    for item in items:
        if (lease := item.lease) is not None:
            place = places.setdefault(lease.worker, len(places) + 1)
            token, flags = pack_token(lease.token), lease.begun + 2 * lease.resumes
            number = pack_number(item.number)
            leases.append(_LEASE.pack(place, number, token, flags, lease.started_at or 0.0))
    texts: list[Argument] = []
    for name in places:
        worker = workers[name]
        times = _TIMES.pack(worker.until, worker.lease or _LEASE_SECONDS)
        types = "-" if worker.types is None else "t" + "\0".join(worker.types)
        texts += (name, times, types, worker.info or b"", worker.release)
    return [len(places), *texts, *leases]
