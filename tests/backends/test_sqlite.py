"""SqliteBackend: the contract, and how its file is opened."""

# ruff: noqa: ASYNC240  (files are small, and nothing else runs)

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support import unprivileged
from tests.support.sqlite import (
    asked,
    empty_store,
    finished,
    process,
    start,
    status,
    submit,
    succeed,
)
from treadle.backends.sqlite import SqliteBackend, schema_sql
from treadle.backends.sqlite import backend as backend_module
from treadle.base.timing import SystemClock
from treadle.connect import connect
from treadle.errors import BackendError, InputError, NotStarted, SchemaError, StoreFull, StoreUnavailable
from treadle.item import Wake
from treadle.testing import BackendContract, ManualClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
async def backend(path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(path, busy_timeout=10)
    await backend.open()
    yield backend
    await backend.close()


class FileSubject:
    """A file with empty tables."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = ManualClock()
        self._others: list[SqliteBackend] = []
        self.backend = self._new()

    def _new(self) -> SqliteBackend:
        return SqliteBackend(self._path, clock=self._clock, durability="normal")

    async def advance(self, seconds: float) -> None:
        await self._clock.advance(seconds)

    async def set_back(self, seconds: float) -> None:
        await self._clock.set(self._clock.now() - seconds)

    async def another(self) -> SqliteBackend:
        other = self._new()
        await other.open()
        self._others.append(other)
        return other

    async def close(self) -> None:
        for backend in (self.backend, *self._others):
            await backend.close()


class TestSqlite(BackendContract):
    @pytest.fixture
    async def subject(self, quick_directory: Path) -> AsyncIterator[FileSubject]:
        directory = Path(tempfile.mkdtemp(dir=quick_directory))
        subject = FileSubject(empty_store(directory / "work.db"))
        await subject.backend.open()
        yield subject
        await subject.close()
        left = {entry.name for entry in directory.iterdir()}
        assert left == {"work.db"}
        shutil.rmtree(directory)


# -- how the file is opened -----------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
async def test_durability_sets_the_synchronous_level(path: Path, durability: Any, level: int) -> None:
    backend = SqliteBackend(path, durability=durability)
    await backend.open()
    assert await asked(backend, "PRAGMA synchronous") == level
    assert await asked(backend, "PRAGMA journal_mode") == "wal"
    await backend.close()


@pytest.mark.parametrize("durability", ["FULL", "off", "", None])
def test_an_unknown_durability_is_refused(path: Path, durability: Any) -> None:
    """A misspelled durability must not silently become another one."""
    with pytest.raises(InputError, match="durability"):
        SqliteBackend(path, durability=durability)


async def test_the_url_can_set_the_durability(path: Path) -> None:
    backend = connect(f"sqlite:///{path}?durability=normal", clock=SystemClock())
    assert isinstance(backend, SqliteBackend)
    await backend.open()
    assert await asked(backend, "PRAGMA synchronous") == 1
    await backend.close()
    assert [file.name for file in path.parent.iterdir()] == ["work.db"]
    for query, word in (("durability=fast", "durability"), ("mode=ro", "SqliteBackend")):
        with pytest.raises(InputError, match=word):
            connect(f"sqlite:///{path}?{query}", clock=SystemClock())


async def test_full_durability_is_the_default(backend: SqliteBackend) -> None:
    assert await asked(backend, "PRAGMA synchronous") == 2


@pytest.mark.usefixtures("processes")
async def test_another_process_sees_answered_submits(backend: SqliteBackend, path: Path) -> None:
    await submit(backend, "a", "b")
    found = await asyncio.to_thread(
        finished, process("say([one and one.status for one in await backend.get(['a', 'b', 'c'])])", path)
    )
    assert found.strip() == "['ready', 'ready', None]"


async def test_verbs_need_an_open_backend(path: Path) -> None:
    backend = SqliteBackend(path)
    with pytest.raises(NotStarted):
        await backend.get(["a"])
    with pytest.raises(NotStarted):
        await backend.submit([])
    await backend.close()


async def test_a_forked_child_must_open_its_own_backend(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(BackendError, match="forked"):
            await backend.get(["a"])
        with pytest.raises(BackendError, match="forked"):
            await submit(backend, "a")
        await backend.publish(Wake(ready=True))
    await submit(backend, "a")


# -- the schema -----------------------------------------------------------------------------------------


async def test_the_schema_can_be_applied_by_hand(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema_sql())
    backend = SqliteBackend(path, apply_schema=False)
    await backend.open()
    await submit(backend, "a")
    await backend.close()


@pytest.mark.parametrize("exists", [True, False])
async def test_a_missing_schema_is_refused_without_apply_schema(path: Path, exists: bool) -> None:
    if exists:
        path.touch()
    with pytest.raises(SchemaError) as caught:
        await SqliteBackend(path, apply_schema=False).open()
    assert caught.value.found is None
    assert path.exists() == exists


async def test_a_newer_schema_is_refused(path: Path) -> None:
    backend = SqliteBackend(path)
    await backend.open()
    await backend.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE treadle_meta SET value = 99 WHERE name = 'schema'")
    for applying in (True, False):
        with pytest.raises(SchemaError, match="newer") as caught:
            await SqliteBackend(path, apply_schema=applying).open()
        assert caught.value.found == 99


async def test_many_backends_open_a_new_file_at_once(path: Path) -> None:
    backends = [SqliteBackend(path) for _ in range(8)]
    await asyncio.gather(*(backend.open() for backend in backends))
    await asyncio.gather(*(submit(backend, f"i{n}") for n, backend in enumerate(backends)))
    assert await backends[0].counts() == await backends[7].counts()
    for backend in backends:
        await backend.close()


async def test_the_same_file_can_hold_the_users_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE item (id TEXT)")
        connection.execute("PRAGMA user_version = 7")
    backend = SqliteBackend(path)
    await backend.open()
    await submit(backend, "a")
    await backend.close()
    with closing(sqlite3.connect(path)) as connection:
        names = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    assert {name for name in names if not name.startswith(("treadle_", "sqlite_"))} == {"item"}


# -- files that cannot be used --------------------------------------------------------------------------


async def refusal(path: Path | str) -> Exception:
    with pytest.raises((BackendError, InputError)) as caught:
        async with asyncio.timeout(20):
            await SqliteBackend(path, busy_timeout=0.2).open()
    return caught.value


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "directory" in str(await refusal(tmp_path))


async def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in str(await refusal(tmp_path / "none" / "work.db"))
    assert not (tmp_path / "none").exists()


async def test_memory_is_refused() -> None:
    assert "memory" in str(await refusal(":memory:"))


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"This is a text, and a long one. " * 1000)
    assert "no SQLite database" in str(await refusal(path))
    assert path.read_bytes().startswith(b"This is a text")


async def test_a_damaged_file_is_refused(path: Path) -> None:
    backend = SqliteBackend(path)
    await backend.open()
    await submit(backend, *(f"i{n}" for n in range(1000)))
    await backend.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * (len(whole) - len(whole) // 2))
    assert "damaged" in str(await refusal(path))


UNPRIVILEGED = """
import asyncio, os, sys
from treadle.backends.sqlite import SqliteBackend, schema_sql
schema_sql()  # reads the library's files while they can be read
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    asyncio.run(SqliteBackend(sys.argv[1], busy_timeout=1).open())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.usefixtures("processes")
async def test_a_read_only_file_is_refused(quick_directory: Path) -> None:
    quick_directory.chmod(0o755)
    directory = quick_directory / "sealed"
    directory.mkdir()
    backend = SqliteBackend(directory / "work.db")
    await backend.open()
    await backend.close()
    (directory / "work.db").chmod(0o444)
    directory.chmod(0o555)
    # Root may write everywhere, so the process changes its user.
    who = unprivileged.account()
    command = [
        sys.executable,
        "-c",
        UNPRIVILEGED,
        str(directory / "work.db"),
        *([str(who.pw_uid)] if who else []),
    ]
    run = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
    )
    directory.chmod(0o755)
    assert run.stdout.startswith("BackendError"), run
    assert "permissions" in run.stdout


async def test_a_deleted_file_is_reported(backend: SqliteBackend, path: Path) -> None:
    await submit(backend, "a")
    path.unlink()
    with pytest.raises(StoreUnavailable, match="deleted"):
        await submit(backend, "b")
    with pytest.raises(StoreUnavailable, match="deleted"):
        await backend.get(["a"])
    await backend.close()
    await backend.open()
    assert await status(backend, "b") is None


async def test_a_replaced_file_is_reported(backend: SqliteBackend, path: Path) -> None:
    path.rename(path.with_name("old.db"))
    path.touch()
    with pytest.raises(StoreUnavailable, match="replaced"):
        await submit(backend, "a")


async def test_a_full_disk_refuses_submits_until_there_is_room(backend: SqliteBackend) -> None:
    """Only stored items are acknowledged. When there is room again, verbs succeed."""
    lease = await start(backend, "running")
    pages = await asked(backend, "PRAGMA page_count")
    await asked(backend, f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFull):
        await submit(backend, *(f"i{n}" for n in range(1000)))
    assert await status(backend, "i0") is None
    await asked(backend, "PRAGMA max_page_count = 1000000")
    await backend.settle([succeed(lease)])
    await submit(backend, "i0")
    assert [await status(backend, id) for id in ("running", "i0")] == ["success", "ready"]


async def test_a_submit_that_does_not_fit_fails_alone(backend: SqliteBackend) -> None:
    lease = await start(backend, "running")
    pages = await asked(backend, "PRAGMA page_count")
    await asked(backend, f"PRAGMA max_page_count = {pages}")
    large = [f"i{n}" for n in range(1000)]
    answers = await asyncio.gather(
        submit(backend, *large), backend.settle([succeed(lease)]), backend.now(), return_exceptions=True
    )
    assert isinstance(answers[0], StoreFull)
    assert not isinstance(answers[1], BaseException)
    assert await status(backend, "running") == "success"


async def test_new_work_is_refused_before_the_disk_is_full(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await start(backend, "running")
    monkeypatch.setattr(backend_module, "_CHECK_ROOM_EVERY", -1.0)
    backend._room_until = 0.0
    usage = shutil.disk_usage(".")._replace(free=1000)
    monkeypatch.setattr(backend_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreFull):
        await submit(backend, "a")
    await backend.settle([succeed(lease)])
    assert await status(backend, "running") == "success"
