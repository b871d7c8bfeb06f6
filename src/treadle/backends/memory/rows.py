"""Rows: items as this backend stores them, and what rows share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, get_args

import msgspec
from msgspec import Struct

from treadle.item import Attempt, Chunk, DeathReason, Item, Lease, Ref, Status, StepRecord, Verdict
from treadle.store.rules.settlement import Counters
from treadle.store.rules.submission import Dependencies

from .priority_queue import Position

if TYPE_CHECKING:
    from .fairness import ReadyLine


StrictLane: TypeAlias = tuple[str, str, str]
"""A type, tenant and lane: see `Demand.strict`."""


class RowContainer(Protocol):
    """What a row can be in, and be removed from."""

    def remove(self, member: Row, /) -> None: ...


class ItemKind(Struct, eq=False):
    """Items alike in tenant, queue, lane and type, and how many there are in each status."""

    tenant: str
    queue: str
    lane: str
    type: str
    line: ReadyLine
    counts: dict[Status, int] = msgspec.field(default_factory=lambda: dict.fromkeys(get_args(Status), 0))


class DeadlineWatch(Struct, eq=False):
    """A row's position among the deadlines."""

    row: Row
    position: Position | None = None

    def __lt__(self, other: DeadlineWatch) -> bool:
        """Asked of two watches of one row until the same instant. One of them is over: any order will do."""
        return False


class MemoryWorker(Struct, eq=False):
    """A worker: how long its lease lasts, which types it has, and what it holds."""

    id: str
    until: float = 0.0
    lease: float = 0.0
    """Seconds for which a heartbeat renews its lease."""
    types: frozenset[str] | None = None
    """None: every type."""
    held: dict[int, Lease] = {}
    permits: dict[str, int] = {}
    """Of `slots` limits: the permits that it holds, by the limit's name."""
    leases_with_permits: dict[str, set[int]] = {}
    """By the limit's name: the tokens of its leases that have permits of their own."""
    info: bytes | None = None
    """What it says about itself."""
    release: str = ""
    drain: bool = False
    """Someone has asked it to stop."""
    position: Position | None = None


class Mail(Struct, eq=False, gc=False):
    """A signal in the mailbox of an item. It stays there after it was taken, for its key."""

    name: str
    value: bytes | None
    key: str | None
    taken: bool = False


class RowSteps(Struct, eq=False, gc=False):
    """What an item has recorded, and what was sent to it."""

    steps: dict[str, StepRecord] = {}
    """By name, in the order in which they were recorded first."""
    mail: list[Mail] = []
    progress: bytes | None = None
    progress_at: float | None = None
    chunks: list[Chunk] = []

    @property
    def last_chunk(self) -> int:
        """The number of the last chunk."""
        return self.chunks[-1].number if self.chunks else 0

    @property
    def unread(self) -> int:
        return sum(not mail.taken for mail in self.mail)


class Row(Struct, eq=False, gc=False):
    """An item, and all that changes about it.

    A struct, because structs are quick to make, and one that the garbage collector does not track: a million
    rows would make each of its rounds take a second. So a row that is dropped must first be cut off from
    everything that refers back to it. Otherwise it is never freed.
    """

    item: Item
    kind: ItemKind
    number: int
    """In the order of submission, from 1."""
    status: Status
    queued_at: float
    due_at: float
    ready_at: float = 0.0
    place: int = 0
    """Its place in its line: smaller is older. 0: it gets one at the end when it is ready next."""
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    deferrals: int = 0
    begun: bool = True
    """Whether its current attempt has begun: see `Backend.begin`."""

    # Where it is. An open row is in exactly one of: a container (a line, or the scheduled items), the doomed
    # items, the leases of a worker, or none of these if it is blocked. An ended row may be in a container of
    # the retention.
    container: RowContainer | None = None
    position: Position | None = None
    verdict: Verdict | None = None
    """Given: it is doomed."""
    token: int = 0
    """The token of the lease that owns it. 0: none."""
    held_lane: StrictLane | None = None
    """The strict lane that it holds until it has ended."""
    worker: MemoryWorker | None = None
    dependencies: Dependencies | None = None
    """Given as long as it is open and has prerequisites, met or not."""
    deadline_watch: DeadlineWatch | None = None
    overdue: bool = False
    """Its deadline passed while it was running."""

    group: MemoryGroup | None = None
    parent: Row | None = None
    children: dict[Row, None] | None = None
    contributed: bool = False
    """It is alone, and its result is its group's value."""
    unreleased: bool = False
    """It has ended, and its condition was not met."""
    failed_group: bool = False
    """It is dead, and its death was not tolerated."""

    deadline: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    claimed_by: str | None = None
    """The worker that claimed it last. None once an operator has ended it."""
    result: bytes | None = None
    reason: DeathReason | None = None
    mark: str = ""
    """It is dead: the fingerprint of its death."""
    history: list[Attempt] | None = None
    settled_by: tuple[int, ...] = ()
    """The last tokens that settled it."""
    claimed_at: float | None = None
    """When it was leased last, to be run. `started_at`: when the handler of its last attempt began."""
    changed_by: tuple[str, ...] = ()
    """See `KeyHolder`."""
    steps: RowSteps | None = None
    """None: it has recorded nothing, and no signal was sent to it."""
    logs: dict[int, bytes] | None = None
    """By token: what its last attempts have logged."""
    suspended: bool = False
    """It waits, without a worker, for what its steps say. A claim ends that."""
    redrives: int = 0
    prune_pending: bool = False
    """Its time to be pruned has come, but an open item waits for it."""
    gone: bool = False

    @property
    def ref(self) -> Ref:
        return self.kind.tenant, self.item.id

    @property
    def counters(self) -> Counters:
        return Counters(self.attempt, self.failures, self.losses, self.begun)

    @property
    def unstarted(self) -> bool:
        """Whether it may still be changed: see `Backend.submit`."""
        return (
            self.ended_at is None
            and not self.token
            and not self.attempt
            and self.verdict is None
            and not self.has_steps
        )

    @property
    def has_steps(self) -> bool:
        return self.steps is not None and bool(self.steps.steps)

    @property
    def group_id(self) -> str:
        return self.item.id if self.group is None else self.group.id

    @property
    def group_open(self) -> bool:
        return self.ended_at is None if self.group is None else self.group.open > 0

    @property
    def keep(self) -> float | None:
        """How long it is kept after its group's end. None: until an operator deletes it."""
        return self.item.keep_dead if self.status == "dead" else self.item.keep


@dataclass(slots=True, eq=False)
class MemoryGroup:
    """A root and what was queued below it. A root without children has no such object: its row is enough."""

    tenant: str
    id: str
    type: str
    """The root's type."""
    number: int
    """Of the root, or of the item that closes it."""
    open: int = 0
    total: int = 0
    """Members that have joined."""
    value: bytes | None = None
    contributed: bool = False
    final: bool = False
    version: int = 0
    ended_at: float | None = None
    members: dict[Row, None] = field(default_factory=dict[Row, None])
    failed: int = 0
    """How many deaths were not tolerated. Members that were pruned count too."""
    deaths: dict[Row, None] = field(default_factory=dict[Row, None])
    """The members that died these deaths, in this order."""
    cancelled: dict[Row, None] = field(default_factory=dict[Row, None])
    cancellations: int = 0
    """How many members were cancelled. Those that were pruned count too."""
    outer: MemoryGroup | None = None
    """For a nested group: the group that contains it."""
    nested: dict[MemoryGroup, None] = field(default_factory=dict["MemoryGroup", None])
    """The groups in it."""
    closer: Row | None = None
    """The item that closes a nested group, as long as it is stored. It is no member."""
    keep: float | None = None
    """The shortest time that a member is kept after the group's end. None: no member has joined yet."""
    position: Position | None = None

    @property
    def kept_since(self) -> float | None:
        """When this group and all around it had ended: `keep` counts from then. None: one of them is open."""
        latest = 0.0
        group: MemoryGroup | None = self
        while group is not None:
            if group.ended_at is None:
                return None
            latest = max(latest, group.ended_at)
            group = group.outer
        return latest
