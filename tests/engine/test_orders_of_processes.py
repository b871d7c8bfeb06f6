"""Orders that are given while four processes drain: obeyed within a second, and after a restart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.engine import ordered_worker
from tests.engine.ordered_worker import AT_ONCE, TAKES, TYPES, free, rated
from treadle import Treadle
from treadle.backends.memory import MemoryBackend
from treadle.doers import balanced

WORKERS = 4
SECOND = 1.0
"""Within this an order is to be obeyed."""
LOOKED_AT = 1.5
"""Seconds for which is looked whether it is."""
MANY = 1600
"""Items of each type: the quickest needs five seconds for them."""


@contextmanager
def fleet(url: str, file: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "tests.engine.ordered_worker", url, str(file)]
    running = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(WORKERS)]
    try:
        yield running
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


async def begun(file: Path, *types: str) -> None:
    """Return when items of these types start now."""
    since = time.time()
    async with asyncio.timeout(30):
        while not all(starts(file, type, since, time.time() + 9) for type in types):  # noqa: ASYNC110  other processes
            await asyncio.sleep(0.02)


async def fill(app: Treadle, count: int) -> None:
    """Enqueue items of each type, in turn. None starts before all are there."""
    await app.pause("default")
    await app.enqueue_many([type(n) for n in range(count) for type in TYPES])
    await app.resume("default")


async def drains(app: Treadle, file: Path) -> None:
    """Orders of each kind, one after the other, while all types drain."""
    await fill(app, MANY)
    await begun(file, "free", "rated", "slotted")

    await app.by("ann").pause(type="free")
    at = time.time()
    await asyncio.sleep(SECOND + LOOKED_AT)
    assert starts(file, "free", at + SECOND, time.time()) == 0
    assert starts(file, "rated", at + SECOND, time.time()) > 0 or not await left(app, "rated")

    await app.resume(type="free")
    await begun(file, "free")
    await app.pause("default")
    at = time.time()
    await asyncio.sleep(SECOND + LOOKED_AT)
    assert sum(starts(file, type, at + SECOND, time.time()) for type in ("free", "rated", "slotted")) == 0
    await app.resume("default")


async def left(app: Treadle, type: str) -> bool:
    return bool((await app.list(type=type, status="ready", limit=1)).items)


async def limits(app: Treadle, file: Path) -> None:
    """Limits of code are lowered, and a type without one is limited."""
    await fill(app, MANY)
    await begun(file, "free", "rated", "slotted")
    await app.set_limit("rated", 3, 1.0)
    await app.set_limit("slotted", 1)
    await app.set_limit(type="free", limit=1)
    at = time.time()
    await asyncio.sleep(SECOND + 2.0)
    seen = time.time() - at - SECOND
    assert starts(file, "rated", at + SECOND, time.time()) <= 3 * seen + 3 + 1
    assert starts(file, "slotted", at + SECOND, time.time()) <= seen / TAKES + 1
    assert starts(file, "free", at + SECOND, time.time()) <= seen / TAKES + 1
    assert {use.limit for use in await app.limits() if use.order is not None} == {3, 1}


@asynccontextmanager
async def starts_later(app: Treadle, url: str, file: Path) -> AsyncGenerator[None]:
    """Workers that start later, and a client of another process, know the orders."""
    await app.pause(type="free")
    await app.enqueue_many([free(n) for n in range(50)])
    await app.enqueue_many([rated(n) for n in range(50)])
    with fleet(url, file):
        at = time.time()
        await begun(file, "rated")
        await asyncio.sleep(0.5)
        assert starts(file, "free", at, time.time() + 9) == 0
        await app.resume(type="free")
        await begun(file, "free")
        yield


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
async def test_four_processes_obey_within_a_second(
    request: pytest.FixtureRequest, processes: None, tmp_path: Path, store: str
) -> None:
    if store == "sqlite":
        url = f"sqlite:///{tmp_path / 'store.db'}"
    else:
        url = request.getfixturevalue({"postgres": "prepared_url", "redis": "valkey_url"}[store])
    app = Treadle(url, work=TYPES)
    await app.connect()
    try:
        file = tmp_path / "starts"
        async with starts_later(app, url, file):
            await drains(app, file)
            await limits(app, file)
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
        await drains(apps[0], file)
        await limits(apps[0], file)
    finally:
        for app in apps:
            await app.stop(drain=0)
