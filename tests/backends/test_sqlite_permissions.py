"""SqliteBackend: modes of its files, and what other users may have put beside them."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tests.engine.kit import until
from treadle.backends.sqlite import SqliteBackend
from treadle.errors import InputError
from treadle.item import Wake
from treadle.testing.contract.build import claim_one, item, submit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
async def backend(path: Path) -> AsyncIterator[SqliteBackend]:
    async with _opened(path) as backend:
        yield backend


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(path)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@pytest.mark.parametrize("umask", [0o022, 0o000])
async def test_a_new_file_is_for_its_owner_only(tmp_path: Path, umask: int) -> None:
    """With its log and its index of the log, whatever the umask is. A file that exists keeps its mode."""
    before = os.umask(umask)
    try:
        shared = tmp_path / "shared.db"
        shared.touch(0o664)
        modes = {name: await _modes_in_use(tmp_path / f"{name}.db") for name in ("new", "shared")}
    finally:
        os.umask(before)
    assert modes == {"new": [0o600] * 3, "shared": [0o664 & ~umask] * 3}


async def _modes_in_use(path: Path) -> list[int]:
    async with _opened(path) as backend:
        await submit(backend, item("a"))
        return [stat.S_IMODE(path.with_name(path.name + end).stat().st_mode) for end in ("", "-wal", "-shm")]


def _others_may_enter(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    directory.chmod(0o777)


def _link(directory: Path) -> None:
    elsewhere = directory.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    directory.symlink_to(elsewhere)


def _file(directory: Path) -> None:
    directory.touch()


def _of_another_user(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, 12345)


@pytest.mark.parametrize("plant", [_others_may_enter, _link, _file, _of_another_user])
async def test_an_unsafe_process_directory_is_not_used(
    path: Path, plant: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The store works without it, by polling, and a warning says so."""
    directory = path.with_name("work.db-treadle")
    plant(directory)
    async with _opened(path) as backend:
        await backend.subscribe(lambda _: None)
        await submit(backend, item("a"))
        assert (await claim_one(backend)).id == "a"
        planted = sorted(file.name for file in path.parent.iterdir() if not file.name.startswith("work.db"))
        assert planted in ([], ["elsewhere"])
        if directory.is_dir():
            assert not list(directory.iterdir())
    assert "is not used" in caplog.text


async def test_links_in_the_process_directory_are_not_followed(backend: SqliteBackend, path: Path) -> None:
    """A wake-up is not written into the file that a link points to."""
    victim = path.with_name("victim")
    victim.touch()
    path.with_name("work.db-treadle").joinpath("1-x.fifo").symlink_to(victim)
    await backend.publish(Wake(ready=True))
    assert victim.read_bytes() == b""


async def test_an_exchanged_process_directory_is_not_used(backend: SqliteBackend, path: Path) -> None:
    """A process keeps to the directory that it has opened."""
    directory = path.with_name("work.db-treadle")
    directory.rename(path.with_name("moved"))
    directory.mkdir(mode=0o777)
    directory.joinpath("1-x.fifo").touch()
    await backend.publish(Wake(ready=True))
    assert directory.joinpath("1-x.fifo").read_bytes() == b""


async def test_a_writer_that_waits_keeps_to_its_process_directory(backend: SqliteBackend, path: Path) -> None:
    """It shows that it waits in the directory that it has opened, and not in one that came in its place."""
    directory, moved = path.with_name("work.db-treadle"), path.with_name("moved")
    directory.rename(moved)
    directory.mkdir(mode=0o777)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(submit(backend, item("a")))
        await until(lambda: any(each.joinpath("writer").exists() for each in (directory, moved)))
        other.execute("ROLLBACK")
    await waiting
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b.db", "a" * 5000, "~nobody-has-this-name/work.db"])
async def test_a_path_that_the_system_refuses_is_an_input_error(name: str) -> None:
    with pytest.raises(InputError, match="path="):
        await SqliteBackend(name).open()
