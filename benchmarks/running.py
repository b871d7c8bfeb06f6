"""Running it well: who starts when, limits across processes, slots that do not idle.

`python -m benchmarks.running worker URL SECONDS` is one of the processes of the limit's fleet.
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
from treadle.clock import SystemClock
from treadle.connect import connect
from treadle.doers import balanced, rate_limited

ENOUGH = 1_000
"""Who has not started after so many others is late; by how much does not matter."""
LIMIT = 50
SLOTS = 4

# ------------------------------------------------------------------------------------------ who starts when


class Starts:
    """The order in which works start, until the one that is waited for has."""

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
        """As which of all the late one started, from 1; None: not among the first."""
        return self.order.index("late") + 1 if "late" in self.order else None


starts = Starts()


@work(name="job")
async def job(name: str) -> None:
    await starts.note(name)


@work(name="other")
async def other() -> None: ...


class Positions:
    """`count` items of one kind, then one that should not have to wait for them."""

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
            ("one of tenant B, after a worker without the type", lambda: self._late("tenant", foreign=True)),
            ("priority 100, after a worker without the type", lambda: self._late("priority", foreign=True)),
        ]

    async def _late(self, how: str, *, workers: int = 1, foreign: bool = False) -> int | None:
        starts.reset()
        async with self._clients(workers + 1) as clients:
            await self._crowd(clients[0])
            if foreign:
                await self._pass_by(clients[0])
            await self._one_more(clients[0], how)
            async with AsyncExitStack() as stack:
                for client in clients[1:]:
                    client.register(job)
                    await stack.enter_async_context(Worker(client, types=[job], doer=balanced(10)))
                await starts.late.wait()
        return starts.position()

    @asynccontextmanager
    async def _clients(self, count: int) -> AsyncGenerator[list[Client]]:
        """Clients of one store, as many processes would have."""
        async with self._stores.fresh(self._kind) as url:
            shared = connect(url, clock=SystemClock())
            backends: list[Backend | str] = [shared if self._kind == "memory" else url] * count
            clients = [Client(backend) for backend in backends]
            yield clients
            for client in clients:
                await client.close()

    async def _crowd(self, client: Client) -> None:
        client.register(job, other)
        crowd = client.tenant("A")
        for begin in range(0, self._count, 1000):
            await crowd.enqueue_many([job(f"{n}") for n in range(begin, begin + 1000)], lane="a")

    async def _pass_by(self, client: Client) -> None:
        """A worker that has another type looks for work, and finds none."""
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
        await client.tenant(tenant).enqueue(job("late"), lane=lane, priority=priority)


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
    """How many start in any second, and of how many that could."""
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
    """The most of these instants in any half-open window of that length."""
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


# -------------------------------------------------------------------------------------------- slots that idle


busy: list[tuple[float, float]] = []


@work(name="short")
async def short() -> None:
    begin = time.perf_counter()
    await asyncio.sleep(0.001)
    busy.append((begin, time.perf_counter()))


async def slots(stores: Stores, kind: str, count: int) -> dict[str, float]:
    """The share of slot-seconds in which a 1 ms job ran, while there was always another one to run."""
    busy.clear()
    async with stores.fresh(kind) as url:
        app = Treadle(url, work=[short], doer=balanced(SLOTS))
        await app.enqueue_many([short() for _ in range(count)])
        async with app:
            await app.worker.drain()
    ran = sorted(busy)[: -2 * SLOTS]  # at the end there is no other one to run
    elapsed = max(end for _, end in ran) - ran[0][0]
    share = sum(end - begin for begin, end in ran) / (SLOTS * elapsed)
    return {"share": share, "jobs/s": len(ran) / elapsed}


if __name__ == "__main__":
    asyncio.run(worker(sys.argv[2], float(sys.argv[3])))
