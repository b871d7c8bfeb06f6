"""Backend: the storage contract. These docstrings are the specification.

These promises hold for every method of every backend:

**Atomic.** Each call is one step: all of it happens or none of it. `submit` and `settle` take many requests
at once for speed. There each *request* (a Submission, a Settlement) is atomic on its own, and a refused
request changes nothing for the others. Concurrent calls behave as if they ran one after the other.

**Durable when answered.** What a call has answered survives a crash of the process and, where the backend
says so, of the machine. Claims and heartbeats need not survive a crash of the store, if all that they changed
is forgotten together, nothing else is, and no token is ever handed out again: their items are lost leases.

**Unknown until answered.** If a call raises `StoreUnavailable` or is cancelled, it may or may not have
happened. `submit`, `settle`, `record`, `beat`, `claim_key` and `fire` can be repeated with the same
arguments: what was already done is not done twice. A repeated `submit` without keys may be refused with the
ids that it stored; the caller reads that as success. A claim whose answer was lost leaves leases that the
worker does not know. They end with the worker's own lease, or the worker asks for them with
`unknown_leases`.

**Fenced.** Every claim in the life of the store makes a new token. A token may change its item until the item
is settled, freed, completed, cancelled or deleted. A stale token changes nothing.

**Per tenant.** A tenant and an id name an item. Two tenants may use the same id, key, group or workflow
without affecting each other. Every method takes `tenant`. If it is given, the method sees and changes items
of that tenant only, and items of other tenants look exactly as if they did not exist. None is the operator's
view of all tenants; an id that several tenants use then means the item submitted first.

**The store's clock** decides what is due, expired or lapsed. No instant of a caller's clock is compared with
one of the store's clock, except those that users wrote (`run_at`, `deadline`). It may be set back. Then no
limit and no worker's lease lasts until it shows the old time again (`advance` and `is_far` in
treadle.store.rules).

## The life of an item

    submit --> blocked --> scheduled --> ready --> running --> success | dead | cancelled
                  |  (released)  (due)     ^ (claim)  | (settle)          |
                  |                        '----------'                   |
                  '--> [doomed] -- claim with a verdict -- settle --------'

- `blocked`: it waits for the items in `after`. Each prerequisite is counted once, in the step that ends it:
  it is no longer `open`, and `met` grows by one if its end counts (`counting`). When `met >= need` the item
  is released: it becomes `scheduled` if it is due later, otherwise `ready`, at the end of its line. When `met
  + open < need` it is **doomed**: it can only end `dead: unsatisfiable`. A prerequisite that ended before the
  dependent is submitted counts at once. One that does not exist yet is open. A name in `after` that begins
  with `GROUP_MARK` means a whole group: it ends when the group ends, as `success` if no death in it failed
  the group (see Groups) and no member is cancelled, else as `dead`. A prerequisite that ended without
  counting, and is requeued, is open again for items that are still blocked; one that counted stays counted.
- `scheduled`: it is due in the future. The first claim after it is due makes it ready, at the end of its
  line.
- `ready`: it can be claimed. There is a line for each queue, tenant and lane. In a line, higher priority goes
  first, then the item that became ready first.
- `running`: it is leased. If the lease of its *worker* lapses, or the worker is removed, the item is
  **freed**: a loss is counted, an entry of type `LeaseLost` is added to the history, and the item is ready
  again in its old place. From the second loss in a row on it is scheduled instead, `min(2 ** (losses - 2),
  30)` seconds later, less a share of up to a half that differs from item to item, and keeps its place. The
  row of losses ends when an attempt succeeds, fails or is deferred. Storage does not bound losses: the engine
  does.
- A lease that has not **begun** is freed without a trace: no attempt, no loss, no history. Claims hand out
  leases that have not begun for types in `Demand.buffered`, and for items with losses. `begin` begins them.
- An item that is neither terminal nor running when its `deadline` comes is doomed: `dead: expired`.
- `claim` hands out doomed items with a verdict. Until they are settled they keep their status (`ready` for a
  freed item), show no worker and no start, and do not count as running. If the worker of a doomed item dies,
  the item is doomed again, and nothing is counted.

## Groups

A group is a root and all items that settlements of its members queued. Its id is the id of the root. It is
**open** while a member is not terminal. It **ends** in the step that ends its last open member: once per
opening. Its value is that of the last applied contribution, in the order of settling, until one was `final`.
Requeuing a member of an ended group opens the group again, with its value, version and `final` as they were.

A member with `contributes` False adds nothing to the value, by whichever verb it ends.

**Failed.** A dead member *fails* its group unless `contributes` is False for it (a compensation, or what one
queued; not for a closing item), or its death is tolerated: some item names it in `after` (also
an item that was released, or submitted, before the death) and is tolerant: it counts any end, or needs fewer
than it names (`is_tolerant` in treadle.store.rules). This is decided when the member dies.
`GroupState.failed` counts these deaths, also while the group is open; a requeue takes them back, a prune does
not.

**Nested groups** (capability `nested`). A settlement may have children with `closes_group`. Such an item G is
a member of the settled item's group, the outer one. The other children whose `group_id` is its id form a
group of their own, with its id, and so do all items that they queue. G waits for that group: its `after` has
`GROUP_MARK` and its own id. When the nested group ends, G is released or doomed like any dependent, and holds
the outer group open until it has ended. The engine settles it with the value of the nested group as its
result, and as its contribution unless other works follow the group. A nested group of which no member was
stored (keys) ends in the same step: it counts for items that wait for it, and is among the ended groups of
the effects. Nothing of a nested group is pruned before the outermost group around it has ended, and it is
deleted with that group. `group` finds a nested group by its id.

## Steps

A handler may record **steps**: values under names, in its item, which survive its attempt (`record`). To
record one is progress: the attempts that failed or were lost before do not count any more (`failures` and
`losses` are 0, and the current attempt is the first). Steps, signals and streams are removed with their item.

A handler may wait without a worker. Its attempt ends with a settlement of kind `suspend`, which names what
the item waits for: steps that are not `over`. The item is **suspended** until it is claimed again. It is
`scheduled`, due at the earliest `until` of these waits, or at `NEVER`. A wait of kind `sleep` is over when
its `until` comes, or when the item is triggered. A wait for a signal is over when the signal comes.

A **signal** has a name and goes to one item. It is kept in the item's mailbox until a wait takes it, in the
order of arrival: each signal is taken by one wait, and each wait takes one signal. A wait takes it in the
step that suspends the item, if it was there before; or in the step that stores it, if the item is suspended,
waits for a signal of this name, and the `until` of the wait has not passed. The wait is then over, with the
signal's value, and the item is ready, at the end of its line. Signals that come while the item runs, or is
not started, wait in the mailbox. A suspended item counts as started.

## Capabilities

A native backend has all of `CAPABILITIES`. A backend that is built from smaller parts names those that it
has. The shipped contract suite (`treadle.testing`) runs the cases that need no others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from treadle.errors import BackendError, InputError, StoreUnavailable, UnsupportedError
from treadle.item import (
    AuditNote,
    Changed,
    Chunk,
    Claim,
    Count,
    Demand,
    Ended,
    Filter,
    Fire,
    GroupFilter,
    GroupState,
    GroupSummary,
    Heartbeat,
    HeartbeatReply,
    ItemState,
    ItemUpdate,
    Lease,
    Loss,
    Order,
    Orders,
    Page,
    PermitReply,
    PermitRequest,
    Record,
    Recorded,
    Ref,
    Rejected,
    Schedule,
    Settled,
    Settlement,
    Signal,
    Signalled,
    Status,
    Submission,
    Submitted,
    Wake,
    WorkerState,
)
from treadle.item_facts import DeadMark, Explanation, LimitUse, Overview
from treadle.records import (
    MINUTE,
    AuditPage,
    BacklogSample,
    BalanceBy,
    Line,
    MovedTenant,
    RebalancePlan,
    Related,
    ScheduleRun,
    Stat,
    StatsBy,
    StoreMark,
    StoreState,
    TenantMark,
)

WAKE_PORTION: Final = 150
"""Stores limit the size of a wake-up. One that is longer is sent as `everything`."""

CAPABILITIES: Final = frozenset(
    {
        "fencing",  # a stale token changes nothing
        "folds",  # contributions with a version are exact, also across crashes
        "order",  # priorities, and fair rotation of queues, tenants and lanes
        "parking",  # items of types that a worker does not have do not block other items
        "listing",  # list, counts, workers
        "operating",  # complete, requeue, trigger, hold, delete, orders
        "limits",  # take_permits, return_permits, keep_permits
        "schedules",
        "begin",  # a lease that has not begun is freed without a loss
        "batches",  # a submission of several items is atomic; a submission that closes a cycle is refused
        "nested",  # nested groups, and items that wait for whole groups
        "updates",  # update, and key policies other than `existing`
        "strict",  # Demand.strict, and permits that belong to leases
        "watching",  # explain, overview, limits, marks, lines, related, groups, workflows, `reach` of list
        "recording",  # statistics, samples of the backlog, audit notes, runs of schedules; drain_worker
        "steps",  # record, steps, stream, signal; settlements of kind `suspend`
        "moving",  # export, import_, mark, own, discard
    }
)
"""What a full backend can do. A store in the user's own database has `transactions` too, and one that can
take in a tenant beside others `parts`. One that can do so while both are in use is one of `MovesTenants`, and
has `tenant_moves`."""


class Transaction(Protocol):
    """A database transaction in which the user writes and the engine settles (capability `transactions`)."""

    @property
    def connection(self) -> object:
        """The driver's own connection, for the user's statements. It is inside the transaction."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        """As `Backend.settle`, as a part of this transaction. A stale token is answered as `stale`; the
        caller then raises, which rolls the transaction back."""
        ...

    async def submit(self, submissions: Sequence[Submission]) -> Sequence[tuple[Submitted, ...] | Rejected]:
        """As `Backend.submit` with `tx`, as a part of this transaction. A refusal, answered or raised, leaves
        the transaction as it was."""
        ...

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        """As `Backend.record`, as a part of this transaction. A stale token is answered; the caller then
        raises, which rolls the transaction back."""
        ...

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        """As `Backend.get`, as this transaction sees the items."""
        ...

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        """As `Backend.claim_key`, as a part of this transaction. If another open transaction has claimed the
        key, wait until that one ends."""
        ...


class Export(Protocol):
    """Reads all that a store holds. See `Backend.export`."""

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        """Return up to `limit` further records, and none at the end. Their form and order are those of
        treadle.store.portable. `limit` 0 only puts off the end of the freeze."""
        ...

    async def move(self, move: str, to: str, content: str = "") -> None:
        """End the freeze with the decision: another store owns the work from now on. `move`: the id of the
        move; `to`: the address of that store, without a password; `content`: what it holds. In one step the
        mark is `moved`, and from then on every verb raises `StoreMoved`; what the store held stays, until
        `take_back`, or for people to look at or remove. `StoreUnavailable`, and nothing changed, if the
        freeze has ended meanwhile."""
        ...

    async def give_back(self, move: str, source: str) -> None:
        """End the freeze, and undo `own`: in one step the store is marked `importing` by this move from
        `source` again, as a whole import is. `StoreUnavailable` as for `move`."""
        ...


class Import(Protocol):
    """Fills an empty store. See `Backend.import_`."""

    async def write(self, records: Sequence[bytes]) -> None:
        """Store further records, in the order in which they were exported. `InputError` for one that is of a
        newer form or none, or out of order."""
        ...

    async def finish(self) -> None:
        """All records are written: derive what is not in them. The store is marked `importing` now, if it was
        not before, and stays so until `own`."""
        ...


class Giving(Protocol):
    """Gives a tenant away. See `TenantMoves.give`."""

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        """As `Export.read`, without what was read ahead and is as it was. Items that run keep their leases.
        Of what is neither item nor group only claimed keys."""
        ...

    async def commit(self, mark: TenantMark) -> None:
        """The decision: in one step the mark is this one, and what the store had of the tenant is removed.
        `StoreUnavailable`, and nothing changed, if the freeze has ended meanwhile."""
        ...


class HeartbeatConnection(Protocol):
    """Sends heartbeats for a worker whose event loop is blocked. Call `open` before the first heartbeat."""

    async def open(self) -> None: ...

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """As `Backend.beat`, without `held`."""
        ...

    async def close(self) -> None: ...


class Backend(Protocol):
    """Stores items. The docstring of the module says what holds for every method."""

    capabilities: frozenset[str]

    # -- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and, unless configured otherwise, migrate the schema to this version. Idempotent, and safe
        when many processes do it at once. `SchemaError` if the store is newer than this library."""
        ...

    async def close(self) -> None:
        """Release connections, threads and files. Idempotent. A closed backend can be opened again."""
        ...

    def abandon(self) -> None:
        """Leave behind, without waiting, what belongs to an event loop that is closed, or to the process that
        this one was forked from. Items stay. The backend can be opened again, on the loop that runs now.

        Connections of a closed loop are ended. In a forked process nothing is done to connections, files and
        locks that the parent uses. What belongs to a loop that is alive is left as it is."""
        ...

    def heartbeat_connection(self) -> HeartbeatConnection:
        """Return a connection that sends heartbeats from another thread and event loop while this backend's
        loop is blocked."""
        ...

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        """Store new items. Returns one answer per submission, in order; in an accepted one, one per item, in
        order.

        Each item is stored `blocked`, `scheduled` or `ready` (see the life of an item), or doomed at once if
        its condition can no longer be met. With `lease_to` naming a live worker, no pause of its queue or
        tenant, and nothing to wait for, it is stored `running`, attempt 1, and the answer has its lease.
        A deadline that has passed is accepted.

        **Keys** are checked first. If an earlier item of the same tenant and type has the key within the
        requested scope (`open`: its group has not ended; `any`: it exists; a number: it was submitted at most
        that many seconds ago), the new item is not stored, and the answer names the earlier item, with
        `existing`. Otherwise the new item takes the key over. The same holds among the items of one call: the
        first one wins. Where an `after` of the same submission names the new id, it means the earlier item
        instead.

        What else happens to the earlier item depends on the `key_policy` of the new one. `existing`: nothing.
        `error`: the submission is refused (`duplicate_key`, with the ids of the earlier items). `replace` and
        `debounce`: if the earlier item has not started (no attempt counts as begun, it has no lease and is
        not doomed), it takes over the input, options, attempts, priority, lane, queue, deadline, keep and
        keep_dead of the new one, and goes to the end of its new line. It keeps its id, group, parent,
        workflow, key and `after`, and the instant at which it was submitted. With `replace` its delay counts
        from that instant; with `debounce` from now, but it is due at the latest `debounce_max` seconds after
        that instant. A `run_at` is taken as it is, and `expires_in` counts from now. An earlier item that has
        started is not changed. Of several new items for one earlier item the last one counts.

        A call whose answer was lost may be repeated: a new item that has the id of the earlier one, or of one
        of the last 20 that changed it, changes nothing.

        **Refused** is a whole submission, with nothing stored, for an id that exists in its tenant or occurs
        twice (`duplicate_id`), for items that would wait for each other, directly, through stored items or
        through groups, where a group waits for all its members (`cycle`), and for an id in `must_exist` that
        is neither stored nor in the submission (`not_found`). With `wait` False, a submission that would have
        to wait for a transaction that a user has left open is refused as `locked`, so that the others do not
        wait with it.

        **A note** of a submission is stored with it as an audit entry, `enqueue`, unless nothing was stored
        or changed. So a repeated call stores no second entry. Its count is that of the new and changed items.

        With `tx`, a user's connection to the same database, all of it is part of the user's transaction: the
        items exist if and only if that transaction commits, and a refusal raises the error itself. This needs
        the capability `transactions`, else `UnsupportedError`.
        """
        ...

    async def claim(self, demand: Demand) -> Claim:
        """Hand out up to `limit` ready items to run and, in addition, up to 100 doomed items with a verdict.

        The cost depends on how many items are handed out and how many lanes are avoided, not on how many
        items wait.

        **First**, workers whose lease has lapsed are removed (see `remove_worker`), items that are due become
        ready, in the order in which they were due, and items whose deadline has passed are doomed: those of
        all queues and tenants. Each is done in bounded portions, so that no claim takes long. The next claim
        does the rest; `next_due` is then 0, which means to claim again at once.

        **Orders** are obeyed by both sides. If the demand has a version of orders and it is not the current
        one, nothing is handed out, doomed items neither, nothing need become ready or doomed, and the answer
        has the current one: the worker reads the orders and claims again. The store obeys pauses of queues
        and tenants, also for demands without a version. Workers obey all others: they ask for no items of a
        paused type, and for permits of the limits in force.

        **Eligible** are items of the requested queues and tenants that no pause of a queue or a tenant holds,
        of a type with room: at most `types[type]` of each type, and `limit` in all. Not eligible are items in
        a lane that is to be avoided for their type. There may be thousands of such lanes.

        **The order**: queues are served in rotation, tenants in rotation within a queue, lanes in rotation
        within a tenant, one item at a time. Within a lane the order is priority, then age. `fairness` is the
        position: the claim continues after the queue, tenant and lane that were served last. So every waiting
        lane is served once per rotation, however long another one is. If fewer lanes wait than items are
        requested, the rotation continues until the limit is reached or the lanes are empty. The leases are in
        the order of service.

        **Other types** do not block: an item that is next but whose type is not requested, or has no room, or
        is avoided in its lane, is *parked*. It stays `ready`, is set aside under its type, and a claim that
        may hand it out finds it in its old place. Parking changes nothing that a caller can observe.

        **Strict lanes** (capability `strict`): an item of a type in `strict` that is handed out holds its
        lane, for its type and tenant, until it has ended, however often its attempts fail or are lost. Until
        then no other item of that type, tenant and lane is handed out by a claim with that type in `strict`:
        at most one of each such lane per claim. Items that hold their lanes and are ready again are handed
        out before all others, also before those of a higher priority. Any end frees the lane, by any verb.
        An item that is requeued, or moved before it has started (`update`, `submit` with a key), holds no
        lane.

        **Doomed items** of the requested queues and tenants are handed out to a worker that has their type,
        or to any worker if no live worker has it. They do not count against `limit` or room, and are handed
        out from paused queues too. With `unknown_grace`, an item that was ready for longer than that while no
        live worker has its type is doomed too (`unknown_type`), but not one of a bulk action.

        Each lease has a new token. The claim counts the attempt of leases that have begun. A
        worker without a live lease of its own (see `beat`) gets nothing, and `alive` is False. If its lease
        had lapsed, this call has removed it.

        Over several stores all this holds in each. A demand that is not `thorough` may leave out stores that
        have something: the next ones ask them.
        """
        ...

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        """Count the attempts of these leases as begun: their handlers run now. Return the tokens that no
        longer own their item, and why: their handlers must not run. Leases that have begun already stay as
        they are."""
        ...

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Keep a worker alive for `lease` seconds from now, and register it if it is not known, unless the
        heartbeat only renews. It writes one row, however many items the worker runs. A worker whose lease has
        lapsed but that was not removed yet is alive again, with all its leases. The reply says which leases
        in `held` are lost, and why; which leases the worker has beside those in `held`; and how many permits
        it holds. A worker that knows of fewer has settled, or returned, what the store has forgotten: see
        `unknown_leases` and `keep_permits`."""
        ...

    async def remove_worker(self, worker: str) -> int:
        """End a worker's lease at once, because the worker is known to be dead or stopped. All items that it
        ran are freed (see the life of an item). Returns how many; 0 for an unknown worker. Call it only if
        the worker cannot start or settle anything more: its tokens are stale afterwards."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        """Apply each settlement whose token still owns its item: all of it or none of it.

        One step per settlement changes the item's status, its result or failure (added to the history, which
        keeps the last ten), its contribution, its children with their dependencies and keys, the counters of
        its dependents, the counter of its group, and ends the lease.

        - Children are stored as by `submit`, in the tenant and group of the item, with the item as `parent`
          unless they name another. A child whose key an earlier item has does not join the group; `existing`
          names that item. Children may wait for each other, for the item itself, or for any other item.
        - Contributions are applied in the order of the settlements. If one has a `version` that is not the
          group's, its whole settlement is refused: `moved`, with the version and value to fold from. A fold
          after a refused one in the same call is `moved` too. If the group's value is final, a contribution
          without a version is ignored and the settlement applies. A version never stands for two values: the
          next one is that of `next_version` in treadle.store.rules.
        - A token that does not own its item: `stale`, and why. If this token has settled the item before (the
          answer was lost): `applied`, with `again`.
        - Children that cannot be stored: `rejected`, and why. Nothing of the settlement happened, and the
          lease stays valid. The same answer, with `locked`, is for a settlement with `wait` False that would
          have to wait for a transaction that a user has left open. A settlement that is both `moved` and
          `rejected` may get either answer.
        - Items that become doomed are not settled here. The next claim hands them out.
        - `suspend` records its steps as `record` does, and gives the attempt back. Waits for signals that the
          item had before, and that are not among them, are forgotten: it does not ask for them any more. If a
          wait is over at once, because its time has passed or its signal was there, the item is ready.
          Children are stored as for `success`. See Steps.
        - A `log` is recorded as `record` does. Also if the settlement is not applied, but its token owns the
          item.

        The effects say which items were released and which groups ended, for events and wake-ups after the
        commit.
        """
        ...

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        """Write what running items have done so far: each record whose token owns its item, all of it or none
        of it (capability `steps`). Answers for each, in order: None, or why the token does not own the item.

        A step with a name that the item has takes the place of that one, and keeps its `times`. If that one
        was forgotten, it is recorded first now. A chunk with a number that the
        stream has is not written again. A log takes the place of the one that the same token has recorded;
        the last `KEPT_ATTEMPTS` (10) of an item are kept, until the item is removed. So a call whose answer
        was lost can be repeated. The attempt must have begun. A record without steps is no progress: see
        Steps.
        """
        ...

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        """Return the leases of this worker whose tokens are not in `known`: those of claims, or of submits
        with `lease_to`, whose answer was lost, and those whose settlement the store has forgotten. The worker
        owns them as if the answer had just arrived. Call it only while no claim of the worker is under
        way."""
        ...

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        """Return the items in the order of `ids`, with their history. None for an id that does not exist."""
        ...

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        """Return the groups in the order of `ids`. None for a group that does not exist. The id of an item
        that is not a root names no group."""
        ...

    async def steps(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[Recorded | None]:
        """Return what these items have recorded, in the order of `ids`. None for an id that does not
        exist."""
        ...

    async def stream(
        self, id: str, *, since: int = 0, limit: int = 1000, tenant: str | None = None
    ) -> Sequence[Chunk]:
        """Return up to `limit` chunks of an item's stream with numbers above `since`, in order. Empty if
        there are none, or no such item."""
        ...

    async def logs(self, id: str, *, tenant: str | None = None) -> Sequence[bytes]:
        """Return the logs of an item's last attempts, in the order in which they were written last. Empty if
        there are none, or no such item."""
        ...

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        """Return which of these items and groups have ended, and which do not exist: one request for all that
        a process waits for."""
        ...

    async def list(
        self,
        where: Filter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        history: bool = False,
        reach: int | None = None,
    ) -> Page:
        """Return items in the order of submission, newest first unless `oldest_first`. With `history` they
        are as from `get`; otherwise `history` and `waiting_for` are left out. A cursor stays valid while
        items are added and removed: no item that exists throughout is skipped or shown twice. `limit` is at
        most 1,000. `InputError` for a cursor that this method did not return.

        Open, dead and cancelled items, groups, workflows, keys and marks are found without a look at the
        others. A filter that most items fail, and that has none of these, reads items until the page is
        full, however many that are. With `reach` (capability `watching`) it reads about that number at most:
        then the page may be short, or empty, and still have a cursor; `reached_at` says how far it has
        looked."""
        ...

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        """Count the items by tenant, queue, type and status: the open and dead ones, and with `ended` the
        others too, which takes time in proportion to how many are kept."""
        ...

    async def workers(self) -> Sequence[WorkerState]:
        """Return the workers that have a lease, lapsed or not, how many items each runs, and the `info` of
        its last heartbeat that had one."""
        ...

    # -- reads for operators: capability `watching` ----------------------------------------------------

    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        """Return the facts that say why an item is where it is, all from one instant. None if it does not
        exist. It changes nothing, and takes a bounded number of steps, however many items there are."""
        ...

    async def overview(
        self, *, tenant: str | None = None, quick: bool = False, brief: bool = False
    ) -> Overview:
        """Return how the store stands. Counts are exact for about a million items, and estimates beyond: a
        store counts for some tenths of a second, not for longer when ten million items are kept. With
        `quick`: for some hundredths of a second, about tens of thousands of items. What there is little of is
        exact in any case. With a tenant: only its items and types, and all workers.

        With `brief`: at once, for callers that know the counts from elsewhere. Where not all items of a
        status are counted, some counts of it say `estimated`, which may be much too low, and others are left
        out, as are types in `unserved`. A count that does not say so is exact, with all counts of its queue
        and status."""
        ...

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        """Return how far limits are used: those named that are in use, in any order, or the first `count` by
        name. A limit that is not in use now is left out."""
        ...

    async def marks(
        self,
        *,
        tenant: str | None = None,
        count: int = 100,
        cap: int = 10_000,
        release: str | None = None,
    ) -> Sequence[DeadMark]:
        """Return up to `count` marks of dead items, those with the newest deaths first as far as is known
        without a look at all dead items, each with the number of its items up to `cap`. With `release`:
        the caller asks for those that have this release alone. Of others a store may answer no more than
        `mark`, `count`, `capped` and `releases`."""
        ...

    async def lines(
        self, queue: str, *, tenant: str | None = None, count: int = 200, cap: int = 1000
    ) -> Sequence[Line]:
        """Return up to `count` lines of a queue that have ready items, by tenant and lane, each with the
        number of its items up to `cap`. Parked items belong to their lines."""
        ...

    async def related(self, id: str, *, tenant: str | None = None, count: int = 100) -> Related | None:
        """Return what has to do with an item. None if it does not exist."""
        ...

    async def groups(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        """Return groups in the order in which their roots were submitted, newest first. Listed are groups
        that have had a second member, and that are not nested: an item that is alone is in `list`, a nested
        group is a part of the outer one.

        Groups with an outcome are found without a look at the others. Other conditions are checked one by
        one: `limit`, `cursor` and `reach` are as for `list`, but of groups."""
        ...

    async def workflows(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        """Return workflows in the order in which the newest root of each was submitted, newest first. Of a
        workflow without a root, no item is listed here. It has an outcome as a group has: `failed` if a death
        in it failed a group, `cancelled` if none did and an item is cancelled. The newest `MOST_COUNTED`
        items of each are counted; fewer, with `capped`, if that takes too long.

        `limit` and `cursor` are as for `list`. All conditions are checked one by one. `reach`: about the most
        roots to look at."""
        ...

    # -- records for operators: capability `recording` -------------------------------------------------

    async def add_stats(self, stats: Sequence[Stat]) -> None:
        """Add what a process has counted to what is stored for the same minutes, types and queues, and for
        the quarters and hours in which these minutes are. Each `at` is a whole minute. A repeated call counts
        twice."""
        ...

    async def stats(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        by: StatsBy = "time",
        type: str | None = None,
        queue: str | None = None,
    ) -> Sequence[Stat]:
        """Return what was counted from `since` on, before `until`, summed up: with `time` one Stat for each
        `step` seconds, with `type` or `queue` one for each of them and for the whole time. Steps without
        counts are left out. A step is a multiple of 60, from an hour on one of 3,600. It is summed up from
        hours, quarters of an hour or minutes, the longest of which it is a multiple: 90 days of hours are
        kept, a day of the others. `type`, `queue`: only of these. By time, type or
        queue."""
        ...

    async def put_samples(self, samples: Sequence[BacklogSample]) -> None:
        """Store samples of the backlog, in place of those of the same step, instant and queue. They are kept
        and pruned as statistics are."""
        ...

    async def samples(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        queues: Sequence[str] | None = None,
    ) -> Sequence[BacklogSample]:
        """Return the samples of this step, a minute, a quarter or an hour, that begin from `since` on, before
        `until`: as they were stored, of these queues (empty: of all together) or of each. By time and
        queue."""
        ...

    async def audits(
        self,
        *,
        tenant: str | None = None,
        bulk: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        """Return audit entries, newest first: those of one tenant, or all. Portions of bulk actions are left
        out unless the action is named. But of one tenant, those with an `about` are there: they are of
        actions of all tenants, whose own entries have no tenant. `InputError` for a cursor that this method
        did not return."""
        ...

    async def schedule_runs(self, *, count: int = 30) -> Sequence[ScheduleRun]:
        """Return up to `count` runs of each schedule that exists, by name, newest first."""
        ...

    async def drain_worker(self, worker: str, *, note: AuditNote | None = None) -> bool:
        """Ask a worker to stop: the replies to its heartbeats say `drain` from now on. False if no worker
        that has a lease has this id."""
        ...

    # -- operators -------------------------------------------------------------------------------------
    #
    # With a `note` (capability `recording`), an audit entry is stored in the same step as the change; also if
    # nothing had to be changed, with the count 0. A call that raises stores none. Entries older than
    # `KEPT_AUDIT` are pruned.

    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        """End these items and all their open descendants (the items that their settlements queued, the
        members of the nested groups that they close, and so on) as `cancelled`. Their leases are lost. Items
        that have ended are not changed, and ids that do not exist are skipped, but open descendants of an
        ended item are ended, unless `only_open`: then an id of an ended item is skipped too. For dependents
        they count as done, not as success."""
        ...

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        """End an open item as `success` without a worker, also if it waits for other items. Its lease is
        lost. The result is its contribution too. Its `worker` is None. Raises `NotFound` or
        `AlreadyEnded`. Members of a nested group that it closes go on: the engine does not complete such an
        item while that group is open."""
        ...

    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
        alone: bool = False,
        cancelled: bool = False,
        from_step: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        """Open dead items again, with attempt 0 and no losses: the named items that are dead (others are
        skipped), or the oldest `limit` dead items that a filter finds. With `cancelled`, cancelled items too.
        Their deadline is removed. Their groups open again.

        They wait for their `after` again, as it stands once all items of this call are open. A prerequisite
        that no longer exists counts as met for an item whose condition was met before; otherwise it is open.
        An item whose condition cannot be met stays as it was.

        Unless `alone`, items that died `unsatisfiable` and that wait, directly or through others, for an item
        or a group that is open again, are blocked again in the same step, if their condition can now be met.
        Items that are doomed `unsatisfiable` are blocked again too; a lease with that verdict is lost.
        The answer has all ended items that are open again: those asked for, then those blocked again, which
        are due when they were.

        Recorded steps stay, so that the handler goes on behind them, except waits that are not over, which
        are removed. If the item is dead, steps with an `undo` are forgotten: those were undone. With
        `from_step`, for ids only: that step of each item and all that were recorded first after it are
        forgotten. An item without that step is skipped. Of a forgotten step the store keeps the name, and
        counts how often: `StepRecord.times`.

        With `redrives`, only items that were requeued this way fewer times than that are changed, and each is
        due `backoff * 2 ** times` seconds from now. A requeue without `redrives` resets that count.
        """
        ...

    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        """Change items that have not started (see `submit`): all of them or none. An item that gets another
        lane, queue, priority or instant goes to the end of its new line. A blocked item stays blocked. A
        ready one has been ready since the same time, unless it gets another instant. `NotFound` if one does
        not exist, `ConflictError`, with its status, if one has started, ended or is doomed."""
        ...

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        """Make scheduled items due now: all of them or none. `NotFound` if one does not exist,
        `NotTriggerable`, with its status, if one is not scheduled, is held, or is suspended and does not
        sleep. The sleeps of a suspended item are over."""
        ...

    async def hold(
        self,
        ids: Sequence[str],
        held: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        """Hold ready and scheduled items, with or without attempts, so that no claim hands them out; or let
        them go. All of them or none. `NotFound` if one does not exist. `NotHoldable`, with its status, if one
        is to be held that is running, blocked or doomed, or has ended. Items that are held already, or not
        held, are left as they are, and are not in the answer.

        A held item is `scheduled` and due at `NEVER`. The instant at which it was due is kept. When it is let
        go, it is due then: it is ready, at the end of its line, if that has passed.

        In all else it is as any item that waits: it has its key, holds its group open, and its strict lane,
        blocks its dependents, and can be cancelled, completed and deleted. Its deadline dooms it. An update,
        or a submit with its key, changes the instant that is kept. What it waits for as a suspended item may
        come: it goes on when it is let go. An item that is requeued is not held."""
        ...

    async def signal(
        self,
        signals: Sequence[Signal],
        *,
        tenant: str | None = None,
        tx: object = None,
        note: AuditNote | None = None,
    ) -> Sequence[Signalled]:
        """Send signals to open items (capability `steps`). Answers for each, in order; each is stored, or
        refused, on its own. See Steps. A key is known as long as the item is kept, also after the signal was
        taken, so that a call with keys can be repeated. If an item has `MOST_UNREAD` unread signals, one more
        is refused, unless a wait takes it now. The note is stored if a signal was.

        With `tx`, as for `submit`: the signals are there, and wake their items, if and only if that
        transaction commits."""
        ...

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        """Remove whole groups, in any state. The leases of their members are lost, their keys are free. With
        `cascade`, also remove the groups that members wait or waited for, and so on. Groups that do not exist
        are skipped. `ReferencedError`, and nothing is removed, while an open item outside refers to a member:
        it refers to every id in its `after`, also to ended items."""
        ...

    async def order(self, order: Order, *, note: AuditNote | None = None) -> bool:
        """Store an order. It takes the place of the one with the same subject. False, and the version stays,
        if that one is the same in all but `at`. Pauses are independent: an item is not handed out while any
        of them holds it. Running items go on.

        It is in force until it is withdrawn, or `until` has come: then it is as if it was not there, and the
        version stays."""
        ...

    async def withdraw(self, order: Order, *, note: AuditNote | None = None) -> bool:
        """Withdraw the order with the same subject as this one. False if none is in force."""
        ...

    async def orders(self) -> Orders:
        """Return the orders that are in force, as one step."""
        ...

    async def prune(self, limit: int = 1000) -> int:
        """Remove up to `limit` items whose retention has passed: terminal, in an ended group, `keep` seconds
        (dead items: `keep_dead`) after the end of the group, and not waited for, itself or its group, by an
        open item or by one that died `unsatisfiable` and may be blocked again. Returns how many. If it is
        `limit`, there may be more. Expired keys and limits, and old audit entries, are removed too."""
        ...

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        """Claim a key. True for the first owner that asks, and for that owner again, until `ttl` seconds
        after the first claim. False for any other owner. These keys are separate from all other names in the
        store."""
        ...

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        """Return who has claimed a key. None if it is free."""
        ...

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        """Take permits of limits that the whole fleet shares. Each request gets as many, up to its count, as
        *all* of its limits allow, and each limit is charged only for those: not for permits that another
        limit denied. Requests are served in order, in one step.

        - `token_bucket`: it holds at most `limit`, refills `limit / window` per second, and starts full.
        - `fixed_window`: `limit` per window. A window begins with the first permit after the last window
          ended.
        - `sliding_window`: fixed windows aligned to the clock. The previous window counts with the share of
          it that a window ending now overlaps.
        - `slots`: `limit` at once for all live workers together. `worker` keeps them until it returns them.

        `retry_after` is the shortest time after which one more permit could be given: 0 if one could be given
        now, and for `slots`, where it is unknown. A request for 0 permits only asks for it.

        A request with a `lease` (capability `strict`) asks for one permit that belongs to this lease, of the
        worker. If the lease has the permit already, it keeps it: it is answered as given, and not counted
        again. If there is none left, the answer names the items whose leases have one (`holders`). The permit
        is kept until it is returned, also if the item ends before. A lease that does not own its item any
        more gets none.
        """
        ...

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        """Return permits of `slots` limits. Others are not changed. A request with a `lease` returns the
        permit of that lease, if it has one. The permits of a dead worker are returned when it is removed."""
        ...

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, *, worker: str) -> int:
        """Make the permits that a worker holds exactly those in `held`, each of one `slots` limit, if it
        holds `counted` permits in all. Otherwise nothing changes: the call came late. Returns how many it
        held. Call it only while no other call about permits of the worker is under way."""
        ...

    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        """Store a schedule. If one of that name with the same `spec` exists, set only its `seen_at` to now:
        `next_at`, `last_at` and `paused` stay as stored. A new or changed schedule is stored as given, except
        that one with `next_at` None is not stored. So a process that only reports that it has the code does
        not bring back a schedule that was removed or changed meanwhile.

        again: the schedule was stored, and is missed now. Nothing is stored if it was removed by
        `drop_schedule` since, or if one of that name exists. Otherwise the store has lost it.

        Returns what is stored now. If nothing is stored: what was given, with `next_at` None."""
        ...

    async def schedules(self) -> Sequence[Schedule]:
        """Return all schedules, by name."""
        ...

    async def drop_schedule(self, name: str, *, note: AuditNote | None = None) -> bool:
        """Remove a schedule. False if it does not exist. That it was removed is kept for `KEPT_REMOVALS`
        seconds, or until it is stored again: see `put_schedule`."""
        ...

    async def pause_schedule(self, name: str, paused: bool, *, note: AuditNote | None = None) -> bool:
        """Pause or resume a schedule. False if it does not exist."""
        ...

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        """Fire one occurrence of a schedule: if it exists, is not paused and its `next_at` is still
        `fire.at`, submit the items and set the new `next_at`, in one step, and keep the run with its error.
        None if another process fired it
        or the schedule changed."""
        ...

    # -- moving ----------------------------------------------------------------------------------------
    #
    # These verbs (capability `moving`) need no `open`: a marked store cannot be opened. It answers no other
    # verb, also of processes that opened it before: they raise `StoreMoved`, `StoreUnfinished` or, while it
    # is frozen, wait or raise `StoreUnavailable`. A call either happened before the mark, and is in what was
    # exported, or changes nothing.

    async def mark(self) -> StoreMark | None:
        """Return how the store is marked. None: it owns what it holds, or there is no store yet."""
        ...

    def export(
        self, *, freeze: float | None = None, move: str | None = None, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Export]:
        """Read all that the store holds, as it is at one instant.

        With `freeze`, no other call changes anything from before that instant until the block ends: writes
        wait, or raise `StoreUnavailable`. A store that cannot tell that this process has died thaws by itself
        after `freeze` seconds without a `read` or `move`. Without it, a store that cannot read as of one
        instant while others write raises `StoreUnavailable` at the end if they did. With `move`, read a store
        that is marked `importing` by this move. Otherwise a marked store raises what its mark says.

        With `tenant`, read what is that tenant's alone: its items, groups and claimed keys, the audit entries
        about it, and the runs that submitted for it.

        Running items are exported as if their workers were removed at that instant: without a lease, and
        ready again. Leases that had begun count as lost."""
        ...

    def import_(
        self, move: str, source: str = "", *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Import]:
        """Fill a store that is empty: it has no items, groups, keys, schedules, orders, statistics, audit
        entries or live workers. `StoreNotEmpty` else. The schema is made if there is none.

        `source`: the address of the store whose work it is; empty for a file, which owns nothing. What an
        import that was not finished has left behind, of any move, is removed first. So is one that was
        finished and not owned, of the same source or of a file. `StoreUnfinished` for one of another store:
        if that has moved, this is the only copy. A block that ends without `finish` leaves an empty store, or
        one marked `importing`. So does a crash. `move` is the id of this import: if another one begins
        meanwhile, calls of this one raise `StoreUnavailable`.

        Items get new leases only. No token that the exporting store gave owns one, now or later.

        With `tenant` (capability `parts`) the records of an export of this tenant come into a store that is
        in use, which has no items, groups and claimed keys of it: `StoreNotEmpty` else. They get new numbers,
        behind those of the store. Runs, and audit entries that name the tenant, are left out. It has no mark:
        `finish` compares what was stored with what was written, and all is there at once, or nothing is."""
        ...

    async def own(self, move: str) -> None:
        """Let the store own what was imported: its mark is removed, and it can be opened. The store keeps the
        id of the last move that it owned: nothing happens for that one. If it has another mark, it raises
        what that says. `BackendError` if it knows nothing of this move."""
        ...

    async def take_back(self, move: str) -> None:
        """Let a store own again what it held before this move: its mark `moved` is removed. Only if no other
        one owns it. `BackendError` if it was not moved by this move."""
        ...

    async def identity(self) -> str | None:
        """Return what tells this store from all others: the same under each of its addresses. None: there is
        no store yet, or it cannot tell."""
        ...

    async def discard(self, move: str) -> None:
        """Remove what was imported by this move, and the mark. The store is empty. Nothing happens if it is
        not marked by this move."""
        ...

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction on the store's database, for a handler's own writes together with its
        settlement. It commits when the block ends and rolls back when the block raises. `UnsupportedError`
        without the capability.

        However many transactions are open or requested: every other method gets its turn. If a transaction
        keeps others from writing, they wait for it, and no longer."""
        ...

    # -- wake-ups --------------------------------------------------------------------------------------

    async def publish(self, wake: Wake) -> None:
        """Send a wake-up to the other subscribers, also in other processes. Delivery is not guaranteed: a
        failure raises nothing. Only cancellation is raised. It may take a short time, in which callers
        collect further changes."""
        ...

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        """Call `receive`, on the caller's event loop, for each wake-up that is published from now on,
        possibly including the subscriber's own. Returns a function that ends the subscription. An exception
        of `receive` is logged and has no other effect."""
        ...

    async def now(self) -> float:
        """Return the time of the store's clock."""
        ...


@runtime_checkable
class Inspected(Protocol):
    """A backend that also checks the health of the store. Optional."""

    async def inspect(self) -> Sequence[BackendError]:
        """Return problems that a person should solve: each once, and again when it has become much worse.
        Workers call this every 30 seconds and pass the problems to `on_error`."""
        ...


class TenantMoves(Protocol):
    """Moves tenants into this store, or out of it, while they are in use.

    A mark is kept as a claimed key: see `treadle.store.rules.tenant_moves`, which says what each step makes
    of it. In a store whose mark for a tenant is `away` or `importing`, what would store an item or a claimed
    key of that tenant raises `TenantElsewhere`, and nothing of that step is stored, also in transactions of
    users."""

    async def put_mark(
        self, tenant: str, expected: TenantMark | None, mark: TenantMark, *, empty: bool = False
    ) -> bool:
        """Replace the mark of a tenant, if it is the expected one. False if it is not. What was staged is
        dropped, but within one import what was staged ahead. empty: `StoreNotEmpty` if the store has
        something of the tenant."""
        ...

    async def stage(self, tenant: str, mark: TenantMark, records: Sequence[bytes]) -> bool:
        """Keep further records of a tenant, for `receive`. False, and nothing kept, if its mark is another
        one. No reader and no claim sees them."""
        ...

    async def staged(self, tenant: str) -> tuple[int, int]:
        """How many records are kept, and their checksum: see `RecordsChecksum`."""
        ...

    def give(self, tenant: str, mark: TenantMark) -> AbstractAsyncContextManager[Giving]:
        """Read what the store has of a tenant, under a freeze: other calls write nothing until the block
        ends, or this process does. A store that cannot let them wait refuses the decision if they have
        written something of the tenant. `StoreUnavailable` if its mark is another one."""
        ...

    async def receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        """Take what is staged as the tenant's, and set the mark `owned`, in one step. False, and nothing
        changed, if the mark is not the first one. A lease keeps its token and its worker. Call it only when
        the old store is known to have decided."""
        ...


class EndedRecords(NamedTuple):
    """The records of an ended item and an ended group that have one number."""

    number: int
    items: int
    """How many of them are items."""
    records: Sequence[bytes]


class ReadAhead(NamedTuple):
    """What was read ahead of a tenant, as the old store has noted it under the freeze."""

    items: int
    records: int
    checksum: int
    changed: Sequence[int]
    """Numbers whose records have changed since. They are read again, or are gone."""


@runtime_checkable
class GivesAhead(Protocol):
    """A `Giving` of a store that `MovesAhead`."""

    async def ahead(self) -> ReadAhead: ...


@runtime_checkable
class MovesAhead(Protocol):
    """A `TenantMoves` that copies what has ended before the freeze. Optional, for either store."""

    async def read_ahead(
        self, tenant: str, mark: TenantMark, after: int, limit: int
    ) -> Sequence[EndedRecords]:
        """Return the records of up to `limit` ended items and ended groups with numbers above `after`, in
        the order of their numbers: one entry per number, and none at the end. From then on, the store notes
        of each whether it changes, until the move ends. What has changed since an earlier reading is left
        out. `StoreUnavailable` if the mark of the tenant is another one."""
        ...

    async def stage_ahead(self, tenant: str, mark: TenantMark, ended: Sequence[EndedRecords]) -> bool:
        """As `stage`, in place of what was staged under the same numbers."""
        ...

    async def staged_ahead(self, tenant: str) -> int:
        """The last number that was staged ahead. -1: none."""
        ...

    async def drop_ahead(self, tenant: str, mark: TenantMark, numbers: Sequence[int]) -> bool:
        """Drop what was staged ahead under these numbers. False, and nothing dropped, if the mark is another
        one."""
        ...


@runtime_checkable
class MovesTenants(Protocol):
    """A backend whose tenants can move to another store while they are in use. Optional."""

    @property
    def tenant_moves(self) -> TenantMoves: ...


@runtime_checkable
class Notified(Protocol):
    """A backend whose subscribers get their own wake-ups too, so that one can check that they arrive.
    Optional."""

    @property
    def wakeup_carrier(self) -> str | None:
        """What carries wake-ups between processes, without its password. None: they are not sent."""
        ...


@runtime_checkable
class ChecksUnopened(Protocol):
    """A backend that cannot always be opened while a transaction of the user is open. Optional."""

    def check_unopened(self, tx: object) -> None:
        """Called before the backend is opened for a submit with `tx`, in the thread of that transaction.
        `InputError` if the transaction would keep `open` waiting. Nothing if the backend is open."""
        ...


@runtime_checkable
class Addressed(Protocol):
    """A backend that knows where its items are. Optional."""

    @property
    def address(self) -> str:
        """The URL of the store without its password, for logs."""
        ...


def store_name(backend: object) -> str:
    """What to call the store of a backend in a log. No password is in it."""
    return backend.address if isinstance(backend, Addressed) else type(backend).__name__


def unknown_move(address: str, move: str) -> BackendError:
    """What a store raises that has neither imported this move, nor owned it last, nor moved by it."""
    return BackendError(f"{address} holds nothing of move {move}")


def is_in_memory(backend: object) -> bool:
    """Whether no other process can reach the store of a backend, as far as it says where that is."""
    return not isinstance(backend, Addressed) or backend.address.startswith("memory:")


def answers_at_once(backend: object, verb: str) -> bool:
    """Whether the class of a backend names this verb in `answers_at_once`: the verb never waits, so that it
    needs no task. A class that derives from it names its verbs itself."""
    return verb in vars(type(backend)).get("answers_at_once", ())


def begins_at_once(backend: object, verb: str) -> Callable[[], bool] | None:
    """Tells whether a call of this verb may begin in the task of another caller now: until it waits for the
    store it must not ask for its task, as `asyncio.timeout` does. A backend that can tell has a method
    `begins_at_once`. None: never."""
    tells: Callable[[str], bool] | None = getattr(backend, "begins_at_once", None)
    return None if tells is None else partial(tells, verb)


def wake_portion(backend: object) -> int:
    """The most ids of one kind in one wake-up: `wake_portion` of the backend, or `WAKE_PORTION`."""
    return int(getattr(backend, "wake_portion", WAKE_PORTION))


def carries_results(backend: object) -> bool:
    """Whether a backend has a true attribute `carries_results`: only those who can read its items can read
    its wake-ups. Then wake-ups have small results in them, and a waiter need not read them."""
    return bool(getattr(backend, "carries_results", False))


By: TypeAlias = Literal["tenant", "root"]
"""What is whole in one of several stores."""


@runtime_checkable
class Placed(Protocol):
    """A backend over several stores. Optional."""

    @property
    def away(self) -> tuple[str, ...]:
        """The names of the stores that did not answer the last call."""
        ...

    @property
    def backends(self) -> Mapping[str, Backend]:
        """The stores, by name."""
        ...

    @property
    def by_root(self) -> bool:
        """Whether the id of an item says where it is, and not its tenant: see `treadle.base.ids`."""
        ...

    def place_of(self, tenant: str, id: str) -> int | None:
        """The number of the store that has an item of a tenant. None: not known here yet."""
        ...

    def place_of_token(self, token: int) -> int:
        """The number of the store that gave a lease."""
        ...

    def transaction_of(self, tenant: str) -> AbstractAsyncContextManager[Transaction]:
        """As `Backend.transaction`, in the store of a tenant."""
        ...

    async def place(self, tenant: str, store: str | None = None) -> str:
        """Give a tenant its store, unless it has one. None: the store that it gets by itself. Returns the
        name of the store that it has."""
        ...

    async def move_tenant(
        self,
        tenant: str,
        to: str,
        *,
        source: str | None = None,
        resume: bool = False,
        freeze: float = 10.0,
        skew: float = 1.0,
        note: AuditNote | None = None,
        progress: Callable[[int], object] = int,
    ) -> MovedTenant:
        """Move a tenant to another store while both are in use. resume: go on with a move that has begun.
        freeze: seconds for which others may wait to write. progress: called with how many records are
        copied."""
        ...

    async def give_up_move(self, tenant: str) -> bool:
        """End a move that is not decided: the tenant stays. False: there is none."""
        ...

    async def accept_store(self, name: str) -> None:
        """Take an empty store for one that has lost its data, and open all."""
        ...

    async def plan_rebalance(
        self, *, most: int = 10, tolerance: float = 0.1, by: BalanceBy = "items"
    ) -> RebalancePlan:
        """Which tenants should move so that the stores have as much as each other. It moves none."""
        ...

    async def stores(self) -> Sequence[StoreState]:
        """How each store stands, in the order of their numbers."""
        ...


def placed(backend: object) -> Placed | None:
    """The backend, if it is one over several stores."""
    return backend if hasattr(backend, "place_of") and isinstance(backend, Placed) else None


def transaction_of(backend: Backend, tenant: str) -> AbstractAsyncContextManager[Transaction]:
    """Open a transaction where the items of a tenant are."""
    several = placed(backend)
    return backend.transaction() if several is None else several.transaction_of(tenant)


_missing: Final[ContextVar[set[str] | None]] = ContextVar("treadle_missing_stores", default=None)


@contextmanager
def missing_stores() -> Generator[set[str]]:
    """In this block, reads of several stores leave out those that do not answer, and their names are in what
    it yields. Outside of it they raise `StoreUnavailable`: no part is left out in silence."""
    missing: set[str] = set()
    reset = _missing.set(missing)
    try:
        yield missing
    finally:
        _missing.reset(reset)


def left_out() -> Collection[str]:
    """The stores that reads in the block of `missing_stores` have left out so far."""
    return _missing.get() or ()


@contextmanager
def all_stores() -> Generator[None]:
    """In this block, reads need all stores, also within `missing_stores`."""
    reset = _missing.set(None)
    try:
        yield
    finally:
        _missing.reset(reset)


_only: Final[ContextVar[str | None]] = ContextVar("treadle_only_store", default=None)


@contextmanager
def only_store(name: str | None) -> Generator[None]:
    """In this block, lists, counts and other reads that name no item ask only this one of several stores.
    None: those that are asked without it."""
    if name is None:
        yield
        return
    reset = _only.set(name)
    try:
        yield
    finally:
        _only.reset(reset)


def chosen_store() -> str | None:
    """The store that `only_store` names. None: all are asked."""
    return _only.get()


def no_such_store(name: str = "", known: Collection[str] = ()) -> InputError:
    """The error for a store that is none of those known. None are: the app has one store, without a name."""
    if not known:
        return InputError("this app has one store: several are Treadle({'eu': url, 'us': url})")
    return InputError.of("store", name, f"is no store of this app: it has {', '.join(known)}")


def note_missing(error: StoreUnavailable) -> None:
    """Note a store that did not answer a read, or raise if the reader does not want to do without it."""
    missing = _missing.get()
    if missing is None or not error.store:
        raise error
    missing.add(error.store)


def check_capable(backend: Backend, capability: str) -> None:
    """Raise `UnsupportedError` if a backend cannot do this."""
    if capability not in backend.capabilities:
        raise UnsupportedError(capability, type(backend).__name__)


__all__ = [
    "CAPABILITIES",
    "Addressed",
    "Backend",
    "By",
    "ChecksUnopened",
    "Inspected",
    "Lease",
    "Notified",
    "Placed",
    "Status",
    "Transaction",
    "all_stores",
    "answers_at_once",
    "begins_at_once",
    "carries_results",
    "chosen_store",
    "left_out",
    "missing_stores",
    "no_such_store",
    "note_missing",
    "only_store",
    "placed",
    "store_name",
    "transaction_of",
    "unknown_move",
    "wake_portion",
]
