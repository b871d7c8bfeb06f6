"""What a store answers to an operator's questions: why an item waits, how the whole stands, what has died.

All of it is plain data, as in `treadle.item`. `treadle.backend` says how it is read. The engine turns the
facts about one item into reasons: `treadle.operate.why`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, Literal, TypeAlias

import msgspec

from .item import Algorithm, Count, Counting, ItemState, Order, Status, Verdict, WorkerState

MAX_WAIT: Final = 300.0
"""Seconds for which a ready item may wait, before that is a problem."""

KEPT_RELEASES: Final = 100
"""Releases that a store knows, the newest."""

PrerequisiteStatus: TypeAlias = Status | Literal["missing"]
"""`missing`: it is not submitted, or it was pruned before the dependent was submitted."""


class Prerequisite(msgspec.Struct, frozen=True, gc=False):
    """One name in the `after` of an item, and where it stands."""

    id: str
    """As in `after`: with `GROUP_MARK` for a whole group."""
    status: PrerequisiteStatus
    """For a group: `running` while it is open, then `success` or `dead`."""
    type: str = ""
    """Empty if it is missing."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts about one item that say why it is where it is, all from one instant."""

    now: float
    """The store's clock."""
    item: ItemState
    """With history and `waiting_for`, as from `get`."""
    verdict: Verdict | None = None
    """If it is doomed: why."""
    need: int = 0
    met: int = 0
    open: int = 0
    """For a blocked item: how many prerequisites it needs, how many counted, how many can still count. Those
    of a doomed item may be older."""
    counting: Counting = "success"
    """For a blocked item: which ends of prerequisites count."""
    prerequisites: tuple[Prerequisite, ...] = ()
    """For a blocked or doomed item: up to 100 of those in `after`. Those that have not ended come first, then
    those that ended without counting, then the others, each in the order of `after`."""
    begun: bool = True
    """For a running item: whether its attempt counts as begun. False: it waits in its worker."""
    freed: bool = False
    """It is scheduled, or ready, because its worker died while it ran."""
    given_back: bool = False
    """It is scheduled, or ready, because a worker gave it back (`release`), or died before it began: it keeps
    its place. False once a delay with which it was given back is over."""
    unknown_since: float | None = None
    """For an open item: since when no live worker has had its type. None: one has it, or none ever had."""
    ahead: int = 0
    """For a ready item: how many items of its line go first, up to 1,000."""
    lanes: int = 0
    """For a ready item: how many lines of its queue have ready items, up to 100, its own included. With a
    tenant: of its lines."""
    lane_holder: str | None = None
    """For a ready item: the other item that holds its lane, if its type has strict lanes."""
    workers: tuple[WorkerState, ...] = ()
    """All workers that have a lease, lapsed or not, up to 1,000."""


class QueueAge(msgspec.Struct, frozen=True, gc=False):
    """Since when the items of a queue have waited."""

    queue: str
    oldest_ready: float
    """When the item became ready that has waited for the longest time, of those that are first in their lines
    (`Line.first`), parked or not. At most 200 lines of a queue are looked at. Paused queues are included."""
    tenant: str = ""
    """Of that item. Empty: the store does not say."""
    type: str = ""
    """Of that item. Empty: the store does not say."""


class UnservedType(msgspec.Struct, frozen=True, gc=False):
    """A type of which items are ready, and that no worker has that claims items: see `treadle.store.fleet`.
    Doomed items do not count."""

    type: str
    count: int
    """An estimate if the counts of its ready items are."""
    since: float | None
    """When the last worker that had it was removed, or its lease lapsed. None: there never was one, as far as
    the store knows, or it is still alive and stops."""


class Overview(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the store stands now. What it costs has a bound that does not depend on how many items are kept."""

    now: float
    """The store's clock."""
    counts: tuple[Count, ...] = ()
    """Open and dead items by tenant, queue, type and status. A store counts for some tenths of a second:
    about a million items. If there are more, it counts a part of them, and tells from that part how many
    there are in all: such counts say `estimated`. Where there are few, in a queue and status, they are
    exact."""
    ages: tuple[QueueAge, ...] = ()
    unserved: tuple[UnservedType, ...] = ()
    paused: tuple[Order, ...] = ()
    """The pauses in force. A client reads them, a backend leaves them out."""
    limits: tuple[Order, ...] = ()
    """The limits that are ordered: as `paused`."""
    workers: tuple[WorkerState, ...] = ()
    releases: tuple[Release, ...] = ()
    """Those of which a worker was registered, the newest first: the one whose first worker began last. At
    most `KEPT_RELEASES`."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """All orders in force."""
        return self.limits + self.paused

    def holds(self, count: Count) -> bool:
        """Whether a pause holds these items back."""
        queue, type, tenant = count.queue, count.type, count.tenant
        for each in self.paused:  # noqa: SIM110  `any` takes twice as long, and a page asks a thousand times
            if each.holds(queue, type, tenant):
                return True
        return False


class LimitHolder(msgspec.Struct, frozen=True, gc=False):
    """Who holds permits of a `slots` limit."""

    worker: str
    count: int
    items: tuple[str, ...] = ()
    """Items whose leases hold them, where the limit is strict or has `on_full`. Otherwise empty: the permits
    belong to the worker."""


class LimitUse(msgspec.Struct, frozen=True, gc=False):
    """How far a limit is used now."""

    name: str
    algorithm: Algorithm
    used: float
    """Permits in use: held slots, or starts that count now."""
    limit: int | None = None
    """As the last request said. For `slots`: as the code of live workers says, or else the code here. None:
    unknown. A backend does not know it."""
    retry_after: float = 0.0
    """Seconds until one more start is allowed. 0 for `slots`."""
    holders: tuple[LimitHolder, ...] = ()
    """For `slots`: up to 100."""
    lowest: int | None = None
    """For `slots`: what the code of some live workers allows, if it is less than that of others."""
    order: Order | None = None
    """The order that is in force in place of the code. A client reads it, a backend does not."""
    code: int | None = None
    """What the code says, if it is known here. For `slots`: as live workers say."""
    code_window: float | None = None
    """With `code`: seconds. None for `slots`."""
    known: bool = True
    """False: it was ordered by name, and neither the code here nor that of a live worker has a limit of this
    name and kind. As far as is known, the order changes nothing."""

    @property
    def reached(self) -> bool:
        """Whether nothing may start under it now, as far as is known."""
        return self.retry_after > 0 or (self.limit is not None and self.used >= self.limit)


class Release(msgspec.Struct, frozen=True, gc=False):
    """A release of the code of workers."""

    name: str
    began_at: float
    """When its first worker began."""


class MarkRelease(msgspec.Struct, frozen=True, gc=False):
    """Deaths of one mark under one release."""

    release: str
    count: int
    first_at: float
    """When the first of them died."""
    began_at: float | None = None
    """When the first worker of the release began. None: it is forgotten."""


class DeadMark(msgspec.Struct, frozen=True, gc=False):
    """Dead items that died alike: of one type, by one error, at one place."""

    mark: str
    """The fingerprint: `Settlement.mark`. Items that died before there were fingerprints have `old:TYPE`."""
    type: str
    """Of the newest of them: the one that died last."""
    error_type: str
    error: str
    """The message of the newest of them."""
    count: int
    """Up to the cap of the call."""
    capped: bool
    oldest_queued_at: float
    """When the oldest of them was submitted. The cap does not count here. Of one tenant that has hundreds of
    them, it may be the oldest of those that died first."""
    last_at: float
    """When the newest of them died."""
    sample: str
    """The id of the newest of them."""
    tenant: str
    """Of the newest of them. They may belong to several tenants."""
    releases: tuple[MarkRelease, ...] = ()
    """How many died under which release, in the order of their first deaths. A store may look only at those
    that it has counted. Those of workers without a release are in none. Empty: all are, or there are too many
    to look at."""
    stores: tuple[str, ...] = ()
    """Of several stores: those that have some of them."""


def mark_releases(parts: Iterable[MarkRelease]) -> tuple[MarkRelease, ...]:
    """Each release once, in the order of first deaths. For stores, which count the deaths of a mark in
    parts."""
    found: dict[str, MarkRelease] = {}
    for part in parts:
        known = found.get(part.release)
        if known is not None:
            count, first = known.count + part.count, min(known.first_at, part.first_at)
            part = MarkRelease(part.release, count, first, part.began_at)
        found[part.release] = part
    return tuple(sorted(found.values(), key=lambda each: (each.first_at, each.release)))


By: TypeAlias = Literal["queue", "type", "tenant"]


def counts_by(counts: Iterable[Count], by: By) -> dict[str, list[Count]]:
    """The counts by queue, type or tenant, in the order of names."""
    found, name_of = defaultdict[str, list[Count]](list), attrgetter(by)
    for each in counts:
        found[name_of(each)].append(each)
    return dict(sorted(found.items()))


def total(counts: Iterable[Count]) -> tuple[int, bool]:
    """The sum, and whether it is an estimate."""
    given = list(counts)
    return sum(each.count for each in given), any(each.estimated for each in given)
