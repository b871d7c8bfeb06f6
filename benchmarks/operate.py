"""What operators read beside a million ended items: how long it takes, alone and while a worker drains.

`python -m benchmarks.operate drain URL` runs such a worker, until it is ended.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import statistics
import sys
import zlib
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec
from rich.progress import Progress

from benchmarks.measure import Stopwatch, percentile
from benchmarks.stores import Stores, backend
from treadle.backend import Backend
from treadle.base.ids import generate_id
from treadle.item import (
    Contribution,
    Demand,
    ErrorInfo,
    Filter,
    Heartbeat,
    Item,
    Lease,
    Settlement,
    Submission,
)
from treadle.records import AttemptLog, LogLine
from treadle.worker_info import WorkerInfo

ENDED, OPEN = 1_000_000, 200_000
DEAD = 0.05
"""The share of the ended that is dead."""
CALLS = 100
PROMISE = 50.0
"""Milliseconds, p95."""

TYPES = tuple(
    f"{name}.{n}" for name in ("mail", "bill", "sync", "thumb", "index", "report") for n in range(4)
)
STRANGE = ("mail.gone", "bill.renamed")
"""Types that no worker has."""
QUEUES = {
    "mail": "default",
    "bill": "default",
    "sync": "bulk",
    "thumb": "media",
    "index": "bulk",
    "report": "nightly",
}
"""Of each type, by the first part of its name."""
TYPE_QUEUES = tuple(QUEUES[type.partition(".")[0]] for type in TYPES)
TENANTS = tuple(f"tenant{n}" for n in range(10))
LANES = 10
WORKERS = 8
RUNNING = 25
"""Of each worker."""
BATCH = 1_000
PORTIONS = 10
ERRORS = ("shop.errors.NotFound", "builtins.TimeoutError")
"""Each type dies of both."""
LOG = msgspec.json.encode(
    AttemptLog(
        attempt=1, lines=tuple(LogLine(1.8e9 + n, "INFO", "shop.orders", f"order {n} sent") for n in range(3))
    )
)

PG_NUMBERS = "select setval('treadle.number', (select last_value from treadle.number) + $1)"
PG_ITEMS = """
insert into treadle.item (no, queued, due, keep, priority, attempts, need, id, tenant, type, queue, lane,
    input, options)
  select n, t.now - ($2 - n) * 0.05, t.now - ($2 - n) * 0.05, 864000, 0, 3, 0, md5(n::text),
    ($3::text[])[1 + n % cardinality($3)], ($4::text[])[1 + n % cardinality($4)],
    ($5::text[])[1 + n % cardinality($4)], '', '{"order":123456}', ''
  from generate_series($1::bigint, $2) n, (select treadle.clock() as now) t
"""
PG_ENDED = """
insert into treadle.ended_item (no, ended, started, due, prune_at, token, attempt, outcome, worker, result)
  select i.no, i.queued + 1, i.queued, i.due, i.queued + 864000, -i.no, 1, 6, 'bench', '123456'
  from treadle.item i where i.no between $1 and $2
"""
SQLITE_ITEMS = """
WITH RECURSIVE n(no) AS (SELECT :first UNION ALL SELECT no + 1 FROM n WHERE no < :last)
INSERT INTO treadle_item (no, id, tenant, type, queue, lane, priority, attempts, group_no, queued_at, keep,
    options, input)
SELECT no, printf('%032x', no), json_extract(:tenants, '$[' || (no % json_array_length(:tenants)) || ']'),
    json_extract(:types, '$[' || (no % json_array_length(:types)) || ']'),
    json_extract(:queues, '$[' || (no % json_array_length(:types)) || ']'), '', 0, 3, no,
    :now - (:last - no) * 0.05, 864000, x'', CAST('{"order":123456}' AS BLOB) FROM n
"""
SQLITE_ENDED = """
INSERT INTO treadle_done (no, outcome, token, attempt, failures, losses, redrives, due, started, ended,
    expires, contributed, worker, result)
SELECT no, 10, -no, 1, 0, 0, 0, queued_at, queued_at, queued_at + 1, queued_at + 864000, 0, 'bench',
    CAST('123456' AS BLOB)
FROM treadle_item WHERE no BETWEEN :first AND :last
"""


# -- filling a store ---------------------------------------------------------------------------------------


class Filling:
    """Fills a store. What has succeeded is written by SQL where the store has SQL; everything else, by the
    verbs of the backend."""

    def __init__(self, store: Backend, url: str, kind: str, ended: int, open: int) -> None:
        self.store = store
        self.url = url
        self._kind = kind
        self._ended = ended
        self._open = open
        self._random = random.Random(1)
        self._release = 0
        self.waiting: dict[str, list[str]] = {}
        """The ids of some open items, by what they wait for."""

    async def fill(self) -> None:
        with Progress(transient=True) as progress:
            task = progress.add_task(f"filling {self._kind}", total=self._ended + self._open)
            dead = round(self._ended * DEAD / PORTIONS)
            for _ in range(PORTIONS):
                await self._succeed(self._ended // PORTIONS - dead)
                progress.advance(task, self._ended // PORTIONS - dead)
                await self._die(dead)
                progress.advance(task, dead)
            await self._group(self._ended // 100)
            async for count in self._wait():
                progress.advance(task, count)
        await self._analyse()
        await self._run()

    async def _succeed(self, count: int) -> None:
        if self._kind == "sqlite":
            await asyncio.to_thread(self._succeed_in_sqlite, count, await self.store.now())
            return
        if self._kind == "redis":
            await self._end(count, _success)
            return
        connection = await asyncpg.connect(self.url)
        try:
            last = await connection.fetchval(PG_NUMBERS, count)
            await connection.execute(PG_ITEMS, last - count + 1, last, TENANTS, TYPES, TYPE_QUEUES)
            await connection.execute(PG_ENDED, last - count + 1, last)
        finally:
            await connection.close()

    def _succeed_in_sqlite(self, count: int, now: float) -> None:
        with sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60) as connection:
            (last,) = connection.execute(
                "UPDATE treadle_counter SET no = no + ? RETURNING no", (count,)
            ).fetchone()
            labels = {"tenants": TENANTS, "types": TYPES, "queues": TYPE_QUEUES}
            given = {name: msgspec.json.encode(each).decode() for name, each in labels.items()}
            numbers = {"first": last - count + 1, "last": last, "now": now}
            connection.execute(SQLITE_ITEMS, numbers | given)
            connection.execute(SQLITE_ENDED, numbers)
        connection.close()

    async def _die(self, count: int) -> None:
        """Submit items and let them die, each with one of a few dozen marks."""
        await self._end(count, self._death)

    async def _end(self, count: int, settlement: Callable[[Lease], Settlement]) -> None:
        """Submit items, and settle them so."""
        await self._under_release()
        for start in range(0, count, BATCH):
            await self._submit([self._item() for _ in range(min(BATCH, count - start))])
            await self._settle_ready(settlement)

    async def _under_release(self) -> None:
        """What is settled from now on, a worker of the next release settles."""
        self._release += 1
        await alive(self.store, f"undertaker{self._release}", release=f"2026.{self._release}")

    async def _settle_ready(self, settlement: Callable[[Lease], Settlement]) -> None:
        demand = Demand(worker=f"undertaker{self._release}", limit=BATCH, types=None)
        while leases := (await self.store.claim(demand)).leases:
            await self.store.settle([settlement(lease) for lease in leases])

    def _death(self, lease: Lease) -> Settlement:
        error = self._random.choice(ERRORS)
        failure = ErrorInfo(error, f"order {lease.id} is not known", "Traceback\n" * 20)
        mark = mark_of(lease.type, error)
        return Settlement(
            lease=lease, kind="dead", reason="exhausted", failure=failure, mark=mark, ran=0.01, log=LOG
        )

    async def _group(self, count: int) -> None:
        """Groups of four, each in a workflow of its own. In some of them an item dies."""
        await self._under_release()
        for start in range(0, count, BATCH // 4):
            some = range(min(BATCH // 4, count - start))
            await self._submit([self._item(workflow=f"order-{start + n}") for n in some])
            await self._settle_ready(self._with_members)

    def _with_members(self, lease: Lease) -> Settlement:
        if lease.parent is not None:
            return self._death(lease) if self._random.random() < DEAD else _success(lease)
        members = tuple(
            self._item(tenant=lease.tenant, workflow=lease.workflow, parent=lease.id) for _ in range(3)
        )
        return Settlement(lease=lease, kind="success", children=members, ran=0.01)

    async def _wait(self) -> AsyncGenerator[int]:
        """Open items: three of four are ready, the others wait for an instant or for another item."""
        for _ in range(0, self._open, BATCH):
            new = [self._item() for _ in range(BATCH * 75 // 100)]
            new += [self._item(delay=3600 + self._random.random() * 86400) for _ in range(BATCH * 15 // 100)]
            after = self._random.sample(new, BATCH - len(new))
            new += [self._item(after=(one.id,), need=1, tenant=one.tenant) for one in after]
            await self._submit(new)
            self.waiting.setdefault("ready", []).append(new[0].id)
            self.waiting.setdefault("scheduled", []).append(new[BATCH * 80 // 100].id)
            self.waiting.setdefault("blocked", []).append(new[-1].id)
            yield len(new)

    async def refill(self, count: int) -> None:
        """Submit this number of ready items."""
        await self._submit([self._item() for _ in range(count)])

    def _item(self, **fields: Any) -> Item:
        draw = self._random
        type = draw.choice(STRANGE) if draw.random() < 0.01 else draw.choice(TYPES)
        labels = {
            "queue": QUEUES[type.partition(".")[0]],
            "tenant": draw.choice(TENANTS),
            "lane": f"lane{draw.randrange(LANES)}",
        }
        return Item(id=generate_id(), type=type, input=b'{"order":123456}', **(labels | fields))

    async def _submit(self, new: list[Item]) -> None:
        await self.store.submit([Submission((item,)) for item in new])

    async def _analyse(self) -> None:
        """As the store does it itself, sooner."""
        if self._kind == "postgres":
            connection = await asyncpg.connect(self.url)
            await connection.execute("vacuum analyze")
            await connection.close()

    async def _run(self) -> None:
        """Some workers, each with items that it runs."""
        for n in range(WORKERS):
            await alive(self.store, f"worker{n}")
            claim = await self.store.claim(
                Demand(worker=f"worker{n}", limit=RUNNING, types=dict.fromkeys(TYPES, RUNNING))
            )
            self.waiting.setdefault("running", []).extend(lease.id for lease in claim.leases)
            self.waiting["ready"] = [id for id in self.waiting["ready"] if id not in self.waiting["running"]]


@asynccontextmanager
async def filled(stores: Stores, kind: str, ended: int, open: int) -> AsyncGenerator[Filling]:
    """A fresh store, filled and open."""
    async with stores.fresh(kind) as url:
        store = backend(url)
        await store.open()
        try:
            filling = Filling(store, url, kind, ended, open)
            await filling.fill()
            yield filling
        finally:
            await store.close()


def _success(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="success", result=b"123456", ran=0.01)


async def alive(store: Backend, worker: str, release: str = "") -> None:
    info = WorkerInfo(
        host="app-1", pid=4711, version="1.0", queues=tuple({*QUEUES.values()}), room=RUNNING, lease=3600.0
    )
    beat = Heartbeat(worker=worker, lease=3600, types=TYPES, info=msgspec.json.encode(info), release=release)
    await store.beat(beat)


# -- measuring ---------------------------------------------------------------------------------------------

Read = Callable[[], Awaitable[object]]


class OperateCases:
    """The reads on one store."""

    def __init__(self, store: Backend, waiting: dict[str, list[str]]) -> None:
        self._store = store
        self._waiting = waiting
        self._random = random.Random(2)

    async def measure(self, calls: int, title: str) -> dict[str, tuple[float, float]]:
        """p50 and p95 in milliseconds, by case. The cases take turns."""
        reads = dict(await self._reads())
        taken: dict[str, list[float]] = {name: [] for name in reads}
        with Progress(transient=True) as progress:
            task = progress.add_task(title, total=calls)
            for n in range(-3, calls):
                for name, read in reads.items():
                    with Stopwatch() as watch:
                        await read()
                    if n >= 0:
                        taken[name].append(watch.seconds * 1000)
                progress.update(task, completed=max(0, n))
        return {name: (statistics.median(each), percentile(each, 0.95)) for name, each in taken.items()}

    async def counts(self, calls: int) -> tuple[float, float]:
        """What an overview is to replace."""
        taken: list[float] = []
        for _ in range(calls):
            with Stopwatch() as watch:
                await self._store.counts()
            taken.append(watch.seconds * 1000)
        return statistics.median(taken), percentile(taken, 0.95)

    async def _reads(self) -> list[tuple[str, Read]]:
        store = self._store
        waiting = dict(self._waiting)
        for status in ("success", "dead"):
            waiting[status] = [one.id for one in (await store.list(Filter(status=(status,)))).items]
        reads: list[tuple[str, Read]] = [
            ("overview (status)", store.overview),
            ("overview of a tenant", lambda: store.overview(tenant=TENANTS[0])),
            ("list, newest", lambda: store.list(Filter(), limit=50)),
            ("list, dead", lambda: store.list(Filter(status=("dead",)), limit=50)),
            ("list, of a type", lambda: store.list(Filter(type=self._draw(TYPES)), limit=50)),
            ("list, of a queue", lambda: store.list(Filter(queue=self._draw(TYPE_QUEUES)), limit=50)),
            ("list, dead of a type", lambda: store.list(_dead_of(self._draw(TYPES)), limit=50)),
            ("list, of a mark", lambda: store.list(_with_mark(self._draw(TYPES)), limit=50, history=True)),
            ("marks (dead)", store.marks),
            ("marks of a tenant", lambda: store.marks(tenant=TENANTS[0])),
        ]
        return [*reads, *self._explains(waiting)]

    def _explains(self, waiting: dict[str, list[str]]) -> Iterator[tuple[str, Read]]:
        for status in ("ready", "scheduled", "blocked", "running", "success", "dead"):
            ids = waiting[status]

            def explain(ids: list[str] = ids) -> Awaitable[object]:
                return self._store.explain(self._draw(ids))

            yield f"explain (why), {status}", explain

    def _draw(self, names: Any) -> str:
        return self._random.choice(names)


def mark_of(type: str, error: str) -> str:
    return f"{zlib.crc32(f'{type} {error}'.encode()):016x}"


def _with_mark(type: str) -> Filter:
    return Filter(mark=mark_of(type, ERRORS[0]))


def _dead_of(type: str) -> Filter:
    return Filter(status=("dead",), type=type)


Figures = dict[str, tuple[float, float]]


async def operate(
    stores: Stores, kinds: tuple[str, ...], ended: int, open: int, calls: int = CALLS
) -> dict[str, dict[str, Figures]]:
    """By kind, then alone or beside a worker: p50 and p95 of each read in milliseconds."""
    found: dict[str, dict[str, Figures]] = {}
    for kind in kinds:
        if kind == "memory":
            continue
        async with filled(stores, kind, ended, open) as filling:
            cases = OperateCases(filling.store, filling.waiting)
            alone = await cases.measure(calls, f"{kind}, alone")
            alone["for comparison: counts()"] = await cases.counts(10)
            async with _draining(filling.url):
                found[kind] = {"alone": alone, "while a worker drains": await cases.measure(calls, kind)}
    return found


@asynccontextmanager
async def _draining(url: str) -> AsyncGenerator[None]:
    """A process that claims and settles, and submits as many items as it has ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.operate", "drain", url, stdout=PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield
        assert process.returncode is None, "the worker has died"
    finally:
        process.terminate()
        await process.wait()


async def _drain(url: str) -> None:
    store = backend(url)
    await store.open()
    await alive(store, "drainer")
    filling = Filling(store, url, "", 0, 0)
    fairness: object = None
    print("begun", flush=True)
    while True:
        claim = await store.claim(
            Demand(worker="drainer", limit=100, types=dict.fromkeys(TYPES, 100), fairness=fairness)
        )
        fairness = claim.fairness
        await store.settle(
            [
                Settlement(lease=lease, kind="success", result=b"1", contribution=Contribution())
                for lease in claim.leases
            ]
        )
        await filling.refill(len(claim.leases))


if __name__ == "__main__":
    asyncio.run(_drain(sys.argv[2]))
