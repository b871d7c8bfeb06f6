"""A tenant moves between SQLite, PostgreSQL and Redis while workers, movers and servers are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.chaos.moving_app import LEAVES, STORES, TENANT, app_of, root
from tests.chaos.stores import PostgresStore, RedisStore
from tests.support.records import record
from treadle import Treadle
from treadle.backend import placed
from treadle.errors import BackendError, StoreUnavailable
from treadle.handle import Handle
from treadle.testing.contract.check import consistent

KILLS = int(os.environ.get("TREADLE_KILLS", "12"))


Servers: TypeAlias = Mapping[str, PostgresStore | RedisStore]


class Processes:
    """Two workers, a mover, and the servers of two stores. What is killed is started again."""

    def __init__(self, file: Path, servers: Servers, errors: Path) -> None:
        self.names = "work1", "work2", "move", *servers
        self._arguments = str(file), *(server.url for server in servers.values())
        self._servers = servers
        self._errors = errors
        self.running: dict[str, asyncio.subprocess.Process] = {}
        self.moves: Counter[tuple[str, str]] = Counter()
        self.along = 0
        self._readers: list[asyncio.Task[None]] = []

    async def start(self, name: str) -> None:
        if name in self._servers:
            return
        with self._errors.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "tests.chaos.moving_app",
                    name.rstrip("0123456789"),
                    *self._arguments,
                ),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        self.running[name] = process
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n", self._errors
        self._readers.append(asyncio.ensure_future(self._read(process.stdout)))

    async def _read(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            source, to, running = line.decode().split()
            self.moves[source, to] += 1
            self.along += int(running)

    async def kill(self, name: str) -> None:
        if name in self._servers:
            await self._servers[name].restart(crash=True)
            return
        process = self.running.pop(name)
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()

    async def end(self) -> None:
        for name in [*self.running]:
            await self.kill(name)
        await asyncio.gather(*self._readers)


async def under_fire(
    app: Treadle, children: Processes, handles: list[Handle[None, list[str]]], errors: Path
) -> tuple[str, list[list[str]], int]:
    """Submit, move and kill. Where the tenant is at last, the values of all groups, and how many kills."""
    for name in ("work1", "work2", "move"):
        await children.start(name)
    chance, kills = random.Random(1), 0
    began = time.monotonic()
    while kills < KILLS or children.moves.total() < KILLS / 2:
        assert time.monotonic() - began < 120 + 20 * KILLS, (children.moves, errors)
        pause = asyncio.get_running_loop().time() + chance.uniform(1, 3)
        while asyncio.get_running_loop().time() < pause:
            work = root(len(handles))
            while True:
                try:
                    # The key, because an answer may be lost with the server.
                    key = f"root-{len(handles)}"
                    handles.append(await app.tenant(TENANT).enqueue(work, key=key, key_scope="any"))
                    break
                except StoreUnavailable:
                    continue
            await asyncio.sleep(0.05)
        name = chance.choice(children.names)
        await children.kill(name)
        kills += 1
        await children.start(name)
    await children.kill("move")
    where = await app.place(TENANT)
    for to in STORES:
        try:
            where = (await app.move_tenant(TENANT, to, resume=True)).to
        except BackendError:
            continue  # it goes to the other one
    values = await asyncio.wait_for(asyncio.gather(*(each.group() for each in handles)), 120)
    return where, values, kills


@pytest.mark.timeout(300 + 25 * KILLS)
async def test_a_tenant_moves_while_processes_and_servers_are_killed(
    long_load: None,
    processes: None,
    postgres_store: PostgresStore,
    redis_store: RedisStore,
    tmp_path: Path,
) -> None:
    """Each group ends once, with the value of all its members. Keys hold, and schedules go on."""
    file = tmp_path / "lite.db"
    errors = tmp_path / "errors"
    app = app_of(str(file), postgres_store.url, redis_store.url)
    await app.connect()
    assert await app.place(TENANT, "lite") == "lite"
    await app.enqueue(root(0))  # another tenant, which stays
    handles: list[Handle[None, list[str]]] = []
    servers: Servers = {"postgres": postgres_store, "redis": redis_store}
    children, began = Processes(file, servers, errors), time.monotonic()
    try:
        where, values, kills = await under_fire(app, children, handles, errors)
    finally:
        await children.end()
    took = time.monotonic() - began
    for handle, value in zip(handles, values, strict=True):
        assert len(value) == len({*value}) == LEAVES, value
        state = await app.tenant(TENANT).get(handle.id)
        assert state[0] is not None
        assert state[0].status == "success"
    for n, handle in enumerate(handles):
        again = await app.tenant(TENANT).enqueue(root(n), key=f"root-{n}", key_scope="any")
        assert again.id == handle.id
    several = placed(app.backend)
    assert several is not None
    there = {name: (await each.counts(tenant=TENANT, ended=True)) for name, each in several.backends.items()}
    assert [name for name, counts in there.items() if counts] == [where]
    found = {type: sum(each.count for each in there[where] if each.type == type) for type in ("root", "leaf")}
    assert found == {"root": len(handles), "leaf": len(handles) * LEAVES}
    ticks = [each for each in there[where] if each.type == "tick"]
    assert sum(each.count for each in ticks) > took / 4
    for each in several.backends.values():
        await consistent(each)
    ways = ", ".join(f"{source} to {to} {count}" for (source, to), count in sorted(children.moves.items()))
    moves = children.moves.total()
    sys.stdout.write(
        f"\n{kills} kills, {moves} moves ({ways}) with {children.along} running items, "
        f"{len(handles)} groups, {took:.0f} s\n"
    )
    if "TREADLE_KILLS" in os.environ:
        record("moves of a tenant", f"make chaos KILLS={KILLS}", kills=kills, moves=moves, lost=0)
    await app.close()
