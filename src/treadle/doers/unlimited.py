"""No limit: everything starts at once."""

from __future__ import annotations

from collections import deque

from treadle.item import Ref

from .base import WorkerDoers, check_whole
from .doer import Task
from .starting import StartingDoer

NO_LANE: Ref = ("", "")


class UnlimitedDoer(StartingDoer):
    """Runs any number of tasks. `batch` only limits a single claim, so that workers share a burst."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = check_whole(batch, "batch")
        self._waiting: deque[Task] = deque()

    def of_worker(self, doers: WorkerDoers) -> UnlimitedDoer:
        return UnlimitedDoer(self._batch)

    def available(self) -> int:
        return self._batch

    def submit(
        self,
        task: Task,
        *,
        lane: str = "",
        priority: int = 0,
        queued_at: float = 0.0,
        tenant: str = "",
        place: float | None = None,
    ) -> None:
        self._waiting.append(task)
        self._start_soon()

    def cancel_pending(self) -> list[Task]:
        tasks = list(self._waiting)
        self._waiting.clear()
        return tasks

    def _next(self) -> tuple[Task, Ref] | None:
        return (self._waiting.popleft(), NO_LANE) if self._waiting else None

    def _waiting_count(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"unlimited(batch={self._batch})"


def unlimited(batch: int = 500) -> UnlimitedDoer:
    """Start everything at once; claim up to `batch` at a time."""
    return UnlimitedDoer(batch)
