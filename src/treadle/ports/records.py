"""Records: what the store holds, under which keys, and how it is read and replaced.

    <prefix>:item:<tenant>:<id>             a StoredItem: what was submitted. Written once
    <prefix>:first:<id>                     the tenant that used an id first, unless it is the default tenant
    <prefix>:group:<tenant>:<id>            a GroupRecord: all that changes about the members of a group
    <prefix>:value:<tenant>:<id>:<token>    a StoredValue that a settlement contributed
    <prefix>:end:<tenant>:<id>:<token>      an ItemEnd: how an item ended
    <prefix>:attempt:<tenant>:<id>:<token>  an Attempt that failed
    <prefix>:dependents:<tenant>:<id>       a DependentsRecord: items of other groups that wait for an item
    <prefix>:key:<tenant>:<type>:<key>      the id of the item that owns an idempotency key
    <prefix>:worker:<id>                    a WorkerRecord: the worker's lease, and the leases of its items
    <prefix>:roster                         a WorkerRoster: the ids of all workers
    <prefix>:schedules  :limits             all schedules; all limits
    <prefix>:claimed:<tenant>:<key>         the owner of a key that `claim_key` claimed
    <prefix>:token                          a number: the last token given

Parts are percent-encoded, so that no two names share a key.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from treadle.base.timing import Clock
from treadle.item import DEFAULT_TENANT, Attempt, Counting, DeathReason, Item, Ref, Status, Verdict
from treadle.store.rules.settlement import token_step

from .async_ports import AsyncPorts

T = TypeVar("T")
A = TypeVar("A")

Unchanged: TypeAlias = Literal["unchanged"]
UNCHANGED: Final = "unchanged"

_encoder = msgspec.json.Encoder()
random_bits = random.SystemRandom().getrandbits
OLD_VERSION_TTL = 86400.0
"""Seconds for which an old version is kept: a writer may be that late and still fail."""
SEARCH_AHEAD = 64
"""How many versions to look ahead when the version that <key> names has expired."""


class StoredItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was submitted. It never changes. The item exists once its GroupRecord lists it."""

    item: Item
    """With its tenant, its parent, and `after` after idempotency keys were resolved."""
    group_id: str
    queued_at: float
    due_at: float
    deadline: float | None = None
    queued_by: int = 0
    """The token of the settlement that queued it; 0 for a root."""

    @property
    def ref(self) -> Ref:
        return (self.item.tenant, self.item.id)

    @property
    def group(self) -> Ref:
        return (self.item.tenant, self.group_id)


class OpenMember(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What changes about an item that has not ended. A group may have a thousand of them, so they are stored
    without field names: new fields go to the end."""

    status: Status = "ready"
    due: float = 0.0
    ready_since: float = 0.0
    deadline: float | None = None
    attempt: int = 0
    losses: int = 0
    token: int = 0
    """The lease in force; 0: none."""
    worker: str = ""
    started: float = 0.0
    verdict: Verdict | None = None
    """The item is leased to be ended, for this reason."""
    doomed: Verdict | None = None
    """The item can only end, for this reason."""
    settled_tokens: list[int] = msgspec.field(default_factory=list[int])
    """The last ten tokens that settled it."""
    failed_tokens: list[int] = msgspec.field(default_factory=list[int])
    """The tokens of the last ten attempts that failed."""
    waits_for: list[str] = msgspec.field(default_factory=list[str])
    """The prerequisites that have not ended."""
    need: int = 0
    met: int = 0
    counting: Counting = "success"
    origin: str = ""
    """The item whose settlement queued it."""
    failures: int = 0
    began: float = 0.0
    """When the handler of the last attempt began. (`started`: when it was claimed last.)"""
    contributes: bool = True
    """It may add to the group's value."""
    deferrals: int = 0


class EndedMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    status: Status
    token: int
    """The token that ended it. Its ItemEnd is stored under this number."""
    origin: str = ""


class GroupRecord(msgspec.Struct, omit_defaults=True):
    """Everything that changes about a group. It changes in one step."""

    type: str
    """The root's type."""
    open: dict[str, OpenMember] = msgspec.field(default_factory=dict[str, OpenMember])
    ended: dict[str, EndedMember] = msgspec.field(default_factory=dict[str, EndedMember])
    pending_effects: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """Ended members whose effects may be incomplete, each with the members that need a pointer because of
    it."""
    value_token: int = 0
    """The token that contributed the value; 0: none has."""
    version: int = 0
    final: bool = False
    ended_at: float | None = None
    last_ended: str = ""
    """The member whose end ended the group."""
    tolerated: list[str] = msgspec.field(default_factory=list[str])
    """Names in the `after` of members that run although these items die."""
    deaths: list[str] = msgspec.field(default_factory=list[str])
    """The members whose deaths failed the group, in this order."""

    def has(self, id: str) -> bool:
        return id in self.open or id in self.ended


class ItemEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    status: Status
    ended_at: float
    reason: DeathReason | None = None
    result: bytes | None = None
    attempt: int = 0
    due_at: float = 0.0
    started_at: float | None = None
    worker: str | None = None
    history: tuple[Attempt, ...] = ()
    failures: int = 0
    losses: int = 0
    claimed_at: float | None = None
    deferrals: int = 0


class StoredValue(msgspec.Struct, frozen=True):
    value: bytes | None


class LeasedItem(msgspec.Struct, frozen=True, array_like=True):
    """An item that a worker has leased, or is about to lease."""

    tenant: str
    id: str
    group_id: str

    @property
    def ref(self) -> Ref:
        return (self.tenant, self.id)

    @property
    def group(self) -> Ref:
        return (self.tenant, self.group_id)


class WorkerRecord(msgspec.Struct, omit_defaults=True):
    """A worker's own lease, and the leases of its items."""

    until: float
    lease: float
    types: tuple[str, ...] | None = None
    items: dict[int, LeasedItem] = msgspec.field(default_factory=dict[int, LeasedItem])
    """By token. A token is written here before it is written to the item's group. A token that is not here is
    not in force."""
    removing: bool = False
    """The worker is being removed. It gets no more leases, and counts as new if it comes back."""

    def is_alive(self, now: float) -> bool:
        return not self.removing and self.until > now

    def has_type(self, type: str) -> bool:
        return self.types is None or type in self.types


class WorkerRoster(msgspec.Struct, omit_defaults=True):
    workers: list[str] = msgspec.field(default_factory=list[str])
    types_gone: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """When the last worker that had a type was removed; `""` stands for a worker that had every type."""


class DependentsRecord(msgspec.Struct):
    """The items of other groups that wait for an item."""

    dependents: dict[str, str]
    """Their group ids, by id."""


class StoreKeys:
    def __init__(self, prefix: str) -> None:
        self._prefix = quote(prefix, safe="")
        self.roster = self._join("roster")
        self.schedules = self._join("schedules")
        self.limits = self._join("limits")
        self.token = self._join("token")

    def _join(self, kind: str, *parts: str) -> str:
        return ":".join((self._prefix, kind, *map(_quote, parts)))

    def item(self, ref: Ref) -> str:
        return self._join("item", *ref)

    def first_tenant(self, id: str) -> str:
        return self._join("first", id)

    def group(self, ref: Ref) -> str:
        return self._join("group", *ref)

    def group_value(self, ref: Ref, token: int) -> str:
        return self._join("value", *ref, str(token))

    def item_end(self, ref: Ref, token: int) -> str:
        return self._join("end", *ref, str(token))

    def failed_attempt(self, ref: Ref, token: int) -> str:
        return self._join("attempt", *ref, str(token))

    def dependents(self, ref: Ref) -> str:
        return self._join("dependents", *ref)

    def idempotency_key(self, tenant: str, type: str, key: str) -> str:
        return self._join("key", tenant, type, key)

    def worker(self, id: str) -> str:
        return self._join("worker", id)

    def claimed_key(self, tenant: str, key: str) -> str:
        return self._join("claimed", tenant, key)


@functools.lru_cache(maxsize=10_000)
def _quote(part: str) -> str:
    return quote(part, safe="")


# -------------------------------------------------------------------------------------------- compare-and-set


class Snapshot(NamedTuple):
    """A text that was read. It can be replaced if it is still the latest."""

    text: str | None
    version: int = 0
    """Its number, in a store without `swap`."""


class CompareAndSet:
    """Replaces a text only if it has not changed since it was read. For a store with `swap`."""

    def __init__(self, ports: AsyncPorts) -> None:
        self._ports = ports

    async def read(self, key: str) -> Snapshot:
        return Snapshot(await self._ports.get(key))

    async def create(self, key: str, text: str) -> bool:
        """Write the first text. False: there is one already."""
        return await self._ports.swap(key, None, text)

    async def replace(self, key: str, seen: Snapshot, text: str | None) -> bool:
        """Replace what was read; None removes it. False: it has changed since."""
        return await self._ports.swap(key, seen.text, text)

    async def expire(self, key: str, seen: Snapshot, text: str, ttl: float) -> None:
        """Write the last text of a key. It expires after `ttl` seconds."""
        await self._ports.set(key, text, ttl)


class VersionedCompareAndSet(CompareAndSet):
    """The same for a store without `swap`. Each version of a text is a key of its own, and `set_if_absent`
    decides who writes the next version:

        <key>        the number of the latest version, or of one that was the latest a moment ago
        <key>@<n>    version n. Older versions are emptied and kept for a day, so that a late writer fails

    A process would have to pause for a day, between reading a text and replacing it, to undo the changes that
    others made meanwhile. An empty text counts as none.
    """

    async def read(self, key: str) -> Snapshot:
        named = int(await self._ports.get(key) or 0)
        latest = await self._find_latest(key, named)
        if latest.version != named:
            await self._ports.set(key, str(latest.version))
        return latest

    async def _find_latest(self, key: str, named: int) -> Snapshot:
        """Go from the version that <key> names to the last one."""
        number, text = named, await self._ports.get(f"{key}@{named}") if named else None
        if text is None and named:
            return await self._search(key, named)
        while (later := await self._ports.get(f"{key}@{number + 1}")) is not None:
            number, text = number + 1, later
        return Snapshot(text or None, number)

    async def _search(self, key: str, named: int) -> Snapshot:
        """The named version has expired. A later one, if there is any, is not far."""
        for number in range(named + 1, named + SEARCH_AHEAD):
            if await self._ports.get(f"{key}@{number}") is not None:
                return await self._find_latest(key, number)
        return Snapshot(None, named)

    async def create(self, key: str, text: str) -> bool:
        seen = await self.read(key)
        return seen.text is None and await self.replace(key, seen, text)

    async def replace(self, key: str, seen: Snapshot, text: str | None) -> bool:
        number = seen.version + 1
        ttl = OLD_VERSION_TTL if text is None else None
        if not await self._ports.set_if_absent(f"{key}@{number}", text or "", ttl):
            return False
        await self._ports.set(key, str(number), ttl)
        old = number - (1 if text is None else 2)
        if old > 0:
            await self._ports.set(f"{key}@{old}", "", OLD_VERSION_TTL)
        return True

    async def expire(self, key: str, seen: Snapshot, text: str, ttl: float) -> None:
        ttl = max(ttl, OLD_VERSION_TTL)
        for number in range(max(1, seen.version - 1), seen.version + 1):
            await self._ports.set(f"{key}@{number}", text, ttl)
        await self._ports.set(key, str(seen.version), ttl)


def compare_and_set(ports: AsyncPorts) -> CompareAndSet:
    return CompareAndSet(ports) if ports.has_swap else VersionedCompareAndSet(ports)


# ---------------------------------------------------------------------------------------------------- records


class RecordType(Generic[T]):
    """The decoder of one type of record."""

    def __init__(self, type: type[T]) -> None:
        self.decode = msgspec.json.Decoder(type).decode


ITEM: Final = RecordType(StoredItem)
GROUP: Final = RecordType(GroupRecord)
ITEM_END: Final = RecordType(ItemEnd)
GROUP_VALUE: Final = RecordType(StoredValue)
ATTEMPT: Final = RecordType(Attempt)
WORKER: Final = RecordType(WorkerRecord)
ROSTER: Final = RecordType(WorkerRoster)
DEPENDENTS: Final = RecordType(DependentsRecord)


def encode(record: Any) -> str:
    return _encoder.encode(record).decode()


async def back_off() -> None:
    """Another process was faster. Wait for a random time, so that the two do not collide for ever."""
    await asyncio.sleep(random.random() * 0.005)


class RecordDraft(NamedTuple, Generic[T]):
    """A record that was read to be changed; None: there is none."""

    record: T | None
    seen: Snapshot


class Records:
    def __init__(self, ports: AsyncPorts, keys: StoreKeys, clock: Clock) -> None:
        self.ports = ports
        self.texts = compare_and_set(ports)
        self.keys = keys
        self.now = clock.now

    async def new_tokens(self, count: int) -> range:
        """Numbers that were never given before."""
        last = await self.ports.increment(self.keys.token, token_step(count, random_bits))
        return range(last - count + 1, last + 1)

    # -- records that change ---------------------------------------------------------------------------

    async def draft(self, key: str, type: RecordType[T]) -> RecordDraft[T]:
        seen = await self.texts.read(key)
        return RecordDraft(None if seen.text is None else type.decode(seen.text), seen)

    async def replace(self, key: str, draft: RecordDraft[T], record: T | None) -> bool:
        """Replace what was read. False: another process did."""
        return await self.texts.replace(key, draft.seen, None if record is None else encode(record))

    async def change(
        self, key: str, type: RecordType[T], step: Callable[[T | None], tuple[A, T | Unchanged | None]]
    ) -> A:
        """Read, change, replace; again while another process is faster. `step` returns the answer and the
        record to write. None removes the record."""
        while True:
            draft = await self.draft(key, type)
            answer, record = step(draft.record)
            if record == UNCHANGED or await self.replace(key, draft, record):
                return answer
            await back_off()

    async def create(self, key: str, record: object) -> bool:
        """False: there is one already."""
        return await self.texts.create(key, encode(record))

    async def group(self, group: Ref) -> GroupRecord | None:
        return (await self.draft(self.keys.group(group), GROUP)).record

    # -- records that are written once -----------------------------------------------------------------

    async def read(self, key: str, type: RecordType[T]) -> T | None:
        text = await self.ports.get(key)
        return None if text is None else type.decode(text)

    async def write(self, key: str, record: object, ttl: float | None = None) -> None:
        await self.ports.set(key, encode(record), ttl)

    async def item(self, ref: Ref) -> StoredItem | None:
        return await self.read(self.keys.item(ref), ITEM)

    async def items(self, refs: Iterable[Ref]) -> list[StoredItem]:
        found = [await self.item(ref) for ref in refs]
        return [stored for stored in found if stored is not None]

    async def find_item(self, id: str, tenant: str | None) -> StoredItem | None:
        """Without a tenant: the item of the tenant that used the id first."""
        if tenant is None:
            tenant = await self.ports.get(self.keys.first_tenant(id)) or DEFAULT_TENANT
        return await self.item((tenant, id))

    async def item_end(self, ref: Ref, token: int) -> ItemEnd | None:
        return await self.read(self.keys.item_end(ref, token), ITEM_END)

    async def group_value(self, group: Ref, record: GroupRecord) -> bytes | None:
        if not record.value_token:
            return None
        stored = await self.read(self.keys.group_value(group, record.value_token), GROUP_VALUE)
        return None if stored is None else stored.value

    async def history(self, ref: Ref, tokens: Sequence[int]) -> tuple[Attempt, ...]:
        history: list[Attempt] = []
        for token in tokens:
            attempt = await self.read(self.keys.failed_attempt(ref, token), ATTEMPT)
            if attempt is not None:
                history.append(attempt)
        return tuple(history)
