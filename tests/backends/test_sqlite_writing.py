"""SqliteBackend: the write lock, group commits, the write-ahead log, query plans, and retention."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.sqlite import (
    LONG,
    claim,
    item,
    status,
    submit,
    succeed,
    wait_until,
)
from treadle.backends.sqlite import SqliteBackend
from treadle.backends.sqlite import threads as threads_module
from treadle.backends.sqlite.statements import statements
from treadle.errors import BackendError, NotFound, NotStarted, StoreUnavailable
from treadle.item import Demand, Heartbeat, Settlement, Submission
from treadle.testing import ManualClock


@pytest.fixture
def path(quick_file: Path) -> Path:
    return quick_file


@pytest.fixture
async def backend(path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(path, busy_timeout=10)
    await backend.open()
    yield backend
    await backend.close()


# -- the write lock -------------------------------------------------------------------------------------


async def test_a_submit_waits_while_the_file_is_locked(backend: SqliteBackend, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        submitting = asyncio.create_task(submit(backend, "a"))
        assert await status(backend, "a") is None, "reads do not wait"
        assert not submitting.done()
        other.execute("ROLLBACK")
        await submitting
    assert await status(backend, "a") == "ready"


async def test_a_submit_fails_after_the_busy_timeout(path: Path) -> None:
    backend = SqliteBackend(path, busy_timeout=0.1)
    await backend.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        calls = [submit(backend, f"i{n}") for n in range(10)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        assert "locked" in str(answers[0])
        other.execute("ROLLBACK")
    await submit(backend, "a")
    await backend.close()


async def test_leases_do_not_lapse_during_a_long_wait_for_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other workers may have waited for the lock too."""
    monkeypatch.setattr(threads_module, "LONG_WAIT", 0.1)
    clock = ManualClock()
    backend = SqliteBackend(path, clock=clock)
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=10))
    await backend.submit([Submission((item("a", lease_to="w"),))])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        claiming = asyncio.create_task(backend.claim(Demand(worker="w", limit=1)))
        clock.advance(10.1)
        await asyncio.sleep(0.35)
        other.execute("ROLLBACK")
        assert (await claiming).alive
    clock.advance(11)
    assert not (await backend.claim(Demand(worker="w", limit=1))).alive
    await backend.close()


@pytest.mark.parametrize("quick", [False, True])
async def test_leases_do_not_lapse_while_calls_fail_because_of_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    """What counts is the time since the first call that could not write."""
    if quick:
        set_pace(monkeypatch, QUICK)
    monkeypatch.setattr(threads_module, "LONG_WAIT", 0.2)
    clock = ManualClock()
    backend = SqliteBackend(path, clock=clock, busy_timeout=0.15)
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=10))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        clock.advance(10.1)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await backend.claim(Demand(worker="w", limit=1))
        other.execute("ROLLBACK")
    assert (await backend.claim(Demand(worker="w", limit=1))).alive
    await backend.close()


async def test_a_heartbeat_comes_before_a_claim_when_the_lock_is_free(path: Path) -> None:
    clock = ManualClock()
    backend = SqliteBackend(path, clock=clock)
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=10))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        claiming = asyncio.create_task(backend.claim(Demand(worker="w", limit=1)))
        await asyncio.sleep(0.05)
        beating = asyncio.create_task(backend.beat(Heartbeat(worker="w", lease=10)))
        await asyncio.sleep(0)
        clock.advance(11)
        other.execute("ROLLBACK")
        assert not (await beating).fresh
        assert (await claiming).alive
    await backend.close()


async def test_a_call_waits_for_the_busy_timeout_once(path: Path) -> None:
    """Also behind another call that waits."""
    backend = SqliteBackend(path, busy_timeout=0.5)
    await backend.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        first = asyncio.create_task(submit(backend, "a"))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="one of this process"):
            await submit(backend, "b")
        assert time.monotonic() - began < 0.85
        with pytest.raises(StoreUnavailable):
            await first
        other.execute("ROLLBACK")
    await backend.close()


@pytest.mark.parametrize("quick", [False, True])
async def test_waiting_verbs_share_a_commit(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    if quick:
        set_pace(monkeypatch, QUICK)
    commits = 0
    check = threads_module.FileIdentity.check

    def counted(self: Any) -> None:
        nonlocal commits
        commits += 1
        check(self)

    monkeypatch.setattr(threads_module.FileIdentity, "check", counted)
    await asyncio.gather(*(submit(backend, f"i{n}") for n in range(200)))
    assert commits <= 20
    (count,) = await backend.counts()
    assert count.count == 200


async def test_a_refused_verb_does_not_affect_others_in_its_commit(backend: SqliteBackend) -> None:
    await submit(backend, "taken")
    calls = [
        submit(backend, "a"),
        backend.complete("unknown", b""),
        backend.trigger(["taken"]),
        submit(backend, "b"),
        backend.complete("taken", b"1"),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, True, False, False]
    assert isinstance(answers[1], NotFound)
    assert [await status(backend, id) for id in ("a", "b", "taken")] == ["ready", "ready", "success"]


async def test_a_verb_of_a_cancelled_caller_is_executed(backend: SqliteBackend) -> None:
    submitting = asyncio.create_task(submit(backend, "a"))
    await asyncio.sleep(0)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    await submit(backend, "b")
    assert await status(backend, "a") == "ready"


async def test_a_large_log_is_truncated(
    backend: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader keeps the log from being reused. After the reader has gone, the log shrinks."""
    monkeypatch.setattr(threads_module, "LOG_LIMIT", 100_000)
    log = path.with_name("work.db-wal")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM treadle_item").fetchall()
        for n in range(10):
            await submit(backend, *(f"{n}-{m}" for m in range(100)))
        assert log.stat().st_size > 100_000
    await submit(backend, "last")
    await wait_until(lambda: asyncio.to_thread(lambda: log.stat().st_size < 100_000))


async def test_the_log_does_not_grow_without_bounds(backend: SqliteBackend, path: Path) -> None:
    """Much more is written to it than the limit."""
    largest, large = 0, b"x" * 200_000
    for n in range(11):
        items = tuple(replace(item(f"{n}-{m}"), input=large) for m in range(10))
        await backend.submit([Submission(items)])
        leases = (await claim(backend)).leases
        await backend.settle([replace(succeed(lease), result=large) for lease in leases])
        largest = max(largest, path.with_name("work.db-wal").stat().st_size)
    assert largest < 32 * 2**20


# -- in the thread of the caller -------------------------------------------------------------------------

QUICK, SLOW = 60.0, 0.0
"""Of a disk that is always, or never, quick enough."""


def set_pace(monkeypatch: pytest.MonkeyPatch, quick: float) -> None:
    monkeypatch.setattr(threads_module, "QUICK", quick)


@contextmanager
def committing(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """The names of the threads that commit, by turns."""
    found: list[str] = []
    check = threads_module.FileIdentity.check

    def noted(self: Any) -> None:
        found.append(threading.current_thread().name)
        check(self)

    with monkeypatch.context() as patch:
        patch.setattr(threads_module.FileIdentity, "check", noted)
        yield found


async def writers(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch, *ids: str) -> list[str]:
    """Submit items one by one. Return the names of the threads that commit."""
    with committing(monkeypatch) as found:
        for id in ids:
            await submit(backend, id)
            await asyncio.sleep(0)
    return found


async def test_a_lone_caller_writes_in_its_own_thread_while_the_disk_is_quick(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = threading.current_thread().name, "treadle-write-work.db"
    assert await writers(backend, monkeypatch, "a") == [there], "how quick it is shows first"
    set_pace(monkeypatch, QUICK)
    assert await writers(backend, monkeypatch, "b", "c") == [here, here]
    set_pace(monkeypatch, SLOW)
    assert await writers(backend, monkeypatch, "d") == [there]
    assert [await status(backend, id) for id in "abcd"] == ["ready"] * 4


async def test_what_may_be_long_is_not_written_in_the_thread_of_the_caller(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = threading.current_thread().name, "treadle-write-work.db"
    await submit(backend, *(f"i{n}" for n in range(6)))
    await backend.beat(Heartbeat(worker="w", lease=LONG))
    set_pace(monkeypatch, QUICK)
    with committing(monkeypatch) as found:
        leases = (await backend.claim(Demand(worker="w", limit=5))).leases
        await asyncio.sleep(0)
        await backend.claim(Demand(worker="w", limit=1))
        await asyncio.sleep(0)
        await backend.settle([succeed(leases[0])])
        await asyncio.sleep(0)
        await backend.settle([replace(succeed(leases[1]), log=b"a")])
        await submit(backend, "many", "items")
        await backend.submit([Submission((replace(item("large"), input=b"x" * 20_000),))])
        await backend.submit([Submission((replace(item("after"), after=("i3",), need=1),))])
        await backend.settle([succeed(leases[2])])
    assert found == [here, there, here, there, there, there, there, there]


def test_one_slow_flush_sends_callers_back_to_the_thread() -> None:
    pace = threads_module.Pace()
    assert not pace.is_quick
    for _ in range(30):
        pace.add(0.0002)
    assert pace.is_quick
    pace.add(0.01)
    assert not pace.is_quick
    for _ in range(7):
        pace.add(0.0002)
    assert pace.is_quick


async def test_a_lock_does_not_block_a_caller_that_could_write_itself(
    backend: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, QUICK)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        submitting = asyncio.create_task(submit(backend, "a"))
        assert await status(backend, "a") is None
        assert not submitting.done()
        other.execute("ROLLBACK")
        await submitting
    assert await status(backend, "a") == "ready"


async def test_an_error_in_the_thread_of_the_caller_undoes_all(
    backend: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, QUICK)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON treadle_open BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        with pytest.raises(BackendError, match="no"):
            await submit(backend, "a")
        other.execute("DROP TRIGGER full")
    await asyncio.sleep(0)
    assert await writers(backend, monkeypatch, "a") == [threading.current_thread().name]
    assert await status(backend, "a") == "ready"


async def test_a_file_that_was_replaced_is_noticed_in_the_thread_of_the_caller(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SqliteBackend(path)
    await backend.open()
    set_pace(monkeypatch, QUICK)
    await asyncio.to_thread(path.rename, path.with_name("elsewhere.db"))
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await submit(backend, "a")
    await backend.close()


async def test_event_loops_that_write_themselves_share_a_file(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, QUICK)

    async def some(name: str) -> None:
        for n in range(50):
            await submit(backend, f"{name}{n}")

    await asyncio.gather(some("a"), *(asyncio.to_thread(asyncio.run, some(name)) for name in "bcd"))
    (count,) = await backend.counts()
    assert count.count == 200


async def test_the_log_does_not_grow_without_bounds_while_callers_write(
    backend: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, QUICK)
    large = b"x" * 16_000
    for n in range(900):
        await backend.submit([Submission((replace(item(f"{n}"), input=large),))])
        await asyncio.sleep(0)
    assert path.with_name("work.db-wal").stat().st_size < 32 * 2**20


async def test_a_backend_that_is_closed_while_its_callers_write_opens_nothing_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, QUICK)
    backend = SqliteBackend(path)
    await backend.open()
    await submit(backend, "a")
    await backend.close()
    with pytest.raises(NotStarted):
        await submit(backend, "b")
    assert not path.with_name("work.db-wal").exists()


# -- plans ----------------------------------------------------------------------------------------------

_LARGE = re.compile(
    r"SCAN (treadle_(item|open|done|dependency|attempt|group|missing)\b|[iodxagpmw]\b)(?! VIRTUAL)"
)
_SCANS_ALL = {("read", "counts_open"), ("read", "counts_dead"), ("read", "counts_ended")}


def plan(connection: sqlite3.Connection, sql: str) -> list[str]:
    for count in range(30):
        try:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", ("[1]",) * count).fetchall()
        except sqlite3.ProgrammingError:
            continue
        return [row[3] for row in rows]
    raise AssertionError(sql)


VERBS = (
    "claim",
    "counter",
    "dependencies",
    "endings",
    "fairness",
    "groups",
    "operate",
    "read",
    "retention",
    "rows",
    "settle",
    "submit",
    "workers",
)


@pytest.mark.parametrize("verb", VERBS)
async def test_no_statement_scans_a_large_table(backend: SqliteBackend, path: Path, verb: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for name, sql in statements(verb).items():
            found = plan(connection, sql)
            if (verb, name) not in _SCANS_ALL:
                assert not [step for step in found if _LARGE.match(step) and "INDEX" not in step], (
                    name,
                    found,
                )


async def test_a_claim_reads_the_claim_index(backend: SqliteBackend, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for name, sql in (statements("fairness") | statements("claim")).items():
            if name.startswith(("ready_", "parked_", "next_", "due", "overdue", "doomed")):
                found = "; ".join(plan(connection, sql))
                assert "treadle_open" in found, (name, found)
                assert "TEMP B-TREE" not in found, (name, found)


@pytest.mark.parametrize(("lines", "most"), [(0, 3), (1, 6), (2, 22)])
async def test_a_claim_takes_few_statements(
    path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, most: int
) -> None:
    """It looks for other queues, tenants and lanes only if there are some."""
    seen: list[str] = []
    connect = threads_module.sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(seen.append)
        return connection

    monkeypatch.setattr(threads_module.sqlite3, "connect", traced)
    backend = SqliteBackend(path)
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=LONG, types=("work",)))
    for n in range(lines):
        await submit(backend, f"a{n}", f"b{n}", lane=f"lane-{n}")
    seen.clear()
    found = await backend.claim(Demand(worker="w", limit=10, types={"work": 10}))
    assert len(found.leases) == 2 * lines
    assert len(seen) <= most, seen
    await backend.close()


# -- retention -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("children", [(), ("child",)])
async def test_items_that_are_waited_for_do_not_hide_items_to_prune(
    path: Path, children: tuple[str, ...]
) -> None:
    """Many items, alone or in groups, whose time is over but which an open item depends on."""
    clock = ManualClock()
    backend = SqliteBackend(path, clock=clock, durability="normal")
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=LONG))
    roots = [f"r{n}" for n in range(150)]
    await submit(backend, *roots, keep=10.0)
    await submit(backend, "dependent", after=tuple(roots[:149]), need=150, counting="done")
    (doomed, *leases) = sorted((await claim(backend, limit=1000)).leases, key=lambda lease: not lease.verdict)
    queued = tuple(item(name, keep=10.0) for name in children)
    for lease in leases:
        named = tuple(replace(one, id=f"{lease.id}-{one.id}") for one in queued)
        await backend.settle([replace(succeed(lease), children=named)])
    await backend.settle([succeed(lease) for lease in (await claim(backend, limit=1000)).leases])
    clock.advance(11)
    # Not the roots that the dependent waits for, but their children.
    assert await backend.prune() == 1 + 150 * len(children)
    assert await backend.prune() == 0
    assert await status(backend, "r149") is None
    await backend.settle([Settlement(lease=doomed, kind="dead", reason="expired")])
    assert await backend.prune(100) == 100
    assert await backend.prune(100) == 49
    assert await status(backend, "dependent") == "dead"
    await backend.close()
