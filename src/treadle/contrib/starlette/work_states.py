"""Work states: reads items for callers, and waits for their end. It knows no routes.

Open streams look at their items at the same moments: one read for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive

from treadle.base.ids import check_id
from treadle.client import Client
from treadle.codec.json_codec import read_value
from treadle.errors import InputError, Stopped, StoreUnavailable, TreadleError
from treadle.item import GroupState, ItemState
from treadle.operate.operator import tenant_of
from treadle.operate.server_stop import server_stop
from treadle.store.reads import deaths_of

from .work_state import MemberCounts, WorkAccess, WorkState, state_json, work_state

F = TypeVar("F", bound="asyncio.Future[Any]")
ItemAndGroup: TypeAlias = tuple[ItemState | None, GroupState | None]

LOOK_EVERY: Final = 1.0
"""Seconds after which a stream looks at its item. Its end is told at once."""
QUIET: Final = 15.0
"""Seconds after which a stream says that it is still there: proxies close connections that are quiet."""
STREAM_SECONDS: Final = 300.0
"""A stream ends after this time. Browsers then ask again, and access is asked for again."""
MOST_OPEN: Final = 1000
"""Limit on the requests that wait at once."""
LAST: Final = "end"
"""The id of the last event."""


class WorkNotShown(TreadleError):
    """There is no such item, or the caller may not see it: both look alike."""


class TooManyWait(TreadleError):
    """Too many requests wait already."""


class FoundWork(NamedTuple):
    """An item that the caller may see."""

    item: ItemState
    group: GroupState | None
    """The group whose root it is."""
    state: WorkState


class WorkStates:
    """The items of one app, for callers."""

    def __init__(self, app: Client) -> None:
        self._app = app
        self._stop = server_stop(app)
        self._reads: dict[str | None, SharedRead] = {}
        self._counts = MemberCounts(app.backend)
        self._open = 0

    # -- reading ---------------------------------------------------------------------------------------

    async def find(self, access: WorkAccess, id: str) -> FoundWork:
        """An item as it is now. `WorkNotShown` if there is none, or the caller may not see it."""
        try:
            read = self._shared_read(access.tenant)
            item, group = await read.get(check_id(id))
        except InputError:  # it cannot be an id, or the app is bound to another tenant
            raise WorkNotShown(id) from None
        if item is None or (access.allows is not None and not access.allows(item)):
            raise WorkNotShown(id)
        progress, death = await self._counts.count(item, group), None
        if access.errors and group is not None and group.deaths:
            death = (await deaths_of(self._app.backend, group))[0][0]
        large = item.result if group is None else group.value
        args = self._app.values, access, item, group, progress, death
        return FoundWork(item, group, await read_value(large, work_state, *args))

    def _shared_read(self, tenant: str | None) -> SharedRead:
        read = self._reads.get(tenant)
        if read is None or not read.takes_more:
            client = self._app if tenant is None else self._app.tenant(tenant)
            self._reads = {key: each for key, each in self._reads.items() if each.takes_more}
            read = self._reads[tenant] = SharedRead(client)
        return read

    # -- waiting ---------------------------------------------------------------------------------------

    async def wait(self, access: WorkAccess, id: str, seconds: float, request: Request) -> WorkState:
        """The same, after it has ended, or after `seconds`, or when the caller has gone, or when the
        server stops."""
        found = await self.find(access, id)
        if found.state.ended or seconds <= 0:
            return found.state
        self.check_room()
        with self._counted(), _gone(request.receive) as gone, _cancelled(self._stop.future()) as stop:
            async with self._end_of(found) as end:
                await _first_of(end, gone, stop, timeout=seconds)
            if gone.done():
                return found.state
        return (await self.find(access, id)).state

    @contextlib.asynccontextmanager
    async def _end_of(self, found: FoundWork) -> AsyncGenerator[asyncio.Future[Any]]:
        """A future that ends when the item, and the group whose root it is, has ended or is gone."""
        handle = self._app.handle(found.item)
        end = asyncio.ensure_future(handle.wait(group=found.group is not None))
        try:
            yield end
        finally:
            end.cancel()
            await asyncio.wait([end])
            _retrieve(end)  # what has become of it is read

    def check_room(self) -> None:
        """`TooManyWait` if `MOST_OPEN` requests wait already."""
        if self._open >= MOST_OPEN:
            raise TooManyWait(f"{MOST_OPEN} requests wait already")

    @contextlib.contextmanager
    def _counted(self) -> Generator[None]:
        """Count a request that waits."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    # -- events ----------------------------------------------------------------------------------------

    async def events(self, access: WorkAccess, found: FoundWork) -> AsyncGenerator[str]:
        """The states of an item as server-sent events, until it has ended, or the server stops."""
        now = asyncio.get_running_loop().time
        last_look, quiet_since = now() + STREAM_SECONDS, now()
        with self._counted(), _cancelled(self._stop.future()) as stop:
            yield "retry: 2000\n\n" + event_text(found.state)
            while not found.state.ended:
                async with self._end_of(found) as end:
                    while not end.done():
                        await _first_of(end, stop, timeout=_until_look(now()))
                        if stop.done() or now() >= last_look:
                            return
                        before = found.state
                        try:
                            found = await self.find(access, found.item.id)
                        except (WorkNotShown, Stopped):
                            return
                        except StoreUnavailable:
                            pass  # it looks again
                        if found.state != before:
                            yield event_text(found.state)
                            quiet_since = now()
                        elif now() - quiet_since >= QUIET:
                            yield ": still there\n\n"
                            quiet_since = now()


class SharedRead:
    """One read for all requests that ask at the same moment, with the same client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._wanted: list[str] = []
        self._task: asyncio.Task[Mapping[str, ItemAndGroup]] | None = None
        self._began = False

    @property
    def takes_more(self) -> bool:
        """Whether it has not begun."""
        return not self._began and self._loop is asyncio.get_running_loop()

    async def get(self, id: str) -> ItemAndGroup:
        """An item, and the group whose root it is."""
        self._wanted.append(id)
        if self._task is None:
            self._task = asyncio.ensure_future(self._read())
            self._task.add_done_callback(_retrieve)
        # It goes on if the request that began it is given up.
        return (await asyncio.shield(self._task))[id]

    async def _read(self) -> Mapping[str, ItemAndGroup]:
        self._began = True
        items = await self._client.get(dict.fromkeys(self._wanted))
        found = {item.id: item for item in items if item is not None}
        roots = [item.id for item in found.values() if item.group_id == item.id]
        groups = await self._client.backend.group(roots, tenant=tenant_of(self._client)) if roots else ()
        by_id = {group.id: group for group in groups if group is not None}
        return {id: (found.get(id), by_id.get(id)) for id in self._wanted}


def event_text(state: WorkState) -> str:
    """A state as a server-sent event: `state`, or `end` for the last one."""
    name, id = ("end", LAST) if state.ended else ("state", f"{state.status}.{state.attempt}")
    return f"event: {name}\nid: {id}\ndata: {json_text(state)}\n\n"


def json_text(state: WorkState) -> str:
    """A state as JSON on one line."""
    fields = state_json(state)
    try:
        return msgspec.json.encode(fields, enc_hook=repr).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError):
        return json.dumps(fields, separators=(",", ":"), default=repr)  # it can write halves of characters


# ------------------------------------------------------------------------------------------------- waiting


def _until_look(now: float) -> float:
    """Seconds until the moment at which all streams look."""
    return LOOK_EVERY - now % LOOK_EVERY if LOOK_EVERY else 0.0


async def _first_of(*futures: asyncio.Future[Any], timeout: float) -> None:
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


@contextlib.contextmanager
def _cancelled(future: F) -> Generator[F]:
    """Cancel it in the end."""
    try:
        yield future
    finally:
        future.cancel()


def _gone(receive: Receive) -> contextlib.AbstractContextManager[asyncio.Future[None]]:
    """A future that ends when the caller has gone."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    return _cancelled(asyncio.ensure_future(until_gone()))


def _retrieve(task: asyncio.Task[Any]) -> None:
    """An error is no news if everyone who asked has left."""
    if not task.cancelled():
        task.exception()
