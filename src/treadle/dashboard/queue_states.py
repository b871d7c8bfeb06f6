"""Queue states: how each queue stands, as an overview of the store tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from treadle.base.timing import iso
from treadle.bulk_action import BULK_QUEUE
from treadle.item import Count, Order, Status
from treadle.item_facts import Overview
from treadle.operate.fleet_json import backlog_json, counts_json
from treadle.records import QueueBacklog
from treadle.store.fleet import Fleet, queues_of

from .throughput import Rate
from .visit import Visit


class QueueState(msgspec.Struct, frozen=True):
    name: str
    depth: Depth
    oldest_ready: float | None
    paused: bool
    """For all tenants."""
    paused_for: list[str]
    """Tenants for which alone it is paused."""
    workers: int
    """Live workers that claim from it, or may."""
    rate: Rate | None = None
    pauses: list[Order] = []
    """Who has paused it, until when and why."""
    backlog: QueueBacklog | None = None
    """None: nothing is due, or it is not known."""


def declared_queues(visit: Visit) -> set[str]:
    """The queues that the code of this process names."""
    named = (type.options.get("queue") for type in visit.client.types.values())
    return {queue for queue in named if isinstance(queue, str)}


def queue_states(
    overview: Overview,
    rates: dict[str, Rate] | None,
    declared: Iterable[str] = (),
    backlogs: Iterable[QueueBacklog] = (),
) -> list[QueueState]:
    """The queues. Those in which items have waited for the longest time come first."""
    found = depths(overview.counts, attrgetter("queue"))
    ages = {age.queue: age.oldest_ready for age in overview.ages}
    fleet = Fleet(overview.workers, overview.now)
    paused: dict[str, list[Order]] = {}
    for order in overview.paused:
        if order.queue is not None:
            paused.setdefault(order.queue, []).append(order)
    known = {each.queue: each for each in backlogs}
    names = {*found, *ages, *paused, *(rates or ()), *queues_of(fleet.live), *declared}
    states = [
        QueueState(
            name=name,
            depth=found.get(name, Depth()),
            oldest_ready=ages.get(name),
            paused=any(each.tenant is None for each in paused.get(name, ())),
            paused_for=sorted(each.tenant for each in paused.get(name, ()) if each.tenant is not None),
            pauses=paused.get(name, []),
            workers=len(fleet.serving(queue=name)),
            rate=(rates or {}).get(name),
            backlog=known.get(name),
        )
        for name in names
    ]
    return sorted(
        states, key=lambda state: (state.oldest_ready or float("inf"), -state.depth.open, state.name)
    )


def shown_queues(states: Iterable[QueueState]) -> list[QueueState]:
    """The queues to list. That of bulk actions is listed if it is paused, or if no worker serves what is
    in it."""
    return [each for each in states if each.name != BULK_QUEUE or _needs_help(each)]


def _needs_help(state: QueueState) -> bool:
    return state.paused or bool(state.paused_for) or (state.depth.open > 0 and not state.workers)


def unused(name: str, workers: int = 0) -> QueueState:
    """A queue in which nothing is."""
    return QueueState(name, Depth(), None, False, [], workers)


def queue_json(state: QueueState) -> dict[str, Any]:
    """A queue as `treadle status --json` has it, and more."""
    return {
        "queue": state.name,
        **depth_json(state.depth),
        "oldest_ready_at": iso(state.oldest_ready),
        "backlog": backlog_json(state.backlog),
        "paused": state.paused,
        "paused_for": state.paused_for,
        "worker_count": state.workers,
        "rate": state.rate,
    }


K = TypeVar("K", bound=Hashable)


class Depth(msgspec.Struct, frozen=True):
    """How many items are in each status."""

    counts: dict[Status, int] = {}
    estimated: list[Status] = []
    """Statuses of which not all items were counted."""

    def of(self, status: Status) -> int:
        return self.counts.get(status, 0)

    @property
    def open(self) -> int:
        return sum(count for status, count in self.counts.items() if status != "dead")


def depths(counts: Iterable[Count], by: Callable[[Count], K]) -> dict[K, Depth]:
    """The depths by queue, type or tenant: by what `by` returns."""
    found: dict[K, dict[Status, int]] = {}
    estimated: dict[K, set[Status]] = {}
    for each in counts:
        key, status = by(each), each.status
        known = found.get(key)
        if known is None:
            known = found[key] = {}
        known[status] = known.get(status, 0) + each.count
        if each.estimated:
            estimated.setdefault(key, set()).add(status)
    return {key: Depth(known, sorted(estimated.get(key, ()))) for key, known in found.items()}


def whole_depth(parts: Iterable[Depth]) -> Depth:
    """The sum of depths."""
    counts, estimated = Counter[Status](), set[Status]()
    for each in parts:
        counts.update(each.counts)
        estimated.update(each.estimated)
    return Depth(dict(counts), sorted(estimated))


def depth_json(depth: Depth) -> dict[str, Any]:
    """A count for each status, as `treadle status --json` has it."""
    return counts_json({status: (count, status in depth.estimated) for status, count in depth.counts.items()})
