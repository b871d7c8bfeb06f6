"""Workers as operators see them: what each says about itself, and whether it is alive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from treadle.engine.run.built_in import BUILT_IN
from treadle.item import WorkerState
from treadle.wording import listed, plural
from treadle.worker_info import WorkerInfo

from .text import Cell, ago, iso, speaks_unicode

WorkerStanding = Literal["alive", "draining", "pressed", "silent"]


class FleetWorker(NamedTuple):
    """One worker."""

    id: str
    standing: WorkerStanding
    """`pressed`: back-pressure. `silent`: its lease has lapsed."""
    running: int | None
    """Items that it runs. None: not shown to a tenant, since they may be another's."""
    types: tuple[str, ...] | None
    until: float
    info: WorkerInfo | None
    """What it says about itself. None: it has said nothing."""

    @property
    def last_beat(self) -> float | None:
        return None if self.info is None or not self.info.lease else self.until - self.info.lease

    def state_cell(self) -> Cell:
        shape, ascii_shape, style = _STANDINGS[self.standing]
        return Cell(f"{shape if speaks_unicode() else ascii_shape} {self.standing}", style)

    def running_text(self) -> str:
        if self.running is None:
            return ""
        room = None if self.info is None else self.info.room
        return str(self.running) if room is None else f"{self.running}/{room}"


_STANDINGS: dict[WorkerStanding, tuple[str, str, str]] = {
    "alive": ("●", "*", "green"),
    "draining": ("◐", ">", "yellow"),
    "pressed": ("◑", "=", "yellow"),
    "silent": ("✕", "x", "red"),
}


class FleetView(NamedTuple):
    """The workers that a shell may see."""

    workers: tuple[FleetWorker, ...]
    now: float

    @property
    def live(self) -> list[FleetWorker]:
        return [worker for worker in self.workers if worker.standing != "silent"]

    @property
    def silent(self) -> list[FleetWorker]:
        return [worker for worker in self.workers if worker.standing == "silent"]

    def serves_queue(self, queue: str) -> bool:
        """Whether a live worker serves it, or may: it has not said which queues it serves."""
        queues = [None if worker.info is None else worker.info.queues for worker in self.live]
        return any(names is None or queue in names for names in queues)

    def serves_tenant(self, tenant: str) -> bool:
        """The same for a tenant."""
        tenants = [None if worker.info is None else worker.info.tenants for worker in self.live]
        return any(names is None or tenant in names for names in tenants)

    def text(self) -> str:
        """The fleet in one line."""
        live, silent = self.live, self.silent
        if not self.workers:
            return "no workers"
        running = [worker.running for worker in live if worker.running is not None]
        parts = [plural(len(live), "worker")]
        if running:
            parts.append(f"{sum(running):,} running")
        parts += [f"{count} {word}" for word, count in _standings(live)]
        if silent:
            parts.append(f"{len(silent)} silent")
        return ", ".join(parts)


def _standings(workers: Iterable[FleetWorker]) -> list[tuple[str, int]]:
    words = [worker.standing for worker in workers if worker.standing != "alive"]
    return [(word, words.count(word)) for word in dict.fromkeys(words)]


def fleet_of(workers: Sequence[WorkerState], now: float, tenant: str | None) -> FleetView:
    """The workers, as a client returns them, for a shell that may be bound to a tenant."""
    fleet: list[FleetWorker] = []
    for worker in workers:
        info = worker.info if isinstance(worker.info, WorkerInfo) else None
        running = worker.running if tenant is None else None
        standing = _standing(worker, info, now)
        fleet.append(FleetWorker(worker.id, standing, running, worker.types, worker.until, info))
    return FleetView(tuple(fleet), now)


def _standing(worker: WorkerState, info: WorkerInfo | None, now: float) -> WorkerStanding:
    if worker.until <= now:
        return "silent"
    if info is not None and info.draining:
        return "draining"
    if info is not None and info.pressed_until is not None and info.pressed_until > now:
        return "pressed"
    return "alive"


def worker_json(worker: FleetWorker) -> dict[str, Any]:
    """A worker for programs: the names of `WorkerState` and of `WorkerInfo`. Null: not known."""
    info = worker.info
    return {
        "id": worker.id,
        "state": worker.standing,
        "until": iso(worker.until),
        "last_beat_at": iso(worker.last_beat),
        "running": worker.running,
        "types": worker.types,
        "info": None
        if info is None
        else {
            "host": info.host,
            "pid": info.pid,
            "version": info.version,
            "started_at": iso(info.started_at) if info.started_at else None,
            "queues": info.queues,
            "tenants": info.tenants,
            "room": info.room,
            "rooms": dict(info.rooms),
            "waiting": info.waiting,
            "pressed_until": iso(info.pressed_until),
            "declined": dict(info.declined),
            "draining": info.draining,
        },
    }


WORKER_COLUMNS = ("ID", "STATE", "RUNNING", "HOST", "PID", "UP", "SEEN", "QUEUES", "TYPES")


def worker_row(worker: FleetWorker, now: float) -> list[str]:
    """A worker as a row of a table."""
    info = worker.info
    return [
        worker.id,
        worker.state_cell(),
        worker.running_text(),
        "" if info is None else info.host,
        "" if info is None or not info.pid else str(info.pid),
        "" if info is None or not info.started_at else ago(info.started_at, now).removesuffix(" ago"),
        ago(worker.last_beat, now),
        "" if info is None else "all" if info.queues is None else listed(info.queues, 3),
        "all" if worker.types is None else listed((each for each in worker.types if each not in BUILT_IN), 4),
    ]
