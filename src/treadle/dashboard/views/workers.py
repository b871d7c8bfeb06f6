"""Workers: who is alive, what each serves, and what runs now."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from treadle.base.timing import iso
from treadle.dashboard.views import Pages, View, page_of, pages_json
from treadle.dashboard.visit import Visit
from treadle.define.dependency import BUILT_IN
from treadle.item import ItemState, WorkerState
from treadle.operate.fleet_json import worker_json
from treadle.records import AuditEntry
from treadle.store.fleet import Fleet, WorkerStanding, claimed_ahead, last_beat
from treadle.worker_info import Blockage, BlockingItem

PER_PAGE: Final = 100
MOST_RUNNING: Final = 500
"""Running items that are read, of all workers together: those that were submitted first."""
MOST_SHOWN: Final = 5
"""Running items that are shown of each worker: what blocks it, then those that have run for longest."""
MOST_ENTRIES: Final = 200
"""Of the audit."""
ORDER: Final[tuple[WorkerStanding, ...]] = ("silent", "blocked", "draining", "pressed", "alive", "manual")


class RunningItem(msgspec.Struct, frozen=True):
    id: str
    tenant: str
    type: str
    queue: str
    attempt: int
    started_at: float | None
    blocks: bool = False
    """It blocks the event loop of its worker."""


class WorkerRow(msgspec.Struct, frozen=True):
    worker: WorkerState
    id: str
    standing: WorkerStanding
    host: str
    pid: int
    version: str
    release: str
    started_at: float | None
    beat_at: float | None
    """Its last heartbeat."""
    until: float
    """When its lease lapses, or has lapsed."""
    queues: list[str] | None
    """None: every queue."""
    tenants: list[str] | None
    types: list[str] | None
    running: int | None
    """Items that have begun. None: not told."""
    waiting: int
    """Items that it holds and has not begun."""
    room: int | None
    """None: without limit."""
    blocked_since: float | None
    blockages: list[Blockage]
    """Those of the last minutes that are over."""
    pressed_until: float | None
    items: list[RunningItem] = []
    """What blocks it first, then the longest. More may run than were read."""
    by_type: dict[str, int] = {}
    """How many of these there are, the most frequent type first."""
    asked_at: float | None = None
    """When someone asked it to stop, as far as the audit says."""
    asked_by: str = ""

    @property
    def blocked_for(self) -> float:
        """Seconds, in all its blockages."""
        return sum(each.until - each.since for each in self.blockages)

    @property
    def blockers(self) -> list[BlockingItem]:
        """What blocked it, as far as it is known, the newest first."""
        return list(dict.fromkeys(item for each in reversed(self.blockages) for item in each.items))


class WorkersPage(msgspec.Struct, frozen=True):
    workers: list[WorkerRow]
    pages: Pages
    standings: dict[WorkerStanding, int]
    """How many workers there are, of all pages."""
    versions: list[str]
    """Of treadle, of all workers."""
    running: int
    items_known: bool
    """False: what runs was not read in time."""
    more_items: bool
    """More runs than was read."""
    most_shown: int = MOST_SHOWN


async def read(visit: Visit) -> WorkersPage:
    workers, running, asked = await asyncio.gather(
        visit.client.workers(),
        visit.in_time(visit.client.list(status="running", limit=MOST_RUNNING, oldest_first=True)),
        _asked(visit),
    )
    fleet = Fleet(workers, visit.site.now())
    items = by_worker(() if running is None else running.items)
    rows = sorted((worker_row(fleet, worker) for worker in fleet.workers), key=_order)
    shown, pages = page_of(visit, rows, PER_PAGE)
    return WorkersPage(
        workers=[_with_news(row, items.get(row.id, []), asked.get(row.id)) for row in shown],
        pages=pages,
        standings=dict(Counter(row.standing for row in rows)),
        versions=sorted({row.version for row in rows if row.version}),
        running=sum(row.running or 0 for row in rows),
        items_known=running is not None,
        more_items=running is not None and running.cursor is not None,
    )


async def _asked(visit: Visit) -> dict[str, AuditEntry]:
    """Who was asked to stop: one page of the audit is looked at."""
    if "recording" not in visit.client.backend.capabilities:
        return {}
    page = await visit.in_time(visit.client.audits(limit=MOST_ENTRIES))
    entries = () if page is None else page.entries
    return {id: entry for entry in reversed(entries) if entry.verb == "drain_worker" for id in entry.ids}


def _with_news(row: WorkerRow, items: list[RunningItem], asked: AuditEntry | None) -> WorkerRow:
    info = row.worker.info
    found = {(each.tenant, each.id): each for each in items}
    blockers = [
        msgspec.structs.replace(found.pop((each.tenant, each.id), _unread(each)), blocks=True)
        for each in (() if info is None else info.blocked_by)
    ]
    items = [*blockers, *found.values()]
    by_type = dict(Counter(each.type for each in items).most_common())
    row = msgspec.structs.replace(row, items=items, by_type=by_type)
    if asked is None or asked.at < (row.started_at or 0.0):  # it was an earlier worker with this id
        return row
    return msgspec.structs.replace(row, asked_at=asked.at, asked_by=asked.actor)


def _unread(blocker: BlockingItem) -> RunningItem:
    """What a worker says of an item that blocks it, if that was not among those that were read."""
    return RunningItem(blocker.id, blocker.tenant, blocker.type, "", 0, None)


def _order(row: WorkerRow) -> tuple[int, str, int, str]:
    """Those that need an operator first."""
    return ORDER.index(row.standing), row.host, row.pid, row.id


def worker_row(fleet: Fleet, worker: WorkerState) -> WorkerRow:
    """A worker, as far as it says something about itself."""
    info = worker.info
    waiting = claimed_ahead(worker)
    return WorkerRow(
        worker=worker,
        id=worker.id,
        standing=fleet.standing(worker),
        host="" if info is None else info.host,
        pid=0 if info is None else info.pid,
        version="" if info is None else info.version,
        release="" if info is None else info.release,
        started_at=None if info is None else info.started_at or None,
        beat_at=last_beat(worker),
        until=worker.until,
        queues=None if info is None or info.queues is None else list(info.queues),
        tenants=None if info is None or info.tenants is None else list(info.tenants),
        types=None if worker.types is None else sorted(each for each in worker.types if each not in BUILT_IN),
        running=None if worker.running is None else worker.running - waiting,
        waiting=waiting,
        room=None if info is None else info.room,
        blocked_since=None if info is None else info.blocked_since,
        blockages=[] if info is None else list(info.blockages),
        pressed_until=info.pressed_until if info is not None and fleet.is_pressed(worker) else None,
    )


def by_worker(items: Iterable[ItemState]) -> dict[str, list[RunningItem]]:
    """What runs, by worker, the longest first."""
    found: dict[str, list[RunningItem]] = {}
    for item in sorted(items, key=lambda item: item.started_at or 0.0):
        running = RunningItem(item.id, item.tenant, item.type, item.queue, item.attempt, item.started_at)
        found.setdefault(item.worker or "", []).append(running)
    return found


def to_json(visit: Visit, page: WorkersPage) -> dict[str, Any]:
    """The workers as `treadle workers --items --json` has them."""
    return {
        "workers": [
            {
                **row_json(visit, row),
                "items": [_running_json(each) for each in row.items] if page.items_known else None,
            }
            for row in page.workers
        ],
        **pages_json(page.pages),
        "states": page.standings,
        "versions": page.versions,
        "more_items": page.more_items,
    }


def row_json(visit: Visit, row: WorkerRow) -> dict[str, Any]:
    """A worker for programs. Why it cannot read arguments quotes them."""
    fields = worker_json(row.worker, row.standing)
    if not visit.access.payloads and fields["info"] is not None:
        for each in fields["info"]["undecodable"].values():
            each["error"] = None
    return fields


def _running_json(item: RunningItem) -> dict[str, Any]:
    return {**msgspec.structs.asdict(item), "status": "running", "started_at": iso(item.started_at)}


VIEW = View("/workers", "workers.html", read, "workers", of_fleet=True, to_json=to_json)
