"""Archive: papers are read and written here, and nowhere else."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from treadle.clock import Clock
from treadle.item import DEFAULT_TENANT, Attempt, Ref

from .calls import Ports
from .names import Names, Note
from .papers import Awaited, Ending, Header, Ledger, Roster, Value, Worker
from .records import Records, Seen

T = TypeVar("T")
A = TypeVar("A")

Unchanged: TypeAlias = Literal["unchanged"]
UNCHANGED: Final = "unchanged"

REMEMBERED: Final = 10_000

_encoder = msgspec.json.Encoder()


class Form(Generic[T]):
    """How one kind of paper is read."""

    def __init__(self, kind: type[T]) -> None:
        self.read = msgspec.json.Decoder(kind).decode


def written(paper: Any) -> str:
    return _encoder.encode(paper).decode()


HEADER: Final = Form(Header)
LEDGER: Final = Form(Ledger)
ENDING: Final = Form(Ending)
VALUE: Final = Form(Value)
ATTEMPT: Final = Form(Attempt)
WORKER: Final = Form(Worker)
ROSTER: Final = Form(Roster)
AWAITED: Final = Form(Awaited)


async def give_way() -> None:
    """Somebody else was faster. Those who try again at the same time must not do so for ever."""
    await asyncio.sleep(random.random() * 0.005)


class Draft(Generic[T]):
    """A paper that was read to be changed; None: there is none."""

    __slots__ = ("paper", "seen")

    def __init__(self, paper: T | None, seen: Seen) -> None:
        self.paper = paper
        self.seen = seen


class Archive:
    def __init__(self, ports: Ports, records: Records, names: Names, clock: Clock) -> None:
        self.ports = ports
        self.records = records
        self.names = names
        self.now = clock.now
        self.pushed = 0
        """How many notes were pushed from here."""
        self._horizon: list[float] = []

    async def tokens(self, count: int) -> range:
        """So many numbers that were never given before."""
        last = await self.ports.increment(self.names.token, count)
        return range(last - count + 1, last + 1)

    # -- what changes ----------------------------------------------------------------------------------

    async def draft(self, key: str, form: Form[T]) -> Draft[T]:
        seen = await self.records.read(key)
        return Draft(None if seen.text is None else form.read(seen.text), seen)

    async def put(self, key: str, draft: Draft[T], paper: T | None) -> bool:
        """Replace what was read. False: somebody else did."""
        return await self.records.replace(key, draft.seen, None if paper is None else written(paper))

    async def change(
        self, key: str, form: Form[T], step: Callable[[T | None], tuple[A, T | Unchanged | None]]
    ) -> A:
        """Read, change, replace; again while somebody else is faster. `step` gives the answer, and the paper
        to write (None: none any more)."""
        while True:
            draft = await self.draft(key, form)
            answer, paper = step(draft.paper)
            if paper == UNCHANGED or await self.put(key, draft, paper):
                return answer
            await give_way()

    async def create(self, key: str, paper: object) -> bool:
        """False: there is one already."""
        return await self.records.create(key, written(paper))

    async def ledger(self, group: Ref) -> Ledger | None:
        return (await self.draft(self.names.group(group), LEDGER)).paper

    # -- what is written once --------------------------------------------------------------------------

    async def read(self, key: str, form: Form[T]) -> T | None:
        text = await self.ports.get(key)
        return None if text is None else form.read(text)

    async def header(self, ref: Ref) -> Header | None:
        return await self.read(self.names.item(ref), HEADER)

    async def headers(self, refs: Iterable[Ref]) -> list[Header]:
        found = [await self.header(ref) for ref in refs]
        return [header for header in found if header is not None]

    async def find(self, id: str, tenant: str | None) -> Header | None:
        """By id alone: that of the tenant which used it first."""
        if tenant is None:
            tenant = await self.ports.get(self.names.first(id)) or DEFAULT_TENANT
        return await self.header((tenant, id))

    async def ending(self, ref: Ref, token: int) -> Ending | None:
        return await self.read(self.names.end(ref, token), ENDING)

    async def value(self, group: Ref, ledger: Ledger) -> bytes | None:
        if not ledger.value:
            return None
        stored = await self.read(self.names.value(group, ledger.value), VALUE)
        return None if stored is None else stored.value

    async def history(self, ref: Ref, tokens: Sequence[int]) -> tuple[Attempt, ...]:
        history: list[Attempt] = []
        for token in tokens:
            attempt = await self.read(self.names.failed(ref, token), ATTEMPT)
            if attempt is not None:
                history.append(attempt)
        return tuple(history)

    # -- notes -----------------------------------------------------------------------------------------

    async def notify(self, ref: Ref, due: float, now: float) -> None:
        """Have somebody look at an item, when it is due."""
        await self.ports.push(Note(*ref).body(), due - now)
        self.pushed += 1
        if due > now and len(self._horizon) < REMEMBERED:
            heapq.heappush(self._horizon, due)

    def next_due(self, now: float) -> float | None:
        """Seconds until the next note is due, of those that were pushed from here."""
        while self._horizon and self._horizon[0] <= now:
            heapq.heappop(self._horizon)
        return self._horizon[0] - now if self._horizon else None
