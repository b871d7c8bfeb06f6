"""All items and groups that this process waits for, in one table.

Any number of awaited handles costs one subscription and one batched read, not a poll each. The first of these
answers a waiter:

- a settlement in this process, without I/O;
- a wake-up that has the result in it, if it is known which item that is: without I/O;
- a wake-up that names the item or group: one read for all that were named;
- the poll: one read for all that wait, less and less often while nothing ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import Final, Generic, TypeVar

from treadle.backend import Backend
from treadle.base.timing import Clock
from treadle.base.wording import duration, plain
from treadle.engine.hooks import Hooks
from treadle.engine.registry import Registry
from treadle.engine.settings import Settings
from treadle.engine.tasks import Tasks
from treadle.engine.timers import first_of
from treadle.errors import NotFound, Stopped, StoreUnavailable, TreadleError
from treadle.item import TERMINAL, GroupState, ItemState, Ref, Wake, WakeResult
from treadle.logs.lines import WARNING, log_line
from treadle.store.fleet import Fleet

T = TypeVar("T")

REMEMBERED = 1000
"""Answered refs that are known at least. At most twice as many are."""
LATELY = 60.0
"""Seconds after its last wait for which a process will probably wait again."""
SLOWEST = 8
"""The poll slows down to once in this many intervals. The poll makes up for lost wake-ups."""


class WaiterTable(Generic[T]):
    """The futures that wait for items, or for groups."""

    __slots__ = ("expected", "futures", "queued_at", "unseen")

    def __init__(self) -> None:
        self.futures: dict[Ref, list[asyncio.Future[T]]] = {}
        self.unseen: set[Ref] = set()
        """Refs to read now: never read yet, or named by a wake-up."""
        self.expected: set[Ref] = set()
        """Refs that are being submitted: not to be read before they exist."""
        self.queued_at: dict[Ref, float] = {}
        """When the item was stored, as far as that is known."""

    def add(self, ref: Ref, expected: bool) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.futures.setdefault(ref, []).append(future)
        (self.expected if expected else self.unseen).add(ref)
        return future

    def discard(self, ref: Ref, future: asyncio.Future[T]) -> None:
        """Its waiter has given up."""
        futures = self.futures.get(ref, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._remove(ref)

    def _remove(self, ref: Ref) -> list[asyncio.Future[T]]:
        """Forget a ref. Returns its futures."""
        futures = self.futures.pop(ref, [])
        self.unseen.discard(ref)
        self.queued_at.pop(ref, None)
        self.expected.discard(ref)
        if not self.futures:
            # A dict that was large once keeps its size until it is cleared.
            self.futures.clear()
            self.unseen.clear()
            self.expected.clear()
            self.queued_at.clear()
        return futures

    def refs_to_read(self, *, everything: bool) -> list[Ref]:
        refs = [ref for ref in (self.futures if everything else self.unseen) if ref not in self.expected]
        self.unseen.difference_update(refs)
        return refs

    def answer(self, ref: Ref, value: T) -> None:
        for future in self._remove(ref):
            if not future.done():
                future.set_result(value)

    def fail(self, ref: Ref, error: Exception) -> None:
        for future in self._remove(ref):
            if not future.done():
                future.set_exception(error)

    def named(self, refs: tuple[Ref, ...]) -> None:
        """A wake-up names these refs."""
        self.unseen.update(ref for ref in refs if ref in self.futures)


class Waiters:
    """notice: is told at each poll what is waited for. unannounced: groups whose end is announced soon; then
    they are read again."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        hooks: Hooks,
        tasks: Tasks,
        notice: NoWorkerNotice,
        unannounced: Container[Ref],
    ) -> None:
        self._backend = backend
        self._unannounced = unannounced
        self._notice = notice
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
        self._waited_at = -LATELY

    def waits(self) -> bool:
        """Whether this process waits for something, or did lately."""
        return bool(
            self.items.futures or self.groups.futures or self._clock.monotonic() - self._waited_at < LATELY
        )

    def item(self, ref: Ref, *, expected: bool = False, queued_at: float = 0.0) -> asyncio.Future[ItemState]:
        """A future for the end of the item. expected: it is about to be submitted, see `confirm`. queued_at:
        when it was stored; 0: unknown."""
        return self._add(self.items, ref, expected, queued_at)

    def group(
        self, ref: Ref, *, expected: bool = False, queued_at: float = 0.0
    ) -> asyncio.Future[GroupState]:
        """The same for a group. queued_at: when its root was stored."""
        return self._add(self.groups, ref, expected, queued_at)

    def confirm(self, ref: Ref, queued_at: float = 0.0) -> None:
        """An expected item has been submitted. A wake-up may have named it meanwhile."""
        for table in (self.items, self.groups):
            table.expected.discard(ref)
            if queued_at and ref in table.futures:
                table.queued_at[ref] = queued_at
        if ref in self.items.unseen or ref in self.groups.unseen:
            self._read_now.set()
        self._start()

    def _add(self, table: WaiterTable[T], ref: Ref, expected: bool, queued_at: float) -> asyncio.Future[T]:
        self._waited_at = self._clock.monotonic()
        future = table.add(ref, expected)
        if queued_at:
            table.queued_at[ref] = queued_at
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
        """Answer what the wake-up has the results of, and read what else it names, as far as this process
        waits for it."""
        if wake.results:
            self._answer(wake)
        if wake.everything:
            self.items.unseen.update(self.items.futures)
            self.groups.unseen.update(self.groups.futures)
        else:
            self.items.named(wake.items)
            self.groups.named(wake.items)
            self.groups.named(wake.groups)
        if self.items.unseen or self.groups.unseen:
            self._read_now.set()

    def _answer(self, wake: Wake) -> None:
        """Only for items whose time is known: the id may have been used for an earlier one too."""
        items, groups = self.items.queued_at, self.groups.queued_at
        if not items and not groups:
            return
        for ref, result in zip(wake.items, wake.results, strict=False):
            if result is None:
                continue
            if items.get(ref) == result.queued_at:
                self.answer_item(ref, _succeeded(ref, result))
            if result.ends_group and groups and groups.get(ref) == result.queued_at:
                self.answer_group(ref, _ended_group(ref, result))

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
        if len(self._answered) > 2 * REMEMBERED:
            # Not one by one: finding the first key of a dict takes longer the more were removed before it.
            self._answered = dict.fromkeys(list(self._answered)[REMEMBERED:])

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
                if not named:
                    await self._notice.look(self.items.futures or self.groups.futures)
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
        if self._hooks.outage.since is not None:
            self._hooks.outage.answered("signal")
        for ref, item in ended.items.items():
            self.answer_item(ref, item)
        for ref, group in ended.groups.items():
            if ref not in self._unannounced:
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


def _succeeded(ref: Ref, result: WakeResult) -> ItemState:
    tenant, id = ref
    return ItemState(
        id=id,
        type=result.type,
        status="success",
        tenant=tenant,
        result=result.result,
        queued_at=result.queued_at,
    )


def _ended_group(ref: Ref, result: WakeResult) -> GroupState:
    tenant, id = ref
    return GroupState(id=id, tenant=tenant, type=result.type, open=0, value=result.result, contributed=True)


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


SLOW: Final = 2.0
"""Seconds of waiting after which the workers are read."""
SOON: Final = 15.0
"""Seconds before they are read again for another item."""
AGAIN: Final = 600.0
"""The same for this item, and after a line in the log."""


class NoWorkerNotice:
    """Logs one line if no worker can run what this process waits for: a program that has forgotten its worker
    would stand still and say nothing. It looks at the item that is waited for the longest."""

    def __init__(self, backend: Backend, registry: Registry, clock: Clock) -> None:
        self._backend = backend
        self._registry = registry
        self._clock = clock
        self._oldest: Ref | None = None
        self._since = 0.0
        """Since when that one is the oldest."""
        self._not_before = 0.0
        self._not_again_before = 0.0
        """The same for the item that was looked at."""

    async def look(self, waiting: Iterable[Ref]) -> None:
        """Called at each poll with what is waited for, the oldest first."""
        oldest, now = next(iter(waiting), None), self._clock.monotonic()
        if oldest != self._oldest:
            self._oldest, self._since, self._not_again_before = oldest, now, 0.0
        elif oldest is not None and now >= max(self._since + SLOW, self._not_before, self._not_again_before):
            self._not_before, self._not_again_before = now + SOON, now + AGAIN
            if "listing" in self._backend.capabilities:
                await self._read(oldest, now - self._since)

    async def _read(self, ref: Ref, waited: float) -> None:
        tenant, id = ref
        try:
            (state,) = await self._backend.get([id], tenant=tenant)
            fleet = Fleet(await self._backend.workers(), await self._backend.now())
        except TreadleError:
            self._not_before = self._not_again_before = 0.0  # the poll reports that the store does not answer
            return
        if state is not None and state.status != "running" and not _is_served(state, fleet):
            self._not_before = self._clock.monotonic() + AGAIN
            log_line(
                WARNING,
                f"{plain(id)} still waits after {duration(waited)}: no live worker runs {plain(state.type)}"
                f"{self._local_text(state)}. `treadle why {plain(id)}` says more",
                {"id": id, "type": state.type, "tenant": tenant},
            )

    def _local_text(self, state: ItemState) -> str:
        place = self._registry.local_place(state.type)
        return "" if place is None else f", which {place}() defines, so that other processes cannot import it"


def _is_served(state: ItemState, fleet: Fleet) -> bool:
    """Whether a worker serves the item, or if it has ended, any of its group."""
    if state.status in TERMINAL:
        return bool(fleet.taking)
    return fleet.serves(type=state.type, queue=state.queue, tenant=state.tenant)
