"""The load of a soak: work types, and a client that submits a given number of items per second."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress

from treadle import Client, Context, Result, Retry, Treadle, WaitTimeout, WorkFailed, work
from treadle.doers import concurrency
from treadle.events import Event, Started

TICK = 0.05
"""Seconds between two portions of the load."""
MOST_BEHIND = 20_000
"""Items submitted and not started at which the load waits: the soak measures growth, not overload."""
MOST_AT_ONCE = 10
"""Portions that are being submitted at once, at most."""
TENANTS = 20


@work(name="value", retry=Retry(attempts=5, base=0.01))
async def value(n: int) -> int:
    if random.random() < 0.02:
        raise RuntimeError("one in fifty fails")
    return n


@work(name="plain")
async def plain(n: int) -> int:
    return n


@work.batch(name="batched", size=50, max_wait=0.05)
async def batched(numbers: list[int]) -> list[int]:
    return numbers


@work(name="limited", doer=concurrency(20))
async def limited(n: int) -> int:
    return n


@work(name="gathered")
async def gathered(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="family")
async def family(ctx: Context, size: int) -> Result[None, int]:
    return ctx.queue([value(n) for n in range(size)]).next(gathered())


TYPES = [value, plain, batched, limited, gathered, family]


class Load:
    """Submits `rate` items per second: mostly plain ones, and some of every other kind.

    behind: how many items wait, as the last sample says.
    """

    def __init__(self, app: Treadle, rate: float, behind: Callable[[], int]) -> None:
        self._app = app
        self._rate = rate
        self._behind = behind
        self._rng = random.Random(1)
        self._waits: list[float] = []
        self._submitting = 0
        self.submitted = 0
        self.held_back = 0
        """Portions that were left out, because too much waited."""

    async def run(self) -> None:
        await asyncio.gather(self._submit_always(), self._probe_always())

    async def _submit_always(self) -> None:
        at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while True:
                at = max(at + TICK, time.monotonic() - 1.0)
                await asyncio.sleep(at - time.monotonic())
                if self._behind() > MOST_BEHIND or self._submitting >= MOST_AT_ONCE:
                    self.held_back += 1
                else:
                    group.create_task(self._submit(round(self._rate * TICK)))

    async def _submit(self, count: int) -> None:
        """Submit that many items, those included that families will queue."""
        self._submitting += 1
        app = self._app.tenant(f"t{self._rng.randrange(TENANTS)}")
        share = max(1, count // 20)
        await asyncio.gather(
            app.enqueue_many([value(n) for n in range(4 * share)]),
            app.enqueue_many([batched(n) for n in range(2 * share)]),
            app.enqueue_many([limited(n) for n in range(share)]),
            app.enqueue_many([plain(n) for n in range(share)], delay=self._rng.uniform(0, 2)),
            self._submit_dependents(app, share),
            app.enqueue(family(max(1, 2 * share - 2))),
            app.enqueue_many([plain(n) for n in range(max(1, count - 12 * share))]),
        )
        self._submitting -= 1
        self.submitted += count

    async def _submit_dependents(self, app: Client, share: int) -> None:
        first = plain(1)
        await app.enqueue(first)
        await app.enqueue_many([value(n) for n in range(2 * share - 1)], after=[first])

    async def _probe_always(self) -> None:
        """Wait for one item after the other, and note how long each takes."""
        while True:
            began = time.perf_counter()
            with suppress(WorkFailed, WaitTimeout):
                await self._app.enqueue(plain(0)).result(timeout=60)
            self._waits.append(time.perf_counter() - began)
            await asyncio.sleep(0.05)

    def p99(self) -> float:
        """Milliseconds that an item took, since the last call."""
        waits, self._waits = sorted(self._waits), []
        return waits[int(0.99 * (len(waits) - 1))] * 1000 if waits else 0.0


class Starts:
    """Counts the attempts that have started."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.count += 1
