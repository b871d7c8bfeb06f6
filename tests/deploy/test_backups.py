"""Backups that are taken while a worker runs, and what a restore means: docs/deploy-database.md."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.engine.kit import until
from tests.support.databases import Postgres
from tests.support.postgres import program
from tests.support.valkey import ValkeyServer
from treadle import Context, Treadle, work
from treadle.testing.contract.check import consistent

PATIENCE = 30.0
runs: list[str] = []
waiting_for: list[asyncio.Event] = []
"""What lets `hold` end. A test makes it, on its own event loop."""


@work(name="note")
async def note(name: str) -> str:
    runs.append(name)
    return name


@work(name="hold")
async def hold(ctx: Context) -> int:
    """Runs until the test lets it go. After a restore it ends at once."""
    runs.append("hold")
    if ctx.attempt == 1:
        await waiting_for[-1].wait()
    return ctx.attempt


def app_on(url: str) -> Treadle:
    return Treadle(url, work=[note, hold], lease=2, poll_interval=0.1)


async def check_backup(
    url: str, take: Callable[[], Awaitable[object]], restore: Callable[[], Awaitable[str]]
) -> None:
    """Take a backup below a worker that runs an item, let everything end, restore, and run what is open."""
    runs.clear()
    waiting_for.append(go := asyncio.Event())
    async with app_on(url) as app:
        ended = await app.enqueue(note("before"))
        await ended.result(timeout=PATIENCE)
        running = await app.enqueue(hold())
        await until(lambda: runs[-1] == "hold")
        await app.pause("later")
        waiting = await app.enqueue(note("waiting"), queue="later")
        scheduled = await app.enqueue(note("scheduled"), delay=3600)
        await take()
        go.set()
        assert await running.result(timeout=PATIENCE) == 1
        await app.resume("later")
        await waiting.result(timeout=PATIENCE)
        lost = await app.enqueue(note("after"))
        await lost.result(timeout=PATIENCE)
    assert sorted(runs) == ["after", "before", "hold", "waiting"]
    async with app_on(await restore()) as restored:
        assert (await restored.handle(ended.id).state()).status == "success"
        assert await restored.handle(running.id).result(timeout=PATIENCE) == 2
        state = await restored.handle(running.id).state()
        assert (state.failures, state.attempt) == (0, 2)
        assert (await restored.handle(waiting.id).state()).status == "ready"  # it is paused again
        await restored.resume("later")
        await restored.handle(waiting.id).result(timeout=PATIENCE)
        assert (await restored.handle(scheduled.id).state()).status == "scheduled"
        assert await restored.get([lost.id]) == [None]
        await consistent(restored.backend)
    assert sorted(runs) == ["after", "before", "hold", "hold", "waiting", "waiting"]


async def call(*command: str | Path) -> None:
    done = await asyncio.to_thread(
        subprocess.run, [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_postgresql(prepared_url: str, postgres: Postgres, run_directory: Path, tmp_path: Path) -> None:
    if os.environ.get("TREADLE_TEST_POSTGRES"):
        pytest.skip("pg_dump of that server is not at hand")
    dump = tmp_path / "shop.dump"
    with postgres.database() as empty:

        async def take() -> None:
            await call(program(run_directory, "pg_dump"), "--format=custom", f"--file={dump}", prepared_url)

        async def restore() -> str:
            await call(program(run_directory, "pg_restore"), "--exit-on-error", f"--dbname={empty}", dump)
            return empty

        await check_backup(prepared_url, take, restore)


async def test_sqlite_vacuum_into(tmp_path: Path) -> None:
    source, target = tmp_path / "work.db", tmp_path / "backup.db"

    def vacuum() -> None:
        db = sqlite3.connect(source)
        db.execute("VACUUM INTO ?", [str(target)])
        db.close()

    async def restore() -> str:
        """In the place of the old file, as the page says."""
        for left in ("work.db-wal", "work.db-shm"):
            (tmp_path / left).unlink(missing_ok=True)
        target.replace(source)
        return f"sqlite:///{source}"

    await check_backup(f"sqlite:///{source}", lambda: asyncio.to_thread(vacuum), restore)


async def test_sqlite_backup_api(tmp_path: Path) -> None:
    source, target = tmp_path / "work.db", tmp_path / "backup.db"

    def back_up() -> None:
        old, new = sqlite3.connect(source), sqlite3.connect(target)
        old.backup(new)
        old.close()
        new.close()

    async def restore() -> str:
        return f"sqlite:///{target}"

    await check_backup(f"sqlite:///{source}", lambda: asyncio.to_thread(back_up), restore)


async def test_valkey(valkey_home: Path) -> None:
    """A server reads `dump.rdb`, writes its append-only file, and is restarted with that."""
    server = ValkeyServer(valkey_home / "valkey-old")
    copy = valkey_home / "dump.rdb"
    server.start()

    async def take() -> None:
        server.call("BGSAVE")
        await until(lambda: "rdb_bgsave_in_progress:0" in text(server.call("INFO", "persistence")))
        shutil.copy(server.home / "dump.rdb", copy)

    async def restore() -> str:
        server.kill()
        home = valkey_home / "valkey-new"
        home.mkdir()
        shutil.copy(copy, home / "dump.rdb")
        reading = ValkeyServer(home, settings={"appendonly": "no"})
        reading.start()
        reading.call("CONFIG", "SET", "appendonly", "yes")
        await until(lambda: "aof_rewrite_in_progress:0" in text(reading.call("INFO", "persistence")))
        reading.stop()
        nonlocal restored
        restored = ValkeyServer(home)
        restored.start()
        return restored.url

    restored: ValkeyServer | None = None
    try:
        await check_backup(server.url, take, restore)
    finally:
        server.kill()
        if restored is not None:
            restored.kill()


def text(answer: object) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)
