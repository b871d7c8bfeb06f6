"""Measure one peer on one empty store: `python -m benchmarks.peers.session PEER SHARE`.

Each figure is printed at once as a line of JSON, so that a later failure does not lose it. SHARE scales the
sizes: 1 is full size.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import psutil

from benchmarks.fleet import server_of, used_by
from benchmarks.measure import Stopwatch, percentile
from benchmarks.peers import shared, store
from benchmarks.peers.workers import load, run, workers

SUBMITTING = 0.5
"""Seconds of submitting one by one, or as many as it runs in half a second."""
DRAINING = 0.8
"""The target duration of a drain in seconds. Two processes get one and a half times as many."""
AT_ONCE = 1000
"""This many are awaited at once and fanned in, or as many as it runs in half a second."""
LATENCIES, LATENCY = 100, 1.2
"""The number of latencies to measure, and the maximum of seconds for them."""
STUCK = 15.0
"""Seconds without progress until a case is given up."""


class Session:
    def __init__(self, peer: Any, share: float) -> None:
        self._peer = peer
        self._share = share
        self._waiting = 0
        self._client: Any = None

    async def run(self) -> None:
        shared.clear()
        # One thread, so that a connection per thread is reused.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        if hasattr(self._peer, "setup"):
            await _called(self._peer.setup)
        async with self._peer.client() if hasattr(self._peer, "client") else _nothing() as self._client:
            if shared.URL == "memory://":
                await self._within()
            else:
                await self._elsewhere()

    async def _within(self) -> None:
        await self._submitting()
        async with self._peer.inside(self._client):
            await self._case("drain, 1 process", self.drained)
            await self._case("awaited, one process", self.awaited)
            await self._case("fan-in", self.fan_in)

    async def _elsewhere(self) -> None:
        """With workers in separate processes, as they are deployed. Cases for idle workers come first."""
        async with workers(self._peer, 1):
            await self._case("latency", self.latency)
            await self._case("awaited", self.awaited)
            await self._case("fan-in", self.fan_in)
        if hasattr(self._peer, "inside"):
            async with self._peer.inside(self._client):
                await self._case("awaited, one process", self.awaited)
        await self._submitting()
        async with workers(self._peer, 1):
            await self._case("drain, 1 process", self.drained_by_one)
        await self._fill(1.5 * DRAINING)
        async with workers(self._peer, 2):
            await self._case("drain, 2 processes", lambda: self.drained(2))

    async def _submitting(self) -> None:
        await self._submit(10)  # connections are open and modules compiled
        await self._case("one by one", self.one_by_one)
        await self._case("bulk", self.bulk)

    async def _case(self, name: str, case: Callable[[], Awaitable[float | dict[str, float] | None]]) -> None:
        try:
            found = await asyncio.wait_for(case(), 3 * STUCK)
        except Exception as error:  # noqa: BLE001 - reported, and the next case runs
            _tell({"failed": f"{name}: {type(error).__name__} {error}"[:200]})
            return
        if isinstance(found, dict):
            _tell({f"{name}, {key}": value for key, value in found.items()})
        elif found is not None:
            _tell({name: found})

    # -- submitting ----------------------------------------------------------------------------------------

    async def one_by_one(self) -> float:
        with Stopwatch() as watch:
            done = await self._repeated(SUBMITTING * self._share, self._peer.PACE // 2)
        return done / watch.seconds

    async def bulk(self) -> float | None:
        rate = await self._fill(DRAINING)
        return rate if hasattr(self._peer, "many") else None

    async def _fill(self, seconds: float) -> float:
        count = max(200, int(self._peer.PACE * seconds * self._share))
        with Stopwatch() as watch:
            await self._submit(count)
        await store.tidied()
        shared.clear()
        return count / watch.seconds

    async def _submit(self, count: int) -> None:
        if not hasattr(self._peer, "many"):
            await self._repeated(STUCK, count)
            return
        self._waiting += count
        for part in shared.batches(range(count), 1000):
            await _called(self._peer.many, self._client, part)

    async def _repeated(self, seconds: float, most: int) -> int:
        """Repeat the call for this many seconds or this many times, and return how often it ran."""
        repeat = _repeat_async if _waits(self._peer.one) else _repeat
        done: int = await _called(repeat, self._peer.one, self._client, time.monotonic() + seconds, most)
        self._waiting += done
        return done

    # -- running -------------------------------------------------------------------------------------------

    async def drained(self, processes: int = 1) -> float:
        """Items per second from the first start to the last end. With two processes, from the time when
        both have started."""
        expected, self._waiting = self._waiting, 0
        await self._ran(expected)
        if hasattr(self._peer, "LEFT"):
            await store.none_left(self._peer.LEFT)
        ended = time.monotonic()
        ran = shared.ticks()
        if len(ran) != expected:
            raise RuntimeError(f"{len(ran)} runs of {expected} jobs")
        if not hasattr(self._peer, "LEFT"):
            ended = ran[-1][0]
        begun = ran[0][0] if processes == 1 else max(_firsts(ran).values())
        if processes > 1 and len(_firsts(ran)) < processes:
            raise RuntimeError("all ran in one process")
        return sum(when >= begun for when, _ in ran) / (ended - begun)

    async def drained_by_one(self) -> float:
        """Also tells the processor time per item of the worker and of the server, from the first start on."""
        await self._ran(1)
        parts = {"CPU, worker": psutil.Process()}
        if shared.URL.startswith(("postgres", "redis")):
            parts["CPU, server"] = await server_of(shared.URL)
        begun = {name: used_by(part) for name, part in parts.items()}
        count, own = self._waiting - shared.count(), time.process_time()
        rate = await self.drained()
        own = time.process_time() - own
        used = {name: used_by(part) - begun[name] for name, part in parts.items()}
        used["CPU, worker"] -= own
        _tell({name: seconds / count * 1e6 for name, seconds in used.items()})
        return rate

    async def _ran(self, count: int, pause: float = 0.005) -> None:
        seen, last = 0, time.monotonic()
        while (now := shared.count()) < count:
            if now != seen:
                seen, last = now, time.monotonic()
            if time.monotonic() - last > STUCK:
                raise TimeoutError(f"{now} of {count} ran")
            await asyncio.sleep(pause)

    async def latency(self) -> dict[str, float]:
        """Milliseconds from before the call that submits to the start of the job, one at a time."""
        one = self._peer.one
        taken: list[float] = []
        await _called(one, self._client, 0)
        await self._ran(1)  # the worker has started
        began = time.monotonic()
        while len(taken) < LATENCIES + 5 and time.monotonic() - began < LATENCY:
            await asyncio.sleep(random.uniform(0.002, 0.006))
            before = shared.count()
            sent = await _called(_sent_async if _waits(one) else _sent, one, self._client)
            await self._ran(before + 1, 0.0003)
            taken.append((shared.ticks(before)[0][0] - sent) * 1000)
        warm = taken[5:] or taken
        return {"p50": percentile(warm, 0.5), "p99": percentile(warm, 0.99)}

    async def awaited(self) -> float | None:
        return await self._at_once("awaited")

    async def fan_in(self) -> float | None:
        return await self._at_once("fan_in")

    async def _at_once(self, name: str) -> float | None:
        if not hasattr(self._peer, name):
            return None
        count = min(AT_ONCE, self._peer.PACE // 2)
        with Stopwatch() as watch:
            await _called(getattr(self._peer, name), self._client, count)
        return count / watch.seconds


# -- calls ---------------------------------------------------------------------------------------------------

_waits = inspect.iscoroutinefunction


async def _called(function: Callable[..., Any], *given: Any) -> Any:
    """In a thread if it blocks. Some peers refuse to run in an event loop."""
    return await (function(*given) if _waits(function) else asyncio.to_thread(function, *given))


def _repeat(one: Callable[..., Any], client: Any, until: float, most: int) -> int:
    done = 0
    while done < most and time.monotonic() < until:
        one(client, done)
        done += 1
    return done


async def _repeat_async(one: Callable[..., Any], client: Any, until: float, most: int) -> int:
    done = 0
    while done < most and time.monotonic() < until:
        await one(client, done)
        done += 1
    return done


def _sent(one: Callable[..., Any], client: Any) -> float:
    """The time of the call. The switch to the thread is not part of the measurement."""
    sent = time.monotonic()
    one(client, 0)
    return sent


async def _sent_async(one: Callable[..., Any], client: Any) -> float:
    sent = time.monotonic()
    await one(client, 0)
    return sent


@asynccontextmanager
async def _nothing() -> AsyncGenerator[None]:
    yield None


def _firsts(ran: list[tuple[float, int]]) -> dict[int, float]:
    """The time of the first start in each process."""
    return {process: when for when, process in reversed(ran)}


def _tell(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def main() -> None:
    peer = load(sys.argv[1])
    package = getattr(peer, "PACKAGE", sys.argv[1])
    _tell({"tuned": f"{package} {getattr(peer, 'VERSION', None) or version(package)}: {peer.TUNED}"})
    run(peer, Session(peer, float(sys.argv[2])).run())


if __name__ == "__main__":
    main()
