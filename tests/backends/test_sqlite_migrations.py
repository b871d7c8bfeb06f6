"""A file of version 1 with data in it is upgraded when it is opened."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from treadle.backends.sqlite import SqliteBackend, schema
from treadle.item import Demand, Filter, GroupState, Heartbeat, ItemState, Settlement
from treadle.item_facts import LimitUse
from treadle.testing import ManualClock

FIRST = schema._migrations()[0]

SUCCESS, DEAD, CANCELLED = 10, 11, 12


class OldFile:
    """Writes rows as version 1 wrote them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}

    def item(self, id: str, after: Sequence[str] = (), root: str | None = None) -> int:
        no = self._numbers[id] = len(self._numbers) + 1
        group = no if root is None else self._numbers[root]
        row = {
            "no": no,
            "id": id,
            "tenant": "default",
            "type": "t",
            "queue": "default",
            "lane": "",
            "priority": 0,
            "attempts": 3,
            "group_no": group,
            "queued_by": None if root is None else group,
            "parent": root,
            "queued_at": 1.0,
            "keep": 10.0,
            "after": json.dumps(after) if after else None,
            "options": b"",
            "input": b"",
        }
        self.insert("treadle_item", row)
        self._connection.execute("UPDATE treadle_counter SET no = ?, seq = ?", (no, no))
        return no

    def open(self, id: str, after: Sequence[str] = (), **columns: Any) -> None:
        no = self.item(id, after)
        row = {"no": no, "status": 0 if after else 2, "queue": "default", "tenant": "default", "type": "t"}
        row |= {"lane": "", "rank": 0, "seq": no, "due": 1.0, "has_dependencies": int(bool(after))}
        self.insert("treadle_open", {**row, **columns})
        for name in after:
            dependency = {"prerequisite": self._numbers[name], "dependent": no, "counted": 0, "weight": 1}
            self.insert("treadle_dependency", dependency)

    def ended(
        self, id: str, outcome: int, after: Sequence[str] = (), root: str | None = None, **columns: Any
    ) -> None:
        no = self.item(id, after, root)
        row = {
            "no": no,
            "outcome": outcome,
            "attempt": 1,
            "failures": 0,
            "losses": 0,
            "redrives": 0,
            "due": 1.0,
        }
        row |= {"started": 1.0, "ended": 2.0 + no, "contributed": 0}
        self.insert("treadle_done", row | columns)

    def group(self, root: str, failed: int) -> None:
        row = {"no": self._numbers[root], "id": root, "tenant": "default", "type": "t", "open": 0}
        row |= {"failed": failed, "version": 0, "final": 0, "keep": 10.0, "ended": 100.0}
        self.insert("treadle_group", row)

    def insert(self, table: str, row: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        self._connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", (*row.values(),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@contextmanager
def old_file(path: Path) -> Iterator[OldFile]:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FIRST)
        yield OldFile(connection)
        connection.commit()


@pytest.fixture
async def backend(path: Path) -> AsyncIterator[SqliteBackend]:
    """Opened by the test, once the file is written."""
    backend = SqliteBackend(path, clock=ManualClock(), durability="normal")
    yield backend
    await backend.close()


async def state(backend: SqliteBackend, id: str) -> ItemState:
    (found,) = await backend.get([id])
    assert found is not None
    return found


async def group(backend: SqliteBackend, id: str) -> GroupState:
    (found,) = await backend.group([id])
    assert found is not None
    return found


async def end_all(backend: SqliteBackend) -> list[str]:
    """Run all items that can be claimed. Return them in order."""
    await backend.beat(Heartbeat(worker="w", lease=60))
    ran: list[str] = []
    while leases := (await backend.claim(Demand(worker="w", limit=1))).leases:
        assert leases[0].verdict is None
        ran.append(leases[0].id)
        await backend.settle([Settlement(lease=leases[0], kind="success", result=b"r")])
    return ran


async def test_open_items_run(path: Path, backend: SqliteBackend) -> None:
    """The dependent of an open item is released by its end."""
    with old_file(path) as old:
        old.open("a")
        old.open("b", ["a"], need=1, pending=1)
    await backend.open()
    assert await end_all(backend) == ["a", "b"]
    assert (await group(backend, "b")).value is None


async def test_the_deaths_of_a_group_are_counted(path: Path, backend: SqliteBackend) -> None:
    """In the order of their ends. A death that a dependent tolerated, since it ran, fails nothing."""
    with old_file(path) as old:
        old.ended("root", SUCCESS)
        old.ended("later", DEAD, root="root", reason="aborted", ended=50.0)
        old.ended("first", DEAD, root="root", reason="exhausted", ended=40.0)
        old.ended("tolerated", DEAD, root="root", reason="exhausted")
        old.ended("any", SUCCESS, ["tolerated"], root="root")
        old.ended("cancelled", CANCELLED, root="root")
        old.group("root", failed=4)
        old.ended("alone", DEAD, reason="aborted")
    await backend.open()
    found = await group(backend, "root")
    assert (found.failed, [one.id for one in found.deaths]) == (2, ["first", "later"])
    assert found.cancelled is not None
    assert found.cancelled.id == "cancelled"
    found = await group(backend, "alone")
    assert (found.failed, [one.id for one in found.deaths]) == (1, ["alone"])


async def test_a_tolerant_open_item_tolerates_a_death(path: Path, backend: SqliteBackend) -> None:
    with old_file(path) as old:
        old.open("a")
        old.open("b", ["a"], need=1, pending=1, any_end_counts=1)
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=60))
    (lease,) = (await backend.claim(Demand(worker="w", limit=1))).leases
    settled = await backend.settle([Settlement(lease=lease, kind="dead", reason="aborted")])
    assert [one.id for one in settled.effects.released] == ["b"]
    assert (await group(backend, "a")).failed == 0


async def test_a_broken_workflow_can_be_repaired(path: Path, backend: SqliteBackend) -> None:
    """Items that died because of another wait for it again. One that had run does not wait."""
    with old_file(path) as old:
        old.ended("charge", DEAD, reason="exhausted")
        old.ended("email", DEAD, ["charge"], reason="unsatisfiable", started=None)
        old.ended("report", DEAD, ["email"], reason="unsatisfiable", started=None)
        old.ended("gone", DEAD, ["removed"], reason="aborted")
    await backend.open()
    changed = await backend.requeue(["charge", "gone"])
    assert [one.id for one in changed.items] == ["charge", "gone", "email", "report"]
    assert (await state(backend, "email")).status == "blocked"
    assert (await group(backend, "charge")).failed == 0
    assert await end_all(backend) == ["charge", "gone", "email", "report"]


async def test_items_that_had_died_are_found(path: Path, backend: SqliteBackend) -> None:
    """They are marked by their types, and are counted and listed like others."""
    with old_file(path) as old:
        old.ended("good", SUCCESS)
        old.ended("bad", DEAD, reason="aborted")
        old.ended("gone", CANCELLED)
        old.ended("worse", DEAD, reason="expired")
    await backend.open()
    assert [one.id for one in (await backend.list(Filter(status=("dead",)))).items] == ["worse", "bad"]
    assert [one.id for one in (await backend.list(Filter(status=("cancelled",)))).items] == ["gone"]
    assert [one.id for one in (await backend.list(Filter(mark="old:t", reason="expired"))).items] == ["worse"]
    assert [(one.mark, one.count, one.sample) for one in await backend.marks()] == [("old:t", 2, "worse")]
    assert [(one.status, one.count) for one in (await backend.overview()).counts] == [("dead", 2)]
    await backend.requeue(["bad"])
    await backend.delete(["worse"])
    assert await backend.marks() == []


REQUEUE_OF_VERSION_4 = """
INSERT INTO treadle_open (no, status, queue, tenant, type, lane, rank, seq, due, ready_since)
SELECT no, 2, queue, tenant, type, lane, 0, no, 1.0, 1.0 FROM treadle_item;
DELETE FROM treadle_done
"""
DEATH_OF_VERSION_4 = """
INSERT INTO treadle_done (no, outcome, reason, attempt, failures, losses, redrives, due, ended, contributed)
SELECT no, 11, 'exhausted', 1, 1, 0, 0, 1.0, 5.0, 0 FROM treadle_open;
DELETE FROM treadle_open;
UPDATE treadle_done SET failed_group = no, failed_place = 1
"""
READS_OF_VERSION_4 = """
SELECT no FROM treadle_done AS d INDEXED BY treadle_done_dead WHERE d.outcome = 11;
SELECT 1 FROM treadle_open INDEXED BY treadle_open_blocked WHERE status = 0 LIMIT 1
"""


async def test_a_process_of_version_4_that_is_open_goes_on(path: Path, backend: SqliteBackend) -> None:
    """Its statements do not know the table of dead items, which is right nevertheless."""
    with old_file(path) as old:
        old.ended("a", DEAD, reason="aborted")
    await backend.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as old_process:
        old_process.executescript(REQUEUE_OF_VERSION_4)
        assert await backend.marks() == []
        await backend.beat(Heartbeat(worker="w", lease=60))
        (lease,) = (await backend.claim(Demand(worker="w", limit=1))).leases
        await backend.settle([Settlement(lease=lease, kind="dead", reason="exhausted", mark="m")])
        assert [(one.mark, one.count) for one in await backend.marks()] == [("m", 1)]
        old_process.executescript(REQUEUE_OF_VERSION_4)
        old_process.executescript(DEATH_OF_VERSION_4)
        assert [(one.mark, one.count, one.last_at) for one in await backend.marks()] == [("", 1, 5.0)]
        old_process.executescript(READS_OF_VERSION_4)
    assert [one.id for one in (await backend.list(Filter(status=("dead",)))).items] == ["a"]
    await backend.delete(["a"])
    assert await backend.marks() == []


async def test_limits_of_an_earlier_version_are_shown_as_far_as_known(
    path: Path, backend: SqliteBackend
) -> None:
    """How many permits there are is stored by the next request."""
    with old_file(path) as old:
        state = {"name": "l", "algorithm": "fixed_window", "at": 0.0, "used": 3.0, "before": 0.0}
        old.insert("treadle_limit", state | {"idle_at": 1e12})
    await backend.open()
    assert await backend.limits() == [LimitUse("l", "fixed_window", 3.0)]
