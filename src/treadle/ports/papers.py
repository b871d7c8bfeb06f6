"""Papers: what is stored, as structs. `names` says where."""

from __future__ import annotations

import msgspec

from treadle.item import Attempt, Counting, Item, Reason, Ref, Status, Verdict


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was submitted. It never changes; it exists once its group says so."""

    item: Item
    """With its tenant, its parent, and `after` as keys have resolved it."""
    group_id: str
    queued_at: float
    due_at: float
    deadline: float | None = None
    by: int = 0
    """The token of the settlement that queued it; 0 for a root."""

    @property
    def ref(self) -> Ref:
        return (self.item.tenant, self.item.id)

    @property
    def group(self) -> Ref:
        return (self.item.tenant, self.group_id)


class Member(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What changes about an item that has not ended. New fields go to the end: there may be a thousand in a
    ledger, so they are stored without names."""

    status: Status = "ready"
    due: float = 0.0
    since: float = 0.0
    """When it became ready."""
    deadline: float | None = None
    attempt: int = 0
    attempts: int | None = 3
    losses: int = 0
    token: int = 0
    """The lease in force; 0: none."""
    worker: str = ""
    started: float = 0.0
    verdict: Verdict | None = None
    """It is leased to be ended, for this reason."""
    doomed: Verdict | None = None
    """It can only end for this reason."""
    settled: list[int] = msgspec.field(default_factory=list[int])
    """The last ten tokens that settled it."""
    failed: list[int] = msgspec.field(default_factory=list[int])
    """The tokens of the last ten attempts that failed."""
    waits: list[str] = msgspec.field(default_factory=list[str])
    """Of what it waits for: what has not ended."""
    need: int = 0
    met: int = 0
    counting: Counting = "success"
    origin: str = ""
    """The item whose settlement queued it."""


class Past(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member that has ended."""

    status: Status
    token: int
    """What ended it; how, is stored under this number."""
    origin: str = ""


class Ledger(msgspec.Struct, omit_defaults=True):
    """All that changes about a group. It changes in one step, or not at all."""

    type: str
    """The root's."""
    open: dict[str, Member] = msgspec.field(default_factory=dict[str, Member])
    past: dict[str, Past] = msgspec.field(default_factory=dict[str, Past])
    owing: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """Members that have ended, and who has to be looked at because of that. It may have been done already."""
    value: int = 0
    """The token of whoever contributed the value; 0: nobody has."""
    version: int = 0
    final: bool = False
    ended_at: float | None = None
    last: str = ""
    """The member with whose end the group ended."""


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an item ended."""

    status: Status
    ended_at: float
    reason: Reason | None = None
    result: bytes | None = None
    attempt: int = 0
    due_at: float = 0.0
    started_at: float | None = None
    worker: str | None = None
    history: tuple[Attempt, ...] = ()


class Value(msgspec.Struct, frozen=True):
    """A group's value."""

    value: bytes | None


class Held(msgspec.Struct, frozen=True, array_like=True):
    """An item that a worker holds, or is about to."""

    tenant: str
    id: str
    group_id: str

    @property
    def ref(self) -> Ref:
        return (self.tenant, self.id)

    @property
    def group(self) -> Ref:
        return (self.tenant, self.group_id)


class Worker(msgspec.Struct, omit_defaults=True):
    """A worker's lease, and the leases that hang on it."""

    until: float
    lease: float
    types: tuple[str, ...] | None = None
    held: dict[int, Held] = msgspec.field(default_factory=dict[int, Held])
    """By token. What is in its hands is here first: a token that is not here is nobody's."""
    dying: bool = False
    """It is being buried: it gets nothing more, and begins anew if it comes back."""

    def has(self, type: str) -> bool:
        return self.types is None or type in self.types


class Roster(msgspec.Struct, omit_defaults=True):
    workers: list[str] = msgspec.field(default_factory=list[str])
    gone: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """When the last worker that had a type was buried; `""` for one that had every type."""


class Awaited(msgspec.Struct):
    """Who waits for an item: the dependents' ids and groups."""

    dependents: dict[str, str]
