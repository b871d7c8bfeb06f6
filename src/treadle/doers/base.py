"""What a doer is, what the engine asks of one, and how a doer of one's own gets there.

A doer decides when work that was claimed starts. Users write a `Doer`: three methods. The engine
works with a `BaseDoer`, which also reports errors and free slots and hands back what never started;
`managed()` makes one of any `Doer`. All of it happens on one event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from asyncio import current_task, get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any, Final, Protocol, TypeAlias, cast

from treadle.clock import Clock
from treadle.errors import InputError
from treadle.item import PermitReply, PermitRequest, Ref

Task: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""One attempt, not begun: called once, when it may start, and awaited to its end."""

OnError: TypeAlias = Callable[[Exception], None]
OnFree: TypeAlias = Callable[[], None]

_LOGGER: Final = logging.getLogger("treadle")
_NOWHERE: Final[frozenset[Ref]] = frozenset()


class Doer(Protocol):
    """Decides when claimed work starts. It may also have `on_free(callback)`, and call it when there
    is room again; the end of a task is noticed without it. `submit` may also take `tenant`.
    """

    def available(self) -> int:
        """How many more may be handed over now. Asked before every claim: it must be quick."""
        ...

    def submit(self, task: Task, *, lane: str, priority: int, queued_at: float) -> None:
        """Start `task()` as an asyncio task, now or when its turn comes, and keep hold of it. Never
        blocks. It must not refuse what `available` offered; if it raises, the work goes back.
        """
        ...

    async def idle(self) -> None:
        """Return when nothing runs or waits."""
        ...


class Permits(Protocol):
    """Where limits of the whole fleet are kept: every backend is one."""

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]: ...

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None: ...


class BaseDoer(ABC):
    """A doer as the engine knows it. One that holds nothing back needs `available` and `submit` only."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None] | None] = set()
        self._on_error: list[OnError] = []
        self._on_free: list[OnFree] = []
        self._context = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it was bound. To ask for the running loop takes a system call: for every task."""

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
        """See `Doer.submit`. `place`: before or after which others the store handed it out. Lines in which
        age decides among equals go by that, if it is known: the store lets tenants and lanes take turns.
        """

    async def idle(self) -> None:
        """Return when nothing runs or waits."""
        while self._running:
            await asyncio.wait(cast("set[asyncio.Task[None]]", self._running))
            # A task that the loop cancelled before its first step had no chance to sign off.
            self._running = {task for task in self._running if task is not None and not task.done()}

    def cancel_pending(self) -> list[Task]:
        """Forget the tasks that have not started, and give them back: the very objects submitted."""
        return []

    def avoid(self) -> frozenset[Ref]:
        """Lanes, as (tenant, lane), that had better not be claimed from now: a limit is reached."""
        return _NOWHERE

    def bind(self, permits: Permits, clock: Clock, worker: str, name: str = "app") -> None:
        """Say where fleet-wide limits are kept, before the first submit. `name` tells the limits of
        one doer from those of another, and is the same in every process: the work type's, or `app`.
        A doer of several types is bound by the first; a doer serves one worker at a time.

        Tasks run in the context of whoever calls this: one that starts because another has ended must
        not inherit what that one has set.
        """
        self._context = copy_context()
        self._loop = get_running_loop()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        loop = self._loop or get_running_loop()
        return loop.create_task(coroutine, context=self._context.copy())

    async def close(self) -> None:
        """The worker is done with it: forget its callbacks, stop what is under way with the store. Tasks
        that run are left alone. It may be bound again.
        """
        self._on_error.clear()
        self._on_free.clear()

    def on_error(self, callback: OnError) -> None:
        """Tell `callback` of what a task raised, or a store. Without one it is logged."""
        if callback not in self._on_error:
            self._on_error.append(callback)

    def on_free(self, callback: OnFree) -> None:
        """Call `callback`, on the loop, whenever there is room where there was none."""
        if callback not in self._on_free:
            self._on_free.append(callback)

    async def _run(self, task: Task) -> None:
        # Signing off in here and not in a done callback saves a turn of the loop for every task.
        try:
            await task()
        except Exception as error:  # noqa: BLE001  reported, never lost
            self._report(error)
        finally:
            self._running.discard(current_task(self._loop))

    def _report(self, error: Exception) -> None:
        if not self._on_error:
            _LOGGER.error("a task of %s failed", type(self).__name__, exc_info=error)
        for callback in self._on_error:
            try:
                callback(error)
            except Exception:
                _LOGGER.exception("on_error of %s failed", type(self).__name__)

    def _tell_free(self) -> None:
        for callback in self._on_free:
            try:
                callback()
            except Exception as error:  # noqa: BLE001  a hook must not stop the doer
                self._report(error)


def managed(doer: Doer) -> BaseDoer:
    """`doer` as the engine works with it: itself if it is one of ours, else wrapped.

    Wrap once and keep it: two wrappers of one doer do not know of each other.
    """
    return doer if isinstance(doer, BaseDoer) else AdaptedDoer(doer)


class AdaptedDoer(BaseDoer):
    """A doer of the user's own. Whatever it is given reports its own beginning and end."""

    def __init__(self, doer: Doer) -> None:
        super().__init__()
        for method in ("available", "submit", "idle"):
            if not callable(getattr(doer, method, None)):
                raise InputError.of("doer", doer, f"has no method {method}: see treadle.doers.Doer")
        self.doer = doer
        self._pending: dict[_Handed, None] = {}
        self._wants_tenant = _accepts(doer.submit, "tenant")
        forward = getattr(doer, "on_free", None)
        if callable(forward):
            forward(self._tell_free)

    def available(self) -> int:
        return self.doer.available()

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
        handed = _Handed(self, task)
        self._pending[handed] = None
        extra: dict[str, Any] = {"tenant": tenant} if self._wants_tenant else {}
        try:
            self.doer.submit(handed, lane=lane, priority=priority, queued_at=queued_at, **extra)
        except BaseException:
            self._pending.pop(handed, None)
            raise

    async def idle(self) -> None:
        await self.doer.idle()

    def cancel_pending(self) -> list[Task]:
        # They may still be called one day: `start` finds them gone from here and does nothing.
        tasks = [handed.task for handed in self._pending]
        self._pending.clear()
        return tasks

    async def start(self, handed: _Handed) -> None:
        if handed not in self._pending:
            return
        del self._pending[handed]
        try:
            await self._spawn(handed.task())  # the doer's own task may inherit anything
        except Exception as error:  # noqa: BLE001  reported, never lost
            self._report(error)
        finally:
            # The doer's own task ends after this one, and its callbacks run a turn later: tell after those.
            loop = get_running_loop()
            loop.call_soon(loop.call_soon, self._tell_free)


class _Handed:
    """A task on its way through a doer that is not ours."""

    __slots__ = ("_owner", "task")

    def __init__(self, owner: AdaptedDoer, task: Task) -> None:
        self._owner = owner
        self.task = task

    def __call__(self) -> Coroutine[Any, Any, None]:
        return self._owner.start(self)


def _accepts(function: Callable[..., object], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def whole(value: object, field: str, least: int = 1) -> int:
    """`value` if it is a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise InputError.of(field, value, f"must be a whole number, {least} or more")
    return value
