"""What operators read takes about as many steps in SQLite whether few or many items are kept."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from treadle.backends.sqlite import SqliteBackend, lists, read, watch
from treadle.backends.sqlite.statements import Tx
from treadle.item import (
    Demand,
    ErrorInfo,
    Filter,
    GroupFilter,
    Heartbeat,
    Item,
    Lease,
    Settlement,
    Submission,
)
from treadle.testing import ManualClock

FEW, MANY = 250, 1500
CAP = 5

Look = Callable[[Tx], object]


def page(reach: int | None = None, **where: object) -> Look:
    return lambda tx: lists.list_items(
        tx,
        Filter(**where),  # type: ignore[arg-type]
        20,
        None,
        oldest_first=False,
        history=True,
        reach=reach,
    )


LOOKS: dict[str, Look] = {
    "overview": lambda tx: watch.overview(tx, None, quick=True, seconds=0.0),
    "overview of a tenant": lambda tx: watch.overview(tx, "a", quick=True, seconds=0.0),
    "explain ready": lambda tx: watch.explain(tx, "ready-200", None),
    "explain ready, of a tenant": lambda tx: watch.explain(tx, "ready-200", "c"),
    "explain blocked": lambda tx: watch.explain(tx, "blocked-200", None),
    "explain dead": lambda tx: watch.explain(tx, "dead-200", None),
    "marks": lambda tx: watch.marks(tx, None, 5, CAP),
    "marks of a tenant": lambda tx: watch.marks(tx, "a", 5, CAP),
    "all items": page(),
    "blocked items": page(status=("blocked",)),
    "dead items": page(status=("dead",)),
    "dead items of a type": page(status=("dead",), type="t1"),
    "dead items of no type": page(status=("dead",), type="none"),
    "items of a mark": page(mark="m3"),
    "items of no mark": page(mark="none"),
    "items of a time": page(since=1e9, until=1e9 + 1),
    "items of the future": page(since=1e10),
    "cancelled items": page(status=("cancelled",)),
    "lines": lambda tx: watch.ready_lines(tx, "q", None, 200, CAP),
    "related to one that all wait for": lambda tx: watch.related(tx, "first", None, 20),
    "groups": lambda tx: lists.list_groups(tx, GroupFilter(), 20, None, None),
    "running groups": lambda tx: lists.list_groups(tx, GroupFilter(outcome=("running",)), 20, None, None),
    "with a reach: groups": lambda tx: lists.list_groups(tx, GroupFilter(type="none"), 20, None, 50),
    "with a reach: workflows": lambda tx: lists.list_workflows(tx, GroupFilter(type="none"), 20, None, 50),
    "with a reach: a type": page(50, type="none"),
    "with a reach: labels": page(50, tenant="a", queue="none"),
    "with a reach: a type that succeeded": page(50, status=("success",), type="none"),
    "with a reach: successes below others": page(50, status=("success",)),
    "with a reach: a type that ended": page(50, status=("success", "dead"), type="none"),
    "with a reach: a type that is ready or dead": page(50, status=("ready", "dead"), type="none"),
    "with a reach: a type that is ready": page(50, status=("ready",), type="none"),
    "with a reach: running": page(50, status=("running",)),
    "with a reach: a reason": page(50, status=("dead",), type="t1", reason="aborted"),
    "with a reach: a mark and a queue": page(50, mark="m3", queue="none"),
    "with a reach: failed groups": page(50, failed_group=True, type="none"),
    "with a reach: a time": page(50, type="none", since=1.0, until=1e12),
    "with a reach: a workflow": page(50, workflow="w", status=("cancelled",)),
    "with a reach: a workflow of a tenant": page(50, workflow="w", tenant="a", type="none"),
    "with a reach: a group": page(50, group_id="root", status=("cancelled",)),
}


async def fill(path: Path, count: int) -> None:
    """Items that are ready, scheduled, blocked, dead or have succeeded, and one that is cancelled."""
    clock = ManualClock()
    backend = SqliteBackend(path, durability="normal", clock=clock)
    await backend.open()
    await backend.beat(Heartbeat(worker="w", lease=1e6))
    await backend.submit([Submission((Item(id="gone", type="t", input=b""),))])
    await backend.cancel(["gone"])
    await backend.submit([Submission((Item(id="root", type="t", input=b""),))])
    (lease,) = (await backend.claim(Demand(worker="w", limit=1))).leases
    members = tuple(Item(id=f"member-{n}", type="t0", input=b"", delay=1e6) for n in range(count))
    await backend.settle([Settlement(lease=lease, kind="success", children=members)])
    await backend.submit([Submission((Item(id="first", type="t", input=b"", delay=1e6, tenant="a"),))])
    for kind in ("success", "dead"):
        await backend.submit([Submission(tuple(item(kind, n) for n in range(count)))])
        leases = (await backend.claim(Demand(worker="w", limit=count))).leases
        ends = [settlement(kind, n, lease) for n, lease in enumerate(leases)]
        for begin in range(0, count, 50):
            await clock.advance(1.0)
            await backend.settle(ends[begin : begin + 50])
    for kind in ("ready", "scheduled", "blocked"):
        await backend.submit([Submission(tuple(item(kind, n) for n in range(count)))])
    await backend.close()


def settlement(kind: str, n: int, lease: Lease) -> Settlement:
    if kind == "success":
        return Settlement(lease=lease, kind="success")
    return Settlement(lease=lease, kind="dead", failure=ErrorInfo("E", "m"), mark=f"m{n % 7}")


def item(kind: str, n: int) -> Item:
    return Item(
        id=f"{kind}-{n}",
        type=f"t{n % 3}",
        input=b"",
        tenant="abcd"[n % 4] if kind != "ready" or n != 200 else "c",
        queue="qr"[n % 2],
        lane=f"l{n % 5}",
        delay=1e6 if kind == "scheduled" else 0.0,
        workflow="w" if kind == "success" else None,
        after=("first",) if kind == "blocked" else (),
        need=1 if kind == "blocked" else 0,
    )


def steps(path: Path, look: Look) -> int:
    """How many instructions SQLite executes."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(path)) as connection:
        connection.set_progress_handler(step, 1)
        look(Tx(connection.cursor(), 2e9))
    return count


@pytest.fixture(scope="module")
def files(quick_directory: Path) -> tuple[Path, Path]:
    folder = quick_directory / "watching"
    folder.mkdir()
    few, many = folder / "few.db", folder / "many.db"
    asyncio.run(fill(few, FEW))
    asyncio.run(fill(many, MANY))
    return few, many


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_takes_as_many_steps_among_many_items(name: str, files: tuple[Path, Path]) -> None:
    few, many = (steps(path, LOOKS[name]) for path in files)
    assert many < 1.75 * few + 500, (few, many)


def test_counts_take_steps_for_each_item(files: tuple[Path, Path]) -> None:
    """So this way to measure finds what it looks for."""
    few, many = (steps(path, lambda tx: read.counts(tx, None, with_ended=True)) for path in files)
    assert many > 5 * few


def test_what_there_is_no_time_to_count_is_estimated(tmp_path: Path) -> None:
    """From portions that are spread over the table. What there is little of is exact all the same."""
    path = tmp_path / "large.db"
    asyncio.run(fill_ready(path, 14_993))
    with closing(sqlite3.connect(path)) as connection:
        counts = watch.overview(Tx(connection.cursor(), 2e9), None, quick=False, seconds=1e-9).counts
        exact = watch.overview(Tx(connection.cursor(), 2e9), None, quick=False, seconds=60.0).counts
    assert [(one.queue, one.count, one.estimated) for one in exact] == [
        ("few", 7, False),
        ("many", 14_993, False),
    ]
    few, many = counts
    assert few == exact[0]
    assert many.estimated
    assert 0.8 < many.count / 14_993 < 1.2


async def fill_ready(path: Path, count: int) -> None:
    backend = SqliteBackend(path, durability="normal")
    await backend.open()
    items = [Item(id=f"few-{n}", type="t", input=b"", queue="few") for n in range(7)]
    items += [Item(id=f"many-{n}", type="t", input=b"", queue="many") for n in range(count)]
    for first in range(0, len(items), 2_000):
        await backend.submit([Submission(tuple(items[first : first + 2_000]))])
    await backend.close()
