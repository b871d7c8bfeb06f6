"""An app on a SQLite file that cannot be used, or no longer: each case raises a clear error, does not hang
and acknowledges only stored items. (tests/backends/test_sqlite.py has the same for the backend alone.)"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, Errors, until
from tests.support import unprivileged
from tests.support.sqlite import asked
from treadle import BackendError, NotFound, StoreFull, StoreUnavailable, Treadle, work
from treadle.backends.sqlite import SqliteBackend
from treadle.engine import store_retry

FAST: dict[str, Any] = {"poll_interval": 0.05, "lease": 5.0}


@work
async def echo(text: str) -> str:
    return text


async def refusals(url: str) -> list[BackendError]:
    """The errors of starting an app there, of submitting and of reading."""
    app = Treadle(url, work=[echo], **FAST)
    found: list[BackendError] = []
    async with asyncio.timeout(PATIENCE):
        for attempt in (app.start, lambda: app.enqueue_many([echo("a")]), lambda: app.get(["a"])):
            with pytest.raises(BackendError) as caught:
                await attempt()
            found.append(caught.value)
        await app.stop()
    return found


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    for error in await refusals(f"sqlite:///{tmp_path}"):
        assert f"{tmp_path} is a directory" in str(error)


async def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    for error in await refusals(f"sqlite:///{tmp_path}/none/work.db"):
        assert "does not exist: check the path, or create it" in str(error)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    path.write_bytes(b"This is a text, and a long one. " * 1000)
    for error in await refusals(f"sqlite:///{path}"):
        assert "no SQLite database" in str(error)
    assert path.read_bytes().startswith(b"This is a text")


async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    app = Treadle(f"sqlite:///{path}", work=[echo])
    await app.enqueue_many([echo(f"{n}") for n in range(1000)])
    await app.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * (len(whole) - len(whole) // 2))
    for error in await refusals(f"sqlite:///{path}"):
        assert "damaged" in str(error)
        assert "backup" in str(error)


READ_ONLY = """
import asyncio, os, sys
import treadle.backends.sqlite
from treadle import BackendError, Treadle, work

@work
async def echo(text: str) -> str:
    return text

async def main(url):
    app = Treadle(url, work=[echo])
    for attempt in (app.start, lambda: app.enqueue_many([echo("a")])):
        try:
            await attempt()
        except BackendError as error:
            print(type(error).__name__, error)
    await app.stop()

treadle.backends.sqlite.schema_sql()  # reads the library's files while they can be read
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.usefixtures("processes")
async def test_a_read_only_file_is_refused(run_directory: Path) -> None:
    """Root may write everywhere, so the process changes its user."""
    directory = run_directory / "sealed"
    directory.mkdir()
    app = Treadle(f"sqlite:///{directory}/work.db", work=[echo])
    await app.connect()
    await app.close()
    (directory / "work.db").chmod(0o444)
    directory.chmod(0o555)
    who = unprivileged.account()
    command = [sys.executable, "-c", READ_ONLY, f"sqlite:///{directory}/work.db"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, *([str(who.pw_uid)] if who else [])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    directory.chmod(0o755)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done
    assert all(line.startswith("BackendError") and "permissions" in line for line in lines), lines


# -- while it runs ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("brief_pauses")
async def test_a_file_deleted_at_run_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call reports an item as stored or done. Stopping does not wait for the lost item."""
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.05)
    barrier, errors, path = Barrier(), Errors(), tmp_path / "work.db"

    @work(name="held")
    async def held() -> str:
        await barrier.wait()
        return "lost"

    app = Treadle(f"sqlite:///{path}", work=[held, echo], on_error=errors, **FAST)
    async with asyncio.timeout(2 * PATIENCE):
        await app.start()
        handle = await app.enqueue(held())
        waiting = asyncio.ensure_future(handle.result())
        await barrier.reached()
        path.unlink()
        with pytest.raises(StoreUnavailable, match="deleted"):
            await app.enqueue(echo("a"))
        with pytest.raises(StoreUnavailable, match="deleted"):
            await handle.state()
        barrier.go.set()
        assert "deleted" in str(await errors.until("settle"))
        assert not waiting.done()
        await app.stop(drain=0.05)
        waiting.cancel()
    async with Treadle(f"sqlite:///{path}", work=[held, echo], **FAST) as anew:
        assert await anew.enqueue(echo("b")).result(PATIENCE) == "b"
        with pytest.raises(NotFound):
            await anew.handle(handle.id).state()


async def test_running_items_are_settled_after_a_full_disk(tmp_path: Path) -> None:
    """New work is refused. A running item is settled once, when there is room."""
    barrier, errors = Barrier(), Errors()
    large = "x" * 500_000

    @work(name="held")
    async def held() -> str:
        await barrier.wait()
        return large

    backend = SqliteBackend(tmp_path / "work.db")
    async with (
        asyncio.timeout(2 * PATIENCE),
        Treadle(backend, work=[held, echo], on_error=errors, **FAST) as app,
    ):
        handle = await app.enqueue(held())
        await barrier.reached()
        pages = await asked(backend, "PRAGMA page_count")
        await asked(backend, f"PRAGMA max_page_count = {pages}")
        refused = echo(large)
        with pytest.raises(StoreFull, match="full"):
            await app.enqueue(refused)
        assert await app.get([refused]) == [None]
        barrier.go.set()
        assert "full" in str(await errors.until("settle"))
        assert (await handle.state()).status == "running"
        await asked(backend, "PRAGMA max_page_count = 1000000")
        assert await handle.result(PATIENCE) == large
        assert await app.enqueue(refused).result(PATIENCE) == large
    assert barrier.count == 1


async def test_an_app_recovers_from_a_read_only_file(tmp_path: Path) -> None:
    """A clear error, and the app works again by itself."""
    backend = SqliteBackend(tmp_path / "work.db")
    app = Treadle(backend, work=[echo], **FAST)
    async with asyncio.timeout(2 * PATIENCE):
        before = await app.enqueue(echo("before"))  # no worker yet: it would get the error
        await asked(backend, "PRAGMA query_only = ON")
        refused = echo("refused")
        with pytest.raises(BackendError, match="cannot be written"):
            await app.enqueue(refused)
        assert await app.get([refused]) == [None]
        async with app:
            assert await before.result(PATIENCE) == "before"
            assert await app.enqueue(echo("after")).result(PATIENCE) == "after"


async def test_errors_of_a_deleted_file_are_not_reported_in_a_loop(tmp_path: Path) -> None:
    """A worker whose file is deleted waits between its attempts."""
    errors, path = Errors(), tmp_path / "work.db"
    async with Treadle(f"sqlite:///{path}", work=[echo], on_error=errors, **FAST) as app:
        assert await app.enqueue(echo("a")).result(PATIENCE) == "a"
        path.unlink()
        await until(lambda: len(errors.seen) >= 2)
        before = len(errors.seen)
        await asyncio.sleep(0.2)
        assert len(errors.seen) - before < 20


# -- a small disk -----------------------------------------------------------------------------------------

SMALL_DISK = """
import asyncio, json, os, sys
from treadle import StoreFull, Treadle, work
from treadle.backends.sqlite import SqliteBackend

@work(name="echo")
async def echo(text: str) -> str:
    return text

async def main(directory):
    with open(f"{directory}/ballast", "wb") as ballast:
        ballast.write(bytes(1_000_000))
    kept, errors = [], []
    async with Treadle(SqliteBackend(f"{directory}/work.db", reserve=0), work=[echo]) as app:
        while len(errors) < 5:
            try:
                kept.append((await app.enqueue(echo("x" * 50_000), delay=3600)).id)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        there = sum(state is not None for state in await app.get(kept))
        os.unlink(f"{directory}/ballast")
        after = await app.enqueue(echo("room")).result(20)
        stored = sum(count.count for count in await app.counts(ended=True))
    print(json.dumps([len(kept), there, stored, after, sorted(set(errors))]))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.timeout(90)
async def test_a_full_disk(tmp_path: Path) -> None:
    """On a small file system that is unmounted with the process. Skipped where mounting is not allowed."""
    inside = 'mount -t tmpfs -o size=4m tmpfs "$1" && exec "$0" -c "$2" "$1"'
    command = ["unshare", "-rm", "sh", "-c", inside]
    if shutil.which("unshare") is None or subprocess.run([*command[:2], "true"], check=False).returncode:  # noqa: ASYNC221
        pytest.skip("mounting a file system is not allowed here")
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, sys.executable, str(tmp_path), SMALL_DISK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept, there, stored, after, errors = json.loads(done.stdout)
    assert kept > 5
    assert there == kept, "acknowledged but not stored"
    assert stored == kept + 1, "stored but not acknowledged"
    assert after == "room"
    assert [error.split(":")[0] for error in errors] == ["StoreFull"]
