"""One table of everything this process waits for.

n awaited handles cost one subscription and one batched look, not n polls. A waiter is answered by the first
of: the settlement in this very process (no I/O), a wake that names it (one look for all that were named),
the poll (one look for all that wait, less and less often while nothing comes).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from treadle.backend import Backend
from treadle.clock import Clock
from treadle.engine.hooks import Hooks
from treadle.engine.tasks import Tasks
from treadle.engine.timers import first_of
from treadle.errors import NotFound, Stopped
from treadle.item import GroupState, ItemState, Ref, Wake

T = TypeVar("T")

REMEMBERED = 1000
SLOWEST = 8
"""The poll slows down to every so many intervals: signals do the work, it is only the net."""


class WaiterTable(Generic[T]):
    """The futures that wait for items, or for groups."""

    __slots__ = ("expected", "futures", "unseen")

    def __init__(self) -> None:
        self.futures: dict[Ref, list[asyncio.Future[T]]] = {}
        self.unseen: set[Ref] = set()
        """Refs to look at now: never looked at yet, or named by a wake."""
        self.expected: set[Ref] = set()
        """Refs that are being submitted: not to be looked at before they exist."""

    def add(self, ref: Ref, expected: bool) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.futures.setdefault(ref, []).append(future)
        (self.expected if expected else self.unseen).add(ref)
        return future

    def discard(self, ref: Ref, future: asyncio.Future[T]) -> None:
        futures = self.futures.get(ref)
        if futures is not None:
            if future in futures:
                futures.remove(future)
            if futures:
                return
            del self.futures[ref]
            self.unseen.discard(ref)
        self.expected.discard(ref)
        if not self.futures:
            # Tables that were large once keep their size until they are cleared.
            self.futures.clear()
            self.unseen.clear()
            self.expected.clear()

    def chosen(self, *, everything: bool) -> list[Ref]:
        """What to look at now."""
        refs = [ref for ref in (self.futures if everything else self.unseen) if ref not in self.expected]
        self.unseen.difference_update(refs)
        return refs

    def answer(self, ref: Ref, value: T) -> None:
        self.unseen.discard(ref)
        for future in self.futures.pop(ref, ()):
            if not future.done():
                future.set_result(value)

    def refuse(self, ref: Ref, error: Exception) -> None:
        self.unseen.discard(ref)
        for future in self.futures.pop(ref, ()):
            if not future.done():
                future.set_exception(error)

    def refuse_all(self, error: Callable[[], Exception]) -> None:
        for ref in list(self.futures):
            self.refuse(ref, error())
        self.expected.clear()

    def named(self, refs: tuple[Ref, ...]) -> None:
        self.unseen.update(ref for ref in refs if ref in self.futures)


class Waiters:
    def __init__(
        self, backend: Backend, clock: Clock, hooks: Hooks, tasks: Tasks, poll_interval: float
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._hooks = hooks
        self._tasks = tasks
        self._interval = poll_interval
        self._look = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._answered: dict[Ref, None] = {}
        """The refs that were answered last: somebody did wait for them."""
        self.items: WaiterTable[ItemState] = WaiterTable()
        self.groups: WaiterTable[GroupState] = WaiterTable()

    def item(self, ref: Ref, *, expected: bool = False) -> asyncio.Future[ItemState]:
        """Resolves when the item has ended. `expected`: it is about to be submitted, see `confirm`."""
        return self._add(self.items, ref, expected)

    def group(self, ref: Ref, *, expected: bool = False) -> asyncio.Future[GroupState]:
        return self._add(self.groups, ref, expected)

    def confirm(self, ref: Ref) -> None:
        """What was expected has been submitted. A wake may have named it meanwhile."""
        self.items.expected.discard(ref)
        self.groups.expected.discard(ref)
        if ref in self.items.unseen or ref in self.groups.unseen:
            self._look.set()
        self._start()

    def _add(self, waiting: WaiterTable[T], ref: Ref, expected: bool) -> asyncio.Future[T]:
        future = waiting.add(ref, expected)
        if not expected:  # else there is nothing to look at yet, and the submission comes first
            self._look.set()
            self._start()
        return future

    def _start(self) -> None:
        if self._looking is None and (self.items.futures or self.groups.futures):
            self._looking = self._tasks.start(self._run(), "wait")

    async def rest(self) -> None:
        """Someone gave up waiting: leave no task behind if it was the last one."""
        if self._looking is None or self.items.futures or self.groups.futures:
            return
        looking, self._looking = self._looking, None
        looking.cancel()
        await asyncio.wait({looking})

    def close(self) -> None:
        """Nobody will look any more: whoever still waits is told."""
        for waiting in (self.items, self.groups):
            waiting.refuse_all(lambda: Stopped("the app"))

    def receive(self, wake: Wake) -> None:
        """A wake from anywhere: look at what it names, if someone here waits for it."""
        if wake.everything:
            self.items.unseen.update(self.items.futures)
            self.groups.unseen.update(self.groups.futures)
        else:
            self.items.named(wake.items)
            self.groups.named(wake.items)
            self.groups.named(wake.groups)
        if self.items.unseen or self.groups.unseen:
            self._look.set()

    def waited(self, groups: tuple[Ref, ...]) -> list[Ref]:
        """Which of these groups, or of their roots, somebody here waits for, or did until just now."""
        tables = (self.groups.futures, self.items.futures, self._answered)
        return [ref for ref in groups if any(ref in table for table in tables)]

    def answer_item(self, ref: Ref, state: ItemState) -> None:
        self._remember(ref)
        self.items.answer(ref, state)

    def answer_group(self, ref: Ref, group: GroupState) -> None:
        self._remember(ref)
        self.groups.answer(ref, group)

    def _remember(self, ref: Ref) -> None:
        self._answered[ref] = None
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]

    async def _run(self) -> None:
        """Look whenever there is a reason to, and poll, for as long as anybody waits."""
        interval = self._interval
        try:
            while self.items.futures or self.groups.futures:
                named = await first_of(self._look, self._clock, interval)
                self._look.clear()
                answered = await self._look_at(
                    self.items.chosen(everything=not named), self.groups.chosen(everything=not named)
                )
                interval = self._interval if answered else min(interval * 2, self._interval * SLOWEST)
        finally:
            if self._looking is asyncio.current_task():
                self._looking = None

    async def _look_at(self, items: list[Ref], groups: list[Ref]) -> bool:
        if not items and not groups:
            return False
        try:
            ended = await self._backend.ended(items, groups)
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait must not do so for ever
            self._hooks.report(error, "signal", "could not look at what is waited for; will again")
            return False
        for ref, item in ended.items.items():
            self.answer_item(ref, item)
        for ref, group in ended.groups.items():
            self.answer_group(ref, group)
        for ref in ended.missing:
            self._refuse(ref)
        return bool(ended.items or ended.groups)

    def _refuse(self, ref: Ref) -> None:
        self.items.refuse(ref, NotFound(ref[1]))
        self.groups.refuse(ref, NotFound(ref[1]))


async def within(future: asyncio.Future[T], timeout: float | None, late: Callable[[], Exception]) -> T:
    """The future's value, or the error that `late` makes once `timeout` seconds have passed."""
    if timeout is None:
        return await future
    try:
        async with asyncio.timeout(timeout):
            return await future
    except TimeoutError:
        if future.done() and not future.cancelled():
            raise
        raise late() from None
