"""BaseDoer: a doer as the engine uses it.

Besides the methods of a `Doer`, it reports errors and free room, and hands back tasks that never started.
`managed()` wraps a user's doer in one. The doer that a user gives is a pattern: each worker makes a doer of
its own from it (`WorkerDoers`), every time it starts. Such a doer serves that worker only, on one event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, cast

from treadle.base.callables import check_not_awaitable
from treadle.base.loop_mark import LoopMark
from treadle.base.timing import Clock
from treadle.define.option_checks import check_doer
from treadle.errors import InputError, LifecycleError
from treadle.item import AvoidedLane, PermitReply, PermitRequest
from treadle.logs.lines import log_error

Task: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""One attempt that has not started. The doer calls it once, when it may start, and awaits the coroutine."""


class Doer(Protocol):
    """Decides when claimed work starts. All calls come from one event loop.

    A doer may also have a method `on_free(callback)`. Then it calls `callback()` when there is room again;
    the end of a task is noticed without it. `submit` may also accept `tenant=`.

    It serves one worker at a time. If it has a method `of_worker()`, it serves none itself: each worker calls
    that when it starts, and uses the doer that it returns.
    """

    def available(self) -> int:
        """How many more tasks may be submitted now. Called before every claim, so it must be quick."""
        ...

    def submit(self, task: Task, *, lane: str, priority: int, queued_at: float) -> None:
        """Start `task()` as an asyncio task, now or later, and keep a reference to it.

        It never blocks, and accepts as many tasks as `available` offered. If it raises, the item goes back to
        the store.
        """
        ...

    async def idle(self) -> None:
        """Return when no task runs or waits."""
        ...


Failing: TypeAlias = Literal["task", "doer", "permits"]
"""What failed: a task, the doer itself, or a call to the store about permits."""
OnDoerError: TypeAlias = Callable[[Exception, Failing], None]
OnFree: TypeAlias = Callable[[], None]
OnGiveBack: TypeAlias = Callable[[list[Task]], None]

_NO_LANES: Final[frozenset[AvoidedLane]] = frozenset()

KeepDenied: TypeAlias = Literal["soon", "all", "none"]
"""Which tasks wait in the doer although a limit denied them: those that may start soon, all, or none."""


class PermitStore(Protocol):
    """Counts the permits of fleet-wide limits. Every backend with the capability `limits` is one."""

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]: ...

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None: ...


class BaseDoer(ABC):
    """A doer as the engine uses it. A subclass without waiting tasks needs `available` and `submit` only."""

    limit: int | None = None
    """The most tasks that it runs at once. None: it has no limit, or does not know it."""
    buffers: bool = False
    """Whether tasks may wait here for longer than a moment before they start."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None] | None] = set()
        self._on_error: list[OnDoerError] = []
        self._on_free: list[OnFree] = []
        self._on_give_back: OnGiveBack | None = None
        self._context = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop it was bound on. Asking for the running loop takes a system call, for every task."""

    @abstractmethod
    def of_worker(self, doers: WorkerDoers) -> BaseDoer:
        """A new doer with the settings of this one, for one worker. doers: makes the doers inside it."""

    @abstractmethod
    def available(self) -> int: ...

    @abstractmethod
    def submit(
        self,
        task: Task,
        *,
        lane: str = "",
        priority: int = 0,
        queued_at: float = 0.0,
        tenant: str = "",
        place: float | None = None,
    ) -> None:
        """See `Doer.submit`. place: the position in which the store handed the item out. Where age decides
        among equals, `place` counts instead if it is given: the store is fair to tenants and lanes.
        """

    async def idle(self) -> None:
        """Return when no task runs or waits."""
        while self._running:
            await asyncio.wait(cast("set[asyncio.Task[None]]", self._running))
            # A task that the loop cancelled before its first step could not remove itself.
            self._running = {task for task in self._running if task is not None and not task.done()}

    def cancel_pending(self) -> list[Task]:
        """Forget the tasks that have not started, and return them: the very objects submitted."""
        return []

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        """Forget the tasks that have not started and are over: they take no place and no permit."""
        return

    def keep_denied(self, which: KeepDenied) -> None:
        """Set which tasks wait here when a limit denies them: `soon` while the worker runs, `all` while it
        drains, `none` while it stops. The others are given back when they are denied, see `on_give_back`."""
        return

    def avoid(self) -> frozenset[AvoidedLane]:
        """Lanes to leave out of the next claim: their limit is reached."""
        return _NO_LANES

    def bind(self, permits: PermitStore, clock: Clock, worker: str, name: str = "app") -> None:
        """Set where permits come from, before the first submit. `name` tells the limits of one doer from
        those of another. It is the same in every process: the name of the work type, or `app`. A doer of
        several types is bound by the first of them. One inside several others is bound by each.

        Tasks run in the context of the caller of `bind`. A task that starts because another one has ended
        must not inherit the context variables of that one.
        """
        self._context = copy_context()
        self._loop = get_running_loop()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        loop = self._loop or get_running_loop()
        return loop.create_task(coroutine, context=self._context.copy())

    async def close(self) -> None:
        """Called when the worker stops: forget the callbacks, and end calls to the store. Running tasks go
        on."""
        self._on_error.clear()
        self._on_free.clear()
        self._on_give_back = None

    def on_error(self, callback: OnDoerError) -> None:
        """Call `callback` with errors, and with what failed. Without a callback they are logged."""
        if callback not in self._on_error:
            self._on_error.append(callback)

    def on_free(self, callback: OnFree) -> None:
        """Call `callback`, on the loop, whenever there is room where there was none."""
        if callback not in self._on_free:
            self._on_free.append(callback)

    def on_give_back(self, callback: OnGiveBack) -> None:
        """Call `callback`, on the loop, with tasks that a limit holds back for longer, so that their items go
        back to the store. The doer has forgotten them. Without a callback they wait in the doer."""
        self._on_give_back = callback

    def _report(self, error: Exception, failing: Failing = "task") -> None:
        if not self._on_error:
            log_error(f"{failing} of {type(self).__name__} failed", error)
        for callback in self._on_error:
            try:
                callback(error, failing)
            except Exception as own:  # noqa: BLE001  a hook must not stop the doer
                log_error(f"on_error of {type(self).__name__} failed", own)

    def _call_on_free(self) -> None:
        for callback in self._on_free:
            try:
                callback()
            except Exception as error:  # noqa: BLE001  a hook must not stop the doer
                self._report(error, "doer")


def managed(doer: Doer) -> BaseDoer:
    """Return `doer` if it is a BaseDoer, else a new wrapper around it."""
    return doer if isinstance(doer, BaseDoer) else AdaptedDoer(doer)


class WorkerDoers:
    """Makes the doers of one worker from those that users gave. A doer that was given for several types, or
    inside several others, stays one: they share its room."""

    def __init__(self) -> None:
        self._made: dict[int, BaseDoer] = {}

    def of(self, given: Doer) -> BaseDoer:
        pattern = given.doer if isinstance(given, AdaptedDoer) else given
        if id(pattern) not in self._made:
            self._made[id(pattern)] = managed(pattern).of_worker(self)
        return self._made[id(pattern)]


class AdaptedDoer(BaseDoer):
    """Wraps a user's doer. It hands on tasks that report their own start and end.

    If the user's doer has a method `of_worker`, each worker has what that returns. Else it serves one worker
    at a time.
    """

    buffers = True
    _serving: ClassVar[dict[int, AdaptedDoer]] = {}
    """The wrappers that serve a worker, by the identity of the user's doer."""

    def __init__(self, doer: Doer) -> None:
        super().__init__()
        self.doer: Doer = check_doer(doer, "doer")
        self._pending: dict[int, Task] = {}
        self._numbers = count()
        self._wants_tenant = _accepts(doer.submit, "tenant")
        self._mark: LoopMark | None = None
        self._worker = ""

    def of_worker(self, doers: WorkerDoers) -> BaseDoer:
        make: Callable[[], Doer] | None = getattr(self.doer, "of_worker", None)
        made = self if make is None else managed(make())
        return AdaptedDoer(made.doer) if isinstance(made, AdaptedDoer) else made.of_worker(doers)

    def bind(self, permits: PermitStore, clock: Clock, worker: str, name: str = "app") -> None:
        serving = self._serving.get(id(self.doer))
        if serving is self:
            return
        if serving is not None and serving._mark is not None and not serving._mark.is_gone:
            raise LifecycleError(
                f"the doer {self.doer!r} already serves worker {serving._worker!r}: "
                "make one for each worker, or give it a method of_worker() that returns one"
            )
        super().bind(permits, clock, worker, name)
        self._mark, self._worker = LoopMark(), worker
        self._serving[id(self.doer)] = self
        forward = getattr(self.doer, "on_free", None)
        if callable(forward):
            forward(self._call_on_free)

    async def close(self) -> None:
        if self._serving.get(id(self.doer)) is self:
            del self._serving[id(self.doer)]
        await super().close()

    def available(self) -> int:
        try:
            return int(self.doer.available())
        except Exception as error:  # noqa: BLE001  the user's code: other doers go on
            self._report(error, "doer")
            return 0

    def submit(
        self,
        task: Task,
        *,
        lane: str = "",
        priority: int = 0,
        queued_at: float = 0.0,
        tenant: str = "",
        place: float | None = None,
    ) -> None:
        number = next(self._numbers)
        self._pending[number] = task
        adapted = partial(self._run_adapted, number)
        extra: dict[str, Any] = {"tenant": tenant} if self._wants_tenant else {}
        try:
            submit: Callable[..., object] = self.doer.submit
            answer = submit(adapted, lane=lane, priority=priority, queued_at=queued_at, **extra)
            check_not_awaitable(answer, "doer.submit")
        except BaseException:
            self._pending.pop(number, None)
            raise

    async def idle(self) -> None:
        await self.doer.idle()

    def cancel_pending(self) -> list[Task]:
        # The doer may still call them later. Then `_run_adapted` does nothing, since they are not pending.
        tasks = list(self._pending.values())
        self._pending.clear()
        return tasks

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        for number in [number for number, task in self._pending.items() if is_over(task)]:
            del self._pending[number]

    async def _run_adapted(self, number: int) -> None:
        task = self._pending.pop(number, None)
        if task is None:
            return
        try:
            await self._spawn(task())  # in our context: the doer's own task may have any
        except Exception as error:  # noqa: BLE001  reported, never lost
            self._report(error)
        finally:
            # The doer's own task ends after this one, and its callbacks run one turn of the loop later.
            loop = get_running_loop()
            loop.call_soon(loop.call_soon, self._call_on_free)


def _accepts(function: Callable[..., object], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def check_whole(value: object, field: str, least: int = 1) -> int:
    """Return `value` if it is a whole number of at least `least`, else raise InputError."""
    if type(value) is not int or value < least:
        raise InputError.of(field, value, f"must be a whole number, {least} or more")
    return value
