"""Interrupt: how a handler learns that going on is pointless.

It is made lazily in all its parts, since almost no handler looks at it: until someone waits, it is
one attribute.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Any, Literal, TypeAlias

from .errors import LeaseLost

InterruptReason: TypeAlias = Literal[
    "taken",  # the lease was lost: another worker may be running the item
    "completed",  # an operator completed it
    "not_found",  # it was deleted
    "cancelled",
    "deadline",  # its whole life ran longer than it may
    "stopping",  # this worker is shutting down
    "error",  # the engine itself failed
]


class Interrupt:
    """Set once, with a reason, when this attempt should end.

    Async handlers may `await ctx.interrupt` (it gives the reason); those in threads may `wait()`.
    Either may look at `ctx.interrupt.reason`, or call `raise_if_set()` now and then.
    """

    __slots__ = ("_event", "_item_id", "_waiters", "reason")

    def __init__(self, item_id: str = "") -> None:
        self.reason: InterruptReason | None = None
        self._item_id = item_id
        self._waiters: list[asyncio.Future[InterruptReason]] | None = None
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self.reason is not None

    __bool__ = is_set

    def raise_if_set(self) -> None:
        """Raise `LeaseLost`, with the reason, if this attempt should end."""
        if self.reason is not None:
            raise LeaseLost(self._item_id, self.reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set; False if `timeout` seconds passed first. Not for use on
        the event loop.
        """
        if self._event is None:
            self._event = threading.Event()
        # The event must be in place before the reason is looked at: `set` does it the other way round.
        return self.reason is not None or self._event.wait(timeout)

    def __await__(self) -> Generator[Any, None, InterruptReason]:
        if self.reason is not None:
            return self.reason
        future: asyncio.Future[InterruptReason] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(future)
        return (yield from future)

    def set(self, reason: InterruptReason) -> bool:
        """For the engine, on its event loop. The first reason stays; False if there was one."""
        if self.reason is not None:
            return False
        self.reason = reason
        if self._event is not None:
            self._event.set()
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(reason)
        return True

    def __repr__(self) -> str:
        return f"<Interrupt {self.reason or 'not set'}>"
