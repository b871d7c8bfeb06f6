"""SqliteBackend: the contract, and how its file is opened."""

# ruff: noqa: ASYNC240  (files are small, and nothing else goes on)

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support import unprivileged
from tests.support.sqlite import (
    asked,
    finished,
    process,
    start,
    status,
    submit,
    succeed,
)
from treadle.backends.sqlite import SqliteBackend, schema_sql
from treadle.backends.sqlite import database as database_module
from treadle.clock import SystemClock
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


# Nothing in the contract depends on a disk, and many files are created.
_MEMORY = Path("/dev/shm")


class FileSubject:
    """An empty file of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = ManualClock()
        self._others: list[SqliteBackend] = []
        self.backend = self._new()

    def _new(self) -> SqliteBackend:
        return SqliteBackend(self._path, clock=self._clock, durability="normal")

    async def advance(self, seconds: float) -> None:
        await self._clock.advance(seconds)

    async def another(self) -> SqliteBackend:
        other = self._new()
        await other.open()
        self._others.append(other)
        return other

    async def close(self) -> None:
        for backend in (self.backend, *self._others):
            await backend.close()


@pytest.fixture(scope="session")
def quick_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as directory:
        yield Path(directory)


class TestSqlite(BackendContract):
    @pytest.fixture
    async def subject(self, quick_directory: Path) -> AsyncIterator[FileSubject]:
        directory = Path(tempfile.mkdtemp(dir=quick_directory))
        subject = FileSubject(directory / "work.db")
        await subject.backend.open()
        yield subject
        await subject.close()
        left = {entry.name for entry in directory.iterdir()}
        assert left == {"work.db"}
        shutil.rmtree(directory)


# -- how the file is opened -----------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
async def test_durability_is_what_sqlite_does(path: Path, durability: Any, level: int) -> None:
    backend = SqliteBackend(path, durability=durability)
    await backend.open()
    assert await asked(backend, "PRAGMA synchronous") == level
    assert await asked(backend, "PRAGMA journal_mode") == "wal"
    await backend.close()


@pytest.mark.parametrize("durability", ["FULL", "off", "", None])
def test_a_durability_that_there_is_not(path: Path, durability: Any) -> None:
    """A slip of the pen must not cost anybody the durability that was meant."""
    with pytest.raises(InputError, match="durability"):
        SqliteBackend(path, durability=durability)


async def test_it_can_be_said_in_the_url(path: Path) -> None:
    backend = connect(f"sqlite:///{path}?durability=normal", clock=SystemClock())
    assert isinstance(backend, SqliteBackend)
    await backend.open()
    assert await asked(backend, "PRAGMA synchronous") == 1
    await backend.close()
    assert [file.name for file in path.parent.iterdir()] == ["work.db"]
    for query, word in (("durability=fast", "durability"), ("mode=ro", "SqliteBackend")):
        with pytest.raises(InputError, match=word):
            connect(f"sqlite:///{path}?{query}", clock=SystemClock())


async def test_full_is_the_default(backend: SqliteBackend) -> None:
    assert await asked(backend, "PRAGMA synchronous") == 2


async def test_what_was_answered_is_there_for_another_process(backend: SqliteBackend, path: Path) -> None:
    await submit(backend, "a", "b")
    found = await asyncio.to_thread(
        finished, process("say([one and one.status for one in await backend.get(['a', 'b', 'c'])])", path)
    )
    assert found.strip() == "['ready', 'ready', None]"


async def test_it_must_be_open(path: Path) -> None:
    backend = SqliteBackend(path)
    with pytest.raises(NotStarted):
        await backend.get(["a"])
    with pytest.raises(NotStarted):
        await backend.submit([])
    await backend.close()


async def test_a_forked_child_is_told_to_open_its_own(
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
async def test_no_schema_and_not_to_apply_it(path: Path, exists: bool) -> None:
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


async def test_many_open_a_new_file_at_once(path: Path) -> None:
    backends = [SqliteBackend(path) for _ in range(8)]
    await asyncio.gather(*(backend.open() for backend in backends))
    await asyncio.gather(*(submit(backend, f"i{n}") for n, backend in enumerate(backends)))
    assert await backends[0].counts() == await backends[7].counts()
    for backend in backends:
        await backend.close()


async def test_the_users_tables_may_live_in_the_same_file(path: Path) -> None:
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


async def test_a_directory(tmp_path: Path) -> None:
    assert "directory" in str(await refusal(tmp_path))


async def test_no_directory_for_it(tmp_path: Path) -> None:
    assert "does not exist" in str(await refusal(tmp_path / "none" / "work.db"))
    assert not (tmp_path / "none").exists()


async def test_memory_is_another_backend() -> None:
    assert "memory" in str(await refusal(":memory:"))


async def test_something_else(path: Path) -> None:
    path.write_bytes(b"This is a text, and a long one. " * 1000)
    assert "no SQLite database" in str(await refusal(path))
    assert path.read_bytes().startswith(b"This is a text")


async def test_a_damaged_file(path: Path) -> None:
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
schema_sql()  # whatever has to be read from the library is read by now
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    asyncio.run(SqliteBackend(sys.argv[1], busy_timeout=1).open())
except Exception as error:
    print(type(error).__name__, error)
"""


async def test_a_file_that_may_not_be_written(quick_directory: Path) -> None:
    quick_directory.chmod(0o755)
    directory = quick_directory / "sealed"
    directory.mkdir()
    backend = SqliteBackend(directory / "work.db")
    await backend.open()
    await backend.close()
    (directory / "work.db").chmod(0o444)
    directory.chmod(0o555)
    # Root may write everywhere, and so becomes somebody else.
    who = unprivileged.account()
    command = [
        sys.executable,
        "-c",
        UNPRIVILEGED,
        str(directory / "work.db"),
        *([str(who.pw_uid)] if who else []),
    ]
    run = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=30, check=False
    )
    directory.chmod(0o755)
    assert run.stdout.startswith("BackendError"), run
    assert "permissions" in run.stdout


async def test_a_file_that_is_deleted_while_in_use(backend: SqliteBackend, path: Path) -> None:
    await submit(backend, "a")
    path.unlink()
    with pytest.raises(StoreUnavailable, match="deleted"):
        await submit(backend, "b")
    with pytest.raises(StoreUnavailable, match="deleted"):
        await backend.get(["a"])
    await backend.close()
    await backend.open()
    assert await status(backend, "b") is None


async def test_a_file_that_is_replaced_while_in_use(backend: SqliteBackend, path: Path) -> None:
    path.rename(path.with_name("old.db"))
    path.touch()
    with pytest.raises(StoreUnavailable, match="replaced"):
        await submit(backend, "a")


async def test_a_full_disk(backend: SqliteBackend) -> None:
    """Nothing is acknowledged that is not stored; and when there is room again, all goes on."""
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


async def test_one_that_does_not_fit_does_not_hurt_its_neighbours(backend: SqliteBackend) -> None:
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
    monkeypatch.setattr(database_module, "_CHECK_ROOM_EVERY", -1.0)
    backend._database._room_until = 0.0
    usage = shutil.disk_usage(".")._replace(free=1000)
    monkeypatch.setattr(database_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreFull):
        await submit(backend, "a")
    await backend.settle([succeed(lease)])
    assert await status(backend, "running") == "success"
