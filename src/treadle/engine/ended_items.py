"""Ended items: what follows when items were ended, or removed, without being settled."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.item import Changed, Ref

from .core import Core


def event_time(core: Core, changed: Changed) -> float:
    """When these items were changed, by the store's clock: not before what the store did to them so far."""
    known = [max(item.queued_at, item.claimed_at or 0.0, item.started_at or 0.0) for item in changed.items]
    return max([core.store_clock.now(), *known])


def announce_ended(core: Core, changed: Changed, gone: Iterable[Ref] = ()) -> None:
    """Wake the waiters of these items, of the groups that have ended, and of removed groups (`gone`). Wake
    workers for what may start now."""
    items = [(item.tenant, item.id) for item in changed.items]
    core.announcer.effects(changed.effects, event_time(core, changed))
    groups = [*((group.tenant, group.id) for group in changed.effects.ended_groups), *gone]
    core.wakeups.ended(items, groups, here=True)
    if changed.effects.doomed:
        core.wakeups.ready()
    else:
        lines = {(item.type, item.queue) for item in changed.effects.released}
        # Those that were handed out may have held a strict lane.
        lines |= {(item.type, "") for item in changed.items if item.claimed_at is not None}
        core.wakeups.ready(lines)
