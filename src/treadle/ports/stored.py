"""The records in the store, as structs. `keys` says under which key each of them is."""

from __future__ import annotations

import msgspec

from treadle.item import Attempt, Counting, DeathReason, Item, Ref, Status, Verdict


class StoredItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was submitted. It never changes. The item exists once its GroupRecord lists it."""

    item: Item
    """With its tenant, its parent, and `after` after idempotency keys were resolved."""
    group_id: str
    queued_at: float
    due_at: float
    deadline: float | None = None
    queued_by: int = 0
    """The token of the settlement that queued it; 0 for a root."""

    @property
    def ref(self) -> Ref:
        return (self.item.tenant, self.item.id)

    @property
    def group(self) -> Ref:
        return (self.item.tenant, self.group_id)


class OpenMember(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What changes about an item that has not ended. A group may have a thousand of them, so they are stored
    without field names: new fields go to the end."""

    status: Status = "ready"
    due: float = 0.0
    ready_since: float = 0.0
    deadline: float | None = None
    attempt: int = 0
    losses: int = 0
    token: int = 0
    """The lease in force; 0: none."""
    worker: str = ""
    started: float = 0.0
    verdict: Verdict | None = None
    """The item is leased to be ended, for this reason."""
    doomed: Verdict | None = None
    """The item can only end, for this reason."""
    settled_tokens: list[int] = msgspec.field(default_factory=list[int])
    """The last ten tokens that settled it."""
    failed_tokens: list[int] = msgspec.field(default_factory=list[int])
    """The tokens of the last ten attempts that failed."""
    waits_for: list[str] = msgspec.field(default_factory=list[str])
    """The prerequisites that have not ended."""
    need: int = 0
    met: int = 0
    counting: Counting = "success"
    origin: str = ""
    """The item whose settlement queued it."""
    failures: int = 0
    began: float = 0.0
    """When the handler of the last attempt began. (`started`: when it was claimed last.)"""
    contributes: bool = True
    """It may add to the group's value."""
    deferrals: int = 0


class EndedMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    status: Status
    token: int
    """The token that ended it. Its ItemEnd is stored under this number."""
    origin: str = ""


class GroupRecord(msgspec.Struct, omit_defaults=True):
    """Everything that changes about a group. It changes in one step."""

    type: str
    """The root's type."""
    open: dict[str, OpenMember] = msgspec.field(default_factory=dict[str, OpenMember])
    ended: dict[str, EndedMember] = msgspec.field(default_factory=dict[str, EndedMember])
    pending_effects: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """Ended members whose effects may be incomplete, each with the members that need a pointer because of
    it."""
    value_token: int = 0
    """The token that contributed the value; 0: none has."""
    version: int = 0
    final: bool = False
    ended_at: float | None = None
    last_ended: str = ""
    """The member whose end ended the group."""
    tolerated: list[str] = msgspec.field(default_factory=list[str])
    """Names in the `after` of members that run although these items die."""
    deaths: list[str] = msgspec.field(default_factory=list[str])
    """The members whose deaths failed the group, in this order."""

    def has(self, id: str) -> bool:
        return id in self.open or id in self.ended


class ItemEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    status: Status
    ended_at: float
    reason: DeathReason | None = None
    result: bytes | None = None
    attempt: int = 0
    due_at: float = 0.0
    started_at: float | None = None
    worker: str | None = None
    history: tuple[Attempt, ...] = ()
    failures: int = 0
    losses: int = 0
    claimed_at: float | None = None
    deferrals: int = 0


class StoredValue(msgspec.Struct, frozen=True):
    value: bytes | None


class LeasedItem(msgspec.Struct, frozen=True, array_like=True):
    """An item that a worker has leased, or is about to lease."""

    tenant: str
    id: str
    group_id: str

    @property
    def ref(self) -> Ref:
        return (self.tenant, self.id)

    @property
    def group(self) -> Ref:
        return (self.tenant, self.group_id)


class WorkerRecord(msgspec.Struct, omit_defaults=True):
    """A worker's own lease, and the leases of its items."""

    until: float
    lease: float
    types: tuple[str, ...] | None = None
    items: dict[int, LeasedItem] = msgspec.field(default_factory=dict[int, LeasedItem])
    """By token. A token is written here before it is written to the item's group. A token that is not here is
    not in force."""
    removing: bool = False
    """The worker is being removed. It gets no more leases, and counts as new if it comes back."""

    def is_alive(self, now: float) -> bool:
        return not self.removing and self.until > now

    def has_type(self, type: str) -> bool:
        return self.types is None or type in self.types


class WorkerRoster(msgspec.Struct, omit_defaults=True):
    workers: list[str] = msgspec.field(default_factory=list[str])
    types_gone: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """When the last worker that had a type was removed; `""` stands for a worker that had every type."""


class DependentsRecord(msgspec.Struct):
    """The items of other groups that wait for an item."""

    dependents: dict[str, str]
    """Their group ids, by id."""
