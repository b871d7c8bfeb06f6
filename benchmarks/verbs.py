"""The verbs of storage without the engine: the best that the engine could reach on each backend, and the
floor."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import asyncpg

from benchmarks import floors
from benchmarks.measure import Case, Figure, Stopwatch, percentile, rounds
from benchmarks.shared_floors import SHARED
from benchmarks.stores import Stores, backend
from treadle.backend import Backend
from treadle.base.ids import generate_id
from treadle.item import Contribution, Demand, Heartbeat, Item, Lease, Settlement, Submission

BATCH = 500
WORKER = "bench"


def items(count: int, **fields: Any) -> list[Item]:
    return [Item(id=generate_id(), type="noop", input=floors.INPUT, **fields) for _ in range(count)]


async def submit(store: Backend, new: Sequence[Item], batch: int = 1000) -> None:
    for start in range(0, len(new), batch):
        await store.submit([Submission((item,)) for item in new[start : start + batch]])


async def alive(store: Backend, worker: str = WORKER) -> None:
    await store.beat(Heartbeat(worker=worker, lease=600, types=("noop",)))


def demand(limit: int, worker: str = WORKER, fairness: object = None) -> Demand:
    return Demand(worker=worker, limit=limit, types={"noop": limit}, fairness=fairness)


def success(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="success", result=floors.RESULT, contribution=Contribution())


async def drain(store: Backend, batch: int = BATCH) -> int:
    """Claim and settle, overlapped, until no item is left."""
    settling: asyncio.Task[Any] | None = None
    total, fairness = 0, None
    while True:
        claim = await store.claim(demand(batch, fairness=fairness))
        fairness = claim.fairness
        if settling is not None:
            await settling
        elif not claim.leases:
            return total
        settling = None
        if not claim.leases:
            continue  # the last settle may have released items
        total += len(claim.leases)
        settling = asyncio.create_task(_settle(store, [success(lease) for lease in claim.leases]))


async def _settle(store: Backend, settlements: list[Settlement]) -> None:
    await store.settle(settlements)


class Verbs:
    """The cases for one kind of store."""

    def __init__(self, stores: Stores, kind: str, count: int) -> None:
        self._stores = stores
        self._kind = kind
        self._count = count

    def cases(self) -> list[tuple[str, str, Case]]:
        cases: list[tuple[str, str, Case]] = [
            ("submit, bulk", "/s", self.submit_bulk),
            ("submit, one by one", "/s", self.submit_singly),
            ("claim + settle", "/s", self.claim_and_settle),
            ("fan-in of 1,000, seconds", "s", self.fan_in),
        ]
        if self._kind in SHARED:
            cases += [("floor: submit, bulk", "/s", self.floor_submit)]
            cases += [("floor: submit, one by one", "/s", self.floor_singly)]
            cases += [("floor: claim + settle", "/s", self.floor_drain)]
        if self._kind == "sqlite":
            cases += [("floor: submit, bulk", "/s", self.sqlite_floor_submit)]
            cases += [("floor: claim + settle", "/s", self.sqlite_floor_drain)]
        return cases

    async def submit_bulk(self) -> float:
        async with self._stores.fresh(self._kind) as url:
            store = backend(url)
            await store.open()
            new = items(self._count)
            with Stopwatch() as watch:
                await submit(store, new)
            await store.close()
            return self._count / watch.seconds

    async def submit_singly(self) -> float:
        count = max(200, self._count // 20)
        async with self._stores.fresh(self._kind) as url:
            store = backend(url)
            await store.open()
            new = items(count)
            with Stopwatch() as watch:
                await submit(store, new, batch=1)
            await store.close()
            return count / watch.seconds

    async def claim_and_settle(self) -> float:
        async with self._stores.fresh(self._kind) as url:
            store = backend(url)
            await store.open()
            await submit(store, items(self._count))
            await alive(store)
            with Stopwatch() as watch:
                assert await drain(store) == self._count
            await store.close()
            return self._count / watch.seconds

    async def fan_in(self) -> float:
        """A root queues 1,000 children and one item that waits for all of them. Ends when that item is
        released."""
        async with self._stores.fresh(self._kind) as url:
            store = backend(url)
            await store.open()
            await alive(store)
            await submit(store, items(1))
            with Stopwatch() as watch:
                (root,) = (await store.claim(demand(1))).leases
                children = items(1000)
                last = items(1, after=tuple(child.id for child in children), need=1000)
                await store.settle([Settlement(lease=root, kind="success", children=(*children, *last))])
                assert await drain(store) == 1001
            await store.close()
            return watch.seconds

    async def floor_submit(self) -> float:
        async with self._prepared() as url:
            return await SHARED[self._kind].submit(url, self._count)

    async def floor_singly(self) -> float:
        async with self._prepared() as url:
            return await SHARED[self._kind].submit_singly(url, max(200, self._count // 20))

    async def floor_drain(self) -> float:
        async with self._prepared() as url:
            await SHARED[self._kind].submit(url, self._count)
            return await SHARED[self._kind].drain(url, self._count)

    async def sqlite_floor_submit(self) -> float:
        async with self._prepared() as url:
            return floors.sqlite_submit(url, self._count)

    async def sqlite_floor_drain(self) -> float:
        async with self._prepared() as url:
            floors.sqlite_submit(url, self._count)
            return floors.sqlite_drain(url, self._count)

    def _prepared(self) -> Any:
        return _Prepared(self._stores, self._kind)


class _Prepared:
    """A new store with treadle's tables and no open connection."""

    def __init__(self, stores: Stores, kind: str) -> None:
        self._fresh = stores.fresh(kind)

    async def __aenter__(self) -> str:
        url = await self._fresh.__aenter__()
        store = backend(url)
        await store.open()
        await store.close()
        return url

    async def __aexit__(self, *error: Any) -> None:
        await self._fresh.__aexit__(*error)


async def verbs(stores: Stores, kinds: Sequence[str], count: int, times: int) -> dict[str, list[Figure]]:
    return {
        kind: await rounds(Verbs(stores, kind, count).cases(), times, f"verbs on {kind}") for kind in kinds
    }


# -- backlog ---------------------------------------------------------------------------------------------


async def backlog(
    stores: Stores, kind: str, sizes: Sequence[int], **shape: Any
) -> dict[int, tuple[float, float]]:
    """Claim time of 100 items in ms, p50 and p95, by the number of ready items."""
    figures: dict[int, tuple[float, float]] = {}
    async with stores.fresh(kind) as url:
        store = backend(url)
        await store.open()
        await alive(store)
        waiting = 0
        for size in sizes:
            await _fill(store, size - waiting, **shape)
            waiting = size
            figures[size] = await _claim_times(store)
        await store.close()
    return figures


async def _fill(store: Backend, count: int, lanes: int = 1, parked: bool = False) -> None:
    for start in range(0, count, 20_000):
        new = [
            Item(
                id=generate_id(),
                type="other" if parked else "noop",
                input=b"{}",
                lane=f"lane{(start + i) % lanes}" if lanes > 1 else "",
            )
            for i in range(min(20_000, count - start))
        ]
        await submit(store, new, batch=5000)


async def _claim_times(store: Backend, times: int = 60) -> tuple[float, float]:
    taken: list[float] = []
    fairness: object = None
    for _ in range(times):
        with Stopwatch() as watch:
            claim = await store.claim(demand(100, fairness=fairness))
        fairness = claim.fairness
        taken.append(watch.seconds * 1000)
        await store.settle([Settlement(lease=lease, kind="release") for lease in claim.leases])
    return statistics.median(taken), percentile(taken, 0.95)


async def parked(stores: Stores, kind: str, count: int) -> tuple[float, float]:
    """The same with this many items of an unknown type in front, after they were parked."""
    async with stores.fresh(kind) as url:
        store = backend(url)
        await store.open()
        await alive(store)
        await _fill(store, count, parked=True)
        await _fill(store, 1000)
        found = 0
        while not found:  # each claim parks a portion of them
            claim = await store.claim(demand(500))
            found = len(claim.leases)
            await store.settle([Settlement(lease=lease, kind="release") for lease in claim.leases])
        if kind == "postgres":
            await tidied(url)
        figures = await _claim_times(store)
        await store.close()
    return figures


async def tidied(url: str) -> None:
    """Do what autovacuum does within a minute. A million rows have just left the index of ready items."""
    connection = await asyncpg.connect(url)
    await connection.execute("vacuum treadle.open_item")
    await connection.close()


# -- one group, many processes ---------------------------------------------------------------------------


async def one_group(stores: Stores, kind: str, members: int = 5000, processes: int = 4) -> tuple[float, int]:
    """Members per second of one group that several processes settle with exact appends, and its value."""
    async with stores.fresh(kind) as url:
        store = backend(url)
        await store.open()
        await alive(store)
        await submit(store, items(1))
        (root,) = (await store.claim(demand(1))).leases
        await store.settle([Settlement(lease=root, kind="success", children=tuple(items(members)))])
        context = multiprocessing.get_context("spawn")
        with Stopwatch() as watch:
            running = [context.Process(target=_fold_here, args=(url, n)) for n in range(processes)]
            for process in running:
                process.start()
            await asyncio.to_thread(lambda: [process.join() for process in running])
        (group,) = await store.group([root.id])
        assert group is not None
        value = int(bytes(group.value)) if isinstance(group.value, bytes) else 0
        assert group.open == 0
        await store.close()
    return members / watch.seconds, value


def _fold_here(url: str, number: int) -> None:
    asyncio.run(_fold(url, f"bench{number}"))


async def _fold(url: str, worker: str) -> None:
    store = backend(url)
    await store.open()
    await alive(store, worker)
    version, value = 0, 0
    while True:
        leases = list((await store.claim(demand(100, worker))).leases)
        if not leases:
            break
        while leases:
            settlements = [
                Settlement(
                    lease=lease,
                    kind="success",
                    result=b"1",
                    contribution=Contribution(b"%d" % (value + i + 1), False, version + i),
                )
                for i, lease in enumerate(leases)
            ]
            outcomes = (await store.settle(settlements)).outcomes
            applied = sum(outcome.verb == "applied" for outcome in outcomes)
            moved = next((outcome for outcome in outcomes if outcome.verb == "moved"), None)
            if moved is None:
                version, value = version + applied, value + applied
            else:
                version, value = moved.version, int(moved.value or b"0")
            leases = [lease for lease, o in zip(leases, outcomes, strict=True) if o.verb == "moved"]
    await store.close()


if __name__ == "__main__":
    sys.exit("run `make bench`")
