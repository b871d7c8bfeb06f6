"""Calls: how a coroutine has something done by a database thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from .tx import Tx

Verb: TypeAlias = Callable[[Tx], Any]


class Call:
    """A verb to be carried out, and who waits for the answer.

    It is carried out even if nobody waits any more: cancelling the waiter says nothing about the verb.
    """

    __slots__ = ("_error", "_future", "_loop", "_result", "urgent", "verb")

    def __init__(self, verb: Verb, *, urgent: bool = False) -> None:
        self.verb = verb
        self.urgent = urgent
        """Goes before others that wait at the same time."""
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self._result: Any = None
        self._error: BaseException | None = None

    def __await__(self) -> Any:
        return self._future.__await__()

    def succeed(self, result: Any) -> None:
        """Note the result. It is answered by `answer`: after the commit."""
        self._result, self._error = result, None

    def fail(self, error: BaseException) -> None:
        self._error = error

    def _resolve(self) -> None:
        if self._future.done():
            return
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)

    @staticmethod
    def answer(calls: Iterable[Call]) -> None:
        """Wake whoever waits for these; from any thread."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
        for call in calls:
            by_loop.setdefault(call._loop, []).append(call)
        for loop, theirs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve_all, theirs)
            except RuntimeError:
                # The loop is closed: nobody waits any more.
                continue


def _resolve_all(calls: list[Call]) -> None:
    for call in calls:
        call._resolve()  # pyright: ignore[reportPrivateUsage]


class _Sign:
    """Something in an inbox that is not a call."""


_END = _Sign()
_NUDGE = _Sign()


class Inbox:
    """Calls that wait for a thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Call | _Sign] = SimpleQueue()

    def put(self, call: Call) -> Call:
        self._queue.put(call)
        return call

    def close(self) -> None:
        """What was put before is still done; then `get` says that there is no more."""
        self._queue.put(_END)

    def nudge(self) -> None:
        """Make a `get` that waits time out."""
        self._queue.put(_NUDGE)

    def get(self, timeout: float | None = None) -> Call | None:
        """The next call; None at the end. `TimeoutError` if none came in time."""
        try:
            found = self._queue.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None
        if found is _NUDGE:
            raise TimeoutError
        return found if isinstance(found, Call) else None

    def waiting(self, most: int) -> list[Call]:
        """The calls that wait now, the urgent ones first. An end stays in the box for the next `get`."""
        found: list[Call] = []
        while len(found) < most:
            try:
                call = self._queue.get_nowait()
            except Empty:
                break
            if not isinstance(call, Call):
                self._queue.put(call)
                break
            found.append(call)
        return sorted(found, key=lambda call: not call.urgent)

    def empty(self) -> bool:
        return self._queue.empty()
