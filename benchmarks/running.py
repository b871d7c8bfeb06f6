"""The quality of running: the order of starts, limits across processes, and busy doers.

`python -m benchmarks.running worker URL SECONDS` runs one process of the fleet that shares a limit.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.stores import Stores
from treadle import Client, Treadle, Worker, work
from treadle.backend import Backend
from treadle.base.timing import SystemClock
from treadle.connect import connect
from treadle.doers import balanced, rate_limited

ENOUGH = 1_000
"""An item that has not started after this many others is late. How late does not matter."""
LIMIT = 50
AT_ONCE = 4

# --------------------------------------------------------------------------------------- the order of starts


class Starts:
    """The order in which items start, until the late item has started."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.order: list[str] = []
        self.late = asyncio.Event()

    async def note(self, name: str) -> None:
        self.order.append(name)
        if name == "late" or len(self.order) > ENOUGH:
            self.late.set()
        await asyncio.sleep(0.002)

    def position(self) -> int | None:
        """The position of the late item among all starts, from 1. None if it is not among the first."""
        return self.order.index("late") + 1 if "late" in self.order else None


starts = Starts()


@work(name="recorded")
async def recorded(name: str) -> None:
    await starts.note(name)


@work(name="other")
async def other() -> None: ...


class Positions:
    """`count` items of one kind, then one item that should not wait for them."""

    def __init__(self, stores: Stores, kind: str, count: int) -> None:
        self._stores = stores
        self._kind = kind
        self._count = count

    def cases(self) -> list[tuple[str, Callable[[], Awaitable[int | None]]]]:
        return [
            ("one of tenant B", lambda: self._late("tenant")),
            ("one of tenant B, two workers", lambda: self._late("tenant", workers=2)),
            ("one of lane b", lambda: self._late("lane")),
            ("one of lane b, two workers", lambda: self._late("lane", workers=2)),
            ("priority 100", lambda: self._late("priority")),
            ("priority 100, two workers", lambda: self._late("priority", workers=2)),
            ("one of tenant B, after a worker without the type", lambda: self._late("tenant", parked=True)),
            ("priority 100, after a worker without the type", lambda: self._late("priority", parked=True)),
        ]

    async def _late(self, how: str, *, workers: int = 1, parked: bool = False) -> int | None:
        starts.reset()
        async with self._clients(workers + 1) as clients:
            await self._crowd(clients[0])
            if parked:
                await self._pass_by(clients[0])
            await self._one_more(clients[0], how)
            async with AsyncExitStack() as stack:
                for client in clients[1:]:
                    client.register(recorded)
                    await stack.enter_async_context(Worker(client, types=[recorded], doer=balanced(10)))
                await starts.late.wait()
        return starts.position()

    @asynccontextmanager
    async def _clients(self, count: int) -> AsyncGenerator[list[Client]]:
        """Clients of one store, as in several processes."""
        async with self._stores.fresh(self._kind) as url:
            shared = connect(url, clock=SystemClock())
            backends: list[Backend | str] = [shared if self._kind == "memory" else url] * count
            clients = [Client(backend) for backend in backends]
            yield clients
            for client in clients:
                await client.close()

    async def _crowd(self, client: Client) -> None:
        client.register(recorded, other)
        crowd = client.tenant("A")
        for begin in range(0, self._count, 1000):
            await crowd.enqueue_many([recorded(f"{n}") for n in range(begin, begin + 1000)], lane="a")

    async def _pass_by(self, client: Client) -> None:
        """A worker with another type looks for items and finds none."""
        async with Worker(client, types=[other]) as worker:
            assert worker._runtime is not None
            for _ in range(30):
                await worker._runtime.claimer.until_empty()

    async def _one_more(self, client: Client, how: str) -> None:
        tenant, lane, priority = "A", "a", 0
        match how:
            case "tenant":
                tenant = "B"
            case "lane":
                lane = "b"
            case _:
                priority = 100
        await client.tenant(tenant).enqueue(recorded("late"), lane=lane, priority=priority)


async def positions(stores: Stores, kinds: Sequence[str], count: int) -> dict[str, dict[str, int | None]]:
    return {
        kind: {name: await case() for name, case in Positions(stores, kind, count).cases()} for kind in kinds
    }


# ------------------------------------------------------------------------------ a limit for several processes


@work(name="limited", doer=rate_limited(LIMIT, window=1, name="limited"))
async def limited() -> None:
    started.append(time.time())


started: list[float] = []


async def limit(stores: Stores, kind: str, processes: int = 3, seconds: float = 10.0) -> dict[str, Any]:
    """The maximum of starts in any second, and the share of the limit that was used."""
    async with stores.fresh(kind) as url:
        async with Client(url, work=[limited]) as client:
            for _ in range(2):
                await client.enqueue_many([limited() for _ in range(int(LIMIT * seconds))])
        fleet = [await _process(url, seconds) for _ in range(processes)]
        answers = await asyncio.gather(*(each.communicate() for each in fleet))
    times = sorted(at for out, _ in answers for at in json.loads(out))
    begin = times[0]
    within = [at for at in times if at < begin + seconds]
    return {
        "starts": len(within),
        "most in a second": most_within(within, 1.0),
        "most in a second, later": most_within([at for at in within if at > begin + 1.5], 1.0),
        "used": len(within) / (LIMIT * seconds),
        "by process": sorted(len(json.loads(out)) for out, _ in answers),
    }


async def _process(url: str, seconds: float) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "benchmarks.running", "worker", url, str(seconds))
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


def most_within(times: Sequence[float], window: float) -> int:
    """The maximum number of these instants in any half-open window of this length."""
    most = begin = 0
    for end, at in enumerate(times):
        while times[begin] <= at - window:
            begin += 1
        most = max(most, end - begin + 1)
    return most


async def worker(url: str, seconds: float) -> None:
    async with Treadle(url, work=[limited]):
        await asyncio.sleep(seconds + 1)
    print(json.dumps(started))


# ------------------------------------------------------------------------------------------ the share of use


busy: list[tuple[float, float]] = []


@work(name="short")
async def short() -> None:
    begin = time.perf_counter()
    await asyncio.sleep(0.001)
    busy.append((begin, time.perf_counter()))


async def busy_share(stores: Stores, kind: str, count: int) -> dict[str, float]:
    """The share of the time in which the doer's places ran an item of 1 ms, while more items were always
    ready."""
    busy.clear()
    async with stores.fresh(kind) as url:
        app = Treadle(url, work=[short], doer=balanced(AT_ONCE))
        await app.enqueue_many([short() for _ in range(count)])
        async with app:
            await app.worker.drain()
    ran = sorted(busy)[: -2 * AT_ONCE]  # at the end no more items are ready
    elapsed = max(end for _, end in ran) - ran[0][0]
    share = sum(end - begin for begin, end in ran) / (AT_ONCE * elapsed)
    return {"share": share, "items/s": len(ran) / elapsed}


if __name__ == "__main__":
    asyncio.run(worker(sys.argv[2], float(sys.argv[3])))
