"""Real servers that go back in time after they have acknowledged the end of an item, while its worker runs.

The item was the only one of its type that may run in the whole fleet.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.backends.postgres_store import connected
from tests.chaos.forgetful_app import LEASE, one
from tests.chaos.outage import own_home
from tests.support import postgres
from tests.support.rollback import copy_of
from tests.support.valkey import ValkeyServer
from treadle import Client, Handle, ItemState, StoreUnavailable, Treadle

SLACK = 2.0
"""Seconds: what a busy machine takes beside the two leases."""


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  another process makes it true
            await asyncio.sleep(0.02)


async def state_of(handle: Handle[Any, Any]) -> ItemState:
    """Its state, also if the connection was lost."""
    while True:
        try:
            return await handle.state()
        except StoreUnavailable:
            await asyncio.sleep(0.02)


async def ends(handle: Handle[Any, Any]) -> None:
    while (await state_of(handle)).status != "success":  # noqa: ASYNC110  a waiter may know the end already
        await asyncio.sleep(0.02)


async def check_recovery(client: Client, home: Path, forgotten: Handle[Any, Any]) -> None:
    """The item that the store counts as running ends again, and then the next one of its type runs."""
    async with asyncio.timeout(2 * LEASE + SLACK):
        assert (await state_of(forgotten)).status == "running"
        await ends(forgotten)
    state = await forgotten.state()
    assert (state.attempt, state.losses, state.history) == (1, 0, ())
    assert (home / "ran").read_text().split() == ["1", "1"]
    following = await client.enqueue(one(str(home)))
    async with asyncio.timeout(2 * LEASE + SLACK):
        await ends(following)
    async with asyncio.timeout(2 * LEASE + SLACK):
        while await client.backend.limits():  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.02)


@contextmanager
def worker_process(url: str, home: Path) -> Generator[None]:
    """`treadle worker` with the app, until the end of the block."""
    command = [sys.executable, "-m", "treadle", "worker", "tests.chaos.forgetful_app:app"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "FORGETFUL_STORE": url}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


async def test_redis_starts_from_an_older_snapshot(
    valkey_home: Path, tmp_path: Path, processes: None
) -> None:
    """Under `treadle worker`. Settlement and returned permit came after the snapshot."""
    server = ValkeyServer(valkey_home / "valkey-forgets", settings={"appendonly": "no"})
    server.start()
    try:
        with worker_process(server.url, tmp_path):
            async with Client(server.url) as client:
                handle = await client.enqueue(one(str(tmp_path)))
                await until((tmp_path / "ran").exists)
                server.call("SAVE")
                (tmp_path / "go").touch()
                await ends(handle)
                server.kill()
                server.start()
                await check_recovery(client, tmp_path, handle)
    finally:
        server.kill()


async def test_postgres_has_the_rows_of_an_earlier_time(prepared_url: str, tmp_path: Path) -> None:
    """All its tables, in one transaction."""
    app = Treadle(prepared_url, work=[one], lease=LEASE, poll_interval=0.2)
    async with app, Client(prepared_url) as client:
        handle = await client.enqueue(one(str(tmp_path)))
        await until((tmp_path / "ran").exists)
        restore = await copy_of(prepared_url)
        (tmp_path / "go").touch()
        await ends(handle)
        await restore()
        await check_recovery(client, tmp_path, handle)


async def test_postgres_fails_over_to_a_replica_that_is_behind(
    run_directory: Path, tmp_path: Path, processes: None
) -> None:
    """Under `treadle worker`, by a URL with both hosts. Settlement and returned permit never reached the
    replica, and wake-ups come from it now."""
    primary, replica = own_home(run_directory), own_home(run_directory)
    try:
        first = postgres.start(primary, forgetful=False)
        async with Client(first):
            pass  # the tables
        second = postgres.start_replica(replica, primary)
        url = both(second, first)  # in any order
        with worker_process(url, tmp_path):
            async with Client(url) as client, connected(second) as admin:
                handle = await client.enqueue(one(str(tmp_path)))
                await until((tmp_path / "ran").exists)
                await cut_off(first, admin)
                (tmp_path / "go").touch()
                await ends(handle)
                postgres.halt(primary, crash=True)
                assert await admin.fetchval("select pg_promote()")
                await check_recovery(client, tmp_path, handle)
    finally:
        postgres.stop(primary)
        postgres.stop(replica)


def both(first: str, second: str) -> str:
    """A URL with the hosts of two. `first`, `second`: URLs with a socket each."""
    place, _, port = second.partition("?host=")[2].partition("&port=")
    return first.replace("&port=", f",{place}&port=") + f",{port}"


async def cut_off(primary: str, replica: Any) -> None:
    """Let a replica have all that the primary has now, and nothing more."""
    async with connected(primary) as admin:
        here = await admin.fetchval("select pg_current_wal_insert_lsn()::text")
    await holds(replica, f"select pg_last_wal_replay_lsn() >= '{here}'::pg_lsn")
    await replica.execute("alter system set primary_conninfo = ''")
    await replica.execute("select pg_reload_conf()")
    await holds(replica, "select not exists (select from pg_stat_wal_receiver)")


async def holds(connection: Any, condition: str) -> None:
    async with asyncio.timeout(20):
        while not await connection.fetchval(condition):  # noqa: ASYNC110  another process makes it true
            await asyncio.sleep(0.02)
