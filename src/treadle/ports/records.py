"""Records: structs are read from the store and written to it here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from treadle.base.clock import Clock
from treadle.item import DEFAULT_TENANT, Attempt, Ref
from treadle.store.rules.settlement import token_step

from .async_ports import AsyncPorts
from .compare_and_set import Snapshot, compare_and_set
from .keys import StoreKeys
from .stored import (
    DependentsRecord,
    GroupRecord,
    ItemEnd,
    StoredItem,
    StoredValue,
    WorkerRecord,
    WorkerRoster,
)

T = TypeVar("T")
A = TypeVar("A")

Unchanged: TypeAlias = Literal["unchanged"]
UNCHANGED: Final = "unchanged"

_encoder = msgspec.json.Encoder()


random_bits = random.SystemRandom().getrandbits


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
