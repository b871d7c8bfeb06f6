"""Several PostgreSQL servers, one of which hangs."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import postgres
from treadle import Treadle, work
from treadle.backends.postgres import PostgresBackend
from treadle.item import Filter, Status


@pytest.fixture
def homes(run_directory: Path) -> Iterator[dict[str, Path]]:
    """The directories of two servers."""
    homes = {name: run_directory / f"stores-{name}" for name in ("eu", "us")}
    try:
        yield homes
    finally:
        for home in homes.values():
            if home.exists():
                postgres.stop(home)


@work(name="long")
async def long() -> None:
    await asyncio.sleep(600)


@pytest.mark.parametrize("hangs", ["eu", "us"])
async def test_a_stop_ends_although_a_server_hangs(
    homes: dict[str, Path], caplog: pytest.LogCaptureFixture, hangs: str
) -> None:
    """What the other one has is free at once, and the log says which one does not answer."""
    urls: dict[str, str] = {}
    for name, home in homes.items():
        home.mkdir(exist_ok=True)
        urls[name] = postgres.start(home, forgetful=False)
    app = Treadle(urls, work=[long], lease=20, drain=1)
    await app.start()
    for name in urls:
        await app.place(name, name)
        await app.tenant(name).enqueue(long())
    while len(app.active()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    postgres.signal_all(homes[hangs], signal.SIGSTOP)
    try:
        began = time.monotonic()
        await app.stop()
        took = time.monotonic() - began
    finally:
        postgres.signal_all(homes[hangs], signal.SIGCONT)
    assert took < 15, took
    assert f"the store '{hangs}' does not answer" in caplog.text
    (other,) = urls.keys() - {hangs}
    assert await _statuses(urls[other]) == ["ready"]
    assert await _statuses(urls[hangs]) == ["running"]


async def _statuses(url: str) -> list[Status]:
    backend = PostgresBackend(url)
    await backend.open()
    try:
        return [each.status for each in (await backend.list(Filter(type="long"))).items]
    finally:
        await backend.close()
