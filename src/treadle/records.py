"""Records: what the store keeps beside items: statistics, samples of the backlog, audit entries, runs of
schedules, steps, progress.

All of it is plain data, as in `treadle.item`. `treadle.backend` says how it is written and read.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from .item import Status, StepKind

MINUTE: Final = 60
QUARTER: Final = 900
"""Of an hour."""
HOUR: Final = 3600
KEPT_MINUTES: Final = 86_400.0
"""Seconds for which the statistics of a minute, and of a quarter of an hour, are kept."""
KEPT_HOURS: Final = 90 * 86_400.0
"""The same for those of an hour."""
KEPT_AUDIT: Final = 365 * 86_400.0
"""Seconds for which audit entries are kept."""
KEPT_RUNS: Final = 50
"""Runs kept of each schedule, the newest."""
KEPT_REMOVALS: Final = 30 * 86_400.0
"""Seconds for which the store knows that a schedule was removed."""
MOST_SAMPLED: Final = 1000
"""Queues in one sample of the backlog: those in which the most is due."""
MOST_AUDIT_IDS: Final = 100
"""Ids kept in an audit entry, the first ones."""

StatsBy: TypeAlias = Literal["time", "type", "queue"]


class Stat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What workers counted in a span of time."""

    at: float
    """When the span begins: a whole minute, hour, or step of the call."""
    type: str = ""
    """Empty: of all types."""
    queue: str = ""
    """Empty: of all queues."""
    started: int = 0
    """Attempts that began."""
    succeeded: int = 0
    failed: int = 0
    """Attempts that failed, also those after which the item was tried again."""
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    lost: int = 0
    """Attempts that began, and whose workers died or stopped answering. Each is counted when the item begins
    again, or dies of it, and is in neither `failed` nor `run`. If that attempt is given back, because its
    worker stops, the next one counts it once more."""
    wait: tuple[int, ...] = ()
    """How long items were ready before they began: the counts of a histogram, one for each bound of
    `treadle.metrics.names.SECONDS` and one more. Empty: no values."""
    run: tuple[int, ...] = ()
    """How long attempts ran, in the same way."""


class BacklogSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much was due in a queue in a span of time: a process of the fleet looks once a minute."""

    at: float
    """When the span begins: a whole minute, quarter, hour, or step of the call."""
    step: int = MINUTE
    """Its length in seconds."""
    queue: str = ""
    """Empty: of all queues."""
    samples: int = 1
    """How often the fleet has looked."""
    ready: float = 0.0
    """Ready items, on average."""
    running: float = 0.0
    """The same for running ones."""
    oldest: float = 0.0
    """The longest time, in seconds, for which a ready item had waited."""
    estimated: bool = False
    """Whether some of these numbers are estimates, as those of an `Overview` may be."""

    @property
    def depth(self) -> float:
        """Items that are due, ready and running."""
        return self.ready + self.running


class QueueBacklog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is due in a queue now, and how fast that changes.

    Rates are counted between two samples of the last five minutes: if items wait, since they have. None:
    there are not two samples yet, or the last is older than two and a half minutes, or the client is one of
    a tenant.
    """

    queue: str
    ready: int = 0
    running: int = 0
    estimated: bool = False
    """Whether the counts are estimates."""
    paused: int = 0
    """Ready items that a pause holds back."""
    oldest: float | None = None
    """Seconds for which the oldest ready item has waited."""
    growth: float | None = None
    """By how many items, ready or running, it grew in a minute. Negative: it shrank. Minutes in which
    operators moved items, and those before their last order, are left out. None: there are no others."""
    ends: float | None = None
    """Items that ended in a minute, as workers counted them."""
    arrivals: float | None = None
    """Items that became due in a minute: `growth` and `ends`. None: as `growth`."""
    over: float = 0.0
    """Seconds of which the rates are."""
    waited: bool = False
    """Whether items were waiting in all samples between the two. Without that the rates say what came, and
    not what the workers can do."""
    rough: bool = False
    """Whether `growth` and `arrivals` may be far off: a sample was an estimate, or code moved items."""

    @property
    def drains_in(self) -> float | None:
        """Seconds until nothing waits any more but what is paused, at this rate. None: it does not shrink, or
        all is paused, or it is not known."""
        if not self.ready:
            return 0.0
        growth, left = self.growth if self.waited else None, self.ready - self.paused
        return None if growth is None or growth >= 0 or left <= 0 else -60 * left / growth

    @property
    def seconds(self) -> float:
        """Seconds that workers need for the ready items that are not paused, at their rate of ends. If it is
        not known, since none ended or since items have not waited for long: for how long the oldest has
        waited."""
        left = self.ready - self.paused
        if self.ready and left <= 0:
            return 0.0
        if left and self.waited and self.ends:
            return 60 * left / self.ends
        return self.oldest or 0.0


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A change that someone made."""

    no: int
    """Later entries have higher numbers."""
    at: float
    """The store's clock."""
    actor: str
    verb: str
    """The name of the method: `requeue`, `cancel`, `pause` …"""
    tenant: str | None = None
    """None: of all tenants."""
    ids: tuple[str, ...] = ()
    """The first 100 that were asked for: ids of items, or the name of a queue, schedule or worker."""
    count: int = 0
    """How many items were changed, with those that changed along with them. Of a queue, a schedule or a
    worker: 1 if it was changed."""
    about: str = ""
    reason: str = ""
    address: str = ""
    bulk: str | None = None
    portions: int = 1
    """As shown: entries that were taken together, since a change of many items is stored in portions."""


class AuditPage(msgspec.Struct, frozen=True, gc=False):
    """Audit entries, newest first."""

    entries: tuple[AuditEntry, ...]
    cursor: str | None = None
    """Continues after this page. None: there are no more."""


class ScheduleRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One occurrence of a schedule that was fired or skipped."""

    name: str
    at: float
    """When it was due."""
    fired_at: float
    id: str | None = None
    """The first item that it submitted. None: it submitted nothing; it was skipped as missed, `run` returned
    None, or it failed."""
    tenant: str | None = None
    status: Status | None = None
    """Of the item, now. None: there is none, or it is not kept any more."""
    error: str = ""
    """Why it submitted nothing: what `run` raised, in a line. Empty: it did not fail."""


class Line(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ready items of one queue, tenant and lane."""

    tenant: str
    lane: str
    count: int
    """Up to the cap of the call."""
    capped: bool
    oldest_ready: float
    """When its first item became ready."""
    first: str
    """The id of the item that is handed out next."""


class RelatedItem(msgspec.Struct, frozen=True, gc=False):
    """An item that has to do with another one, in short."""

    id: str
    type: str
    status: Status


class Related(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What has to do with one item: up to `count` of each kind, in the order of submission."""

    children: tuple[RelatedItem, ...] = ()
    """Items that its settlement queued: those that name it as their parent."""
    dependents: tuple[RelatedItem, ...] = ()
    """Items that name it, or the group of which it is the root, in their `after`, as far as the store still
    knows."""


class Progress(msgspec.Struct, frozen=True):
    """How far an item is, as its handler said last."""

    done: float
    total: float | None = None
    message: str | None = None


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an item."""

    name: str
    kind: StepKind
    at: float
    """When it was recorded."""
    took: float
    """How many seconds it took."""
    value: Any = None
    """Its value, without the type that its function has."""
    error: str | None = None
    """For a failure that the handler keeps: `type: message`."""
    attempt: int = 1
    signal: str | None = None
    """The signal that it waits for, or has waited for."""
    until: float | None = None
    """When a wait is over at the latest."""
    over: bool = True
    """False: the item waits for it."""


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A record that a handler has logged, without its secrets."""

    at: float
    level: str
    logger: str
    text: str
    """The message, and the traceback of its error. As it was logged: it may have control characters."""


class AttemptLog(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt has logged: its last 100 records, or 16 kB."""

    attempt: int
    left_out: int = 0
    """Records before these, which are not kept."""
    lines: tuple[LogLine, ...] = ()


STORES_TENANT: Final = "treadle.stores"
"""The tenant whose claimed keys say which of several stores this is, and where things are. The key `store` of
each store says, with spaces between: the id of the family, the name of the store, the name of home."""


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """How one of several stores stands."""

    name: str
    """As the app names it. Empty: the app has one store."""
    address: str
    """Without a password."""
    home: bool = False
    """Whether it has what belongs to no tenant: limits, orders, statistics, and where each tenant is."""
    answers: bool = True
    error: str = ""
    """Why it does not answer."""
    took: float | None = None
    """Seconds that the answer took."""
    skew: float | None = None
    """By how many seconds its clock is ahead of that of home."""
    open: int = 0
    """Items that have not ended."""
    ready: int = 0
    """Those of them that wait for a worker."""
    dead: int = 0
    estimated: bool = False
    """Whether these counts are estimates."""


TenantState: TypeAlias = Literal["owned", "frozen", "away", "importing"]


class TenantMark(msgspec.Struct, frozen=True):
    """A tenant in a store that has taken part in a move of it. A store without one owns what it has."""

    state: TenantState = "owned"
    number: int = 0
    move: int = 0
    """The move that is under way, or that took the tenant away. 0: none."""
    freeze: int = 0
    """The number of the last freeze. While importing: the one under which records are taken, 0 before it."""
    to: str = ""
    """The name of the store where the tenant went from here, or goes."""
    until: float = 0.0
    """When it thaws by itself, by the store's clock."""


class MovedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """What a move of a tenant has done."""

    tenant: str
    source: str
    """The name of the store that had it."""
    to: str
    items: int = 0
    running: int = 0
    """Items that ran meanwhile. Their workers settle them in the new store."""
    records: int = 0
    waited: float = 0.0
    """Seconds for which others waited to write in the old store."""
    finished: bool = False
    """It was there already, or an earlier call had decided, and this one has done the rest."""


BalanceBy: TypeAlias = Literal["items", "open"]
"""What stores are to have as much of: all items that they keep, or those that have not ended."""


class ProposedMove(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that should move: `app.move_tenant(tenant, to, source=source)`."""

    tenant: str
    source: str
    """The name of the store that has it."""
    to: str
    open: int
    """Its items that have not ended."""
    items: int | None
    """All of its items. None: they were not counted."""
    estimated: bool = False
    """Whether these counts are estimates."""


class StoreSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a store has."""

    open: int
    items: int | None
    share: float | None
    """Its part of what all stores of the plan have, from 0 to 1. None: nothing, or the store is left out."""
    estimated: bool = False


class StoreLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a store has, before the moves of a plan and after them."""

    name: str
    left_out: str = ""
    """Why no tenant leaves it, or comes into it. Empty: they may."""
    before: StoreSize
    after: StoreSize


class StayingTenant(msgspec.Struct, frozen=True):
    """A tenant that a plan leaves where it is."""

    tenant: str
    why: str


class RebalancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Moves of tenants that even out the stores of an app, what brings most first."""

    moves: tuple[ProposedMove, ...]
    stores: tuple[StoreLoad, ...]
    staying: tuple[StayingTenant, ...] = ()
    """Tenants that should move, and cannot now. At most 100."""


class StoreMark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """That a store does not own what it holds, or held: see `Backend.mark`."""

    state: Literal["frozen", "moved", "importing"]
    move: str
    """The id of the move."""
    to: str = ""
    """For `moved`: the address of the store that owns it now, without a password."""
    content: str = ""
    """For `moved`: what that store held when it began to own it, as `Tally.content` says it."""
    source: str = ""
    """For `importing`: the address of the store whose work it is, without a password. Empty for a file."""
    whole: bool = False
    """For `importing`: all was written. It may be the only copy."""
    until: float = 0.0
    """For `frozen`: when it thaws by itself, by the store's clock."""

    def is_moved_by(self, move: str) -> bool:
        return self.state == "moved" and self.move == move

    def is_of(self, move: str) -> bool:
        """Whether this move is importing."""
        return self.state == "importing" and self.move == move

    def gives_way(self, source: str) -> bool:
        """Whether an import from `source` may remove what an earlier one has left: not if that was whole, and
        came from another store, which may have moved since."""
        return self.state == "importing" and (not self.whole or self.source in ("", source))
