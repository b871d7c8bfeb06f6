"""Two PostgreSQL servers, a tenant in each: what one of them costs the other's items when it is down, hangs,
or is slow.

`python -m benchmarks.away` shows how long items of the store `well` take, from enqueue to result: for a while
with both stores well, then while `ill` is away. A worker in another process runs them. Each case is measured
with either of them as home, and the first one with `well` alone.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.measure import machine, percentile
from tests.support import postgres
from tests.support.proxy import Proxy
from tests.support.run import OWN, Run
from treadle import Client, Treadle, work
from treadle.errors import StoreUnavailable

SLOW: Final = 0.2
"""Seconds that each call of the slow server takes more."""
CASES: Final = ("alone", "well", "down", "hangs", "slow")


@work(name="ping")
async def ping(sent: float) -> float:
    return sent


class Servers:
    """Two servers. The one called `ill` is reached through a network that can be slow."""

    def __init__(self, directory: Path) -> None:
        self._directories = {name: directory / f"{OWN}{name}" for name in ("well", "ill")}
        self.urls: dict[str, str] = {}

    async def start(self) -> None:
        for name, directory in self._directories.items():
            directory.mkdir(mode=0o755)
            self.urls[name] = postgres.start(directory, forgetful=False)
        self._proxy = await Proxy(self.urls["ill"]).__aenter__()
        self.urls["ill"] = self._proxy.url

    async def fail(self, how: str) -> None:
        match how:
            case "down":
                await asyncio.to_thread(postgres.halt, self._directories["ill"], crash=True)
            case "hangs":
                postgres.signal_all(self._directories["ill"], signal.SIGSTOP)
            case "slow":
                self._proxy.delay = SLOW
            case _:
                pass

    async def mend(self, how: str) -> None:
        match how:
            case "down":
                await asyncio.to_thread(postgres.resume, self._directories["ill"])
            case "hangs":
                postgres.signal_all(self._directories["ill"], signal.SIGCONT)
            case _:
                self._proxy.delay = 0.0

    async def stop(self) -> None:
        await self._proxy.__aexit__(None, None, None)


class Times(NamedTuple):
    before: list[float]
    """Seconds of each item while both stores were well."""
    during: list[float]
    refused: list[float]
    """Seconds until items of the other store were refused."""
    unfinished: int
    """Items without a result half a minute later."""


class Load:
    """Items of both tenants, at a steady rate, whether or not the last ones have ended."""

    def __init__(self, app: Client, rate: float) -> None:
        self._app = app
        self._rate = rate
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused: list[float] = []

    async def run(self, tenants: tuple[str, ...], seconds: float) -> list[float]:
        """Enqueue for so long. The times of the items of the well store."""
        taken: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for tenant in tenants:
                task = asyncio.create_task(self._one(tenant, taken))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(1 / self._rate)
        return taken

    async def _one(self, tenant: str, taken: list[float]) -> None:
        began = time.monotonic()
        try:
            handle = await self._app.tenant(tenant).enqueue(ping(began))
            await handle.result()
        except StoreUnavailable:
            if tenant == "well":
                raise
            self.refused.append(time.monotonic() - began)
            return
        if tenant == "well":
            taken.append(time.monotonic() - began)

    async def rest(self, seconds: float) -> int:
        """Wait for what is under way, for so long. How many items are not done."""
        if not self._tasks:
            return 0
        _, pending = await asyncio.wait(self._tasks, timeout=seconds)
        for task in pending:
            task.cancel()
        return len(pending)


async def case(servers: Servers, home: str, how: str, seconds: float, rate: float) -> Times:
    alone = how == "alone"
    names = ("well",) if alone else (home, "ill" if home == "well" else "well")
    urls = {name: servers.urls[name] for name in names}
    async with worker(urls), Client(urls["well"] if alone else urls, work=[ping]) as app:
        if not alone:
            for name in names:
                await app.place(name, name)
        load = Load(app, rate)
        tenants = ("well",) if alone else ("well", "ill")
        await load.run(tenants, 2.0)
        before = await load.run(tenants, seconds)
        await servers.fail(how)
        during = await load.run(tenants, seconds)
        await servers.mend(how)
        return Times(before, during, load.refused, await load.rest(30.0))


@asynccontextmanager
async def worker(urls: dict[str, str]) -> AsyncGenerator[None]:
    """A worker in another process."""
    given = [f"{name}={url}" for name, url in urls.items()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.away", "worker", *given, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def work_on(given: list[str]) -> None:
    urls = dict(each.split("=", 1) for each in given)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with Treadle(urls if len(urls) > 1 else urls["well"], work=[ping]):
        print("ready", flush=True)
        await ended.wait()


def milliseconds(times: Sequence[float]) -> str:
    return " ".join(f"{percentile(times, share) * 1000:7.1f}" for share in (0.5, 0.99, 1.0))


async def run(cases: Sequence[str], homes: Sequence[str], seconds: float, rate: float) -> None:
    run = Run.begin()
    servers = Servers(run.directory)
    try:
        await servers.start()
        print(f"{machine()}; {rate:g} items a second for each tenant, {seconds:g} s; p50 p99 most, in ms")
        for how in cases:
            for home in homes if how != "alone" else ("well",):
                times = await case(servers, home, how, seconds, rate)
                print(
                    f"{how:6} home {home:5} before {milliseconds(times.before)}   "
                    f"during {milliseconds(times.during)}   {len(times.during)} items, "
                    f"{times.unfinished} not done, {len(times.refused)} of ill refused, "
                    f"in {milliseconds(times.refused) if times.refused else '-'}",
                    flush=True,
                )
    finally:
        await servers.stop()
        run.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.away", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for which the store is away")
    parser.add_argument("--rate", type=float, default=20.0, help="items a second, for each tenant")
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--home", choices=("well", "ill"), action="append")
    given = parser.parse_args()
    asyncio.run(run(given.only or CASES, given.home or ("well", "ill"), given.seconds, given.rate))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work_on(sys.argv[2:]))
    else:
        main()
