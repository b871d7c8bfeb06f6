"""When items are due and expire, and how schedules move on."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from treadle.item import Fire, Item, Schedule, Settlement


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
