"""Flow control: the arguments of the hooks for backpressure, acceptance, backlog and failures.

`backpressure(info) -> seconds | None` is called before every claim; `adaptive_delay(...)` makes one.
`accept(info)` is called before every attempt. `on_backlog(info)` is called while a worker cannot keep up;
`BacklogWatch` decides when.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias

from msgspec import Struct
from typing_extensions import TypeVar

from .base.timing import Duration, check_number, seconds
from .errors import InputError
from .item import DeathReason, Status
from .metrics import Metrics

_V = TypeVar("_V", default=Any)


class BackpressureInfo(Struct, frozen=True):
    """The argument of `backpressure`."""

    metrics: Metrics
    active: int
    """Items leased to this worker, running or about to."""


class AcceptInfo(Struct, frozen=True):
    """The argument of `accept`. A declined item goes back, and the attempt does not count."""

    id: str
    type: str
    group_id: str
    attempt: int
    input: Any


class FailureInfo(Struct, frozen=True):
    """The second argument of `on_failure`, besides the error."""

    id: str
    type: str
    attempt: int
    """The attempt that failed: 1 for the first."""
    attempts: int | None
    """How many attempts the item may have; None: no limit."""


class Undo(Struct, Generic[_V], frozen=True):
    """What the undo of a step may take: the step's value, the item's input, and the error that it died of."""

    value: _V
    input: dict[str, Any]
    error: str


class UnhandledGroup(Struct, frozen=True):
    """The argument of `on_unhandled_group`: a group that ended while no process waited for it."""

    group_id: str
    result: Any
    states: Mapping[str, Status]
    """The status of each member, by id."""
    failed: int = 0
    """How many deaths failed the group: see `GroupState.failed`."""


class Redrive(Struct, frozen=True):
    """`Treadle(redrive=...)`: when a worker is idle, it moves some dead items of its types back to the queue.

    Only items that may succeed another time: those whose attempts are exhausted, or whose workers died. Each
    of them at most `max_times`, so that an item that always fails stays dead in the end.
    """

    count: int = 10
    """The most items to move at once. 0: none."""
    max_times: int = 3
    """How often one item may be moved. An operator's requeue resets the count."""
    backoff: Duration = 1.0
    """How long an item waits when it is moved for the first time. Doubles with each further time."""

    def __post_init__(self) -> None:
        for name in ("count", "max_times"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError.of(name, value, "must be a whole number, 0 or more")
        seconds(self.backoff, field="backoff")


class BacklogInfo(Struct, frozen=True):
    """The argument of `on_backlog`."""

    active: int
    """Items leased to this worker."""
    behind_for: float
    """Seconds since the worker last kept up."""
    ready: int | None = None
    """Items in the store that could run now; None if that is not known."""


# -------------------------------------------------------------------------------------------- backpressure


class AdaptiveDelay(Struct, eq=False):
    """Slows down when attempts fail, and speeds up again step by step. See `adaptive_delay`."""

    delay: float
    max_fail_rate: float
    min: float
    max: float
    base: float
    factor: float
    step: float
    types: Sequence[str] | None
    _failed: int = 0
    _succeeded: int = 0

    def __call__(self, info: BackpressureInfo) -> float:
        failed, succeeded = self._count_ended(info.metrics)
        delay = self._next_delay(failed - self._failed, succeeded - self._succeeded)
        self._failed, self._succeeded = failed, succeeded
        # Rounded, so that as many steps down as up lead back to zero.
        self.delay = round(delay, 9)
        return self.delay

    def _next_delay(self, failed: int, succeeded: int) -> float:
        ended = failed + succeeded
        if ended and failed / ended > self.max_fail_rate:
            return min(self.max, max(self.base, self.delay * self.factor))
        return max(self.min, self.delay - self.step)

    def _count_ended(self, metrics: Metrics) -> tuple[int, int]:
        watched = metrics.types() if self.types is None else self.types
        found = [series for name in watched if (series := metrics.find(name)) is not None]
        return sum(series.failed for series in found), sum(series.succeeded for series in found)


def adaptive_delay(
    max_fail_rate: float = 0.0,
    min: Duration = 0.0,
    max: Duration = 30.0,
    base: Duration = 0.1,
    factor: float = 2.0,
    step: Duration | None = None,
    types: Sequence[str] | None = None,
) -> AdaptiveDelay:
    """Make a `backpressure` that reacts to failures: additive increase of the speed, multiplicative decrease.

    If more than `max_fail_rate` (0 to 1) of the attempts that ended since the last call have failed, retried
    or not, the delay before each claim grows: from `base` on by `factor`, up to `max`. Otherwise it shrinks
    by `step` (default: `base`), down to `min`.

    types: the names of the work types to watch; default: all.
    """
    least, base_seconds = seconds(min, field="min"), seconds(base, field="base")
    most = seconds(max, field="max")
    if least > most:
        raise InputError.of("min", min, f"must not be more than max={max!r}")
    if isinstance(types, str):
        raise InputError.of("types", types, "must be a list of names")
    return AdaptiveDelay(
        least,
        check_number(max_fail_rate, "max_fail_rate", 0.0, 1.0),
        least,
        most,
        base_seconds,
        check_number(factor, "factor", 1.0, 1e6),
        base_seconds if step is None else seconds(step, field="step"),
        None if types is None else tuple(types),
    )


# ------------------------------------------------------------------------------------------------- backlog


class BacklogWatch:
    """Decides when `on_backlog` is called: after `after` seconds behind, then every `every` seconds.

    every: None calls it once for each time that the worker fell behind.
    """

    def __init__(self, after: Duration, every: Duration | None = None) -> None:
        self._after = seconds(after, field="backlog_after")
        self._every = None if every is None else seconds(every, field="backlog_every")
        if self._every == 0:
            raise InputError.of("backlog_every", every, "must be more than 0, or None for once")
        self._since: float | None = None
        self._next: float | None = None

    def run_once(self, now: float, behind: bool) -> float | None:
        """Note whether the worker is `behind` (more items than room) at `now`, in monotonic seconds. Returns
        for how long it has been behind if the hook is to be called, else None.
        """
        if not behind:
            self._since = self._next = None
            return None
        if self._since is None:
            self._since, self._next = now, now + self._after
        if self._next is None or now < self._next:
            return None
        self._next = None if self._every is None else now + self._every
        return now - self._since

    @property
    def next_at(self) -> float | None:
        """When the hook is to be called next if nothing changes; None: not at all."""
        return self._next


class Failure(Struct, frozen=True):
    """An item that died: the argument of the work type that was given as `on_dead=`.

    @work
    async def refund(failure: Failure) -> None: ...

    @work(on_dead=refund)
    async def charge(order: str) -> None: ...
    """

    id: str
    type: str
    input: dict[str, Any]
    """Its arguments by name, as plain JSON values, through `upcast`; empty if they could not be read."""
    error: str
    """The last error, as `type: message`: as in the `Dead` event and in the item's state."""
    reason: DeathReason
    attempts: int = 0
    """How many attempts of it began. 0 only with `on_dead_unstarted`."""


Backpressure: TypeAlias = Callable[[BackpressureInfo], float | Awaitable[float | None] | None]
Accept: TypeAlias = Callable[[AcceptInfo], bool | Awaitable[bool]]
OnBacklog: TypeAlias = Callable[[BacklogInfo], object | Awaitable[object]]
OnUnhandledGroup: TypeAlias = Callable[[UnhandledGroup], object | Awaitable[object]]
