"""WorkState: an item as the work router shows it: what a caller needs, and nothing about the fleet.

`WorkStates` reads items for callers, and waits for their end. Open streams look at their items at the same
moments: one read for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from treadle.base.ids import check_id
from treadle.base.timing import MAX_INSTANT, MIN_INSTANT, to_datetime
from treadle.client import Client
from treadle.codec.json_codec import read_value
from treadle.errors import InputError, Stopped, StoreUnavailable, TreadleError
from treadle.item import (
    NEVER,
    TERMINAL,
    Chunk,
    DeathReason,
    GroupOutcome,
    GroupState,
    ItemState,
    Recorded,
    Status,
)
from treadle.operate.filters import check_tenant
from treadle.operate.item_json import Values, exact_json
from treadle.operate.operator import core_of, tenant_of
from treadle.operate.server_stop import server_stop
from treadle.operate.steps import progress_of, stream_news
from treadle.store.reads import deaths_of, group_ended


@dataclass(frozen=True, kw_only=True)
class WorkDeath:
    """A member whose death failed a group."""

    id: str
    type: str
    reason: DeathReason | None
    error_type: str | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class WorkGroup:
    """The group of a root item: the item and everything that it queued."""

    open: int
    """Members that have not ended."""
    failed: int
    """Dead members whose death no other member tolerates."""
    ended_at: datetime | None
    value: Any
    """The value of the group. Null if it has not succeeded, or if it is not shown."""
    partial: Any
    """What members gave to the value of a group that runs, or has not succeeded. Null if it is not shown."""
    death: WorkDeath | None
    """The first death that failed the group. Null if errors are not shown."""


@dataclass(frozen=True, kw_only=True)
class WorkProgress:
    """How far work is, as its handler said last."""

    done: float
    total: float | None
    message: str | None
    """Null if results are not shown."""


@dataclass(frozen=True, kw_only=True)
class WorkState:
    """Work as it is now."""

    id: str
    type: str
    status: Status
    """Of the item itself. What it queued may run still, or have failed: see `outcome`."""
    outcome: GroupOutcome
    """Of the item and everything that it queued."""
    done: int
    """Members of its group that have ended."""
    total: int
    """Members of its group, itself included. A nested group counts as one. Members may queue more."""
    progress: WorkProgress | None
    """Null: its handler said nothing."""
    suspended: bool
    """Whether its handler waits without a worker: it sleeps, or waits for a signal or for what it queued."""
    ended: bool
    """Whether it has ended, and everything that it queued. Then nothing changes any more."""
    reason: DeathReason | None
    """Why it is dead."""
    attempt: int
    """How many attempts have begun."""
    queued_at: datetime | None
    due_at: datetime | None
    """Null if a signal wakes it."""
    started_at: datetime | None
    ended_at: datetime | None
    result: Any
    """What it returned. Null if it has not, or if it is not shown."""
    error_type: str | None
    """The class of the last error. Null if errors are not shown."""
    error: str | None
    """The last error. Null if errors are not shown."""
    group: WorkGroup | None
    """Null for work that other work has queued."""


def work_state(
    values: Values,
    access: WorkAccess,
    item: ItemState,
    group: GroupState | None,
    recorded: Recorded,
    death: ItemState | None,
) -> WorkState:
    """An item as a caller may see it. `group`: the one whose root it is, if it is one. `death`: the first one
    that failed it."""
    ended = item.status in TERMINAL and (group is None or group.open == 0)
    open, total = (int(not ended), 1) if group is None else (group.open, group.total)
    outcome = _outcome(item, group) if ended else "running"
    return WorkState(
        id=item.id,
        type=item.type,
        status=item.status,
        outcome=outcome,
        done=total - open,
        total=total,
        progress=_progress(access, recorded),
        suspended=item.suspended and item.status == "scheduled",
        ended=ended,
        reason=item.reason,
        attempt=item.attempt,
        queued_at=_instant(item.queued_at),
        due_at=None if item.due_at >= NEVER else _instant(item.due_at),
        started_at=_instant(item.started_at),
        ended_at=_instant(item.ended_at),
        result=exact_json(values.result(item)[0]) if access.results else None,
        error_type=item.error_type if access.errors else None,
        error=item.error if access.errors else None,
        group=None if group is None else _work_group(values, access, group, outcome, death),
    )


def _progress(access: WorkAccess, recorded: Recorded) -> WorkProgress | None:
    said = progress_of(recorded)
    if said is None:
        return None
    message = said.message if access.results else None
    return WorkProgress(done=said.done, total=said.total, message=message)


def _outcome(item: ItemState, group: GroupState | None) -> GroupOutcome:
    """Of an item that has ended with its group."""
    if group is not None:
        return group_ended(group)
    if item.status == "cancelled":
        return "cancelled"
    return "succeeded" if item.status == "success" else "failed"


def _work_group(
    values: Values, access: WorkAccess, group: GroupState, outcome: GroupOutcome, death: ItemState | None
) -> WorkGroup:
    value = exact_json(values.group_value(group)[0]) if access.results else None
    return WorkGroup(
        open=group.open,
        failed=group.failed,
        ended_at=_instant(group.ended_at),
        value=value if outcome == "succeeded" else None,
        partial=None if outcome == "succeeded" else value,
        death=None if death is None or not access.errors else _work_death(death),
    )


def _work_death(item: ItemState) -> WorkDeath:
    return WorkDeath(
        id=item.id, type=item.type, reason=item.reason, error_type=item.error_type, error=item.error
    )


def _instant(at: float | None) -> datetime | None:
    return None if at is None else to_datetime(min(max(at, MIN_INSTANT), MAX_INSTANT))


def state_json(state: WorkState | WorkGroup | WorkDeath | WorkProgress) -> dict[str, Any]:
    """It as JSON values. Instants are ISO 8601 in UTC, always with microseconds."""
    return {each.name: _json(getattr(state, each.name)) for each in fields(state)}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z"
    return state_json(value) if isinstance(value, WorkGroup | WorkDeath | WorkProgress) else value


class WorkAccess(msgspec.Struct, frozen=True):
    """What a caller may see. Everything else does not exist for the caller: the answer is 404.

    tenant: the tenant whose items are shown. None: those of all tenants, for an app that has none.
    allows: called with each item before it is shown. False: it is not shown. Without it, all items of the
        tenant are. `lambda item: item.headers.get("user") == user.id` shows users their own.
    results: whether results, the values of groups and the chunks of streams are shown. Secrets in them are
        `***`, and so is all of it for types that the app does not know.
    errors: whether the class and the message of the last error are shown. They may quote what was
        processed.
    """

    tenant: str | None
    allows: Callable[[ItemState], bool] | None = None
    results: bool = True
    errors: bool = False

    def __post_init__(self) -> None:
        if self.tenant is not None:
            check_tenant(self.tenant)


WorkAccessAnswer: TypeAlias = WorkAccess | Response | None
WorkAccessFn: TypeAlias = Callable[[Request], WorkAccessAnswer | Awaitable[WorkAccessAnswer]]
"""Says what a caller may see. None: nothing, which is answered with 403. A response is sent as it is."""


# -- reading and waiting -----------------------------------------------------------------------------


F = TypeVar("F", bound="asyncio.Future[Any]")
ItemRead: TypeAlias = tuple[ItemState | None, GroupState | None, Recorded]

LOOK_EVERY: Final = 1.0
"""Seconds after which a stream looks at its item. Its end is told at once."""
QUIET: Final = 15.0
"""Seconds after which a stream says that it is still there: proxies close connections that are quiet."""
STREAM_SECONDS: Final = 300.0
"""A stream ends after this time. Browsers then ask again, and access is asked for again."""
MOST_OPEN: Final = 1000
"""Limit on the requests that wait at once."""
LAST: Final = "end"
"""The id of the last event, if there are no chunks. Else their number follows: `end.17`."""
_LAST_SEEN: Final = re.compile(rf"({LAST})?\.?([0-9]{{1,9}})?")
UNCOUNTED: Final = 2**31
"""More chunks than a stream has."""
NOTHING: Final = Recorded()


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
    chunks: int = 0
    """How many chunks its stream has."""


class SeenEvents(NamedTuple):
    """What a caller has seen of a stream of events."""

    end: bool = False
    chunk: int = 0
    """The number of the last chunk."""


def last_seen(id: str) -> SeenEvents:
    """What `Last-Event-ID` says."""
    found = _LAST_SEEN.fullmatch(id)
    return SeenEvents() if found is None else SeenEvents(found[1] is not None, int(found[2] or 0))


def _allowed(access: WorkAccess, id: str, item: ItemState | None) -> ItemState:
    """The item, if the caller may see it. `WorkNotShown`."""
    if item is None or (access.allows is not None and not access.allows(item)):
        raise WorkNotShown(id)
    return item


class WorkStates:
    """The items of one app, for callers."""

    def __init__(self, app: Client) -> None:
        self._app = app
        self._stop = server_stop(app)
        self._reads: dict[str | None, SharedRead] = {}
        self._open = 0

    # -- reading ---------------------------------------------------------------------------------------

    async def find(self, access: WorkAccess, id: str) -> FoundWork:
        """An item as it is now. `WorkNotShown` if there is none, or the caller may not see it."""
        try:
            read = self._shared_read(access.tenant)
            found, group, recorded = await read.get(check_id(id))
        except InputError:  # it cannot be an id, or the app is bound to another tenant
            raise WorkNotShown(id) from None
        item = _allowed(access, id, found)
        death = None
        if access.errors and group is not None and group.deaths:
            death = (await deaths_of(self._app.backend, group))[0][0]
        large = item.result if group is None else group.value
        args = self._app.values, access, item, group, recorded, death
        return FoundWork(item, group, await read_value(large, work_state, *args), recorded.chunks)

    async def send(self, access: WorkAccess, id: str, name: str, value: Any, key: str | None) -> bool:
        """Send a signal to an item that the caller may see. See `Client.signal`."""
        try:
            client = self._app if access.tenant is None else self._app.tenant(access.tenant)
            (found,) = await client.get(check_id(id))
        except InputError:
            raise WorkNotShown(id) from None
        item = _allowed(access, id, found)
        return await self._app.tenant(item.tenant).signal(item.id, name, value, key=key)

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

    async def events(self, access: WorkAccess, found: FoundWork, since: int = 0) -> AsyncGenerator[str]:
        """The states of an item, and the chunks of its stream after the number `since`, as server-sent
        events, until it has ended, or the server stops. Also until chunks cannot be read: the caller asks
        again for those that it has not seen."""
        now = asyncio.get_running_loop().time
        quiet_since, shown, head = now(), None, "retry: 2000\n\n"
        async with contextlib.aclosing(self._looks(access, found)) as looks:
            async for look in looks:
                # Before the state: the end comes after all chunks.
                while chunks := await self._chunks(access, look, since):
                    for chunk in chunks:
                        yield head + await self._chunk_text(look.item, chunk)
                        since, quiet_since, head = chunk.number, now(), ""
                if chunks is None:
                    return
                if look.state != shown:
                    yield head + event_text(look.state, since)
                    shown, quiet_since, head = look.state, now(), ""
                elif now() - quiet_since >= QUIET:
                    yield ": still there\n\n"
                    quiet_since = now()

    async def _looks(self, access: WorkAccess, found: FoundWork) -> AsyncGenerator[FoundWork]:
        """The item as it is now, at each look until it has ended. Also when its stream has news: these are
        not counted then."""
        now = asyncio.get_running_loop().time
        last_look, look_at = now() + STREAM_SECONDS, 0.0
        stream = stream_news(core_of(self._app), found.item.id)
        with self._counted(), stream as news, _cancelled(self._stop.future()) as stop:
            yield found
            while not found.state.ended:
                async with self._end_of(found) as end:
                    while not end.done():
                        look_at = now() + _until_look(now()) if look_at <= now() else look_at
                        with _cancelled(asyncio.ensure_future(news.wait())) as new:
                            await _first_of(end, stop, new, timeout=look_at - now())
                        if stop.done() or now() >= last_look:
                            return
                        news.clear()
                        if not end.done() and now() < look_at:
                            yield found._replace(chunks=UNCOUNTED)
                            continue
                        try:
                            found = await self.find(access, found.item.id)
                        except (WorkNotShown, Stopped):
                            return
                        except StoreUnavailable:
                            pass  # it looks again
                        yield found

    async def _chunks(self, access: WorkAccess, found: FoundWork, since: int) -> Sequence[Chunk] | None:
        """The next chunks after the number `since`, as the store has them. None: they cannot be read now."""
        if not access.results or since >= found.chunks:
            return ()
        try:
            return await self._app.backend.stream(found.item.id, since=since, tenant=found.item.tenant)
        except (Stopped, StoreUnavailable):
            return None

    async def _chunk_text(self, item: ItemState, chunk: Chunk) -> str:
        """A chunk as a server-sent event. Its id is its number."""
        shown = await read_value(chunk.value, self._app.values.chunk, item, chunk)
        return f"event: chunk\nid: {chunk.number}\ndata: {json_text(exact_json(shown['value']))}\n\n"


class SharedRead:
    """One read for all requests that ask at the same moment, with the same client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._wanted: list[str] = []
        self._task: asyncio.Task[Mapping[str, ItemRead]] | None = None
        self._began = False

    @property
    def takes_more(self) -> bool:
        """Whether it has not begun."""
        return not self._began and self._loop is asyncio.get_running_loop()

    async def get(self, id: str) -> ItemRead:
        """An item, the group whose root it is, and what it has recorded."""
        self._wanted.append(id)
        if self._task is None:
            self._task = asyncio.ensure_future(self._read())
            self._task.add_done_callback(_retrieve)
        # It goes on if the request that began it is given up.
        return (await asyncio.shield(self._task))[id]

    async def _read(self) -> Mapping[str, ItemRead]:
        self._began = True
        items = await self._client.get(dict.fromkeys(self._wanted))
        found = {item.id: item for item in items if item is not None}
        roots = [item.id for item in found.values() if item.group_id == item.id]
        backend, tenant = self._client.backend, tenant_of(self._client)
        groups = await backend.group(roots, tenant=tenant) if roots else ()
        by_id = {group.id: group for group in groups if group is not None}
        # After the items: of one that has ended, all is there.
        begun = [item.id for item in found.values() if item.attempt or item.has_steps]
        has_any = begun and "steps" in backend.capabilities
        steps = await backend.steps(begun, tenant=tenant) if has_any else ()
        recorded = {id: each for id, each in zip(begun, steps, strict=False) if each is not None}
        return {id: (found.get(id), by_id.get(id), recorded.get(id, NOTHING)) for id in self._wanted}


def event_text(state: WorkState, since: int = 0) -> str:
    """A state as a server-sent event: `state`, or `end` for the last one. since: the number of the last chunk
    before it. A state has no id: that of the last chunk stays."""
    data = json_text(state_json(state))
    if not state.ended:
        return f"event: state\ndata: {data}\n\n"
    return f"event: end\nid: {f'{LAST}.{since}' if since else LAST}\ndata: {data}\n\n"


def json_text(value: Any) -> str:
    """A JSON value on one line."""
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError):
        return json.dumps(value, separators=(",", ":"), default=repr)  # it can write halves of characters


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
