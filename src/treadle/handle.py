"""Handle: a submitted item, from wherever it is looked at."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic

from treadle.engine.run.context_services import decoded
from treadle.engine.wait.wait_result import group_value, item_value
from treadle.engine.wait.waiters import within
from treadle.errors import NotFound, WaitTimeout
from treadle.item import GroupState, ItemState, Ref
from treadle.operator import core_of
from treadle.timing import Duration, seconds
from treadle.work import G_co, S_co, Work

if TYPE_CHECKING:
    from treadle.client import Client


class Handle(Generic[S_co, G_co]):
    """A submitted item. `await handle` waits for its whole group; `.result()` for the item alone."""

    __slots__ = ("_client", "_group_id", "existing", "id", "tenant")

    def __init__(
        self, client: Client, id: str, group_id: str | None, *, tenant: str | None, existing: bool = False
    ) -> None:
        self._client = client
        self._group_id = group_id
        self.id = id
        self.tenant = tenant
        self.existing = existing
        """An earlier item with the same key answered: nothing new was stored."""

    @property
    def group_id(self) -> str:
        """The group it belongs to: the id of its root item."""
        return self.id if self._group_id is None else self._group_id

    async def result(self, timeout: Duration | None = None) -> S_co:
        """The item's own value, once it has succeeded.

        Raises `WorkFailed` if it died, `WorkCancelled`, `NotFound`; `WaitTimeout` after `timeout` seconds,
        which leaves the work as it is.
        """
        await self._client.connect()
        ref = await self._ref()
        future = core_of(self._client).waiters.item(ref)
        value: S_co = await self.until_item(ref, future, timeout)
        return value

    async def group(self, timeout: Duration | None = None) -> G_co:
        """The value of the whole group, once every member has ended.

        Raises `GroupFailed` if nobody contributed a value and a member died; otherwise as `result`.
        """
        await self._client.connect()
        ref = await self._group_ref()
        future = core_of(self._client).waiters.group(ref)
        value: G_co = await self.until_group(ref, future, timeout)
        return value

    def __await__(self) -> Generator[Any, None, G_co]:
        return self.group().__await__()

    async def state(self) -> ItemState:
        """The item as it stands. `NotFound` if there is none."""
        await self._client.connect()
        core = core_of(self._client)
        (state,) = await core.backend.get([self.id], tenant=self.tenant)
        if state is None:
            raise NotFound(self.id)
        return decoded(core, state)

    async def cancel(self) -> None:
        """End the item and its open descendants; a running handler is aborted."""
        await self._client.bound(self.tenant).cancel([self.id])

    # -- waiting ---------------------------------------------------------------------------------------

    async def until_item(self, ref: Ref, future: asyncio.Future[ItemState], timeout: Duration | None) -> Any:
        core = core_of(self._client)
        try:
            state = await within(future, *self._late(timeout))
        except WaitTimeout:
            core.waiters.items.discard(ref, future)
            await core.waiters.stop_if_unused()
            raise
        finally:
            core.waiters.items.discard(ref, future)
        return item_value(core.registry, state, self.id)

    async def until_group(
        self, ref: Ref, future: asyncio.Future[GroupState], timeout: Duration | None
    ) -> Any:
        core = core_of(self._client)
        try:
            group = await within(future, *self._late(timeout))
        except WaitTimeout:
            core.waiters.groups.discard(ref, future)
            await core.waiters.stop_if_unused()
            raise
        finally:
            core.waiters.groups.discard(ref, future)
        return group_value(core.registry, group)

    def _late(self, timeout: Duration | None) -> tuple[float | None, Callable[[], Exception]]:
        limit = None if timeout is None else seconds(timeout, field="timeout")
        return limit, lambda: WaitTimeout(self.id, limit or 0.0)

    async def _ref(self) -> Ref:
        if self.tenant is None:
            await self._attach()
        return (self.tenant or "", self.id)

    async def _group_ref(self) -> Ref:
        if self.tenant is None or self._group_id is None:
            await self._attach()
        return (self.tenant or "", self.group_id)

    async def _attach(self) -> None:
        """Learn what a handle made from a bare id does not know."""
        state = await self.state()
        self.tenant, self._group_id = state.tenant, state.group_id

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"


class EnqueueCall(Generic[S_co, G_co]):
    """An enqueue that has not happened yet: await it for a durable `Handle`, or wait at once for a value.

    handle = await app.enqueue(add(1, 2))
    total = await app.enqueue(add(1, 2)).result()
    """

    __slots__ = ("_client", "_options", "_used", "_work")

    def __init__(self, client: Client, work: Work[S_co, G_co], options: dict[str, Any]) -> None:
        self._client = client
        self._work = work
        self._options = options
        self._used = False

    def __await__(self) -> Generator[Any, None, Handle[S_co, G_co]]:
        self._used = True
        return self._submit().__await__()

    async def _submit(self) -> Handle[S_co, G_co]:
        client = self._client
        await client.connect()
        return client.answered((await client.submit((self._work,), self._options))[0])

    async def result(self, timeout: Duration | None = None) -> S_co:
        """Submit, and wait for the item's own value."""
        self._used = True
        client = self._client
        await client.connect()
        waiters = core_of(client).waiters
        ref = (client.submits_to, self._work.id)
        # Registered before it is submitted: no look at the store is needed to know that it has not ended.
        future = waiters.item(ref, expected=True)
        try:
            (answer,) = await client.submit((self._work,), self._options)
            value: S_co
            if answer.existing:
                value = await client.answered(answer).result(timeout)
                return value
            waiters.confirm(ref)
            if timeout is None:  # the usual case: no coroutine and no handle more than it takes
                value = item_value(core_of(client).registry, await future, answer.id)
            else:
                value = await client.answered(answer).until_item(ref, future, timeout)
            return value
        finally:
            waiters.items.discard(ref, future)

    async def group(self, timeout: Duration | None = None) -> G_co:
        """Submit, and wait for the value of the whole group."""
        self._used = True
        client = self._client
        await client.connect()
        waiters = core_of(client).waiters
        ref = (client.submits_to, self._work.id)
        future = waiters.group(ref, expected=True)
        try:
            (answer,) = await client.submit((self._work,), self._options)
            handle: Handle[S_co, G_co] = client.answered(answer)
            if answer.existing:
                return await handle.group(timeout)
            waiters.confirm(ref)
            value: G_co = await handle.until_group(ref, future, timeout)
            return value
        finally:
            waiters.groups.discard(ref, future)

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                f"enqueue of {self._work.id} was never awaited: nothing was submitted",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
