"""What the tables hold: rows, and what rows share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from treadle.item import Attempt, Item, Lease, Reason, Ref, Status, Verdict
from treadle.rules import Dependencies

if TYPE_CHECKING:
    from .lines import Line
    from .pile import Spot


class Holder(Protocol):
    """Where a row can be, and be taken out of."""

    def remove(self, thing: Row, /) -> None: ...


class Kind:
    """Items alike in tenant, queue, lane and type, and how many there are in each status."""

    __slots__ = ("counts", "lane", "line", "queue", "tenant", "type")

    def __init__(self, tenant: str, queue: str, lane: str, type: str, line: Line) -> None:
        self.tenant = tenant
        self.queue = queue
        self.lane = lane
        self.type = type
        self.line = line
        self.counts: dict[Status, int] = {
            "blocked": 0,
            "scheduled": 0,
            "ready": 0,
            "running": 0,
            "success": 0,
            "dead": 0,
            "cancelled": 0,
        }


class Expiry:
    """A row's place among the deadlines."""

    __slots__ = ("row", "spot")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.spot: Spot | None = None


class Worker:
    """Who runs things: how long it is trusted to be alive, what it knows, what it holds."""

    __slots__ = ("held", "id", "slots", "spot", "types", "until")

    def __init__(self, id: str) -> None:
        self.id = id
        self.until = 0.0
        self.types: frozenset[str] | None = None
        self.held: dict[int, Lease] = {}
        self.slots: dict[str, int] = {}
        self.spot: Spot | None = None


class Group:
    """A root and what was queued below it. A root without children has none: its row says it all."""

    __slots__ = (
        "cancelled",
        "contributed",
        "dead",
        "ended_at",
        "final",
        "id",
        "keep",
        "members",
        "open",
        "spot",
        "tenant",
        "type",
        "value",
        "version",
    )

    def __init__(self, root: Row) -> None:
        self.tenant = root.kind.tenant
        self.id = root.item.id
        self.type = root.kind.type
        self.open = 0
        self.value: bytes | None = None
        self.contributed = False
        self.final = False
        self.version = 0
        self.ended_at: float | None = None
        self.members: dict[Row, None] = {}
        self.dead: dict[Row, None] = {}
        self.cancelled: dict[Row, None] = {}
        self.keep: float | None = None
        """No member is to be kept shorter than this after the end; None: none is ever to go."""
        self.spot: Spot | None = None


class Row(msgspec.Struct, eq=False, gc=False):
    """An item, and all that changes about it.

    A struct because those are quick to make, and one that the garbage collector does not see: a million rows
    would make each of its rounds take a second. So whoever lets go of a row has to cut it off from everything
    that leads back to it, or it stays for good.
    """

    item: Item
    kind: Kind
    number: int
    """In the order of submission, from 1."""
    status: Status
    queued_at: float
    due_at: float
    ready_at: float = 0.0
    place: int = 0
    """Its place in its line, smaller is older. 0: the next time it is ready, at the end."""
    attempt: int = 0

    # Where it is. An open row is in exactly one of: a pile (a line, or what is due later), what is doomed,
    # the hands of a worker, or nowhere, blocked. An ended one may lie in the pile of what will be pruned.
    pile: Holder | None = None
    spot: Spot | None = None
    doom: Verdict | None = None
    token: int = 0
    """That of the lease that owns it. 0: nobody does."""
    worker: Worker | None = None
    gate: Dependencies | None = None
    """Given as long as it is open and has prerequisites, met or not."""
    expiry: Expiry | None = None
    overdue: bool = False
    """Its deadline passed while it was running."""

    group: Group | None = None
    up: Row | None = None
    kids: dict[Row, None] | None = None
    contributed: bool = False
    """It is alone, and its result is its group's value."""

    deadline: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    by: str | None = None
    """The worker that claimed it last. None once an operator has ended it."""
    result: bytes | None = None
    reason: Reason | None = None
    history: list[Attempt] | None = None
    settled: tuple[int, ...] = ()
    """The last tokens that settled it."""
    losses: int = 0
    redrives: int = 0
    faded: bool = False
    """Its time to be pruned has come, but somebody waits for it."""
    gone: bool = False

    @property
    def ref(self) -> Ref:
        return self.kind.tenant, self.item.id

    @property
    def group_id(self) -> str:
        return self.item.id if self.group is None else self.group.id

    @property
    def group_open(self) -> bool:
        return self.ended_at is None if self.group is None else self.group.open > 0

    @property
    def keep(self) -> float | None:
        """How long it is kept after its group's end; None: until someone decides."""
        return self.item.keep_dead if self.status == "dead" else self.item.keep
