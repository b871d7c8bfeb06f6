"""Events: what the engine announces, after the commit that made it true.

    Queued -> [Released] -> Started -> Succeeded | Failed(will_retry=True) | Deferred | LeaseLost
                                     | Suspended, Resumed -> Started
                                     | Failed(will_retry=False), Dead | Expired, Dead | Cancelled
    ... and GroupDone once the last member of a group has ended.

Each event is sent to the app's `on_event`, then to the type's. Instants are epoch seconds. A hook may match
on the class: `match event: case Failed(will_retry=False, error=error): ...`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from .define.condition import shown_names
from .item import DeathReason, Lease, Loss


# Subclasses without own fields are not dataclasses themselves: making one takes half a millisecond at import.
@dataclass(frozen=True, slots=True)
class ItemEvent:
    """The fields of every event about an item."""

    id: str
    type: str
    group_id: str
    tenant: str
    attempt: int
    """The number of the attempt. 0 before the first."""
    parent: str | None
    dependencies: tuple[str, ...]
    """The ids that it waits or waited for; a `GroupRef` for a whole group."""
    at: float


class Queued(ItemEvent):
    """The item was stored."""

    __slots__ = ()


class Released(ItemEvent):
    """The items that it waited for have met its condition."""

    __slots__ = ()


class Started(ItemEvent):
    """A worker started an attempt."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Succeeded(ItemEvent):
    result: Any
    """The value that the handler returned, not encoded."""


@dataclass(frozen=True, slots=True)
class Failed(ItemEvent):
    """An attempt failed. If it will not be retried, `Dead` follows."""

    error: BaseException
    will_retry: bool


@dataclass(frozen=True, slots=True)
class Deferred(ItemEvent):
    """The item runs again at `run_at`. The attempt was given back."""

    run_at: float


@dataclass(frozen=True, slots=True)
class Suspended(ItemEvent):
    """The handler waits without a worker: until `until`, for the signal `signal`, or for its children."""

    until: float | None
    """When it goes on at the latest. None: there is no limit."""
    signal: str | None = None


class Resumed(ItemEvent):
    """A suspended item goes on. `Started` follows."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Expired(ItemEvent):
    """The deadline of the item passed. `Dead` follows."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Dead(ItemEvent):
    """The item ended without success, for `reason`."""

    reason: DeathReason
    error: BaseException | None = None
    """The exception of the last attempt. None if the item died without running, or in another process."""
    text: str = ""
    """The last failure, as `type: message`: as in the item's state, and in `Failure.error`."""


@dataclass(frozen=True, slots=True)
class Cancelled(ItemEvent):
    """The item was cancelled, or a limit was reached when it was to start (`on_full`)."""

    error: str | None = None
    """Why, if it was not cancelled by an operator."""


@dataclass(frozen=True, slots=True)
class LeaseLost(ItemEvent):
    """This worker lost the lease, so the result of its attempt is ignored."""

    reason: Loss = "taken"


@dataclass(frozen=True, slots=True)
class GroupDone(ItemEvent):
    """Every member of the group has ended. The fields are those of the root, so `id` is the group's id."""

    result: Any
    """The group's value. None if no member contributed one."""
    failed: int = 0
    """How many deaths failed the group: see `GroupState.failed`. Waiting for it raises `GroupFailed` then.
    For a group of one item that died, stores other than memory do not say whether another item tolerates the
    death: then it counts."""


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """The fields of every event about a worker."""

    worker_id: str
    at: float


class WorkerStarted(WorkerEvent):
    __slots__ = ()


class WorkerStopping(WorkerEvent):
    """The worker claims no more items. Running handlers may end."""

    __slots__ = ()


class WorkerStopped(WorkerEvent):
    __slots__ = ()


Event: TypeAlias = (
    Queued
    | Released
    | Started
    | Succeeded
    | Failed
    | Deferred
    | Suspended
    | Resumed
    | Expired
    | Dead
    | Cancelled
    | LeaseLost
    | GroupDone
    | WorkerStarted
    | WorkerStopping
    | WorkerStopped
)

_E = TypeVar("_E", bound=ItemEvent)


def from_lease(cls: type[_E], lease: Lease, at: float, **extra: Any) -> _E:
    """Make an event about the attempt of `lease`, for the engine. `extra` are the other fields of `cls`."""
    after = shown_names(lease.after)
    args = (lease.id, lease.type, lease.group_id, lease.tenant, lease.attempt, lease.parent, after, at)
    return cls(*args, **extra)
