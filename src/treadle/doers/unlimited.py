"""Everything starts at once."""

from __future__ import annotations

from .base import BaseDoer, Task, whole


class UnlimitedDoer(BaseDoer):
    """No bound on what runs. `batch` only bounds a single claim, so that workers share a burst."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = whole(batch, "batch")

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
        self._running.add(self._spawn(self._run(task)))

    def __repr__(self) -> str:
        return f"unlimited(batch={self._batch})"


def unlimited(batch: int = 500) -> UnlimitedDoer:
    """Start everything at once; claim up to `batch` at a time."""
    return UnlimitedDoer(batch)
