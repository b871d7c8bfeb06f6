"""A schedule as a process has it: its code, and how it stands in the store."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from treadle.item import Fire, Schedule
from treadle.work import Work

from .occurrence import CatchUp, Lateness, Timing

Run: TypeAlias = Callable[[], Work[Any, Any] | Awaitable[Work[Any, Any] | None] | None]


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """What recurs, and when: what the user wrote, checked."""

    name: str
    tenant: str
    timing: Timing
    run: Run
    catch_up: CatchUp
    options: Mapping[str, Any]
    spec: bytes
    """The timing, as it is stored: with another one it is another schedule."""

    async def mint(self) -> Work[Any, Any] | None:
        """What `run` wants done this time."""
        answer = self.run()
        work = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(work, Work | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"run of schedule {self.name!r} must return a Work or None, not {work!r:.80}")
        return work


class ScheduleEntry:
    """One recurrence in one process."""

    def __init__(self, recurrence: Recurrence, born: float, *, anew: bool = False) -> None:
        self.recurrence = recurrence
        self.anew = anew
        """It takes the place of what is stored, even if that looks the same."""
        self.cancelled = False
        self.begin(born)

    def begin(self, born: float) -> None:
        """It is waited for from `born` on, by the monotonic clock; nothing is known of the store yet."""
        self.born = born
        self.since: float | None = None
        """From when on, by the store's clock, this process waits for it."""
        self.awake = 0.0
        """Up to then, by the store's clock, this process may have slept."""
        self.stored: Schedule | None = None
        self.pending: Fire | None = None
        """What is being fired, until the store has answered."""
        self.unsure = False
        """It may have been fired already: an answer was lost."""
        self.firing = False
        self.hold = 0.0
        """Nothing is tried before this instant of the monotonic clock."""
        self.failures = 0

    @property
    def next_at(self) -> float | None:
        """When it is due, if it is up to this process."""
        if self.pending is not None:
            return self.pending.at
        stored = self.stored
        if self.cancelled or stored is None or stored.paused or stored.spec != self.recurrence.spec:
            return None
        return stored.next_at

    def lateness(self, at: float, now: float, tolerance: float) -> tuple[Lateness, float]:
        """Why an occurrence is as late as it is, and up to when others are, for the same reason."""
        since = now if self.since is None else self.since
        if now - at > tolerance and at < since:
            return "missed", since
        if now - at > tolerance and at < self.awake:
            return "slept", self.awake
        return "due", at
