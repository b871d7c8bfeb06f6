"""The data that the engine and storage exchange.

All of it is plain data without behaviour. `treadle.backend` says what storage does with it.

    Submission --submit--> item --claim--> Lease --run--> Settlement --settle--> Outcome
                             |
                             '--get, list--> ItemState        '--group--> GroupState

Instants are epoch seconds of the *store's* clock. Durations are seconds. Inputs, results, group values and
options are bytes that storage does not interpret. Names (ids, types, tenants, queues, lanes, workflows, keys)
are text of 1 to 255 UTF-8 bytes without control characters. The lane may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, get_args

import msgspec
from typing_extensions import TypeVar

from .worker_info import WorkerInfo

# --------------------------------------------------------------------------------------------------- words

Status: TypeAlias = Literal["blocked", "scheduled", "ready", "running", "success", "dead", "cancelled"]
"""The state of an item. `blocked` waits for other items, `scheduled` for a time, `ready` for a worker."""

OPEN: frozenset[Status] = frozenset(("blocked", "scheduled", "ready", "running"))
TERMINAL: frozenset[Status] = frozenset(("success", "dead", "cancelled"))

DeathReason: TypeAlias = Literal[
    "exhausted",  # the last allowed attempt failed
    "aborted",  # the handler or `on_failure` said not to retry
    "expired",  # the deadline passed
    "lease_lost",  # the workers that ran it died, more often in a row than its policy allows
    "unsatisfiable",  # the condition that it waited for can no longer be met
    "undecodable",  # its input or result cannot be read or written
    "bad_result",  # the handler returned something that is not a result
    "unknown_type",  # for longer than the grace no live worker had its type
]
"""Why an item is `dead`."""

Verdict: TypeAlias = Literal["expired", "unsatisfiable", "unknown_type"]
"""Why a doomed item must be settled dead. It must not be run."""

Loss: TypeAlias = Literal["taken", "completed", "cancelled", "not_found"]
"""Why a token no longer owns its item. `taken`: the item was freed and another worker may have claimed it.
`completed`, `cancelled`: an operator did that. `not_found`: the item was deleted."""

Counting: TypeAlias = Literal["success", "done"]
"""Which ends of a prerequisite count for a dependency: only `success`, or any terminal state."""

Ref: TypeAlias = tuple[str, str]
"""A tenant and an id. Together they name one item or one group in a store."""

AvoidedLane: TypeAlias = tuple[str, str | None]
"""A tenant and a lane, or None for all lanes of the tenant."""

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"

GROUP_MARK = "\x1e"
"""The first character of a name in `after` that means a whole group: the rest is the id of the group. No id
contains it."""
GROUP_TYPE = "treadle.group"
"""The type of the items that close nested groups."""
JOIN_TYPE = "treadle.join"
"""The type of the items that tell a suspended item that its children have ended."""
TELL_TYPE = "treadle.problem"
"""The type of the messages about problems: see `treadle.operate.tell`."""
TELL_NAMES = "treadle.problems."
"""How the names of their queues and schedules begin."""

LIMIT_REACHED = "LimitReached"
"""The error type of an item that ended `cancelled` because a limit was reached when it was to start."""

UNSATISFIABLE = "Unsatisfiable"
"""The error type of an item that died because what it waited for can no longer happen."""

KeyPolicy: TypeAlias = Literal["existing", "replace", "debounce", "error"]
"""What a submit does if an earlier item answers for its key. See `Backend.submit`."""

NEVER: Final = 253_402_300_799.0
"""When an item is due that is suspended without a time limit, or held: at the end of the year 9999."""


class ErrorInfo(msgspec.Struct, frozen=True, gc=False):
    """How an attempt failed, as text. The engine cuts each text at 10 kB."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One failed attempt in an item's history: its number, its error, when and on which worker it ended."""

    attempt: int
    error_type: str
    message: str
    traceback: str
    at: float
    worker: str
    release: str = ""
    """The release of the worker. Empty: it has none."""


# ---------------------------------------------------------------------------------------------- submitting


class Item(msgspec.Struct, frozen=True, gc=False):
    """A new item for `submit` or, as a child, for `settle`.

    Times are given as a duration or as an instant, and the instant wins: `run_at` over `delay`, `deadline`
    over `expires_in`. The store turns both into instants of its own clock.
    """

    id: str
    type: str
    input: bytes
    tenant: str = DEFAULT_TENANT
    queue: str = DEFAULT_QUEUE
    lane: str = ""
    priority: int = 0
    """A higher number goes first within one lane. Fits in 32 bits."""
    attempts: int | None = 3
    """How many attempts may fail. None: no limit. Storage does not look at it."""
    delay: float = 0.0
    run_at: float | None = None
    expires_in: float | None = None
    deadline: float | None = None
    parent: str | None = None
    """The item whose settlement queued it. The store sets it for children that name no parent."""
    workflow: str | None = None
    workflow_type: str | None = None
    after: tuple[str, ...] = ()
    """The ids that it waits for: of the same tenant, without repeats. They need not exist yet, except those
    in `must_exist`. A name that begins with `GROUP_MARK` means a whole group."""
    need: int = 0
    """How many of `after` must end, in a way that counts, before it is released."""
    counting: Counting = "success"
    key: str | None = None
    """Idempotency key, unique per tenant and type within its scope."""
    key_scope: Literal["open", "any"] | float = "open"
    """Which earlier item with this key is returned instead. `open`: one whose group is still open. `any`: one
    that is still stored. A number: one submitted at most that many seconds ago."""
    options: bytes = b""
    """Engine data that a claim returns (retry policy, timeout, compensation). Opaque to storage."""
    keep: float = 86400.0
    """How many seconds a `success` or `cancelled` item is kept after its group has ended."""
    keep_dead: float | None = None
    """The same for a dead item. None: until an operator requeues or deletes it."""
    lease_to: str | None = None
    """Store the item leased to this worker, if the worker is alive. Otherwise it is stored as usual."""
    must_exist: tuple[str, ...] = ()
    """Those of `after` that were submitted before. If one does not exist, the item is refused. For a group:
    its id, with `GROUP_MARK`."""
    group_id: str | None = None
    """For a child: the nested group that it joins, by the id of the item that closes it, which is a child of
    the same settlement. None: the group of the settled item."""
    closes_group: bool = False
    """It closes the nested group that has its own id. It is no member of that group, and waits for it. Its
    `after` may name children with keys that join the group: it waits for the earlier items that answer for
    them. The names of those that are stored as members are left out, and `need` is lowered by as many."""
    contributes: bool = True
    """False: it adds nothing to its group's value, by whichever verb it ends."""
    key_policy: KeyPolicy = "existing"
    """What happens if an earlier item answers for the key."""
    debounce_max: float | None = None
    """For `debounce`: the longest time, in seconds since the earlier item was submitted, by which it can be
    delayed. None: without limit."""


class AuditNote(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who changes something, and why. It is stored in the same step as the change."""

    actor: str
    reason: str = ""
    address: str = ""
    """From where: the address of a browser, or the host of a command line."""
    bulk: str | None = None
    """The bulk action that this change is a portion of, by its id."""
    about: str = ""
    """What was asked for, if it was not ids: a filter as text, or what an update changes."""
    verb: str = ""
    """What the entry calls the change, if not by the name of the method."""
    tenant: str | None = None
    """Whose the change is, for methods that are told no tenant: those of schedules."""


class Submission(msgspec.Struct, frozen=True, gc=False):
    """Items to store together or not at all. Each is the root of its own group."""

    items: tuple[Item, ...]
    wait: bool = True
    """Whether to wait for a while if a transaction that is open elsewhere has a key or an id of these items.
    Otherwise the submission is refused at once, as `locked`."""
    note: AuditNote | None = None
    """With it (capability `recording`), an audit entry is stored in the same step as the items."""
    alike: bool = False
    """Whether it is known that the items differ in nothing but their ids and inputs. A store need not compare
    them then."""


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """The answer for one submitted item."""

    id: str
    """Its id, or the id of the earlier item with the same key."""
    existing: bool = False
    """Whether an earlier item with the same key exists. Then no new item was stored."""
    status: Status = "ready"
    """The status of the item; for an existing item its status now."""
    lease: Lease | None = None
    """The lease, if the item was stored leased."""
    group_id: str = ""
    """The group it belongs to: its own id, or the existing item's group."""
    queued_at: float = 0.0
    """When it was stored. 0: not now, or unknown."""


RejectedWhy: TypeAlias = Literal["duplicate_id", "cycle", "not_found", "locked", "duplicate_key"]


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Why a submission, or a settlement, cannot be stored. Nothing of it was stored.

    `locked`: it has to wait for a transaction that is open elsewhere, and has `wait` False. The others of the
    call need not wait. Repeat it later, on its own.
    """

    why: RejectedWhy
    ids: tuple[str, ...]
    """The ids at fault: those that exist already, those that wait for each other, those of `must_exist` that
    do not exist, or the earlier items that have the keys. Empty for `locked`."""
    keys: tuple[str, ...] = ()
    """For `duplicate_key`: the key that each of the ids has."""


# ------------------------------------------------------------------------------------------------ claiming


class SharedRoom(msgspec.Struct, frozen=True, gc=False):
    """Room that several types share: their handlers run in the same threads, or in the same processes."""

    types: frozenset[str]
    room: int
    """The largest number of items of these types together. 1 or more."""


class Demand(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker requests with `claim`."""

    worker: str
    limit: int
    """The largest number of items to hand out for running. Zero requests only doomed items."""
    types: Mapping[str, int] | None = None
    """The types that this worker can run, each with the largest number it has room for. A type without room
    is listed with 0. None: every type, without limits."""
    shared: tuple[SharedRoom, ...] = ()
    """Types that share room, besides the room of each in `types`. A type shares at most one."""
    queues: tuple[str, ...] | None = None
    """None: every queue. Each is named once: a repeated name is dropped."""
    tenants: tuple[str, ...] | None = None
    """None: every tenant. Each is named once, as above."""
    avoid: Mapping[str, frozenset[AvoidedLane]] = {}
    """By type: lanes whose items of that type are left out this time, because a limit of theirs is reached.
    Items of other types in these lanes are handed out."""
    buffered: frozenset[str] = frozenset()
    """Types whose items wait in the worker before their handlers begin. Their leases are not begun: see
    `Backend.begin`."""
    strict: frozenset[str] = frozenset()
    """Types whose lanes are strict: an item that was handed out holds its lane, for its type and tenant,
    until it has ended. Nothing else of that type, tenant and lane is handed out meanwhile. See
    `Backend.claim`."""
    unknown_grace: float | None = None
    """Hand out, with the verdict `unknown_type`, items that were ready for longer than this while no live
    worker has their type. None: they wait without limit, as portions of bulk actions always do."""
    fairness: object = None
    """The `fairness` of the last claim: where the rotation of queues, tenants and lanes stands."""
    orders: int | None = None
    """The version of the orders that this demand is made from: see `Backend.claim`. None: it knows none."""
    thorough: bool = False
    """Over several stores: ask all of them. Otherwise a claim asks those that may have something. A lone
    store has no use for it."""

    def __post_init__(self) -> None:
        if self.queues is not None:
            msgspec.structs.force_setattr(self, "queues", tuple(dict.fromkeys(self.queues)))
        if self.tenants is not None:
            msgspec.structs.force_setattr(self, "tenants", tuple(dict.fromkeys(self.tenants)))

    def avoids(self, type: str, tenant: str, lane: str) -> bool:
        """Whether items of this type, tenant and lane are left out."""
        lanes = self.avoid.get(type)
        return lanes is not None and ((tenant, lane) in lanes or (tenant, None) in lanes)


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to run one attempt of one item, with the data that the handler needs and the token.

    Hot paths make it with positional arguments: 0.4 us, against 2.0 us with keywords.
    """

    id: str
    tenant: str
    token: int
    """New for every claim in the life of the store. `settle` checks it."""
    type: str
    input: bytes
    attempt: int
    """The number of this attempt: 1 for the first."""
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
    """If given, do not run the item. Settle it dead for this reason."""
    ref: int = 0
    """The store's own number for the item. Opaque to the engine, which returns it with the lease."""
    failures: int = 0
    """How many attempts have failed so far."""
    losses: int = 0
    """How many workers in a row have died while they ran it."""
    begun: bool = True
    """Whether the store counts the attempt as begun. If not, call `Backend.begin` before the handler runs."""
    ready_at: float = 0.0
    """When it became ready for this attempt. For a scheduled item: when it was due. One that was given back
    without a delay has been ready all the time. 0: unknown."""
    deferrals: int = 0
    """How often its handler has deferred it."""
    has_steps: bool = False
    """Whether steps of it are recorded: `Backend.steps` reads them."""
    resumes: bool = False
    """Whether it was suspended, and goes on with this claim."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The answer to a Demand."""

    leases: tuple[Lease, ...] = ()
    fairness: object = None
    """Pass it to the next Demand."""
    next_due: float | None = None
    """Seconds until the next `scheduled` item of these queues and tenants is due. None if there is none."""
    alive: bool = True
    """False: this worker sent no heartbeat yet, or was removed because its lease lapsed. Nothing was
    claimed."""
    left: tuple[str, ...] = ()
    """Types of items that this claim freed, made ready, parked or locked, but did not hand out. A claim of
    another worker that ran at the same time may have missed them: wake the workers of these types. Empty if
    claims run one after the other."""
    orders: int | None = None
    """The version of the orders, if it is another than that in the Demand. Then nothing was claimed."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's heartbeat. It renews the worker's own lease for `lease` seconds."""

    worker: str
    lease: float
    held: Sequence[Lease] = ()
    """Leases to check. It may be empty: all leases of the worker stay valid either way."""
    types: tuple[str, ...] | None = None
    """The types it can run. None: no change; in the first heartbeat: every type."""
    info: bytes | None = None
    """What the worker says about itself, for operators: see `treadle.worker_info`. None: no change."""
    release: str = ""
    """For a worker that is not known yet: the release of its code. The store keeps it with the worker, for
    the failures of its attempts. Empty: it has none."""
    registers: bool = True
    """Whether it registers a worker that is not known. False: it comes from elsewhere, only renews a lease,
    and has no `types` and no `held`. The reply says `fresh` if there was nothing to renew."""


MOST_UNKNOWN: Final = 100
"""How many unknown leases a heartbeat names."""


class HeartbeatReply(msgspec.Struct, frozen=True, gc=False):
    """The answer to a Heartbeat."""

    fresh: bool = False
    """The worker was not known: this is its first heartbeat, or it was removed and lost all its leases."""
    lost: Mapping[int, Loss] = {}
    """The tokens in `held` that no longer own their item, and why."""
    drain: bool = False
    """Someone has asked the worker to stop: see `Backend.drain_worker`."""
    new_store: bool = False
    """The store that this process has opened is gone, and another one is in its place. Said once."""
    unknown: Sequence[int] | None = ()
    """The tokens of leases that the worker has and that are not in `held`, the oldest first, at most
    `MOST_UNKNOWN`. None: this heartbeat has not looked for them."""
    permits: int = 0
    """How many permits of `slots` limits the worker holds, of all limits together."""
    silent: Sequence[int] = ()
    """Over several stores: the tokens in `held` of those that have not answered for a whole lease. Others may
    own the items by now."""


# --------------------------------------------------------------------------------------------------- steps

StepKind: TypeAlias = Literal["value", "failure", "sleep", "signal", "children", "forgotten"]
"""What a step is: a value, a failure that the handler wants to keep, or a wait. `forgotten`: a requeue has
made it as if it had not run; only its name and `times` are left."""
STEP_KINDS: Final[tuple[StepKind, ...]] = get_args(StepKind)
"""All of them. Stores keep places in this tuple: a new kind comes last."""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One step of an item. Its name is unique in the item."""

    name: str
    kind: StepKind = "value"
    value: bytes | None = None
    """What it came to. For a wait: what it was answered; None if nothing came in time."""
    took: float = 0.0
    """How many seconds it took."""
    undo: bytes | None = None
    """Engine data: how to undo it if the item dies. Opaque to storage."""
    signal: str = ""
    """For `signal` and `children`: the name of the signal that it waits for."""
    over: bool = True
    """False: a wait that is not over. Its `until` may have passed."""
    delay: float | None = None
    """For a new wait: how many seconds it lasts at most. The store makes an instant of it, `until`."""
    until: float | None = None
    """For a wait: when it is over at the latest. None: never."""
    at: float = 0.0
    """When it was recorded. The store sets it."""
    attempt: int = 0
    """In which attempt it was recorded. The store sets it."""
    times: int = 0
    """How often requeues have forgotten it. The store sets it."""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a running item has done so far. See `Backend.record`."""

    lease: Lease
    steps: tuple[StepRecord, ...] = ()
    progress: bytes | None = None
    """How far it is, as the last it said. None: no change."""
    chunks: tuple[bytes, ...] = ()
    """What it adds to its stream."""
    first_chunk: int = 0
    """The number of the first of `chunks`. The others follow."""
    log: bytes | None = None
    """What the attempt has logged so far. None: no change."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A part of an item's stream."""

    number: int
    """1, 2, 3, ... without gaps. Give the last one as `since` to read on."""
    value: Any
    """A backend returns bytes, a client decodes them."""
    at: float


class Recorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an item has recorded."""

    steps: tuple[StepRecord, ...] = ()
    """In the order in which they were recorded first, since they were forgotten."""
    mailbox: dict[str, int] = {}
    """How many signals of each name no wait has taken yet."""
    progress: bytes | None = None
    progress_at: float | None = None
    chunks: int = 0
    """How many chunks its stream has: the number of the last one."""

    @property
    def unread(self) -> int:
        """Signals that no wait has taken yet."""
        return sum(self.mailbox.values())

    @property
    def kept(self) -> tuple[StepRecord, ...]:
        """The steps that no requeue has forgotten."""
        return tuple(step for step in self.steps if step.kind != "forgotten")


class Signal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A signal to an item."""

    id: str
    name: str
    value: bytes | None = None
    key: str | None = None
    """A signal of the same name with the same key is stored once."""


class Signalled(msgspec.Struct, frozen=True, gc=False):
    """The answer to one Signal."""

    verb: Literal["stored", "existing", "not_found", "ended", "full"]
    """`existing`: one with its key was there. `ended`: the item has ended. `full`: no wait takes it now, and
    too many are unread."""
    status: Status = "ready"
    """Of the item, after it."""
    woken: tuple[str, str] | None = None
    """The type and the queue of the item, if the signal has made it ready."""


MOST_UNREAD: Final = 1000
"""Unread signals of an item."""


# ------------------------------------------------------------------------------------------------ settling

SettlementKind: TypeAlias = Literal["success", "retry", "defer", "release", "suspend", "dead", "cancelled"]


class Contribution(msgspec.Struct, frozen=True, gc=False):
    """What a member adds to its group's value."""

    value: bytes | None = None
    """The new value. None: the item's own result is the value."""
    final: bool = False
    """Lock the group's value. Later contributions are ignored."""
    version: int | None = None
    """If given, apply the contribution only if the group has this version: the value was folded from the
    value of that version. An applied contribution makes another one: see `next_version` in
    treadle.store.rules."""


OWN_RESULT: Final = Contribution()
"""Most members give their result, and nothing else."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one attempt ends.

    | kind | the item becomes | attempt | uses |
    | --- | --- | --- | --- |
    | success | `success` | stays | result, contribution, children |
    | dead | `dead`, with `reason` | stays | failure, children (compensation) |
    | cancelled | `cancelled` | stays | failure |
    | retry | `scheduled` (`ready` if due) | stays, one more failure | delay or run_at, failure |
    | defer | `scheduled` (`ready` if due) | given back, one more deferral | delay or run_at |
    | release | as defer, but no deferral, and keeps its place and its losses | given back | delay or run_at |
    | suspend | `scheduled` (`ready` if a wait is over) | given back, no failures | steps, children |
    """

    lease: Lease
    kind: SettlementKind
    result: bytes | None = None
    reason: DeathReason | None = None
    failure: ErrorInfo | None = None
    delay: float = 0.0
    run_at: float | None = None
    contribution: Contribution | None = None
    children: tuple[Item, ...] = ()
    wait: bool = True
    """As in `Submission`."""
    ran: float | None = None
    """How many seconds ago the handler began. None: it did not. Then `started_at` stays as it was."""
    mark: str = ""
    """For `dead`: the fingerprint of the death. Items with the same mark died alike: see `Backend.marks`."""
    steps: tuple[StepRecord, ...] = ()
    """For `suspend`: what the item waits for, and other steps to record with it."""
    log: bytes | None = None
    """What the attempt has logged. None: what was recorded of it stays."""


class ReleasedItem(msgspec.Struct, frozen=True, gc=False):
    """A blocked item whose condition was just met."""

    id: str
    tenant: str
    type: str
    group_id: str
    queue: str
    parent: str | None
    after: tuple[str, ...]


class EndedGroup(msgspec.Struct, frozen=True, gc=False):
    """A group that just ended."""

    id: str
    tenant: str
    value: bytes | None
    """The group's value, if a member contributed one."""
    type: str = ""
    """The type of the root. Its codec reads the value. For a nested group: `GROUP_TYPE`."""
    failed: int | None = None
    """As in `GroupState`, where the backend knows it without another read. None: it does not. The engine asks
    then, if a process waits for the group."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to one settlement."""

    verb: Literal["applied", "stale", "moved", "rejected"]
    again: bool = False
    """For `applied`: an earlier call, whose answer was lost, applied it. This call changed nothing."""
    loss: Loss | None = None
    """Why it is `stale`."""
    version: int = 0
    value: bytes | None = None
    """For `moved`: the group's version and value to fold from. For an applied contribution: the new ones."""
    final: bool = False
    """For `moved`: the value is locked. Contribute without a version; the contribution is ignored."""
    rejected: Rejected | None = None
    ready: bool = False
    """For an applied `suspend`: a wait was over at once, so the item is ready."""
    existing: Mapping[str, str] | None = None
    """The ids of keyed children that were not stored, with the ids of the earlier items that have their
    key."""


class Effects(msgspec.Struct, frozen=True, gc=False):
    """What a call caused elsewhere, for wake-ups and events after the commit."""

    released: tuple[ReleasedItem, ...] = ()
    ended_groups: tuple[EndedGroup, ...] = ()
    doomed: int = 0
    """How many items became doomed because their condition can no longer be met. The next claims hand them
    out with a verdict."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The answer to `settle`: one outcome per settlement, in order."""

    outcomes: tuple[Outcome, ...]
    effects: Effects = Effects()
    at: float = 0.0
    """When the first of them was applied. 0: unknown."""


# ------------------------------------------------------------------------------------------------- reading


class ItemState(msgspec.Struct, kw_only=True, gc=False):
    """An item as it is now. A backend returns `result` as bytes, a client decodes it."""

    id: str
    type: str
    status: Status
    tenant: str = DEFAULT_TENANT
    reason: DeathReason | None = None
    attempt: int = 0
    """How many attempts have begun."""
    attempts: int | None = 3
    """How many attempts may fail."""
    failures: int = 0
    """How many attempts have failed."""
    losses: int = 0
    """How many workers in a row have died while they ran it. For an ended item: before its last attempt."""
    deferrals: int = 0
    """How often its handler has deferred it. Those do not count as attempts."""
    result: object = None
    error: str | None = None
    """The last failure, as `type: message`. None if it has succeeded: the history has the failures."""
    error_type: str | None = None
    history: tuple[Attempt, ...] = ()
    """The last ten failed attempts, oldest first. Only from `get`, and from `list` with `history`."""
    queued_at: float = 0.0
    due_at: float = 0.0
    claimed_at: float | None = None
    """When a worker claimed it last."""
    started_at: float | None = None
    """When the handler of the last attempt began. While it runs: when its lease began."""
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
    """The ids in `after` that are not submitted yet. Only from `get`."""
    key: str | None = None
    worker: str | None = None
    """The worker that runs it or ended it. None if an operator completed it."""
    input: bytes = b""
    """The stored arguments: `decode_input` of the work type reads them."""
    options: bytes = b""
    """Engine data. Opaque."""
    mark: str = ""
    """For a dead item: the fingerprint of its death."""
    release: str = ""
    """The release of the worker whose failure `error` is. Empty: there is none."""
    headers: Mapping[str, str] = {}
    """What its submitter gave it to carry. A client reads them from `options`, a backend does not."""
    has_steps: bool = False
    """Whether steps of it are recorded."""
    suspended: bool = False
    """Whether its handler waits without a worker: it sleeps, or waits for a signal or for children. Still so
    when the wait is over and it is ready, until it is claimed."""
    held: bool = False
    """Whether an operator holds it: it is `scheduled`, and due at `NEVER`. See `Backend.hold`."""
    store: str = ""
    """The name of the store that has it, if the app has several."""


class GroupState(msgspec.Struct, kw_only=True, gc=False):
    """A group as it is now."""

    id: str
    tenant: str
    type: str
    """The type of the root. Its codec reads the value. For a nested group: `GROUP_TYPE`."""
    open: int
    """Members that have not ended."""
    value: object = None
    """A backend returns bytes, a client decodes them. None also if no member contributed."""
    contributed: bool = False
    """Whether a member contributed a value."""
    final: bool = False
    version: int = 0
    """Stands for the value: another value has another version, also in a later group with this id. 0: no
    member has contributed."""
    ended_at: float | None = None
    """When the last member ended. None while the group is open."""
    total: int = 1
    """Members that it has had, also those that were pruned. A nested group counts as one: as the item that
    closes it."""
    failed: int = 0
    """Dead members whose death is not tolerated: no item that waits, or waited, for them would run all the
    same (see `is_tolerant` in treadle.store.rules)."""
    deaths: tuple[ItemState, ...] = ()
    """The first ten of these, in the order in which they died, without history."""
    cancelled: ItemState | None = None
    """If the group has ended: a cancelled member, if there is one."""
    outer: str | None = None
    """For a nested group: the group that contains it."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Which of the requested items and groups have ended, and which do not exist."""

    items: Mapping[Ref, ItemState]
    groups: Mapping[Ref, GroupState]
    missing: frozenset[Ref] = frozenset()


KILLING: Final = 3
"""Workers in a row that died while they ran an item, at which it is a problem. Stores have an index of these
items."""


class Filter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Selects items: all given conditions must hold."""

    tenant: str | None = None
    status: tuple[Status, ...] = ()
    """Any of these. Empty: every status."""
    type: str | None = None
    queue: str | None = None
    workflow: str | None = None
    group_id: str | None = None
    key: str | None = None
    reason: DeathReason | None = None
    mark: str | None = None
    """Only dead items with this fingerprint. Empty: those without one."""
    release: str | None = None
    """Only items that failed last under this release, and have not succeeded since."""
    failed_group: bool = False
    """Only dead items whose deaths failed their groups. A tolerated death fails no group."""
    killing: bool = False
    """Only open items that have lost `KILLING` workers in a row, or more."""
    held: bool = False
    """Only items that are held, and not doomed."""
    since: float | None = None
    """Queued at this instant or later."""
    until: float | None = None
    """Queued before this instant."""
    store: str | None = None
    """Only items of this one of several stores. A store itself refuses it."""


GroupOutcome: TypeAlias = Literal["running", "succeeded", "failed", "cancelled"]
"""How a group, or a workflow, stands: `running` while an item of it has not ended."""


class GroupFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Selects groups, or workflows: all given conditions must hold."""

    tenant: str | None = None
    outcome: tuple[GroupOutcome, ...] = ()
    """Any of these. Empty: every outcome."""
    type: str | None = None
    """The type of the root."""
    since: float | None = None
    """The root was queued at this instant or later."""
    until: float | None = None
    """The root was queued before this instant."""
    store: str | None = None
    """As in `Filter`."""


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group, or a workflow, in a list."""

    id: str
    """The id of the root, or the name of the workflow."""
    tenant: str
    type: str
    """The type of the root. Of a workflow: of its newest root."""
    outcome: GroupOutcome
    open: int
    """Items that have not ended."""
    total: int
    """See `GroupState.total`. Of a workflow: its items that are stored."""
    failed: int = 0
    """Deaths that failed the group. Of a workflow: that failed groups."""
    queued_at: float | None = None
    """When the root was submitted. None: it was removed. Of a workflow: its first item that is counted."""
    ended_at: float | None = None
    death: ItemState | None = None
    """The first of the deaths that failed it and are still stored, without history."""
    capped: bool = False
    """Only the newest `MOST_COUNTED` items of the workflow were counted."""
    store: str = ""
    """Of several stores: the one that has it. By root, a workflow may be in several: listed for each."""

    @property
    def done(self) -> int:
        """Items that have ended."""
        return self.total - self.open


MOST_COUNTED: Final = 1000
"""Items of a workflow that a list of workflows counts, the newest."""

Listed = TypeVar("Listed", default=ItemState)


class Page(msgspec.Struct, Generic[Listed], frozen=True, gc=False):
    """A part of a list: of items, or of groups or workflows."""

    items: tuple[Listed, ...]
    cursor: str | None = None
    """Pass it to the next call to get the next page. None: this is the last page."""
    reached_at: float | None = None
    """With `reach`: the page is short because that number of items was looked at. When the last of these was
    submitted."""


class Count(msgspec.Struct, frozen=True, gc=False):
    """How many items of one tenant, queue and type are in one status."""

    tenant: str
    queue: str
    type: str
    status: Status
    count: int
    estimated: bool = False
    """Whether it is an estimate: see `Overview.counts`."""


class WorkerState(msgspec.Struct, frozen=True, gc=False):
    """A worker that has a lease in the store."""

    id: str
    until: float
    """When its lease lapses."""
    types: tuple[str, ...] | None
    """None: every type."""
    running: int | None
    """How many items it runs. None: a client of one tenant is not told, they may be those of others."""
    info: WorkerInfo | None = None
    """What it says about itself. None: nothing, or nothing that this version can read."""


# ----------------------------------------------------------------------------------- operating, coordinating


class ItemUpdate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New values for items that have not started. What is UNSET stays as it is."""

    run_at: float | msgspec.UnsetType = msgspec.UNSET
    priority: int | msgspec.UnsetType = msgspec.UNSET
    lane: str | msgspec.UnsetType = msgspec.UNSET
    queue: str | msgspec.UnsetType = msgspec.UNSET
    deadline: float | msgspec.UnsetType | None = msgspec.UNSET
    """None: without deadline."""


class Changed(msgspec.Struct, frozen=True, gc=False):
    """The answer to an operator's call: the changed items, as they were before, and the effects."""

    items: tuple[ItemState, ...]
    effects: Effects = Effects()


Algorithm: TypeAlias = Literal["token_bucket", "fixed_window", "sliding_window", "slots"]


class Limit(msgspec.Struct, frozen=True, gc=False):
    """A limit that the whole fleet shares: `limit` starts per `window` seconds; with `slots`, `limit` at
    once."""

    name: str
    limit: int
    window: float = 1.0
    algorithm: Algorithm = "token_bucket"


class PermitRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for up to `count` permits, each under all of `limits`."""

    limits: tuple[Limit, ...]
    count: int = 1
    lease: Lease | None = None
    """The one permit (`count` is 1) of `slots` limits is for this lease. See `Backend.take_permits`."""


class PermitHolder(msgspec.Struct, frozen=True, gc=False):
    """An item whose lease holds a permit."""

    id: str
    tenant: str
    due_at: float
    number: int
    """The store's own number for the item: `Lease.ref`. Larger means submitted later."""


class PermitReply(msgspec.Struct, frozen=True, gc=False):
    """How many permits were given, and after how many seconds another may be available."""

    count: int
    retry_after: float = 0.0
    holders: tuple[PermitHolder, ...] = ()
    """If a request with a lease got no permit: the items whose leases hold the permits of its limits, by
    `due_at`, then by number. Not those of items that have ended, or lost their lease, since."""


class Order(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What an operator has ordered for the whole fleet, while it runs: a pause, or a limit."""

    kind: Literal["pause", "limit"]
    queue: str | None = None
    """For a pause: of this queue."""
    type: str | None = None
    """Of items of this type. A pause is of a queue or of a type, not of both."""
    tenant: str | None = None
    """For a pause: of items of this tenant. Without queue and type: of all its items."""
    name: str | None = None
    """For a limit without a type: the name of limits in code, which is the type that has them unless the code
    gives another. `app`: those of the app's own doer."""
    limit: int | None = None
    """For a limit: as many at once, or per `window`."""
    window: float | None = None
    """For a limit: seconds. None: it is a limit on what runs at once."""
    until: float | None = None
    """When it ends by itself, by the store's clock. None: when it is withdrawn."""
    at: float = 0.0
    """When it was ordered. The store sets it."""
    actor: str = ""
    """Who has ordered it. Empty: it is not known."""
    reason: str = ""

    @property
    def subject(self) -> str:
        """What it is about. A new order takes the place of the one with the same subject."""
        rate = "" if self.window is None else "rate"
        return "\n".join(
            (self.kind, *(part or "" for part in (self.queue, self.type, self.tenant, self.name)), rate)
        )

    @property
    def verb(self) -> str:
        """The verb of the client that has given it."""
        return "pause" if self.kind == "pause" else "set_limit"

    @property
    def undo(self) -> str:
        """The verb of the client that withdraws it."""
        return "resume" if self.kind == "pause" else "clear_limit"

    @property
    def about(self) -> str:
        """The name of its queue, type, limit or tenant."""
        return self.queue or self.type or self.name or self.tenant or ""

    @property
    def paused_part(self) -> tuple[str, str] | None:
        """For a pause that the store obeys when it hands out items: the queue and the tenant, empty for all.
        None: workers obey the order."""
        return (self.queue or "", self.tenant or "") if self.kind == "pause" and self.type is None else None

    def holds(self, queue: str, type: str, tenant: str) -> bool:
        """Whether it is a pause of these items."""
        # In plain words: a page asks thousands of times.
        if self.kind != "pause" or (self.queue is not None and self.queue != queue):
            return False
        if self.type is not None and self.type != type:
            return False
        return self.tenant is None or self.tenant == tenant


class Orders(msgspec.Struct, frozen=True, gc=False):
    """All orders that are in force."""

    version: int = 0
    """Another one after each change. 0: there never was an order."""
    orders: tuple[Order, ...] = ()
    """By kind, queue, type, tenant and name."""
    now: float = 0.0
    """The store's clock."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recurring submission, as stored."""

    name: str
    next_at: float | None
    """When it fires next. None: it has ended."""
    spec: bytes = b""
    """What the engine needs to compute the next occurrences. Opaque to storage."""
    paused: bool = False
    last_at: float | None = None
    """The occurrence that fired last."""
    seen_at: float = 0.0
    """When a process that has its code last stored it."""
    tenant: str | None = None
    """For `put_schedule`: whose items it submits. It says which of several stores keeps the schedule. The
    store need not keep it."""


class Fire(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One occurrence of a schedule: submit `items` and set `next_at`, if the occurrence `at` is still due."""

    name: str
    at: float
    next_at: float | None
    items: tuple[Item, ...] = ()
    error: str = ""
    """Why it submits nothing: what `run` raised, in a line. Empty: it did not fail."""


# ------------------------------------------------------------------------------------------------ wake-ups


class WakeResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of an item that has succeeded, for the processes that wait for it."""

    type: str
    queued_at: float
    """When the item was stored. A later item with the same id has another time."""
    result: bytes | None
    ends_group: bool
    """Whether the group whose root it is has ended with it, and has the same value."""


class Wake(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A wake-up: it says what changed. A lost wake-up costs latency, never work."""

    sender: str = ""
    """The publisher, so that it can recognise its own wake-ups."""
    ready: bool = False
    """There may be items to claim."""
    types: tuple[str, ...] = ()
    """The types of the items to claim. Empty: any type."""
    queues: tuple[str, ...] = ()
    """The queues of the items to claim. Empty: any queue."""
    items: tuple[Ref, ...] = ()
    """Items that have ended. The groups whose roots they are may have ended too."""
    results: tuple[WakeResult | None, ...] = ()
    """The results of the first of `items`, in the same order. None: it has to be read. Only for backends
    whose wake-ups no stranger can read: see `carries_results`."""
    groups: tuple[Ref, ...] = ()
    """Groups that have ended and whose roots are not in `items`."""
    everything: bool = False
    """Too many items changed to name them: check all that you wait for."""
    asking: tuple[Ref, ...] = ()
    """Groups for which the sender asks whether a process waits for them."""
    awaited: tuple[Ref, ...] = ()
    """The answer: groups that a process waits for."""
    streams: tuple[Ref, ...] = ()
    """Items whose streams have new chunks, or that have made progress."""
    times: int = 1
    """How many wake-ups were combined into this one."""
    waits: bool = False
    """The sender waits for items, or did lately: results are of use to it."""
    stores: tuple[str, ...] = ()
    """Over several stores: the names of those that may have something to claim. Empty: all."""
