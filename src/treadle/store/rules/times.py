"""When items are due and expire, and how schedules move on."""

from __future__ import annotations

from typing import Final, Literal

from msgspec.structs import replace

from treadle.item import NEVER, Fire, Item, Schedule, Settlement

HELD: Final = 2.0**64
"""What the instant at which an item is due is multiplied by while it is held. The product is exact, and later
than all instants. So no other verb has to look whether an item is held: it is not due."""


def due_at(when: Item | Settlement, now: float) -> float:
    """When it is due. An absolute time wins over a delay."""
    return now + when.delay if when.run_at is None else when.run_at


def deadline_at(item: Item, now: float) -> float | None:
    """When the item expires. An absolute time wins over `expires_in`."""
    if item.deadline is not None:
        return item.deadline
    return None if item.expires_in is None else now + item.expires_in


def changed_due_at(new: Item, queued_at: float, now: float) -> float:
    """When an earlier item is due that takes over what `new` has, by its key. It was submitted at
    `queued_at`. See `Backend.submit`."""
    if new.run_at is not None:
        return new.run_at
    if new.key_policy != "debounce":
        return queued_at + new.delay
    due = now + new.delay
    return due if new.debounce_max is None else min(due, queued_at + new.debounce_max)


def is_held(due: float) -> bool:
    """Whether an item is held that is stored with this instant."""
    return due >= HELD


def hold_due(due: float) -> float:
    """The instant that is stored while an item is held that is due then."""
    return max(due, 1.0) * HELD


def unheld_due(due: float) -> float:
    """When an item is due that is stored with this instant, apart from a hold."""
    return due / HELD if is_held(due) else due


def keep_hold(before: float, due: float) -> float:
    """The instant that is stored for an item that becomes due then, and stays held if it is."""
    return hold_due(due) if is_held(before) else due


def shown_due(due: float, ended_at: float | None) -> float:
    """When an item is due, as readers see it. It may have ended while it was held."""
    return due if due < HELD else NEVER if ended_at is None else due / HELD


def began_at(ran: float, claimed_at: float | None, now: float) -> float:
    """When a handler began that had run for `ran` seconds now: not before its item was claimed."""
    return now - ran if claimed_at is None else max(now - ran, claimed_at)


def is_far(until: float, lease: float, now: float) -> bool:
    """Whether a lease ends later than any heartbeat can have said: the clock has gone back since. It ends one
    lease from now then. A worker that lives renews it by then. One that died is gone within two leases."""
    return until > now + 2 * lease


def waiting_status(due: float, now: float) -> Literal["scheduled", "ready"]:
    """The status of an open item that waits for nothing but its time."""
    return "scheduled" if due > now else "ready"


def put_schedule(
    known: Schedule | None, schedule: Schedule, now: float, *, again: bool = False, removed: bool = False
) -> Schedule | None:
    """What to store when a schedule is declared: the known one if its spec is the same, else the new one.
    None: nothing changes. The new one has no next occurrence; or it is put `again`, and another one is there,
    or it was `removed`."""
    if known is not None and known.spec == schedule.spec:
        return replace(known, seen_at=now)
    if schedule.next_at is None or (again and (removed or known is not None)):
        return None
    return replace(schedule, seen_at=now)


def fired(known: Schedule | None, fire: Fire) -> Schedule | None:
    """The schedule after this occurrence. None: it is not the next one of a schedule that runs."""
    if known is None or known.paused or known.next_at != fire.at:
        return None
    return replace(known, next_at=fire.next_at, last_at=fire.at)
