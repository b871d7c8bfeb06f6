"""Why: the reasons for which an item, a group, a queue or a schedule is where it is, as `app.why` says."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .item import Status

ReasonKind: TypeAlias = Literal[
    "unknown",  # no item has this id
    "dependency",  # it waits for other items
    "not_submitted",  # ... that are not submitted
    "due_at",  # it is due later
    "held",  # an operator holds it
    "sleeps",  # its handler sleeps
    "waits_for_signal",  # its handler waits for a signal
    "overdue",  # it is due, and nothing has claimed since
    "paused",  # its queue, or the schedule, is paused
    "no_worker",  # no worker is alive
    "no_worker_for_type",
    "no_worker_for_queue",
    "no_worker_for_tenant",
    "concurrency",  # a limit on items at once is reached
    "lane_held",  # an earlier item of its lane holds the lane
    "rate",  # a limit on starts per time is reached
    "worker_full",  # the workers that could run it have no room
    "trial",  # an item on trial runs where it could, beside few others
    "worker_blocked",  # the event loop of the worker does not run
    "pressed",  # back-pressure
    "declined",  # `accept` of the workers declines its type
    "undecodable",  # workers could not decode its arguments
    "isolated",  # it was lost before, and waits until fewer others run
    "turn",  # others are ahead of it
    "next",  # nothing is in its way
    "doomed",  # it can only end dead
    "deadline",  # it dies if it has not ended by then
    "running",
    "claimed_ahead",  # a worker has it, and has not begun
    "lease_lapsed",  # its worker is silent
    "ended",  # also a schedule
    "open",  # a group: members are open
    "group_failed",  # a group: a member died, and no item tolerates it
    "orphaned",  # a schedule: no process that has its code was seen
    "run_failed",  # a schedule: its last run submitted nothing
    "not_due",  # a schedule: it fires later
    "empty",  # a queue: nothing waits
]
"""The kinds of reasons. More may be added."""


class Reason(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One reason."""

    kind: ReasonKind
    text: str
    """What is the case: one sentence for a person."""
    until: float | None = None
    """When it ends by itself, by the store's clock. None: unknown, or never."""
    refs: tuple[str, ...] = ()
    """The ids, queues, limits or workers that it speaks of."""
    fix: str = ""
    """What to do about it: a command line, a verb, or a sentence. Empty: nothing."""
    about: str = ""
    """Another item that it is a reason of, by its id: one that the item waits for, directly or through
    others. Its text names the item. Empty: it is a reason of what was asked for."""


class Why(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why something is where it is."""

    id: str
    """The id of the item, or the name of the queue or schedule."""
    status: Status | Literal["unknown", "open", "ended", "paused", "active", "failing", "overdue", "orphaned"]
    """The status of the item. A group without its root is `open` or `ended`, a queue `active` or `paused`, a
    schedule `active`, `failing`, `overdue`, `orphaned`, `paused` or `ended`. `unknown`: there is none."""
    reasons: tuple[Reason, ...] = ()
    """The most binding reason first."""
