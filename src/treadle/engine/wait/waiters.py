"""All items and groups that this process waits for, in one table.

Any number of awaited handles costs one subscription and one batched read, not a poll each. The first of these
answers a waiter:

- a settlement in this process, without I/O;
- a wake-up that names the item or group: one read for all that were named;
- the poll: one read for all that wait, less and less often while nothing ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from treadle.backend import Backend
from treadle.engine.hooks import Hooks
from treadle.engine.settings import Settings
from treadle.engine.tasks import Tasks
from treadle.engine.timers import first_of
from treadle.errors import NotFound, Stopped, StoreUnavailable
from treadle.item import GroupState, ItemState, Ref, Wake

T = TypeVar("T")

REMEMBERED = 1000
SLOWEST = 8
"""The poll slows down to once in this many intervals. The poll makes up for lost wake-ups."""


class WaiterTable(Generic[T]):
    """The futures that wait for items, or for groups."""

    __slots__ = ("expected", "futures", "unseen")

    def __init__(self) -> None:
        self.futures: dict[Ref, list[asyncio.Future[T]]] = {}
        self.unseen: set[Ref] = set()
        """Refs to read now: never read yet, or named by a wake-up."""
        self.expected: set[Ref] = set()
        """Refs that are being submitted: not to be read before they exist."""

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
            # A dict that was large once keeps its size until it is cleared.
            self.futures.clear()
            self.unseen.clear()
            self.expected.clear()

    def refs_to_read(self, *, everything: bool) -> list[Ref]:
        refs = [ref for ref in (self.futures if everything else self.unseen) if ref not in self.expected]
        self.unseen.difference_update(refs)
        return refs

    def answer(self, ref: Ref, value: T) -> None:
        self.unseen.discard(ref)
        for future in self.futures.pop(ref, ()):
            if not future.done():
                future.set_result(value)

    def fail(self, ref: Ref, error: Exception) -> None:
        self.unseen.discard(ref)
        for future in self.futures.pop(ref, ()):
            if not future.done():
                future.set_exception(error)

    def named(self, refs: tuple[Ref, ...]) -> None:
        """A wake-up names these refs."""
        self.unseen.update(ref for ref in refs if ref in self.futures)


class Waiters:
    def __init__(self, backend: Backend, settings: Settings, hooks: Hooks, tasks: Tasks) -> None:
        self._backend = backend
        self._clock = settings.clock
        self._hooks = hooks
        self._tasks = tasks
        self._interval = settings.poll_interval
        self._read_now = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._answered: dict[Ref, None] = {}
        """The refs that were answered last: this process did wait for them."""
        self.items: WaiterTable[ItemState] = WaiterTable()
        self.groups: WaiterTable[GroupState] = WaiterTable()

    def item(self, ref: Ref, *, expected: bool = False) -> asyncio.Future[ItemState]:
        """A future for the end of the item. expected: it is about to be submitted, see `confirm`."""
        return self._add(self.items, ref, expected)

    def group(self, ref: Ref, *, expected: bool = False) -> asyncio.Future[GroupState]:
        return self._add(self.groups, ref, expected)

    def confirm(self, ref: Ref) -> None:
        """An expected item has been submitted. A wake-up may have named it meanwhile."""
        self.items.expected.discard(ref)
        self.groups.expected.discard(ref)
        if ref in self.items.unseen or ref in self.groups.unseen:
            self._read_now.set()
        self._start()

    def _add(self, table: WaiterTable[T], ref: Ref, expected: bool) -> asyncio.Future[T]:
        future = table.add(ref, expected)
        if not expected:  # else there is nothing to read yet, and the submission comes first
            self._read_now.set()
            self._start()
        return future

    def _start(self) -> None:
        if self._reader is None and (self.items.futures or self.groups.futures):
            self._reader = self._tasks.start(self._run(), "wait")

    async def stop_if_unused(self) -> None:
        """A caller gave up waiting: if it was the last one, end the reader task."""
        if self._reader is None or self.items.futures or self.groups.futures:
            return
        reader, self._reader = self._reader, None
        reader.cancel()
        await asyncio.wait({reader})

    def close(self) -> None:
        """The store is not read any more: fail all that wait."""
        for table in (self.items, self.groups):
            for ref in list(table.futures):
                table.fail(ref, Stopped("the app"))
            table.expected.clear()
        self._read_now = asyncio.Event()  # an event belongs to one loop, and the app may open on another

    def receive(self, wake: Wake) -> None:
        """Read what the wake-up names, as far as this process waits for it."""
        if wake.everything:
            self.items.unseen.update(self.items.futures)
            self.groups.unseen.update(self.groups.futures)
        else:
            self.items.named(wake.items)
            self.groups.named(wake.items)
            self.groups.named(wake.groups)
        if self.items.unseen or self.groups.unseen:
            self._read_now.set()

    def waited(self, groups: tuple[Ref, ...]) -> list[Ref]:
        """Those of these groups that this process waits for, or for their roots, or did until just now."""
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
        """Read when a wake-up came, and poll, as long as there are waiters."""
        interval = self._interval
        try:
            while self.items.futures or self.groups.futures:
                named = await first_of(self._read_now, self._clock, interval)
                self._read_now.clear()
                answered = await self._read(
                    self.items.refs_to_read(everything=not named),
                    self.groups.refs_to_read(everything=not named),
                )
                interval = self._interval if answered else min(interval * 2, self._interval * SLOWEST)
        finally:
            if self._reader is asyncio.current_task():
                self._reader = None

    async def _read(self, items: list[Ref], groups: list[Ref]) -> bool:
        if not items and not groups:
            return False
        try:
            ended = await self._backend.ended(items, groups)
        except Exception as error:  # noqa: BLE001  after any error: waiters must not wait for ever
            if not isinstance(error, StoreUnavailable) and len(items) + len(groups) > 1:
                return await self._read_apart(items, groups)
            self._hooks.report(error, "signal", "could not read the items that are waited for; will retry")
            return False
        self._hooks.outage.answered("signal")
        for ref, item in ended.items.items():
            self.answer_item(ref, item)
        for ref, group in ended.groups.items():
            self.answer_group(ref, group)
        for ref in ended.missing:
            self.items.fail(ref, NotFound(ref[1]))
            self.groups.fail(ref, NotFound(ref[1]))
        return bool(ended.items or ended.groups)

    async def _read_apart(self, items: list[Ref], groups: list[Ref]) -> bool:
        """The store may have refused one of these: read them in halves, so that the others are answered."""
        n, m = (len(items) + 1) // 2, len(groups) // 2
        parts = [(items[:n], groups[:m]), (items[n:], groups[m:])]
        return any([await self._read(some_items, some_groups) for some_items, some_groups in parts])


async def within(future: asyncio.Future[T], timeout: float | None, late: Callable[[], Exception]) -> T:
    """Wait for the future. After `timeout` seconds, raise the error that `late` makes."""
    if timeout is None:
        return await future
    try:
        async with asyncio.timeout(timeout):
            return await future
    except TimeoutError:
        if future.done() and not future.cancelled():
            raise
        raise late() from None
