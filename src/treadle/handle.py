"""Handle: a submitted item. EnqueueCall: an enqueue that has not happened yet."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from typing_extensions import TypeIs

from treadle.base.timing import Duration, seconds
from treadle.codec.json_codec import LARGE, read_value
from treadle.define.work import G_co, S_co, Work
from treadle.engine.core import Core
from treadle.engine.open_transaction import CURRENT, current_transaction, refuse_in_transaction
from treadle.engine.submit.enqueue import submit
from treadle.engine.wait.wait_result import decode_state, group_outcome, item_value
from treadle.engine.wait.waiters import Waiters, WaiterTable, within
from treadle.errors import NotFound, WaitTimeout
from treadle.item import AuditNote, Chunk, ItemState, Ref, Submitted
from treadle.logs.unawaited import get_frame, say_unawaited
from treadle.operate.operator import Operator
from treadle.records import Progress

T = TypeVar("T")


class Handle(Generic[S_co, G_co]):
    """A submitted item. `await handle` waits for its whole group, `.result()` for the item alone."""

    __slots__ = ("_core", "_group_id", "_note", "_queued_at", "_tenant", "existing", "id")

    def __init__(
        self,
        core: Core,
        id: str,
        group_id: str | None,
        *,
        tenant: str | None,
        existing: bool = False,
        note: AuditNote | None = None,
        queued_at: float = 0.0,
    ) -> None:
        """queued_at: when the item was stored, by this handle's own submit; 0: unknown."""
        self._core = core
        self._queued_at = queued_at
        self._group_id = group_id
        self._tenant = tenant
        self._note = note
        self.id = id
        self.existing = existing
        """Whether this is an earlier item with the same key. Then no new item was stored."""

    @property
    def group_id(self) -> str:
        """The group it belongs to: the id of its root item."""
        return self.id if self._group_id is None else self._group_id

    @property
    def queued_at(self) -> float | None:
        """When the enqueue that gave this handle has stored the item, in epoch seconds. None: it was stored
        before."""
        return self._queued_at or None

    async def result(self, timeout: Duration | None = None) -> S_co:
        """Wait until the item has succeeded, and return its own value.

        Raises `WorkFailed` if it died, `WorkCancelled` or `NotFound`. Raises `WaitTimeout` after `timeout`
        seconds; the work itself goes on.
        """
        core = self._core
        if CURRENT.get() is not None:
            refuse_in_transaction(core.backend, "handle.result()")
        if core.loop is not asyncio.get_running_loop():
            await core.connect()
        if self._tenant is None:
            await self._attach()
        ref = (self._tenant or "", self.id)
        waiters = core.waiters
        future = waiters.item(ref, queued_at=self._queued_at)
        state = await _await_end(waiters, waiters.items, ref, future, timeout, self.id)
        value: S_co = await _value(core, state, self.id)
        return value

    async def group(self, timeout: Duration | None = None, *, partial: bool = False) -> G_co:
        """Wait until every member of the group has ended, and return the group's value.

        Raises `GroupFailed` if a member died, unless the value is final, or an item that tolerates the death
        waited for that member. `WorkCancelled` if the group has no value and a member was cancelled. With
        `partial` it returns the value all the same, or None. Otherwise it raises as `result`.
        """
        refuse_in_transaction(self._core.backend, "handle.group()")
        await self._core.connect()
        if self._tenant is None or self._group_id is None:
            await self._attach()
        ref = (self._tenant or "", self.group_id)
        waiters = self._core.waiters
        future = waiters.group(ref, queued_at=self._queued_at if ref[1] == self.id else 0.0)
        group = await _await_end(waiters, waiters.groups, ref, future, timeout, self.id)
        value: G_co = await group_outcome(self._core.backend, self._core.registry, group, partial=partial)
        return value

    async def wait(self, timeout: Duration | None = None, *, group: bool = False) -> bool:
        """Wait until the item has ended, however it did. With `group`: and every member of its group. It
        reads no value. False if that has not happened after `timeout` seconds. Raises `NotFound`."""
        refuse_in_transaction(self._core.backend, "handle.wait()")
        await self._core.connect()
        if self._tenant is None or (group and self._group_id is None):
            await self._attach()
        waiters = self._core.waiters
        try:
            if group:
                ref = (self._tenant or "", self.group_id)
                await _await_end(waiters, waiters.groups, ref, waiters.group(ref), timeout, self.id)
            else:
                ref = (self._tenant or "", self.id)
                await _await_end(waiters, waiters.items, ref, waiters.item(ref), timeout, self.id)
        except WaitTimeout:
            return False
        finally:
            await waiters.stop_if_unused()
        return True

    def __await__(self) -> Generator[Any, None, G_co]:
        return self.group().__await__()

    async def state(self) -> ItemState:
        """Return the item as it is now. `NotFound` if it does not exist."""
        await self._core.connect()
        backend = self._core.backend
        (state,) = await (current_transaction(backend) or backend).get([self.id], tenant=self._tenant)
        if state is None:
            raise NotFound(self.id)
        return await read_value(state.result, decode_state, self._core.registry, state)

    async def progress(self) -> Progress | None:
        """Return how far the item is, as its handler said last (`ctx.progress`). None: it said nothing."""
        from treadle.operate.steps import read_progress  # few programs need it

        return await read_progress(self._core, self.id, self._tenant)

    def stream(self, since: int = 0) -> AsyncIterator[Chunk]:
        """The chunks that its handler emits, from the first after the number `since` on, until the item has
        ended: `async for chunk in handle.stream(): print(chunk.value)`."""
        from treadle.operate.steps import read_stream  # few programs need it

        return read_stream(self._core, self.id, self._tenant, since)

    async def cancel(self) -> int:
        """End the item and its open descendants. Running handlers are interrupted. Returns how many ended."""
        return await Operator(self._core, self._tenant, self._note).cancel([self.id])

    async def _attach(self) -> None:
        """Read the tenant and the group of a handle that was made from an id alone."""
        state = await self.state()
        self._tenant, self._group_id = state.tenant, state.group_id

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"


class EnqueueCall(Generic[S_co, G_co]):
    """An enqueue that has not happened yet. Await it for a durable `Handle`, or wait for a value at once.

    handle = await app.enqueue(add(1, 2))
    total = await app.enqueue(add(1, 2)).result()
    """

    __slots__ = ("_at", "_code", "_core", "_id", "_note", "_options", "_tenant", "_used", "_work")

    def __init__(
        self,
        core: Core,
        tenant: str,
        work: Work[S_co, G_co],
        options: dict[str, Any],
        note: AuditNote | None = None,
    ) -> None:
        """`options` are checked. For the log it notes where its caller, `enqueue`, was called."""
        self._core = core
        self._tenant = tenant
        self._note = note
        self._work = work
        self._options = options
        self._id = work.id
        """The item to wait for. An earlier one with the same key has another id than its Work."""
        self._used = False
        caller = get_frame(2)
        self._code, self._at = caller.f_code, caller.f_lasti

    def __await__(self) -> Generator[Any, None, Handle[S_co, G_co]]:
        if self._used:
            self._use()
        self._used = True
        return self._submit().__await__()

    def _use(self) -> None:
        """Note that it is submitted. A second time would be a second item."""
        if self._used:
            raise RuntimeError(
                f"this enqueue of {self._work.id} was awaited before: keep the handle that it returned, or "
                "enqueue another Work"
            )
        self._used = True

    async def _submit(self) -> Handle[S_co, G_co]:
        core = self._core
        if core.loop is not asyncio.get_running_loop():
            core.check_unopened(self._options.get("tx"))
            await core.connect()
        (answer,) = await submit(core, self._tenant, (self._work,), self._options, note=self._note)
        return submitted_handle(core, self._tenant, answer, self._note)

    def result(self, timeout: Duration | None = None) -> Coroutine[Any, Any, S_co]:
        """Submit, and wait for the item's own value. `WaitTimeout` after `timeout` seconds for both: then a
        submit that has not ended goes on, and the item may come to exist."""
        # Not a coroutine around another one: that would cost half a microsecond per item.
        self._use()
        if CURRENT.get() is not None:
            refuse_in_transaction(self._core.backend, "enqueue(...).result()")
        return self._result() if timeout is None else self._in_time(self._result, timeout)

    async def _result(self) -> S_co:
        core = self._core
        if core.loop is not asyncio.get_running_loop():
            core.check_unopened(self._options.get("tx"))
            await core.connect()
        waiters = core.waiters
        ref = (self._tenant, self._work.id)
        # Registered before the submit, so that the store need not be asked whether the item has ended.
        future = waiters.item(ref, expected=True)
        try:
            (answer,) = await submit(
                core, self._tenant, (self._work,), self._options, awaited=True, note=self._note
            )
            value: S_co
            if answer.existing or answer.id != ref[1]:  # by root it may get another id than its Work had
                self._id = answer.id
                value = await submitted_handle(core, self._tenant, answer).result()
                return value
            waiters.confirm(ref, answer.queued_at)
            state = await future
            value = await _value(core, state, answer.id)
            return value
        finally:
            if not future.done() or future.cancelled():
                waiters.items.discard(ref, future)

    def group(self, timeout: Duration | None = None, *, partial: bool = False) -> Coroutine[Any, Any, G_co]:
        """Submit, and wait for the value of the whole group. `timeout` as for `result`, `partial` and errors
        as for `Handle.group`."""
        self._use()
        refuse_in_transaction(self._core.backend, "enqueue(...).group()")
        wait = functools.partial(self._group, partial)
        return wait() if timeout is None else self._in_time(wait, timeout)

    async def _group(self, partial: bool) -> G_co:
        core = self._core
        core.check_unopened(self._options.get("tx"))
        await core.connect()
        ref = (self._tenant, self._work.id)
        future = core.waiters.group(ref, expected=True)
        try:
            (answer,) = await submit(
                core, self._tenant, (self._work,), self._options, awaited=True, note=self._note
            )
            value: G_co
            if answer.existing or answer.id != ref[1]:
                self._id = answer.id
                value = await submitted_handle(core, self._tenant, answer).group(partial=partial)
                return value
            core.waiters.confirm(ref, answer.queued_at)
            group = await future
            value = await group_outcome(core.backend, core.registry, group, partial=partial)
            return value
        finally:
            if not future.done() or future.cancelled():
                core.waiters.groups.discard(ref, future)

    async def _in_time(self, wait: Callable[[], Awaitable[T]], timeout: Duration) -> T:
        limit = seconds(timeout, field="timeout")
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                return await wait()
        except TimeoutError:
            if not scope.expired():
                raise
            await self._core.waiters.stop_if_unused()
            raise WaitTimeout(self._id, limit) from None

    if not TYPE_CHECKING:  # with it, type checkers would allow every attribute

        def __getattr__(self, name: str) -> Any:
            hint = f": nothing is submitted yet; `handle = await app.enqueue(...)` has .{name}"
            raise AttributeError(
                f"an enqueue has no attribute {name!r}{hint if hasattr(Handle, name) else ''}"
            )

    def __repr__(self) -> str:
        return f"<enqueue of {self._work.id}, {'awaited' if self._used else 'not awaited'}>"

    def __del__(self) -> None:
        if not self._used:
            effect = "nothing was submitted. Write `await app.enqueue(...)`, or `app.sync.enqueue(...)`"
            say_unawaited(f"enqueue({self._work.type})", effect, (self._code, self._at), self)


def is_enqueue(value: object) -> TypeIs[EnqueueCall[Any, Any]]:
    return isinstance(value, EnqueueCall)


def has_connection(call: EnqueueCall[Any, Any]) -> bool:
    """Whether an enqueue is to be a part of a transaction of the caller (`tx=`)."""
    return call._options.get("tx") is not None  # pyright: ignore[reportPrivateUsage]


def submitted_handle(
    core: Core, tenant: str, answer: Submitted, note: AuditNote | None = None
) -> Handle[Any, Any]:
    """Return the handle of the new item, or of the earlier item with the same key."""
    group_id = answer.group_id or answer.id
    queued_at = 0.0 if answer.existing else answer.queued_at
    return Handle(
        core, answer.id, group_id, tenant=tenant, existing=answer.existing, note=note, queued_at=queued_at
    )


def submitted_handles(
    core: Core, tenant: str, answers: Sequence[Submitted], note: AuditNote | None
) -> list[Handle[Any, Any]]:
    """As `submitted_handle`, for many. Without calls of `__init__`, which take three times as long."""
    handles: list[Handle[Any, Any]] = []
    new = cast("Callable[[type[Handle[Any, Any]]], Handle[Any, Any]]", Handle.__new__)
    for answer in answers:
        handle = new(Handle)
        handle.id, handle.existing = answer.id, answer.existing
        handle._core, handle._tenant, handle._note = core, tenant, note  # pyright: ignore[reportPrivateUsage]
        handle._group_id = answer.group_id or answer.id  # pyright: ignore[reportPrivateUsage]
        handle._queued_at = 0.0 if answer.existing else answer.queued_at  # pyright: ignore[reportPrivateUsage]
        handles.append(handle)
    return handles


# ------------------------------------------------------------------------------------------------- waiting


async def _value(core: Core, state: ItemState, id: str) -> Any:
    """The value of an item that has ended. A large one is decoded in a thread."""
    data: object = state.result
    if isinstance(data, bytes) and len(data) >= LARGE:
        return await asyncio.to_thread(item_value, core.registry, state, id)
    return item_value(core.registry, state, id)


async def _await_end(
    waiters: Waiters,
    table: WaiterTable[T],
    ref: Ref,
    future: asyncio.Future[T],
    timeout: Duration | None,
    id: str,
) -> T:
    try:
        if timeout is None:
            return await future
        limit = seconds(timeout, field="timeout")
        return await within(future, limit, lambda: WaitTimeout(id, limit))
    except WaitTimeout:
        table.discard(ref, future)
        await waiters.stop_if_unused()
        raise
    finally:
        table.discard(ref, future)
