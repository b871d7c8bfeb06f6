"""The app for code that is not async: Flask views, Django views, scripts.

Calls run on the app's event loop and may come from any other thread. An app that has no event loop yet gets
its own, in a background thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import TypeVar, Unpack

from treadle.engine.store_retry import STOP_TIMEOUT
from treadle.engine.submit.enqueue import named, submit
from treadle.errors import InputError, Stopped
from treadle.handle import Handle, submitted_handle
from treadle.item import ItemState
from treadle.loop_mark import forks
from treadle.operator import core_of, submits_to
from treadle.options import (
    ENQUEUE_MANY_OPTIONS,
    ENQUEUE_OPTIONS,
    EnqueueOptions,
    check_options,
)
from treadle.timing import Duration
from treadle.update_options import UpdateOptions
from treadle.work import Work

if TYPE_CHECKING:
    from treadle.client import Client

S = TypeVar("S")
G = TypeVar("G", default=S)
T = TypeVar("T")


class SyncHandle(Generic[S, G]):
    """A submitted item. Each method blocks until it has the answer."""

    def __init__(self, call: Callable[[Coroutine[Any, Any, Any]], Any], handle: Handle[S, G]) -> None:
        """`call` runs a coroutine on the app's event loop and waits for it."""
        self._call = call
        self._handle = handle
        self.id = handle.id
        self.group_id = handle.group_id
        self.existing = handle.existing

    def result(self, timeout: Duration | None = None) -> S:
        """As `Handle.result`."""
        value: S = self._call(self._handle.result(timeout))
        return value

    def group(self, timeout: Duration | None = None) -> G:
        """As `Handle.group`."""
        value: G = self._call(self._handle.group(timeout))
        return value

    def state(self) -> ItemState:
        """As `Handle.state`."""
        state: ItemState = self._call(self._handle.state())
        return state

    def cancel(self) -> int:
        """As `Handle.cancel`."""
        ended: int = self._call(self._handle.cancel())
        return ended


class SyncClient:
    """The methods of a client for code that is not async."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending = False
        """The background loop is being ended."""
        self._forks = forks()

    def connect(self) -> None:
        """As `Client.connect`."""
        self._call(self._client.connect())

    @overload
    def enqueue(self, work: Work[S, G], /, **options: Unpack[EnqueueOptions]) -> SyncHandle[S, G]: ...
    @overload
    def enqueue(
        self, work: str, input: Mapping[str, Any] | None = ..., /, **options: Unpack[EnqueueOptions]
    ) -> SyncHandle[Any, Any]: ...
    def enqueue(
        self,
        work: Work[Any, Any] | str,
        input: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> SyncHandle[Any, Any]:
        """Submit work. The item is durable when this returns."""
        if isinstance(work, str):
            work = core_of(self._client).registry.find(work).from_input(input or {})
        if options.get("tx") is not None:
            work, checked = named(work, check_options(options, "enqueue", ENQUEUE_OPTIONS))
            return self._enqueue_within([work], checked)[0]

        async def enqueue() -> Handle[Any, Any]:
            return await self._client.enqueue(work, **options)

        return SyncHandle(self._call, self._call(enqueue()))

    def enqueue_many(
        self, works: Iterable[Work[S, G]], /, **options: Unpack[EnqueueOptions]
    ) -> list[SyncHandle[S, G]]:
        """Submit works in one atomic step, one group each, all with the same options."""
        if options.get("tx") is not None:
            return self._enqueue_within(
                list(works), check_options(options, "enqueue_many", ENQUEUE_MANY_OPTIONS)
            )
        handles = self._call(self._client.enqueue_many(works, **options))
        return [SyncHandle(self._call, handle) for handle in handles]

    def _enqueue_within(
        self, works: Sequence[Work[Any, Any]], checked: dict[str, Any]
    ) -> list[SyncHandle[Any, Any]]:
        """Submit in the caller's transaction, and in the caller's thread, which owns the connection."""
        core, tenant = core_of(self._client), submits_to(self._client)
        core.check_unopened(checked.get("tx"))
        self.connect()
        answers = _run_without_loop(submit(core, tenant, works, checked))
        return [SyncHandle(self._call, submitted_handle(core, tenant, answer)) for answer in answers]

    def handle(self, id: str) -> SyncHandle[Any, Any]:
        """As `Client.handle`."""
        return SyncHandle(self._call, self._client.handle(id))

    def cancel(self, ids: Any) -> int:
        """As `Client.cancel`."""
        return self._call(self._client.cancel(ids))

    def update(self, ids: Any, **changes: Unpack[UpdateOptions]) -> int:
        """As `Client.update`."""
        return self._call(self._client.update(ids, **changes))

    def get(self, ids: Any) -> list[ItemState | None]:
        """As `Client.get`."""
        return self._call(self._client.get(ids))

    def close(self) -> None:
        """End the background loop, if there is one. An app on the user's own loop is not closed. Calls of
        other threads that have not ended raise `Stopped`."""
        self._leave_parent()
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None or self._ending:
                return
            self._ending = True
        try:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            self._loop = self._thread = None
            self._ending = False

    async def _end(self) -> None:
        await self._client.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's loop, and wait for it here."""
        self._leave_parent()
        try:
            with self._lock:  # after `_ending` is set, nothing more is started on the loop
                loop = self._usable_loop()
                answer = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return answer.result()
        except CancelledError:
            raise Stopped("the app") from None

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        """The app's loop, or one of its own."""
        if self._ending:
            raise Stopped("the app")
        loop = core_of(self._client).live_loop() or self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run_loop, args=(loop,), name="treadle sync", daemon=True)
            self._thread.start()
        if _running_here(loop):
            raise RuntimeError("app.sync would block the event loop it runs on: use await app.enqueue(...)")
        return loop

    def _leave_parent(self) -> None:
        """In a forked process the thread of the parent does not exist."""
        if self._forks != forks():
            self._forks = forks()
            self._lock = threading.Lock()
            self._loop, self._thread, self._ending = None, None, False


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run until the loop is stopped. Then end its tasks: callers wait for them."""
    loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))  # what was started last becomes a task
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=STOP_TIMEOUT))
    loop.close()


def _running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _run_without_loop(awaitable: Awaitable[T]) -> T:
    """Return the value of an awaitable that waits for nothing, as a submit with a sync driver."""

    async def wait() -> T:
        return await awaitable

    coroutine = wait()
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    except RuntimeError as error:
        if "no running event loop" not in str(error):
            raise
    coroutine.close()
    raise InputError("tx: app.sync takes a connection of a driver that is not async", parameters=("tx",))
