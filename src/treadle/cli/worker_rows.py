"""Workers as operators see them: what each says about itself, and whether it is alive."""

from __future__ import annotations

from treadle.base.wording import listed, plural
from treadle.define.dependency import BUILT_IN
from treadle.item import WorkerState
from treadle.store.fleet import Fleet, WorkerStanding, last_beat

from .text import Cell, ago, speaks_unicode

_STANDINGS: dict[WorkerStanding, tuple[str, str, str]] = {
    "alive": ("●", "*", "green"),
    "blocked": ("■", "#", "red"),
    "draining": ("◐", ">", "yellow"),
    "pressed": ("◑", "=", "yellow"),
    "manual": ("○", "o", ""),
    "silent": ("✕", "x", "red"),
}


def fleet_text(fleet: Fleet) -> str:
    """The fleet in one line."""
    if not fleet.workers:
        return "no workers"
    parts = [plural(len(fleet.live), "worker")]
    running = [worker.running for worker in fleet.live if worker.running is not None]
    if running:
        ahead = sum(map(_claimed_ahead, fleet.live))
        parts.append(f"{sum(running) - ahead:,} running")
        parts += [f"{ahead:,} claimed ahead"] if ahead else []
    words = [word for worker in fleet.workers if (word := fleet.standing(worker)) != "alive"]
    parts += [f"{words.count(word)} {word}" for word in _STANDINGS if word in words]
    return ", ".join(parts)


def state_cell(fleet: Fleet, worker: WorkerState) -> Cell:
    """How a worker stands: by word and shape."""
    standing = fleet.standing(worker)
    shape, ascii_shape, style = _STANDINGS[standing]
    return Cell(f"{shape if speaks_unicode() else ascii_shape} {standing}", style)


def _running_text(worker: WorkerState) -> str:
    if worker.running is None:
        return ""
    ahead, room = _claimed_ahead(worker), None if worker.info is None else worker.info.room
    text = f"{worker.running - ahead}" if room is None else f"{worker.running - ahead}/{room}"
    return f"{text} +{ahead}" if ahead else text


def _claimed_ahead(worker: WorkerState) -> int:
    """How many of its items have not begun, as it said last."""
    return min(worker.running or 0, 0 if worker.info is None else worker.info.waiting)


WORKER_COLUMNS = ("ID", "STATE", "RUNNING", "HOST", "PID", "UP", "SEEN", "QUEUES", "TYPES")


def worker_row(fleet: Fleet, worker: WorkerState) -> list[str]:
    """A worker as a row of a table."""
    info, now = worker.info, fleet.now
    return [
        worker.id,
        state_cell(fleet, worker),
        _running_text(worker),
        "" if info is None else info.host,
        "" if info is None or not info.pid else str(info.pid),
        "" if info is None or not info.started_at else ago(info.started_at, now).removesuffix(" ago"),
        ago(last_beat(worker), now),
        "" if info is None else "all" if info.queues is None else listed(info.queues, 3),
        "all" if worker.types is None else listed((each for each in worker.types if each not in BUILT_IN), 4),
    ]
