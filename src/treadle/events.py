"""Events: what the engine announces, after the commit that made it true.

    Queued -> [Released] -> Started -> Succeeded | Failed(will_retry=True) | Deferred | LeaseLost
                                     | Failed(will_retry=False), Dead | Expired, Dead | Cancelled
    ... and GroupDone once the last member of a group has ended.

They go to the app's `on_event`, then to the type's. Instants are epoch seconds. A hook may match on the
class: `match event: case Failed(will_retry=False, error=error): ...`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from .item import Lease, Loss, Reason


# Those without fields of their own inherit all that a dataclass has: it takes half a millisecond to make one.
@dataclass(frozen=True, slots=True)
class ItemEvent:
    """What every event about an item says."""

    id: str
    type: str
    group_id: str
    tenant: str
    attempt: int
    """The attempt it is about; 0 before the first."""
    parent: str | None
    dependencies: tuple[str, ...]
    """The ids it waits, or waited, for."""
    at: float


class Queued(ItemEvent):
    """It was stored, and runs when it is due and free to."""

    __slots__ = ()


class Released(ItemEvent):
    """What it waited for has happened."""

    __slots__ = ()


class Started(ItemEvent):
    """A worker began an attempt."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Succeeded(ItemEvent):
    result: Any
    """What the handler gave, as it gave it."""


@dataclass(frozen=True, slots=True)
class Failed(ItemEvent):
    """An attempt failed. If it will not be retried, `Dead` follows."""

    error: BaseException
    will_retry: bool


@dataclass(frozen=True, slots=True)
class Deferred(ItemEvent):
    """It runs again at `run_at`; the attempt was given back."""

    run_at: float


@dataclass(frozen=True, slots=True)
class Expired(ItemEvent):
    """Its deadline passed. `Dead` follows."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Dead(ItemEvent):
    """It ended without success, for `reason`."""

    reason: Reason
    error: BaseException | None = None
    """What the last attempt raised; None if it died without running, or in another process."""


class Cancelled(ItemEvent):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LeaseLost(ItemEvent):
    """This worker's attempt no longer counts."""

    reason: Loss = "taken"


@dataclass(frozen=True, slots=True)
class GroupDone(ItemEvent):
    """Every member of the group has ended. It speaks of the root: its `id` is the group's."""

    result: Any
    """The group's value; None if nobody contributed one."""


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """What every event about a worker says."""

    worker_id: str
    at: float


class WorkerStarted(WorkerEvent):
    __slots__ = ()


class WorkerStopping(WorkerEvent):
    """It claims nothing more; what runs may end."""

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
    | Expired
    | Dead
    | Cancelled
    | LeaseLost
    | GroupDone
    | WorkerStarted
    | WorkerStopping
    | WorkerStopped
)

E = TypeVar("E", bound=ItemEvent)


def from_lease(cls: type[E], lease: Lease, at: float, **extra: Any) -> E:
    """An event about the attempt that holds `lease`; `extra` is what `cls` has beyond every event."""
    return cls(
        lease.id,
        lease.type,
        lease.group_id,
        lease.tenant,
        lease.attempt,
        lease.parent,
        lease.after,
        at,
        **extra,
    )
