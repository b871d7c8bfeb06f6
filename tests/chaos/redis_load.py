"""A load of submitters and workers on a Redis store. It remembers every answer, and can look for it later."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from treadle.backends.redis import RedisBackend
from treadle.errors import StoreUnavailable
from treadle.item import (
    Demand,
    ErrorInfo,
    Heartbeat,
    Item,
    ItemState,
    Lease,
    Rejected,
    Settlement,
    Submission,
    Submitted,
)

T = TypeVar("T")

PREFIX = "treadle"
LEASE = 3600.0
"""Seconds. No worker is removed during a run."""
AT_ONCE = 500
"""How many items are looked for in one call."""
BACKLOG = 2000
"""Open items at which no more are submitted."""


@dataclass
class Acknowledged:
    """What the store has answered, and has to have from then on."""

    stored: set[str] = field(default_factory=set[str])
    ended: dict[str, tuple[str, bytes | None]] = field(default_factory=dict[str, tuple[str, bytes | None]])
    """By the id of an item: its status and result."""


@dataclass
class Tally:
    """Figures of a load."""

    submits: int = 0
    settlements: int = 0
    failures: int = 0
    """Calls without an answer."""
    lost_submits: int = 0
    lost_settlements: int = 0
    twice: int = 0
    """Items that were ended twice, though the first end was not lost."""
    stale: int = 0
    """Settlements that were refused, though the claim was acknowledged."""


class RedisLoad:
    """Use it within `running`. While it is held, no call is under way.

    url: the store, for the connections of the load.
    """

    def __init__(self, url: str, *, seed: int, submitters: int = 6, workers: int = 6) -> None:
        self.url = url
        self.tally = Tally()
        self.acknowledged = Acknowledged()
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._submitters = submitters
        self.workers = [LoadWorker(self, f"w{number}") for number in range(workers)]
        self._open = asyncio.Event()
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._backends: list[RedisBackend] = []

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for _ in range(self._submitters + len(self.workers)):
                backend = RedisBackend(self.url, prefix=PREFIX)
                await backend.open()
                stack.push_async_callback(backend.close)
                self._backends.append(backend)
            for worker, backend in zip(self.workers, self._backends, strict=False):
                await backend.beat(Heartbeat(worker=worker.name, lease=LEASE))
            tasks = [
                *(asyncio.create_task(each.work(self._backends[n])) for n, each in enumerate(self.workers)),
                *(asyncio.create_task(self._submit(each)) for each in self._backends[len(self.workers) :]),
            ]
            self.resume()
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                for end in ends:
                    if not isinstance(end, asyncio.CancelledError):
                        raise RuntimeError("the load has ended on its own") from (
                            end if isinstance(end, BaseException) else None
                        )

    async def hold(self) -> None:
        """Begin no call any more, and wait until those under way have ended."""
        self._open.clear()
        async with asyncio.timeout(60):
            await self._quiet.wait()

    def resume(self) -> None:
        self._open.set()

    async def answer(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """The answer of a call. None: the store was unavailable."""
        await self._open.wait()
        self._under_way += 1
        self._quiet.clear()
        try:
            return await call()
        except StoreUnavailable:
            self.tally.failures += 1
            return None
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    # -- submitters --------------------------------------------------------------------------------------

    async def _submit(self, backend: RedisBackend) -> None:
        while True:
            items = [self.item() for _ in range(self._random.randint(1, 20))]
            submissions = [Submission((item,)) for item in items]
            repeated = False
            while (answers := await self.answer(lambda s=submissions: backend.submit(s))) is None:
                repeated = True
                await asyncio.sleep(0.02)
            for answer in answers:
                self._stored(answer, repeated)
            open_ones = len(self.acknowledged.stored) - len(self.acknowledged.ended)
            await asyncio.sleep(0.001 if open_ones < BACKLOG else 0.1)

    def _stored(self, answer: tuple[Submitted, ...] | Rejected, repeated: bool) -> None:
        """Note what the store has acknowledged. A repeated call may find what the first has stored."""
        if isinstance(answer, Rejected):
            assert repeated, answer
            assert answer.why == "duplicate_id", answer
            ids = answer.ids
        else:
            ids = tuple(submitted.id for submitted in answer)
        self.acknowledged.stored.update(ids)
        self.tally.submits += len(ids)

    def new_id(self) -> str:
        return f"n{next(self._numbers)}"

    def item(self) -> Item:
        roll, number = self._random.random(), next(self._numbers)
        item = Item(f"i{number}", self._random.choice("ab"), b"input", attempts=None, keep_dead=86400.0)
        if roll < 0.6:
            return item
        if roll < 0.8:  # few keys: many answers are about what another connection has stored
            key = f"k{self._random.randrange(40)}"
            return Item(item.id, "k", b"", key=key, lane=self._random.choice("xyz"))
        if roll < 0.9:
            return Item(item.id, "c", b"", delay=0.05, priority=number % 3)
        before = f"i{max(1, number - self._random.randint(1, 50))}"
        return Item(item.id, "d", b"", after=(before,) if before != item.id else (), counting="done")

    def child(self) -> Item:
        return Item(f"c{next(self._numbers)}", "child", b"")

    # -- workers -----------------------------------------------------------------------------------------

    def shuffle(self, leases: list[Lease]) -> None:
        self._random.shuffle(leases)

    def settlement(self, lease: Lease) -> Settlement:
        """The result of a success names its lease: that of another lease is not the same end."""
        if lease.verdict is not None:
            return Settlement(lease=lease, kind="dead", reason=lease.verdict)
        roll = self._random.random()
        if roll < 0.1:
            failure = ErrorInfo("ValueError", "no")
            return Settlement(lease=lease, kind="retry", failure=failure, delay=0.02, ran=0.0)
        if roll < 0.15:
            failure = ErrorInfo("ValueError", "no more")
            return Settlement(
                lease=lease, kind="dead", reason="exhausted", failure=failure, mark="m", ran=0.0
            )
        children = (self.child(), self.child()) if roll < 0.2 else ()
        return Settlement(lease=lease, kind="success", result=b"%d" % lease.token, children=children, ran=0.0)

    def applied(self, settlement: Settlement, again: bool) -> None:
        """Note a settlement that the store has acknowledged. `again`: it says that it was applied before,
        though it was sent once."""
        self.tally.settlements += 1
        self.acknowledged.stored.update(child.id for child in settlement.children)
        if settlement.kind in ("success", "dead"):
            self.tally.twice += again or settlement.lease.id in self.acknowledged.ended
            self.acknowledged.ended[settlement.lease.id] = (settlement.kind, settlement.result)

    # -- afterwards --------------------------------------------------------------------------------------

    async def look_for_lost(self, backend: RedisBackend) -> None:
        """Count what was acknowledged and is not there. It is not looked for again."""
        wanted = self.acknowledged.stored | self.acknowledged.ended.keys()
        found = {state.id: state for state in await everything(backend, wanted)}
        missing = self.acknowledged.stored - found.keys()
        self.tally.lost_submits += len(missing)
        self.acknowledged.stored -= missing
        for id, (status, result) in list(self.acknowledged.ended.items()):
            state = found.get(id)
            if state is not None and (state.status, state.result) == (status, result):
                continue
            self.tally.lost_settlements += 1
            del self.acknowledged.ended[id]


async def everything(backend: RedisBackend, ids: Iterable[str]) -> list[ItemState]:
    """Those of these items that exist."""
    wanted = sorted(ids)
    states: list[ItemState] = []
    for first in range(0, len(wanted), AT_ONCE):
        found = await backend.get(wanted[first : first + AT_ONCE])
        states += [state for state in found if state is not None]
    return states


class LoadWorker:
    """Claims and settles. It keeps some leases for a while, so that it holds some whenever a server dies."""

    def __init__(self, load: RedisLoad, name: str) -> None:
        self._load = load
        self.name = name
        self.held: list[Lease] = []

    async def work(self, backend: RedisBackend) -> None:
        load = self._load
        while True:
            demand = Demand(worker=self.name, limit=30)
            claim = await load.answer(lambda d=demand: backend.claim(d))
            if claim is None or not claim.alive:
                await self._recover(backend)
                continue
            self.held += claim.leases
            load.shuffle(self.held)
            while len(self.held) > 20:
                await self._settle(backend, [self.held.pop() for _ in range(min(15, len(self.held)))])
            if not claim.leases:
                few = [self.held.pop() for _ in range(min(5, len(self.held)))]
                await self._settle(backend, few)
                await asyncio.sleep(0.01)

    async def _recover(self, backend: RedisBackend) -> None:
        """Take the leases whose answer was lost, as the engine does. The worker may be gone after a
        failover."""
        await asyncio.sleep(0.02)
        load = self._load
        beat = Heartbeat(worker=self.name, lease=LEASE)
        if await load.answer(lambda: backend.beat(beat)) is None:
            return
        known = [lease.token for lease in self.held]
        more = await load.answer(lambda: backend.unknown_leases(self.name, known))
        self.held += more or ()

    async def _settle(self, backend: RedisBackend, leases: list[Lease]) -> None:
        load = self._load
        settlements = [load.settlement(lease) for lease in leases]
        repeated = False
        while (settled := await load.answer(lambda: backend.settle(settlements))) is None:
            repeated = True
            await asyncio.sleep(0.02)
        for settlement, outcome in zip(settlements, settled.outcomes, strict=True):
            if outcome.verb == "applied":
                load.applied(settlement, outcome.again and not repeated)
            else:
                load.tally.stale += 1
