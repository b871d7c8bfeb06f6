"""Facts: what was found out about an item, a group, a queue or a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from treadle.engine.schedule.scheduler import ScheduleStanding
from treadle.item import Count, ItemState, Limit, Order, Schedule, StepRecord, WorkerState
from treadle.item_facts import Explanation, LimitUse, Prerequisite, QueueAge, UnservedType
from treadle.records import AuditEntry


class LimitFact(msgspec.Struct, frozen=True):
    """A limit that applies to an item. use: how far it is used; None: nothing of it is."""

    limit: Limit
    use: LimitUse | None = None
    order: Order | None = None
    """The order that is in force in place of the code."""


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A group that is open, has failed, or whose root is not stored any more."""

    id: str
    tenant: str
    open: int
    """How many members have not ended."""
    members: tuple[ItemState, ...] = ()
    """Some of these: those that are not blocked come first."""
    failed: int = 0
    """How many members died whose death no item tolerates."""
    cause: ItemState | None = None
    """The first of these that is not the effect of another."""
    ended_at: float | None = None
    now: float = 0.0


class ItemFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An item."""

    explained: Explanation
    paused: tuple[Order, ...] = ()
    """The pauses that hold it."""
    hold: AuditEntry | None = None
    """Who holds it, since when and why. None: it is not held, or that is not known."""
    limits: tuple[LimitFact, ...] | None = None
    """The limits of its type. None: not known, because the code of the type is not here."""
    causes: tuple[Prerequisite, ...] = ()
    """For an item that died `unsatisfiable`: the prerequisites that ended without counting. For one that died
    because a child of `ctx.run` did: this child."""
    root: Prerequisite | None = None
    """For an item that died, or can only die, because of another: the first that ended without counting. It
    has to run again before those after it can."""
    group: GroupFacts | None = None
    """If it is a root that has ended, and its group is open or has failed: the group."""
    others: bool = False
    """Workers are alive that the one who asks may not see."""
    runs: Mapping[str, Sequence[str]] = {}
    """The types of the items that workers run, by the ids of the workers. Empty: it was not read, since one
    has room."""
    waits: tuple[StepRecord, ...] = ()
    """What a suspended item waits for."""
    mailbox: Mapping[str, int] = {}
    """How many signals of each name a suspended item has that no wait has taken."""
    unreadable: StepRecord | None = None
    """The step whose value the code could not read, if it died of that."""
    undone: tuple[str, ...] = ()
    """The steps for which undos were queued when it died."""
    dead_undos: tuple[ItemState, ...] = ()
    """Some of these that have died."""
    joins: Mapping[str, Explanation] = {}
    """By the signal that tells it: the items that wait for its children."""
    releases: str = ""
    """Under which releases items died of its mark."""


class NoItem(msgspec.Struct, frozen=True, kw_only=True):
    """No item and no group has this id."""

    id: str
    tenant: str | None = None
    away: tuple[str, ...] = ()
    """The stores that do not answer, and may have it."""


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A queue."""

    name: str
    tenant: str | None = None
    now: float
    counts: tuple[Count, ...] = ()
    """Of this queue: open and dead items."""
    age: QueueAge | None = None
    paused: tuple[Order, ...] = ()
    """Its pauses, and that of the tenant."""
    unserved: tuple[UnservedType, ...] = ()
    """Types of this queue that no live worker has."""
    ready_since: Mapping[str, float] = {}
    """By type of these: since when the oldest item could run."""
    workers: tuple[WorkerState, ...] = ()
    others: bool = False
    """Workers are alive that the one who asks may not see."""
    queues: tuple[str, ...] = ()
    """All queues that have items or pauses."""
    declared: tuple[str, ...] = ()
    """The queues of the types that this process has."""


class ScheduleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. stored: None if there is none of this name. tenant: whose it is, if only those are seen."""

    name: str
    tenant: str | None = None
    now: float
    stored: Schedule | None = None
    state: ScheduleStanding | Literal["unknown"] = "unknown"
    orphaned: bool = False
    """No live worker has its code."""
    error: str = ""
    """What its last run raised. Empty: it did not fail."""
    taking: int = 0
    """How many workers claim items."""
    names: tuple[str, ...] = ()
    """All schedules that are known."""


Facts: TypeAlias = ItemFacts | GroupFacts | NoItem | QueueFacts | ScheduleFacts
