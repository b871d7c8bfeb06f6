"""Helpers of the engine's tests: recorded events, a barrier inside handlers, and a fixed random source."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from treadle import Handle, ItemState, Retry, Treadle, Work, WorkFailed
from treadle.backend import Backend
from treadle.events import Event, ItemEvent
from treadle.testing import ManualClock

E = TypeVar("E")

MakeApp = Callable[..., Treadle]
MakeBackend = Callable[[], Backend]

PATIENCE = 30.0
"""Seconds. Every step here takes much less, so a test that waits this long has failed."""

AT_ONCE = Retry(base=0, jitter=0)
"""Retries without a delay."""


class Steady(random.Random):
    """A random source that always draws the same number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


class Barrier:
    """Stops handlers. `wait()` reports that a handler has started, and blocks it until the test sets `go`."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.count = 0

    async def wait(self) -> None:
        self.count += 1
        self.started.set()
        await self.go.wait()

    async def reached(self) -> None:
        """Return when a handler has started."""
        async with asyncio.timeout(PATIENCE):
            await self.started.wait()


class Seen:
    """An `on_event` hook that records events. Tests can wait for an event."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def names(self, id: str | None = None) -> list[str]:
        """The class names of the item events in order. With `id`, only the events of that item."""
        return [
            type(event).__name__
            for event in self.events
            if isinstance(event, ItemEvent) and id in (None, event.id)
        ]

    def of(self, cls: type[E], id: str | None = None) -> list[E]:
        return [
            event
            for event in self.events
            if isinstance(event, cls) and (id is None or getattr(event, "id", None) == id)
        ]

    async def until(self, cls: type[E], id: str | None = None, count: int = 1) -> E:
        """Wait for event number `count` of this class. With `id`, only events of that item count."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.of(cls, id)) < count:
                self._changed.clear()
                await self._changed.wait()
        return found[count - 1]


class Errors:
    """An `on_error` hook that records errors. Tests can wait for a phase."""

    def __init__(self) -> None:
        self.seen: list[tuple[BaseException, str]] = []
        self._changed = asyncio.Event()

    def __call__(self, error: BaseException, phase: str) -> None:
        self.seen.append((error, phase))
        self._changed.set()

    def phases(self) -> list[str]:
        return [phase for _, phase in self.seen]

    def of(self, phase: str) -> list[BaseException]:
        return [error for error, each in self.seen if each == phase]

    async def until(self, phase: str) -> BaseException:
        async with asyncio.timeout(PATIENCE):
            while phase not in self.phases():
                self._changed.clear()
                await self._changed.wait()
        return next(error for error, each in self.seen if each == phase)


async def until_status(app: Treadle, id: str, *statuses: str) -> ItemState:
    """Return the item when it has one of these statuses. For changes that have no event."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (state,) = await app.get([id])
            if state is not None and state.status in statuses:
                return state
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition is true. For changes that have no event."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  the condition has no event to wait for
            await asyncio.sleep(0.005)


def class_path(error: BaseException) -> str:
    """The name under which the class of an error is stored."""
    module, name = type(error).__module__, type(error).__qualname__
    return name if module == "builtins" or module.startswith("treadle") else f"{module}.{name}"


async def advance_alive(app: Treadle, clock: ManualClock, by: float) -> None:
    """Move the clock in steps. After each the worker of the app renews its lease, so it loses no item.

    A single `clock.advance` over the lease is a suspended machine: a claim that is under way then finds that
    its worker is dead.
    """
    runtime = app.worker._runtime
    assert runtime is not None
    while by > 0:
        await clock.advance(step := min(by, app._core.settings.lease / 10))
        by -= step
        async with asyncio.timeout(PATIENCE):
            await runtime.loops._heartbeat.beat()


async def expire_running(
    app: Treadle, make: Callable[[], Work[Any, Any]], began: Callable[[], object]
) -> tuple[Handle[Any, Any], WorkFailed]:
    """Enqueue it with a deadline that passes while its handler runs, and return how it failed.

    began: whether the handler has begun. A busy machine may begin it only after the deadline. Then another
    one is tried with a later deadline.
    """
    for expires_in in (0.1, 0.4, 4.0):
        handle = await app.enqueue(make(), expires_in=expires_in)
        error = await failure(handle.result(PATIENCE))
        assert error.reason == "expired"
        if began():
            return handle, error
    raise AssertionError("the handler did not begin before its deadline")


async def failure(awaitable: Any) -> WorkFailed:
    """Return the WorkFailed that awaiting this raises."""
    try:
        value = await awaitable
    except WorkFailed as error:
        return error
    raise AssertionError(f"expected WorkFailed, got the value {value!r}")


@contextlib.contextmanager
def no_new_tasks() -> Iterator[None]:
    """Check that the block leaves no asyncio task behind."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not left, left
