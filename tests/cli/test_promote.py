"""`treadle export`, `import` and `promote`."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from io import BytesIO
from pathlib import Path

import pytest

from tests.cli.calling import call, start
from tests.cli.conftest import Store
from tests.cli.looked_at import report, send
from tests.cli.test_fleet import beat
from treadle import Treadle
from treadle.store.portable import FileWriter


async def _fill(app: Treadle) -> None:
    await app.enqueue_many([send(number) for number in range(30)])
    await app.enqueue(report("monday"), id="one", key="k", delay=3600)


def _file(*records: bytes) -> bytes:
    file = BytesIO()
    writer = FileWriter(file)
    writer.write(records)
    writer.end()
    return file.getvalue()


def _ids(url: str) -> set[str]:
    return {each["id"] for each in call("list", "--json", "--all", "--url", url).objects}


def test_a_file_fills_an_empty_store(store: Store, tmp_path: Path) -> None:
    """With all of it, and an entry that says who has done it. The store that was exported goes on."""
    store.fill(_fill)
    file, other = tmp_path / "shop.records", f"sqlite:///{tmp_path / 'other.db'}"
    (written,) = store.call("export", str(file), "--json").objects
    assert (written["items"], written["finished_earlier"]) == (31, False)
    assert file.stat().st_mode & 0o777 == 0o600
    done = call("import", str(file), "--url", other, "--because", "a copy")
    assert done.code == 0, done.err
    assert "scheduled" in done.out
    assert _ids(other) == _ids(store.url)
    (entry,) = call("audit", "--json", "--url", other).objects
    assert (entry["verb"], entry["count"], entry["reason"]) == ("import", 31, "a copy")
    again = call("import", str(file), "--url", other)
    assert (again.code, "is not empty, it has items" in again.err) == (1, True)


def test_a_file_of_one_tenant_has_what_is_its_alone(store: Store, tmp_path: Path) -> None:
    """It says so itself: an import takes no tenant."""

    async def fill(app: Treadle) -> None:
        await _fill(app)
        await app.tenant("acme").enqueue(send(1), id="theirs")

    store.fill(fill)
    file, other = tmp_path / "acme.records", f"sqlite:///{tmp_path / 'other.db'}"
    (written,) = store.call("export", str(file), "--tenant", "acme", "--json").objects
    assert (written["items"], written["records"]) == (1, 1)
    refused = call("import", str(file), "--url", other, "--tenant", "acme")
    assert (refused.code, "the file says" in refused.err) == (2, True)
    assert call("import", str(file), "--url", other).code == 0
    assert _ids(other) == {"theirs"}


def test_a_tenant_is_added_to_a_store_in_use(store: Store, tmp_path: Path) -> None:
    """With an entry about it. A second time it is in the way."""

    async def fill(app: Treadle) -> None:
        await app.tenant("acme").enqueue(send(1), id="theirs")

    store.fill(fill)
    file, other = tmp_path / "acme.records", Store(f"sqlite:///{tmp_path / 'other.db'}")
    assert store.call("export", str(file), "--tenant", "acme").code == 0
    other.fill(_fill)
    done = call("import", str(file), "--url", other.url, "--because", "nearer")
    assert done.code == 0, done.err
    assert len(_ids(other.url)) == 32
    (entry,) = call("audit", "--json", "--url", other.url).objects
    assert (entry["verb"], entry["tenant"], entry["count"], entry["reason"]) == (
        "import",
        "acme",
        1,
        "nearer",
    )
    again = call("import", str(file), "--url", other.url)
    assert (again.code, "it has items of acme" in again.err) == (1, True)


@pytest.mark.parametrize("kind", ["postgres_url", "valkey_url"])
def test_so_it_fills_a_store_that_has_no_schema(
    kind: str, store: Store, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It makes it, on each server."""
    store.fill(_fill)
    file, other = tmp_path / "shop.records", request.getfixturevalue(kind)
    assert store.call("export", str(file)).code == 0
    done = call("import", str(file), "--url", other)
    assert done.code == 0, done.err
    assert _ids(other) == _ids(store.url)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda data: b"{}", "no file that `treadle export` has written"),
        (lambda data: data[: len(data) // 2], "ends in the middle"),
        (lambda data: data[:-32] + b"0" * 32, "damaged"),
        (lambda data: data[:30] + bytes((data[30] ^ 1,)) + data[31:], "damaged"),
        (lambda data: data + data, "damaged"),
        (lambda data: _file(), "no records"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(store: Store, tmp_path: Path, damage: object, word: str) -> None:
    """Nothing of it comes in."""
    assert callable(damage)
    store.fill(_fill)
    file, other = tmp_path / "shop.records", f"sqlite:///{tmp_path / 'other.db'}"
    assert store.call("export", str(file)).code == 0
    file.write_bytes(damage(file.read_bytes()))
    refused = call("import", str(file), "--url", other)
    assert (refused.code, word in refused.err) == (2, True), refused.err
    call("migrate", other)
    assert _ids(other) == set()


def test_a_promoted_store_names_the_new_one(store: Store, tmp_path: Path) -> None:
    """Each command that is called with the old one fails with that address. A second promotion has nothing to
    do."""
    store.fill(_fill)
    ids, new = _ids(store.url), f"sqlite:///{tmp_path / 'new.db'}"
    done = call("promote", store.url, new, "--because", "more room")
    assert done.code == 0, done.err
    assert f"give clients and workers the new address: {new}" in done.out
    assert _ids(new) == ids
    for arguments in (("list",), ("status",), ("cancel", "one"), ("export", str(tmp_path / "x"))):
        refused = call(*arguments, "--url", store.url)
        assert (refused.code, new in refused.err) == (1, True), refused
    (again,) = call("promote", store.url, new, "--json").objects
    assert again["finished_earlier"]
    back = call("promote", store.url, new, "--give-up")
    assert (back.code, back.out) == (0, "the old store owns the work, and the new one is empty\n")
    assert (_ids(store.url), _ids(new)) == (ids, set())


def test_a_promotion_says_what_is_in_the_way(store: Store, tmp_path: Path) -> None:
    """In a line, with the exit code of its kind. Nothing is changed."""
    store.fill(_fill)
    new = f"sqlite:///{tmp_path / 'new.db'}"
    (tmp_path / "empty.db").touch()
    with contextlib.closing(sqlite3.connect(tmp_path / "foreign.db")) as foreign:
        foreign.execute("create table mine (x)")
    for arguments, code, word in (
        ((store.url, store.url), 2, "the same"),
        ((store.url, "mysql://x/y"), 2, "not a backend URL"),
        ((store.url, "memory://"), 2, "ends with this process"),
        (("memory://", new), 2, "ends with this process"),
        ((f"sqlite:///{tmp_path / 'typo.db'}", new), 1, "there is no store in"),
        ((f"sqlite:///{tmp_path / 'empty.db'}", new), 1, "there is no store in"),
        ((f"sqlite:///{tmp_path / 'foreign.db'}", new), 1, "has no schema"),
    ):
        refused = call("promote", *arguments)
        assert (refused.code, word in refused.err) == (code, True), refused
    assert not (tmp_path / "typo.db").exists()
    assert not (tmp_path / "new.db").exists()
    assert (tmp_path / "empty.db").stat().st_size == 0
    assert call("promote", store.url, new, "--give-up").out == "there was nothing to give up\n"

    async def live(app: Treadle) -> None:
        await beat(app, "w1")

    store.fill(live)
    refused = call("promote", store.url, new)
    assert (refused.code, "workers are running: w1" in refused.err) == (1, True)
    assert store.call("list").code == 0


def test_nothing_is_imported_into_the_memory_of_a_command(store: Store, tmp_path: Path) -> None:
    """It would be gone at once."""
    file = tmp_path / "shop.records"
    store.fill(_fill)
    assert store.call("export", str(file)).code == 0
    refused = call("import", str(file), "--url", "memory://")
    assert (refused.code, "ends with this process" in refused.err) == (2, True), refused


def _killed_while_it_writes(file: Path, target: Path) -> bool:
    """Import a file, and kill that when some is written. False: it has ended before."""
    process = start("import", str(file), "--url", f"sqlite:///{target}")
    log = target.with_name(f"{target.name}-wal")
    while process.poll() is None and not (log.exists() and log.stat().st_size >= 100_000):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    code = process.wait(30)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    return code == -signal.SIGKILL


@pytest.mark.usefixtures("processes")
def test_an_import_that_is_killed_can_be_repeated(store: Store, tmp_path: Path) -> None:
    """Nothing of the first one is left."""

    async def many(app: Treadle) -> None:
        await app.enqueue_many([send(number) for number in range(4000)])

    store.fill(many)
    file = tmp_path / "shop.records"
    assert store.call("export", str(file)).code == 0
    # On a busy machine an import may end before this process looks at it.
    targets = (tmp_path / f"other{n}.db" for n in range(5))
    target = next(target for target in targets if _killed_while_it_writes(file, target))
    done = call("import", str(file), "--url", f"sqlite:///{target}")
    assert done.code == 0, done.err
    assert len(_ids(f"sqlite:///{target}")) == 4000
