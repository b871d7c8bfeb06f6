"""An event loop that owns time and chance.

Time jumps to the next timer as soon as nothing is ready; what is ready runs in an order drawn from the seed.
Every task belongs to the process in whose context it was made: a killed one's callbacks are dropped, as if
the machine had lost power between two of its steps; a paused one's are held back.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from contextvars import ContextVar
from typing import Any

STEPS = 400_000
"""More than any seed needs: a loop that goes on beyond it is stuck."""


class Process:
    """One process of the simulated fleet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused_until = 0.0
        self.skew = 0.0
        """By how much its wall clock is wrong."""

    def __repr__(self) -> str:
        return self.name


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Stuck(Exception):
    """Nothing can happen any more, or far too much does."""


class _Selector(selectors.BaseSelector):
    """No files: to select is to let time pass."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[number] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready, and no timer is set")
        if timeout > 0:
            self._loop.now += timeout
        return []

    def get_map(self) -> Any:
        return self._keys

    def close(self) -> None:
        self._keys.clear()


class SimLoop(asyncio.SelectorEventLoop):
    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.steps = 0
        self._rng = rng
        self._kept: list[asyncio.Task[Any]] = []
        super().__init__()
        real, self._selector = self._selector, _Selector(self)  # type: ignore[has-type]
        for key in list(real.get_map().values()):
            self._selector.register(key.fileobj, key.events, key.data)
        real.close()

    def time(self) -> float:
        return self.now

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **kwargs)
        # A task of a dead process never ends. The garbage collector would end it, at a moment of its own.
        self._kept.append(task)
        if len(self._kept) > 5000:
            self._kept = [task for task in self._kept if not task.done()]
        return task

    def unfinished(self) -> list[asyncio.Task[Any]]:
        return [task for task in self._kept if not task.done()]

    def _run_once(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            raise Stuck(f"more than {STEPS} steps")
        ready: Any = self._ready  # type: ignore[attr-defined]
        if ready:
            handles = [handle for handle in ready if self._may_run(handle)]
            if len(handles) > 1:
                self._rng.shuffle(handles)
            ready.clear()
            ready.extend(handles)
        super()._run_once()  # type: ignore[misc]

    def _may_run(self, handle: Any) -> bool:
        if handle._cancelled:
            return True
        process = handle._context.get(PROCESS)
        if process is None:
            return True
        if process.dead:
            return False
        if process.paused_until > self.now:
            self.call_at(process.paused_until, handle._callback, *handle._args, context=handle._context)
            return False
        return True


class SimClock:
    """The clock of one process: right about how long, wrong about what time it is."""

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
