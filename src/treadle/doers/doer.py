"""Doer: the protocol that a doer of the user's own implements."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias

Task: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""One attempt that has not started. The doer calls it once, when it may start, and awaits the coroutine."""


class Doer(Protocol):
    """Decides when claimed work starts. All calls come from one event loop.

    A doer may also have a method `on_free(callback)`. Then it calls `callback()` when there is room again;
    the end of a task is noticed without it. `submit` may also accept `tenant=`.

    It serves one worker at a time. If it has a method `of_worker()`, it serves none itself: each worker calls
    that when it starts, and uses the doer that it returns.
    """

    def available(self) -> int:
        """How many more tasks may be submitted now. Called before every claim, so it must be quick."""
        ...

    def submit(self, task: Task, *, lane: str, priority: int, queued_at: float) -> None:
        """Start `task()` as an asyncio task, now or later, and keep a reference to it.

        It never blocks, and accepts as many tasks as `available` offered. If it raises, the item goes back to
        the store.
        """
        ...

    async def idle(self) -> None:
        """Return when no task runs or waits."""
        ...
