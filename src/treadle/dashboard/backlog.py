"""Backlog: what was due in a queue over time, and how long it waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from treadle.base.timing import iso
from treadle.item_facts import Overview
from treadle.records import BacklogSample, QueueBacklog

from .charts import Bar
from .throughput import SPANS
from .visit import Visit

DEPTHS: Final = (("running", "running"), ("ready", "ready"))
"""Parts of the bars of depth, and their classes."""
WAITS: Final = (("oldest wait", "wait"),)


class BacklogHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of a span of time."""

    span: str
    since: float
    until: float
    step: int
    samples: list[BacklogSample]

    @property
    def depths(self) -> list[Bar]:
        return [Bar(each.at, (round(each.running), round(each.ready))) for each in self.samples]

    @property
    def waits(self) -> list[Bar]:
        return [Bar(each.at, (round(each.oldest),)) for each in self.samples]

    @property
    def deepest(self) -> int:
        return round(max((each.ready for each in self.samples), default=0.0))

    @property
    def longest(self) -> float:
        return max((each.oldest for each in self.samples), default=0.0)

    @property
    def estimated(self) -> bool:
        return any(each.estimated for each in self.samples)


async def read_history(visit: Visit, span: str, queue: str) -> BacklogHistory | None:
    """None: nothing is kept for single tenants, or by this store, or it was not in time."""
    if not visit.sees_fleet or "recording" not in visit.client.backend.capabilities:
        return None
    seconds, step = SPANS[span]
    until = (visit.site.now() // step + 1) * step
    since = until - seconds
    found = await visit.in_time(visit.client.backlog_history(since, until, step, queue))
    if found is None:
        return None
    return BacklogHistory(span=span, since=since, until=until, step=step, samples=found)


async def backlogs_of(visit: Visit, overview: Overview | None) -> Sequence[QueueBacklog]:
    """How fast queues grow or drain. Empty: not in time."""
    if overview is None or "watching" not in visit.client.backend.capabilities:
        return ()
    return await visit.in_time(visit.client.backlogs(overview=overview)) or ()


def history_json(history: BacklogHistory | None) -> dict[str, Any] | None:
    if history is None:
        return None
    return {
        "span": history.span,
        "since": iso(history.since),
        "until": iso(history.until),
        "step": history.step,
        "points": [
            {
                "at": iso(each.at),
                "ready": each.ready,
                "running": each.running,
                "oldest_wait": each.oldest,
                "estimated": each.estimated,
            }
            for each in history.samples
        ],
    }
