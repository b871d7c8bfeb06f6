"""Backend: the storage contract, in the verbs of the domain. These docstrings are the specification.

Everything later stands on a few promises, which hold for every verb of every backend:

**Atomic.** Each verb is one step: all of it happened or none of it. `submit` and `settle` take many requests
at once for speed; there each *request* (a Submission, a Settlement) is atomic on its own, and a bad one
changes nothing for its neighbours. Concurrent calls behave as if they ran one after the other.

**Durable when answered.** What a verb has answered survives a crash of the process (and, where the backend
says so, of the machine).

**Unknown until answered.** If a call raises `StoreUnavailable` or is cancelled, it may or may not have
happened. `submit`, `settle`, `beat`, `claim_key` and `fire` can be repeated with the same arguments: what was
already done is not done twice. (A repeated `submit` without keys may be refused, naming the ids that it has
stored: whoever repeats reads that as done.) A claim whose answer was lost leaves leases that
nobody holds; they end with the worker's lease, or when the worker *asks*: a token that the worker does not
know is found through `unknown_leases`.

**Fenced.** A lease's token is new for every claim in the life of the store. What a token may change ends the
moment the item is settled, freed, completed, cancelled or deleted; a stale token changes nothing, anywhere.

**Per tenant.** An item is named by its tenant and its id; two tenants may use the same id, key, group or
workflow and never meet. Every verb takes `tenant`: given, it sees and changes that tenant's items only, and
what belongs to another is exactly like what does not exist. None is the operator's view: all tenants; an id
that several tenants use then means the one submitted first.

**The store's clock** decides what is due, expired or lapsed. No instant of a caller's clock is compared with
one of the store's, except those that users wrote (`run_at`, `deadline`).

## The life of an item

    submit --> blocked --> scheduled --> ready --> running --> success | dead | cancelled
                  |  (gate met)  (due)     ^ (claim)  | (settle)          |
                  |                        '----------'                   |
                  '--> [doomed] -- claim with a verdict -- settle --------'

- `blocked`: it waits for the items of `after`. Each prerequisite that ends is counted, once, in the step that
  ends it: `met` grows if its end counts (`counting`), and it is no longer `open`. When `met >= need` the item
  is released: `scheduled` if it is due later, else `ready`, at the end of its line. When `met + open < need`
  it is **doomed**: it can only end `dead: unsatisfiable`. A prerequisite that has ended before the dependent
  is submitted counts at once; one that does not exist (yet) is open. Counters do not run backwards: requeuing
  a prerequisite that was counted takes nothing back.
- `scheduled`: it is due in the future. The claim at which it is due makes it ready, at the end of its line.
- `ready`: it can be claimed. Lines are per queue, tenant and lane; in a line, higher priority first, then who
  became ready first.
- `running`: it is leased. If the lease of its *worker* lapses, or the worker is buried, it is **freed**:
  the attempt stays spent, a history entry of type `LeaseLost` is added, and it is ready again in its old
  place; from the second loss in a row on it is scheduled instead, `min(2 ** (losses - 2), 60)` seconds away.
  Any other settlement ends the row of losses. If its budget is spent (`attempt >= attempts`) it is doomed:
  it can only end `dead: lease_lost`.
- Whatever is not terminal or running when its `deadline` comes is doomed: `dead: expired`.
- Doomed items are handed out by `claim` with a verdict. Until they are settled they keep the status they had
  (`ready`, for a freed one), show no worker and no start, and do not count as running.
  A doomed item whose worker dies is doomed again, and nothing is counted.

## Groups
A group is a root and everything queued by settlements of its members; its id is the root's id. It is **open**
while a member is not terminal, and it **ends** in the very step that ends its last open member: once per
opening. Its value is what the last contribution to be applied said, in the order of settling, until one was
`final`. Requeuing a member of an ended group opens it again, its value, version and `final` as they were.

## Capabilities
A native backend has all of `CAPABILITIES`. One that is built from smaller parts names those it has; the
shipped contract suite (`treadle.testing`) runs the cases that they allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, runtime_checkable

from treadle.errors import BackendError
from treadle.item import (
    Changed,
    Claim,
    Count,
    Demand,
    Ended,
    Filter,
    Fire,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    ItemState,
    Lease,
    Page,
    PermitReply,
    PermitRequest,
    Ref,
    Rejected,
    Schedule,
    Settled,
    Settlement,
    Status,
    Submission,
    Submitted,
    Wake,
    WorkerState,
)

CAPABILITIES: Final = frozenset(
    {
        "fencing",  # a stale token changes nothing
        "folds",  # contributions with a version are exact, across crashes too
        "order",  # priorities, and fair turns of queues, tenants and lanes
        "parking",  # foreign types do not stand in the way
        "listing",  # list, counts, workers
        "operating",  # complete, requeue, trigger, delete, pause
        "limits",  # take, give
        "schedules",
        "batches",  # a submission of several items is atomic; cycles are refused whoever closes them
    }
)
"""What a full backend can do. `transactions` comes on top, where the store is a user's database too."""


class Transaction(Protocol):
    """A database transaction the user writes in and the engine settles in (capability `transactions`)."""

    @property
    def connection(self) -> object:
        """The driver's own connection, for the user's statements. It is inside the transaction."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        """As `Backend.settle`, as a part of this transaction. A stale token is answered as such; the caller
        then rolls back by raising."""
        ...


class HeartbeatConnection(Protocol):
    """Beats for a worker whose event loop cannot. Not open yet; of no use to others."""

    async def open(self) -> None: ...

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """As `Backend.beat`, without `held`."""
        ...

    async def close(self) -> None: ...


class Backend(Protocol):
    """Where items live. See the module for what holds everywhere."""

    capabilities: frozenset[str]

    # -- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and, unless told otherwise, bring the schema to this version. Idempotent, and safe when
        many processes do it at once. `SchemaError` if the store is newer than this library."""
        ...

    async def close(self) -> None:
        """Let go of connections, threads and files. Idempotent. A closed backend can be opened again."""
        ...

    def heartbeat_connection(self) -> HeartbeatConnection:
        """What goes on beating, from another thread and event loop, while this backend's loop is blocked."""
        ...

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        """Store new items. Answers per submission, in order; within one, per item, in order.

        Each item is stored `blocked`, `scheduled` or `ready` (see the life of an item), or doomed at once if
        its gate cannot be met any more; with `lease_to` naming a live worker, and nothing to wait for, it is
        stored `running`, attempt 1, and its lease is in the answer. A deadline already passed is accepted.

        **Keys** come first: if an earlier item of the same tenant and type holds the key within the asked
        scope (`open`: its group has not ended; `any`: it exists; a number: it was submitted at most so many
        seconds ago), nothing is stored for the new one and the earlier one is answered, with `existing`.
        Otherwise the new item takes the key over. This also holds among the items of one call: the first
        one wins. Wherever the new id is named in an `after` of the same submission, the earlier item is
        meant instead.

        **Refused**, whole submission, nothing stored: an id that exists in its tenant, or comes twice
        (`duplicate_id`); items that would wait for each other, directly or through items stored before
        (`cycle`).

        With `tx`, a connection of the user's own to the same database, all of it is part of the user's
        transaction: it exists if and only if that commits, and a refusal raises the error itself. Needs the
        capability `transactions`, else `UnsupportedError`.
        """
        ...

    async def claim(self, demand: Demand) -> Claim:
        """Hand out up to `limit` ready items to run, and besides them up to 100 doomed ones with a verdict.

        The cost depends on how many are handed out, not on how many wait.

        **First**, workers whose lease has lapsed are removed (see `remove_worker`), and what is due becomes
        ready, in the order in which it was due: bounded portions of each, so that no claim takes long. The
        next claim does what is left. (`next_due` is then 0: come again at once.)

        **Who is eligible**: items of the demanded queues that are not paused, of the demanded tenants, not in
        a lane to avoid, of a type with room. No more than `types[type]` of each type, and `limit` in all.

        **In which order**: queues take turns, tenants take turns within a queue, lanes within a tenant, one
        item at a time; within a lane by priority, then by age. `rotation` says where the turns stand: the
        claim goes on behind the queue, tenant and lane that were served last, so that every waiting lane is
        served once per rotation, however deep another one is. Where fewer lanes wait than items are asked
        for, they go on taking turns until the limit is reached or the lanes are empty. The leases come in the
        order of turns.

        **Foreign types** do not stand in the way: an item whose turn it is but whose type is not demanded, or
        has no room, is *parked*: set aside under its type, still `ready`, where a claim that does demand the
        type finds it, in its place among the others: nobody can tell that it was parked.

        **Doomed items** of the demanded queues and tenants are handed out to a worker that has their type, or
        to any if no live worker has it. They do not count against `limit` or room, and pauses do not hold
        them. With `unknown_grace`, what waited ready for longer than that while no live worker has its type
        is doomed too (`unknown_type`).

        Each lease carries a new token; the attempt is counted here, for what is to be run (not for verdicts).
        A worker without a live lease of its own (see `beat`) gets nothing, and `alive` is False; if its lease
        had lapsed, it has been buried in this very call.
        """
        ...

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Keep a worker alive for `lease` seconds from now, registering it if it is not known. One row,
        however many items it runs. A worker whose lease has lapsed but was not yet buried is simply alive
        again, with all that it holds. Of the leases in `held`, says which are lost and why."""
        ...

    async def remove_worker(self, worker: str) -> int:
        """Take away a worker's lease at once, because it is known to be dead or done: all that it ran
        is freed (see the life of an item). Answers how many. Unknown worker: 0. Must only be called when the
        worker cannot start or settle anything more; its tokens are stale from then on."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        """Apply each settlement whose token still owns its item: all of it or none of it.

        In one step, per settlement: the item's new state, its result or failure (added to the history, of
        which the last ten are kept), its contribution, its children with their edges and keys, the counters
        of its dependents, its group's counter, the end of the lease.

        - Children are stored as by `submit`, in the tenant and group of the item, with the item as `parent`
          unless they name another. A child that matches an earlier item by key does not join the group;
          `existing` says which. Children wait for each other, or for the item itself, like for any other.
        - Contributions are applied in the order of the settlements. One with a `version` that is not the
          group's is refused, with its whole settlement: `moved`, with the version and value to fold from.
          (A fold after a refused one in the same call is `moved` as well.) When the group's value is final, a
          contribution without a version is ignored and the settlement applies.
        - A token that does not own its item: `stale`, and why. If this very token has settled the item before
          (the answer was lost), it is `applied` with `again`.
        - Children that cannot be stored: `rejected`, with what is wrong; nothing of the settlement happened,
          the lease stands. (One that is `moved` as well may be told either.)
        - Gates that become doomed are not settled here; the next claim hands them out.

        Effects say what was released and which groups ended, for events and wakes after the commit.
        """
        ...

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        """The leases of this worker whose tokens it does not know: claims (or submits with `lease_to`) whose
        answer was lost. They are the worker's as if the answer had come; claims under way must have ended."""
        ...

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        """The items, in the order asked for, with history; None for what does not exist."""
        ...

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        """The groups, in the order asked for; None for what does not exist. The id of an item that is not a
        root is not a group."""
        ...

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        """One look for all that a process waits for: which of them have ended, which are missing."""
        ...

    async def list(
        self,
        where: Filter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> Page:
        """Items in the order of their submission, newest first unless asked otherwise. A cursor stays good
        while items come and go: no item that exists throughout is skipped or shown twice. `limit` is at most
        1,000. A cursor that is not one of ours: `InputError`."""
        ...

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        """How many items there are by tenant, queue, type and status: the open ones and the dead, and with
        `ended` the rest too (which takes time in proportion to what is kept)."""
        ...

    async def workers(self) -> Sequence[WorkerState]:
        """The workers that hold a lease, lapsed or not, with how many items each is running."""
        ...

    # -- operators -------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> Changed:
        """End these items, and all their open descendants (what their settlements queued, and so on), as
        `cancelled`; leases are lost. What has ended already is left as it is, what does not exist is skipped,
        but descendants of an ended item are still ended. Dependents count them as done, not as success."""
        ...

    async def complete(self, id: str, result: bytes | None, *, tenant: str | None = None) -> Changed:
        """End an open item as `success` without a worker, whatever it was waiting for; a lease is lost. The
        result is also its contribution. `worker` is None from then on. `NotFound`; `AlreadyEnded`."""
        ...

    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
    ) -> Changed:
        """Make dead items ready again, with attempt 0 and a fresh row of losses: those named that are dead
        (others are skipped), or the oldest `limit` dead ones that a filter finds. What they waited for no
        longer matters, and a deadline is lifted. Their groups open again.

        With `redrives`, only items that were requeued this way fewer times than that, each due
        `backoff * 2 ** times` seconds from now; a requeue without it resets that count."""
        ...

    async def trigger(self, ids: Sequence[str], *, tenant: str | None = None) -> Changed:
        """Make scheduled items due now. All or nothing: `NotFound` if one does not exist, `NotTriggerable`
        (naming its status) if one is not scheduled."""
        ...

    async def delete(
        self, group_ids: Sequence[str], *, tenant: str | None = None, cascade: bool = False
    ) -> Changed:
        """Remove whole groups, whatever state their members are in; leases are lost, keys are free. With
        `cascade`, also the groups that members wait or waited for, and so on. Groups that do not exist are
        skipped. `ReferencedError`, and nothing removed, while an open item outside waits for a member: it
        holds every id in its `after`, ended ones too."""
        ...

    async def pause(self, queue: str, paused: bool = True, *, tenant: str | None = None) -> None:
        """Hold back, or let go, a queue: the items of one tenant, or of all. What runs goes on. The two kinds
        add up: an item is held while either holds. Idempotent."""
        ...

    async def paused(self) -> Sequence[tuple[str, str | None]]:
        """The paused queues, as (queue, tenant or None for all)."""
        ...

    async def prune(self, limit: int = 1000) -> int:
        """Remove up to `limit` items whose time is over: terminal, in an ended group, `keep` (for dead ones
        `keep_dead`) seconds after the group's end, and not waited for by an open item. Answers how many; a
        full portion means that there may be more. Expired keys and limits go as well."""
        ...

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        """True for the first owner to ask, and for that owner again, until `ttl` seconds have passed since it
        was given; False for any other. Its names touch nothing else in the store."""
        ...

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        """Permits under limits that the whole fleet shares. Each take is granted the most, up to its count,
        that *all* of its limits allow, and only that much is spent in each of them: a limit is not charged
        for what another denied. In order, one step.

        - `token_bucket`: holds `limit` at most, refills `limit / window` a second, starts full.
        - `fixed_window`: `limit` per window; a window begins with the first permit after the last one ended.
        - `sliding_window`: as fixed windows aligned to the clock, but the previous one still weighs by the
          share of it that a window ending now overlaps.
        - `slots`: `limit` held at once by the live workers together; held by `worker` until given back.

        `retry_after` is the least time after which one more could be granted; for `slots` it is 0: unknown.
        """
        ...

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        """Give back permits of `slots` limits (others are not touched). A dead worker's are given back when
        it is buried."""
        ...

    async def put_schedule(self, schedule: Schedule) -> Schedule:
        """Store a schedule, or note that its code was seen (`seen_at` becomes now) if one of that name has
        the same `spec`: then its `next_at`, `last_at` and `paused` stay as stored. A new or changed one is
        taken as given; but with `next_at` None, which asks for nothing, it is not stored: so whoever only
        notes that it was seen brings nothing back that was dropped or changed meanwhile. Answers what is
        stored now, or what was given if there is nothing."""
        ...

    async def schedules(self) -> Sequence[Schedule]:
        """All schedules, by name."""
        ...

    async def drop_schedule(self, name: str) -> bool:
        """Remove a schedule. False if there was none."""
        ...

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        """Pause or resume a schedule. False if there is none."""
        ...

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        """One occurrence of a schedule: if it exists, is not paused and its `next_at` is still `fire.at`,
        submit the items and move `next_at` on, in one step. None: somebody else did, or it changed."""
        ...

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction on the store's database, for a handler's own writes and its settlement together.
        Commits when the block ends, rolls back when it raises. `UnsupportedError` without the capability."""
        ...

    # -- signals ---------------------------------------------------------------------------------------

    async def publish(self, wake: Wake) -> None:
        """Tell the other subscribers, in other processes too. Lossy: failing to is not an error of the
        caller's, and raises nothing but cancellation. May take a little, so that whoever publishes collects
        what comes meanwhile."""
        ...

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        """Call `receive`, on the event loop of the caller, for each wake published from now on by anyone,
        perhaps including the subscriber itself. Answers a function that ends it. A `receive` that raises is
        logged and changes nothing."""
        ...

    async def now(self) -> float:
        """The store's clock."""
        ...


@runtime_checkable
class Inspected(Protocol):
    """A backend that also looks after the store at large. Optional."""

    async def inspect(self) -> Sequence[BackendError]:
        """What is wrong there that a person should see to: each once, and again when it has become much
        worse. Workers ask every half a minute, and tell `on_error`."""
        ...


__all__ = ["CAPABILITIES", "Backend", "Inspected", "Lease", "Status", "Transaction"]
