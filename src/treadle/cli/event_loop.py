"""Event loop: which one a worker process runs on."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoop(enum.StrEnum):
    auto = "auto"
    """uvloop if it is installed, otherwise asyncio."""
    asyncio = "asyncio"
    uvloop = "uvloop"


def chosen_loop(wanted: EventLoop) -> EventLoop | None:
    """The event loop to use: `asyncio` or `uvloop`. None: it is not installed."""
    if wanted is EventLoop.asyncio:
        return wanted
    if find_spec("uvloop") is not None:
        return EventLoop.uvloop
    return EventLoop.asyncio if wanted is EventLoop.auto else None


def run_on(loop: str, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop of this name, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=_factory(loop)) as runner:
        return runner.run(main)


def _factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if loop != EventLoop.uvloop:
        return None
    # Not an import statement: uvloop is no dependency, and type checkers need not find it.
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
