"""Orders that are given while four processes drain: obeyed within a second, and after a restart."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from operator import sub
from pathlib import Path

import pytest

from tests.cli.forks import Forked, common_server
from tests.engine import ordered_worker
from tests.engine.ordered_worker import AT_ONCE, TAKES, TYPES, free, rated
from tests.support.tiers import one_of
from treadle import Treadle
from treadle.backends.memory import MemoryBackend
from treadle.doers import balanced

PROJECT = Path(__file__).parents[2]
WORKERS = 4
SECOND = 1.0
"""Within this an order is to be obeyed."""
LOOKED_AT = 1.5
"""Seconds for which is looked whether it is."""
MANY = 400
"""Items of each type: the quickest needs five seconds for them."""


class Pace:
    """How much time the processes of these ids have had: what one of them waits for a core does not count."""

    def __init__(self, *pids: int) -> None:
        self._files = [Path(f"/proc/{pid}/schedstat") for pid in pids]

    async def have(self, seconds: float) -> None:
        """Return when all have had this much."""
        began, before = time.monotonic(), self._waits()
        while time.monotonic() - began - max(map(sub, self._waits(), before)) < seconds:  # noqa: ASYNC110  time passes
            await asyncio.sleep(0.02)

    def _waits(self) -> list[float]:
        # Not every system tells.
        return [int(file.read_text().split()[1]) / 1e9 if file.exists() else 0.0 for file in self._files]


@contextmanager
def fleet(url: str, file: Path) -> Iterator[Pace]:
    command = ["python", ordered_worker.__file__, url, str(file)]
    running: list[Forked] = []
    try:
        for _ in range(WORKERS):
            running.append(common_server().start(command, PROJECT, os.environ, errors=2))
        yield Pace(*(process.pid for process in running))
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def starts(file: Path, type: str, since: float, until: float) -> int:
    if not file.exists():
        return 0
    rows = [row for line in file.read_text().splitlines() if len(row := line.split()) > 1]  # whole ones
    return sum(row[1] == type and since <= float(row[0]) < until for row in rows)


async def present(app: Treadle) -> None:
    """Return when all workers are there. On a busy machine a process may take half a minute to start."""
    while len(await app.workers()) < WORKERS:  # noqa: ASYNC110  other processes
        await asyncio.sleep(0.05)


async def begun(app: Treadle, file: Path, since: float, *types: str) -> None:
    """Return when items of these types have started. since: a time before what lets them start: items that
    have all started by the time this looks count too."""
    try:
        async with asyncio.timeout(30):
            while not all(starts(file, type, since, time.monotonic() + 9) for type in types):  # noqa: ASYNC110  other processes
                await asyncio.sleep(0.02)
    except TimeoutError:
        late = [type for type in types if not starts(file, type, since, time.monotonic() + 9)]
        waiting = [item for type in late for item in (await app.list(type=type, limit=1)).items]
        raise AssertionError([late, *[await app.why(item.id) for item in waiting]]) from None


async def fill(app: Treadle, count: int) -> float:
    """Enqueue items of each type, in turn. None starts before all are there. Returns when they may."""
    await app.pause("default")
    await app.enqueue_many([type(n) for n in range(count) for type in TYPES])
    resumed = time.monotonic()
    await app.resume("default")
    return resumed


async def drains(app: Treadle, file: Path, pace: Pace) -> None:
    """Orders of each kind, one after the other, while all types drain."""
    await begun(app, file, await fill(app, MANY), "free", "rated", "slotted")

    await app.by("ann").pause(type="free")
    since = await none_start(app, file, pace, "free")
    assert starts(file, "rated", since, time.monotonic()) > 0 or not await left(app, "rated")

    resumed = time.monotonic()
    await app.resume(type="free")
    await begun(app, file, resumed, "free")
    await app.pause("default")
    await none_start(app, file, pace, "free", "rated", "slotted")
    await app.resume("default")


async def none_start(app: Treadle, file: Path, pace: Pace, *types: str) -> float:
    """Return after a second, and a time in which no items of these types started. Returns when that began."""
    paused = time.monotonic()
    await pace.have(SECOND)
    since = time.monotonic()
    await pace.have(LOOKED_AT)
    found = {type: starts(file, type, since, time.monotonic()) for type in types}
    if any(found.values()):
        tenths = [
            sum(starts(file, type, paused + n / 10, paused + (n + 1) / 10) for type in types)
            for n in range(40)
        ]
        raise AssertionError([found, since - paused, tenths, await app.orders(), await app.workers()])
    return since


async def left(app: Treadle, type: str) -> bool:
    return bool((await app.list(type=type, status="ready", limit=1)).items)


async def limits(app: Treadle, file: Path, pace: Pace) -> None:
    """Limits of code are lowered, and a type without one is limited."""
    await begun(app, file, await fill(app, MANY), "free", "rated", "slotted")
    await app.set_limit("rated", 3, 1.0)
    await app.set_limit("slotted", 1)
    await app.set_limit(type="free", limit=1)
    await pace.have(SECOND)
    since = time.monotonic()
    await pace.have(2.0)
    until = time.monotonic()
    seen = until - since
    assert starts(file, "rated", since, until) <= 3 * seen + 3 + 1
    assert starts(file, "slotted", since, until) <= seen / TAKES + 1
    assert starts(file, "free", since, until) <= seen / TAKES + 1
    assert {use.limit for use in await app.limits() if use.order is not None} == {3, 1}


@asynccontextmanager
async def starts_later(app: Treadle, url: str, file: Path) -> AsyncGenerator[Pace]:
    """Workers that start later, and a client of another process, know the orders."""
    await app.pause(type="free")
    await app.enqueue_many([free(n) for n in range(50)])
    await app.enqueue_many([rated(n) for n in range(50)])
    at = time.monotonic()
    with fleet(url, file) as pace:
        await present(app)
        await begun(app, file, at, "rated")
        await asyncio.sleep(0.5)
        assert starts(file, "free", at, time.monotonic() + 9) == 0
        resumed = time.monotonic()
        await app.resume(type="free")
        await begun(app, file, resumed, "free")
        yield pace


@pytest.mark.parametrize("store", one_of("sqlite", "postgres", "redis"))
async def test_four_processes_obey_within_a_second(
    request: pytest.FixtureRequest, processes: None, tmp_path: Path, store: str
) -> None:
    """`test_orders` has each order on every store."""
    if store == "sqlite":
        url = f"sqlite:///{tmp_path / 'store.db'}"
    else:
        url = request.getfixturevalue({"postgres": "prepared_url", "redis": "valkey_url"}[store])
    app = Treadle(url, work=TYPES)
    await app.connect()
    try:
        file = tmp_path / "starts"
        async with starts_later(app, url, file) as pace:
            await drains(app, file, pace)
            await limits(app, file, pace)
    finally:
        await app.close()


async def test_four_workers_on_memory_obey_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory"
    monkeypatch.setattr(ordered_worker, "FILE", str(file))
    backend = MemoryBackend()
    apps = [Treadle(backend, work=TYPES, doer=balanced(AT_ONCE)) for _ in range(WORKERS)]
    for app in apps:
        await app.start()
    try:
        pace = Pace(os.getpid())
        await drains(apps[0], file, pace)
        await limits(apps[0], file, pace)
    finally:
        for app in apps:
            await app.stop(drain=0)
