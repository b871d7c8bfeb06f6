"""PostgreSQL: many connections at the same groups, gates and keys at once."""

import asyncio
import itertools
import random
import time
from collections import Counter

from tests.backends.postgres_store import WRONG, connected, opened
from treadle.backends.postgres import PostgresBackend
from treadle.errors import AlreadyEnded, NotFound, ReferencedError
from treadle.item import Beat, Contribution, Demand, Failure, Item, Lease, Settlement, Submission
from treadle.testing.contract.check import consistent

SECONDS = 4.0
CONNECTIONS = 8


class Hand:
    """One worker on one connection, doing this and that."""

    def __init__(self, backend: PostgresBackend, name: str, seed: int, tally: Counter[str]) -> None:
        self._backend = backend
        self._name = name
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._tally = tally
        self._incarnation = 0

    @property
    def _worker(self) -> str:
        return f"{self._name}.{self._incarnation}"

    async def work(self, until: float) -> None:
        while time.monotonic() < until:
            await self._backend.beat(Beat(worker=self._worker, lease=60))
            verb = self._random.choices(
                [
                    self._submit,
                    self._run,
                    self._cancel,
                    self._requeue,
                    self._complete,
                    self._delete,
                    self._die,
                ],
                [6, 12, 2, 2, 1, 1, 1],
            )[0]
            await verb()
            self._tally[verb.__name__] += 1

    def _some_id(self) -> str:
        """Few enough that everybody meets at the same ones."""
        return f"n{self._random.randrange(60)}"

    def _item(self, id: str | None = None) -> Item:
        choose = self._random
        after = tuple({self._some_id() for _ in range(choose.choice([0, 0, 0, 1, 2, 3]))} - {id})
        return Item(
            id=id or f"{self._name}-{self._incarnation}-{next(self._numbers)}",
            type="work",
            input=b"",
            attempts=None,
            after=after,
            need=choose.randint(min(1, len(after)), len(after)),
            counting=choose.choice(["success", "done"]),
            key=f"k{choose.randrange(10)}" if choose.random() < 0.1 else None,
            lane=choose.choice(["", "a", "b"]),
        )

    async def _submit(self) -> None:
        items = [self._item(self._some_id()), *(self._item() for _ in range(self._random.randrange(4)))]
        await self._backend.submit([Submission((item,)) for item in items])

    async def _run(self) -> None:
        claimed = await self._backend.claim(Demand(worker=self._worker, limit=8))
        settled = await self._backend.settle([self._settlement(lease) for lease in claimed.leases])
        self._tally.update(outcome.verb for outcome in settled.outcomes)
        moved = [
            Settlement(lease=lease, kind="success", result=b"r")
            for lease, outcome in zip(claimed.leases, settled.outcomes, strict=True)
            if outcome.verb in ("moved", "rejected")
        ]
        await self._backend.settle(moved)

    def _settlement(self, lease: Lease) -> Settlement:
        kind = self._random.choices(["success", "dead", "retry", "cancelled", "release"], [10, 2, 2, 1, 1])[0]
        if lease.verdict is not None:
            kind = "dead"
        children = (
            [self._item() for _ in range(self._random.choice([0, 0, 1, 3]))] if kind == "success" else []
        )
        if kind == "success" and self._random.random() < 0.2:
            children.append(self._item(self._some_id()))
        version = self._random.choice([None, None, 0, 1, 2])
        return Settlement(
            lease=lease,
            kind=kind,  # type: ignore[arg-type]
            result=b"r",
            reason="aborted" if kind == "dead" else None,
            failure=Failure("Oops", "no") if kind in ("dead", "retry") else None,
            contribution=Contribution(b"v", version=version) if kind == "success" else None,
            children=tuple(children),
        )

    async def _cancel(self) -> None:
        await self._backend.cancel([self._some_id(), self._some_id()])

    async def _requeue(self) -> None:
        await self._backend.requeue([self._some_id() for _ in range(4)])

    async def _complete(self) -> None:
        try:
            await self._backend.complete(self._some_id(), b"by hand")
        except (AlreadyEnded, NotFound):
            self._tally["nothing to complete"] += 1

    async def _delete(self) -> None:
        try:
            await self._backend.delete(
                [self._some_id() for _ in range(3)], cascade=self._random.random() < 0.3
            )
        except ReferencedError:
            self._tally["referenced"] += 1

    async def _die(self) -> None:
        await self._backend.claim(Demand(worker=self._worker, limit=4))
        await self._backend.bury(self._worker)
        self._incarnation += 1


async def test_many_hammer_the_same_items(postgres_url: str) -> None:
    """Claims, settlements with children and folds, cancels, requeues, deletes and deaths at the same few
    groups and gates: the server never has to break a deadlock, and every counter is right in the end."""
    tally: Counter[str] = Counter()
    async with opened(postgres_url) as first, connected(postgres_url) as admin:
        backends = [PostgresBackend(postgres_url, pool_size=3, reserved=1) for _ in range(CONNECTIONS - 1)]
        await asyncio.gather(*(backend.open() for backend in backends))
        until = time.monotonic() + SECONDS
        hands = [Hand(backend, f"h{n}", n, tally) for n, backend in enumerate([first, *backends])]
        await asyncio.gather(*(hand.work(until) for hand in hands))
        await asyncio.gather(*(backend.close() for backend in backends))
        await drain(first)
        for wrong, query in WRONG.items():
            assert await admin.fetch(query) == [], (wrong, tally)
        assert await admin.fetchval(DEADLOCKS) == 0, tally
        await consistent(first)
    assert min(tally[verb] for verb in ("_submit", "_run", "_cancel", "_die", "applied")) > 0, tally


DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


async def drain(backend: PostgresBackend) -> None:
    """Run what is left, so that stranded items would be seen."""
    await backend.beat(Beat(worker="last", lease=60))
    while leases := (await backend.claim(Demand(worker="last", limit=200))).leases:
        await backend.settle(
            [
                Settlement(
                    lease=lease,
                    kind="dead" if lease.verdict else "success",
                    reason=lease.verdict,
                )
                for lease in leases
            ]
        )
