"""An event loop with virtual time.

When no callback is ready, time jumps to the next timer. Ready callbacks run in an order drawn from the seed.
Every task belongs to the process in whose context it was created. The callbacks of a killed process are
dropped, as if the machine had lost power between two steps. The callbacks of a paused process are delayed.
The functions of an executor run at once. `threads` has the threads of handlers.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from contextvars import Context, ContextVar
from heapq import heappop, heappush
from itertools import count
from typing import Any

STEPS = 400_000
"""More than any seed needs. A loop with more steps is stuck."""


class Process:
    """One process of the simulated fleet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.died_at = 0.0
        """When it died, by the store's clock."""
        self.paused_until = 0.0
        self.was_paused = False
        self.stopping = False
        """It was asked to stop."""
        self.stopped = False
        self.kind = 0
        """Which of the fleet's kinds of workers it runs."""
        self.skew = 0.0
        """The error of its wall clock, in seconds."""

    def __repr__(self) -> str:
        return self.name


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Stuck(Exception):
    """No callback is left to run, or there are too many steps."""


class _NoFiles(selectors.BaseSelector):
    """A selector without I/O. The loop registers its own pipe, which is never read."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[number] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[Any]:
        return []

    def get_map(self) -> Any:
        return self._keys

    def close(self) -> None:
        self._keys.clear()


class SimLoop(asyncio.SelectorEventLoop):
    _ready: Any
    _stopping: bool

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.steps = 0
        self.threads: list[Any] = []
        """Simulated threads that have not ended."""
        self._draw = rng.random
        self.violation: Callable[[], BaseException | None] = lambda: None
        """Called after every iteration. An exception that it returns ends the run."""
        self._kept: list[tuple[asyncio.Task[Any], Process | None]] = []
        self._timers: list[tuple[float, int, Any]] = []
        self._numbers = count()
        super().__init__()
        real, self._selector = self._selector, _NoFiles()  # type: ignore[has-type]
        for key in list(real.get_map().values()):
            self._selector.register(key.fileobj, key.events, key.data)
        real.close()

    def time(self) -> float:
        return self.now

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **kwargs)
        # A task of a dead process never ends. Without this reference the garbage collector would end it at a
        # moment that is not deterministic.
        context = kwargs.get("context")
        self._kept.append((task, PROCESS.get() if context is None else context.get(PROCESS)))
        if len(self._kept) > 5000:
            self._kept = [(task, process) for task, process in self._kept if not task.done()]
        return task

    # Most of the time is spent in the next three methods and in `_run_once`, so they do few checks.

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        self.call_soon(_resolve, future, func(*args))
        return future

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when they are due."""

    def unfinished(self) -> list[asyncio.Task[Any]]:
        return [task for task, _ in self._kept if not task.done()]

    def left_by(self, process: Process) -> list[asyncio.Task[Any]]:
        """The tasks of a process that have not ended."""
        return [task for task, owner in self._kept if owner is process and not task.done()]

    def _run_once(self) -> None:
        """One iteration: run the ready callbacks in a random order. Only timers are waited for."""
        self.steps += 1
        if self.steps > STEPS:
            raise Stuck(f"more than {STEPS} steps")
        self._advance_time()
        ready = self._ready
        if len(ready) == 1:  # as in most iterations
            handle = ready.popleft()
            if not handle._cancelled and self._may_run(handle):
                handle._run()
        else:
            self._run_ready(ready)
        if (violation := self.violation()) is not None:
            raise violation

    def _run_ready(self, ready: Any) -> None:
        may_run = self._may_run
        handles = [handle for handle in ready if not handle._cancelled and may_run(handle)]
        ready.clear()
        if len(handles) > 1:
            draw = self._draw
            handles.sort(key=lambda _: draw())
        for handle in handles:
            if not handle._cancelled:
                handle._run()

    def _advance_time(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise Stuck("no callback is ready and no timer is set")
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            ready.append(heappop(timers)[2])

    def _may_run(self, handle: Any) -> bool:
        process = handle._context.get(PROCESS)
        if process is None:
            return True
        if process.dead:
            return False
        if process.paused_until > self.now:
            self.call_at(process.paused_until, handle._callback, *handle._args, context=handle._context)
            return False
        return True


def _resolve(future: Any, result: Any) -> None:
    if not future.done():
        future.set_result(result)


class SimClock:
    """The clock of one process: durations are right, the time of day may be wrong."""

    def __init__(self, loop: SimLoop, process: Process | None = None) -> None:
        self._loop = loop
        self._process = process
        self.jumped = 0.0

    def now(self) -> float:
        skew = 0.0 if self._process is None else self._process.skew
        return 1_700_000_000.0 + self._loop.now + skew + self.jumped

    def monotonic(self) -> float:
        return self._loop.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
