"""The nouns that cross the seam between the engine and storage.

Everything here is plain data: no behaviour, no I/O. `treadle.backend` says what storage does with it.

    Submission --submit--> item --claim--> Lease --run--> Settlement --settle--> Outcome
                             |
                             '--get, list--> ItemState        '--group--> GroupState

Instants are epoch seconds by the *store's* clock, durations are seconds. Inputs, results, group values and
options are bytes that storage never looks into. Names (ids, types, tenants, queues, lanes, workflows, keys)
are text of 1 to 255 UTF-8 bytes without control characters; the lane may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

# ---------------------------------------------------------------------------------------------- vocabulary

Status: TypeAlias = Literal["blocked", "scheduled", "ready", "running", "success", "dead", "cancelled"]
"""The one state it is in. `blocked` waits for other items, `scheduled` for a time, `ready` for a worker."""

OPEN: frozenset[Status] = frozenset(("blocked", "scheduled", "ready", "running"))
TERMINAL: frozenset[Status] = frozenset(("success", "dead", "cancelled"))

Reason: TypeAlias = Literal[
    "exhausted",  # the last allowed attempt failed
    "aborted",  # the handler, or its classifier, said that retrying is pointless
    "expired",  # the deadline passed
    "lease_lost",  # the workers that ran it died until the budget was spent
    "unsatisfiable",  # what it waited for can no longer happen
    "undecodable",  # its input, or its result, cannot be read or written
    "bad_result",  # the handler returned something that cannot be carried out
    "unknown_type",  # no worker knew its type for longer than the grace
]
"""Why an item is `dead`."""

Verdict: TypeAlias = Literal["expired", "lease_lost", "unsatisfiable", "unknown_type"]
"""Why a claimed item can only be settled dead. It is not to be run."""

Loss: TypeAlias = Literal["taken", "completed", "cancelled", "not_found"]
"""Why a token no longer owns its item: freed (and perhaps claimed by another), completed or cancelled by an
operator, deleted."""

Counting: TypeAlias = Literal["success", "done"]
"""Which ends of a prerequisite count towards a gate: only `success`, or any terminal state."""

Ref: TypeAlias = tuple[str, str]
"""A tenant and an id: what names one item, or one group, in a store."""

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"


class ErrorInfo(msgspec.Struct, frozen=True, gc=False):
    """How an attempt failed, in words. The engine cuts each text at 10 kB."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One failed attempt in an item's history: its failure, its number, when and where it ended."""

    attempt: int
    error_type: str
    message: str
    traceback: str
    at: float
    worker: str


# ---------------------------------------------------------------------------------------------- submitting


class Item(msgspec.Struct, frozen=True, gc=False):
    """New work, as it is handed to `submit` or, as a child, to `settle`.

    Fields that say *when* are relative or absolute, and the absolute one wins: `run_at` over `delay`,
    `deadline` over `expires_in`. The store turns both into instants of its own clock.
    """

    id: str
    type: str
    input: bytes
    tenant: str = DEFAULT_TENANT
    queue: str = DEFAULT_QUEUE
    lane: str = ""
    priority: int = 0
    """Higher goes first, within one lane. Fits in 32 bits."""
    attempts: int | None = 3
    """The budget: how often it may be claimed. None: without limit."""
    delay: float = 0.0
    run_at: float | None = None
    expires_in: float | None = None
    deadline: float | None = None
    parent: str | None = None
    """The item whose settlement queued it. Set by the store for children that name none."""
    workflow: str | None = None
    workflow_type: str | None = None
    after: tuple[str, ...] = ()
    """Ids of the same tenant that it waits for, without repeats. They need not exist yet."""
    need: int = 0
    """How many of `after` must count before it is released."""
    counting: Counting = "success"
    key: str | None = None
    """Idempotency key, unique per tenant and type within its scope."""
    key_scope: Literal["open", "any"] | float = "open"
    """Which earlier item with this key answers instead: one whose group is still open; any that is kept;
    or any submitted at most so many seconds ago."""
    options: bytes = b""
    """What the engine wants back at claim (retry policy, timeout, compensation); opaque."""
    keep: float = 86400.0
    """Seconds it is kept after its group has ended (success and cancelled only)."""
    keep_dead: float | None = None
    """The same for a dead item. None: until someone decides."""
    lease_to: str | None = None
    """Store it already leased to this worker, if that one is alive (else it is stored as usual)."""


class Submission(msgspec.Struct, frozen=True, gc=False):
    """Items that are stored together or not at all. Each is the root of its own group."""

    items: tuple[Item, ...]


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """What became of one submitted item."""

    id: str
    """Its id, or that of the earlier item with the same key."""
    existing: bool = False
    """An earlier item with the same key answered; nothing was stored."""
    status: Status = "ready"
    """The state it is in (for an existing one: now)."""
    lease: Lease | None = None
    """Given when it was stored already leased."""
    group_id: str = ""
    """The group it belongs to: its own id, or the existing item's group."""


RejectedWhy: TypeAlias = Literal["duplicate_id", "cycle"]


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """A submission, or a settlement's children, that cannot be stored. Nothing of it was."""

    why: RejectedWhy
    ids: tuple[str, ...]
    """The ids at fault: those taken already, or those that wait for each other."""


# ------------------------------------------------------------------------------------------------ claiming


class Demand(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker asks `claim` for."""

    worker: str
    limit: int
    """The most to hand out for running. Zero asks only for items with a verdict."""
    types: Mapping[str, int] | None = None
    """The types this worker can run and the most it has room for, each. A type it has but has no room for is
    listed with 0. None: every type, without bounds."""
    queues: tuple[str, ...] | None = None
    """None: every queue."""
    tenants: tuple[str, ...] | None = None
    """None: every tenant."""
    avoid: frozenset[Ref] = frozenset()
    """Lanes, as (tenant, lane), to leave alone this time: a limit of theirs is reached."""
    unknown_grace: float | None = None
    """Hand out, with the verdict `unknown_type`, what waited longer than this while no live worker had its
    type. None: it waits for ever."""
    rotation: object = None
    """What the last claim returned as its rotation: where the turns of queues, tenants and lanes stand."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to run one attempt of one item: the item as its handler will see it, and the token.

    (By position it is made four times as fast as by keyword, which counts: 0.4 against 2.0 us.)
    """

    id: str
    tenant: str
    token: int
    """New for every claim in the life of the store; what `settle` checks."""
    type: str
    input: bytes
    attempt: int
    """Counted by the claim that made this lease: 1 for the first."""
    group_id: str
    queue: str = DEFAULT_QUEUE
    lane: str = ""
    priority: int = 0
    attempts: int | None = 3
    parent: str | None = None
    workflow: str | None = None
    workflow_type: str | None = None
    after: tuple[str, ...] = ()
    options: bytes = b""
    queued_at: float = 0.0
    due_at: float = 0.0
    claimed_at: float = 0.0
    deadline: float | None = None
    verdict: Verdict | None = None
    """Given: do not run it, settle it dead for this reason."""
    ref: int = 0
    """The store's own number for the item. Opaque; handed back with the lease."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The answer to a demand."""

    leases: tuple[Lease, ...] = ()
    rotation: object = None
    """To be handed to the next demand."""
    next_due: float | None = None
    """Seconds until the next `scheduled` item of these queues and tenants is due; None if there is none."""
    alive: bool = True
    """False: this worker's lease has lapsed and was taken away (or it never beat); nothing was claimed."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sign of life: keeps the worker's lease for `lease` seconds more."""

    worker: str
    lease: float
    held: Sequence[Lease] = ()
    """Leases whose standing the worker wants to hear of. May be empty: all of them are kept either way."""
    types: tuple[str, ...] | None = None
    """The types it can run. None: no change (for the first beat: every type)."""


class HeartbeatReply(msgspec.Struct, frozen=True, gc=False):
    """The answer to a beat."""

    fresh: bool = False
    """The worker was not known: its first beat, or its lease had been taken away and all it held is lost."""
    lost: Mapping[int, Loss] = {}
    """Of the leases asked about: the tokens that no longer own their item, and why."""


# ------------------------------------------------------------------------------------------------ settling

SettlementKind: TypeAlias = Literal["success", "retry", "defer", "release", "dead", "cancelled"]


class Contribution(msgspec.Struct, frozen=True, gc=False):
    """What a member adds to its group's value."""

    value: bytes | None = None
    """The new value. None: the item's own result."""
    final: bool = False
    """Lock the group's value: later contributions are ignored."""
    version: int | None = None
    """Given: apply only if the group's version is exactly this (a fold was computed from that version's
    value). Every contribution that is applied raises the version by one."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one attempt ends.

    | kind | the item becomes | attempt | uses |
    | --- | --- | --- | --- |
    | success | `success` | stays | result, contribution, children |
    | dead | `dead`, with `reason` | stays | failure, children (compensation) |
    | cancelled | `cancelled` | stays | |
    | retry | `scheduled` (`ready` if due) | stays | delay or run_at, failure |
    | defer | `scheduled` (`ready` if due) | given back | delay or run_at |
    | release | as defer; keeps its place in the line | given back | delay or run_at |
    """

    lease: Lease
    kind: SettlementKind
    result: bytes | None = None
    reason: Reason | None = None
    failure: ErrorInfo | None = None
    delay: float = 0.0
    run_at: float | None = None
    contribution: Contribution | None = None
    children: tuple[Item, ...] = ()


class ReleasedItem(msgspec.Struct, frozen=True, gc=False):
    """A dependent whose condition has just been met."""

    id: str
    tenant: str
    type: str
    group_id: str
    queue: str
    parent: str | None
    after: tuple[str, ...]


class EndedGroup(msgspec.Struct, frozen=True, gc=False):
    """A group that has just ended."""

    id: str
    tenant: str
    value: bytes | None
    """The group's value, if any member contributed one."""
    type: str = ""
    """The type of the root, whose codec reads the value."""


Verb: TypeAlias = Literal["applied", "stale", "moved", "rejected"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one settlement."""

    verb: Verb
    again: bool = False
    """`applied`, by an earlier call whose answer was lost. Nothing changed this time."""
    loss: Loss | None = None
    """Why it is `stale`."""
    version: int = 0
    value: bytes | None = None
    """For `moved`: the group's version and value to fold from. For an applied contribution: the new ones."""
    final: bool = False
    """For `moved`: the value is locked; contribute without a version, it will be ignored."""
    rejected: Rejected | None = None
    existing: Mapping[str, str] | None = None
    """Keyed children that were not stored, and the ids of the earlier items that answered for them."""


class Effects(msgspec.Struct, frozen=True, gc=False):
    """What a verb set in motion besides what it was asked for: for wakes and events, after the commit."""

    released: tuple[ReleasedItem, ...] = ()
    closed: tuple[EndedGroup, ...] = ()
    doomed: int = 0
    """How many gates can no longer be met. The next claims hand them out with a verdict."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The answer to a settle: an outcome per settlement, in order."""

    outcomes: tuple[Outcome, ...]
    effects: Effects = Effects()


# ------------------------------------------------------------------------------------------------- reading


class ItemState(msgspec.Struct, kw_only=True, gc=False):
    """An item as it stands. From a backend `result` is bytes; the client hands it out decoded."""

    id: str
    type: str
    status: Status
    tenant: str = DEFAULT_TENANT
    reason: Reason | None = None
    attempt: int = 0
    attempts: int | None = 3
    result: object = None
    error: str | None = None
    """The last failure, as `type: message`."""
    error_type: str | None = None
    history: tuple[Attempt, ...] = ()
    """The last ten failed attempts, oldest first. Only from `get`; empty in lists."""
    queued_at: float = 0.0
    due_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    deadline: float | None = None
    priority: int = 0
    lane: str = ""
    queue: str = DEFAULT_QUEUE
    group_id: str = ""
    parent: str | None = None
    workflow: str | None = None
    workflow_type: str | None = None
    after: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()
    """Of `after`: the ids not yet submitted. Only from `get`."""
    key: str | None = None
    worker: str | None = None
    """Who runs it, or who ended it; None if an operator completed it."""
    input: bytes = b""
    options: bytes = b""


class GroupState(msgspec.Struct, kw_only=True, gc=False):
    """A group as it stands."""

    id: str
    tenant: str
    type: str
    """The type of the root, whose codec reads the value."""
    open: int
    """Members that have not ended."""
    value: object = None
    """None also when nobody contributed: see `contributed`. From a backend: bytes."""
    contributed: bool = False
    final: bool = False
    version: int = 0
    ended_at: float | None = None
    """When the last member ended; None while open."""
    failed: ItemState | None = None
    """A member that is dead, else one that was cancelled, if there is one and the group has ended."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Which of the items and groups asked about have ended, and which do not exist."""

    items: Mapping[Ref, ItemState]
    groups: Mapping[Ref, GroupState]
    missing: frozenset[Ref] = frozenset()


class Filter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which items a list shows. Everything given must hold."""

    tenant: str | None = None
    status: tuple[Status, ...] = ()
    """Any of these; empty: every status."""
    type: str | None = None
    queue: str | None = None
    workflow: str | None = None
    group_id: str | None = None
    key: str | None = None
    reason: Reason | None = None
    since: float | None = None
    """Queued at or after."""
    until: float | None = None
    """Queued before."""


class Page(msgspec.Struct, frozen=True, gc=False):
    """Some items of a list, and where the rest begins."""

    items: tuple[ItemState, ...]
    cursor: str | None = None
    """Hand it to the next call. None: this was the last page."""


class Count(msgspec.Struct, frozen=True, gc=False):
    """How many items of one tenant, queue and type are in one status."""

    tenant: str
    queue: str
    type: str
    status: Status
    count: int


class WorkerState(msgspec.Struct, frozen=True, gc=False):
    """A worker whose lease the store knows of."""

    id: str
    until: float
    types: tuple[str, ...] | None
    running: int


# ----------------------------------------------------------------------------------- operating, coordinating


class Changed(msgspec.Struct, frozen=True, gc=False):
    """The answer to an operator verb: the items it changed, as they were before, and what followed."""

    items: tuple[ItemState, ...]
    effects: Effects = Effects()


Algorithm: TypeAlias = Literal["token_bucket", "fixed_window", "sliding_window", "slots"]


class Limit(msgspec.Struct, frozen=True, gc=False):
    """A bound shared by the fleet: `limit` starts per `window` seconds; for `slots`, `limit` held at once."""

    name: str
    limit: int
    window: float = 1.0
    algorithm: Algorithm = "token_bucket"


class PermitRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks for up to `count` permits under every one of `limits` at once."""

    limits: tuple[Limit, ...]
    count: int = 1


class PermitReply(msgspec.Struct, frozen=True, gc=False):
    """How many permits were given, and how long until another may be."""

    count: int
    retry_after: float = 0.0


class Schedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recurring submission, as stored."""

    name: str
    next_at: float | None
    """When it fires next; None: it has ended."""
    spec: bytes = b""
    """What the engine needs to compute the occurrence after that; opaque."""
    paused: bool = False
    last_at: float | None = None
    """The occurrence that fired last."""
    seen_at: float = 0.0
    """When a process that has its code last said so."""


class Fire(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One occurrence: submit `items` and move on to `next_at`, if `at` is still what is due."""

    name: str
    at: float
    next_at: float | None
    items: tuple[Item, ...] = ()


# ------------------------------------------------------------------------------------------------- signals


class Wake(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A wake-up: what changed. Losing one costs latency, never work."""

    sender: str = ""
    """Who published it, so that it can tell its own."""
    ready: bool = False
    """There may be something to claim."""
    items: tuple[Ref, ...] = ()
    """Items that have ended. So may have the groups whose roots they are."""
    groups: tuple[Ref, ...] = ()
    """Groups that have ended, and whose roots are not among the items."""
    everything: bool = False
    """Too much changed to name it: look at all you wait for."""
    asking: tuple[Ref, ...] = ()
    """Groups of which the sender asks: does anybody wait for them?"""
    awaited: tuple[Ref, ...] = ()
    """Groups that somebody waits for: the answer."""
    times: int = 1
    """How many occasions to publish it stands for."""
