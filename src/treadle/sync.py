"""The app for code that is not async: Flask views, Django views, scripts.

Calls are carried out on the app's event loop, from any other thread. An app that runs in no loop yet gets one
of its own, in a background thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import TypeVar, Unpack

from treadle.errors import InputError
from treadle.handle import Handle
from treadle.item import ItemState
from treadle.operator import core_of
from treadle.options import ENQUEUE_OPTIONS, EnqueueOptions, check_options
from treadle.timing import Duration
from treadle.work import Work

if TYPE_CHECKING:
    from treadle.client import Client

S = TypeVar("S")
G = TypeVar("G", default=S)
T = TypeVar("T")


class SyncHandle(Generic[S, G]):
    """A submitted item; each method blocks until it has the answer."""

    def __init__(self, client: SyncClient, handle: Handle[S, G]) -> None:
        self._client = client
        self._handle = handle
        self.id = handle.id
        self.group_id = handle.group_id
        self.existing = handle.existing

    def result(self, timeout: Duration | None = None) -> S:
        return self._client.call(self._handle.result(timeout))

    def group(self, timeout: Duration | None = None) -> G:
        return self._client.call(self._handle.group(timeout))

    def state(self) -> ItemState:
        return self._client.call(self._handle.state())

    def cancel(self) -> None:
        self._client.call(self._handle.cancel())


class SyncClient:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

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
        """Submit work. Durable when this returns."""
        minted = (
            core_of(self._client).registry.find(work).mint(input or {}) if isinstance(work, str) else work
        )
        if options.get("tx") is not None:
            return self._within([minted], options, "enqueue")[0]

        async def submit() -> Handle[Any, Any]:
            return await self._client.enqueue(minted, **options)

        return SyncHandle(self, self.call(submit()))

    def enqueue_many(
        self, works: Iterable[Work[S, G]], /, **options: Unpack[EnqueueOptions]
    ) -> list[SyncHandle[S, G]]:
        if options.get("tx") is not None:
            return self._within(list(works), options, "enqueue_many")
        handles = self.call(self._client.enqueue_many(works, **options))
        return [SyncHandle(self, handle) for handle in handles]

    def _within(
        self, works: Sequence[Work[Any, Any]], options: EnqueueOptions, where: str
    ) -> list[SyncHandle[Any, Any]]:
        """Submit in the caller's transaction, and in the caller's thread: there the connection belongs."""
        checked = check_options(options, where, ENQUEUE_OPTIONS)
        self.call(self._client.connect())
        handles = _at_once(self._client.submit_within(checked.pop("tx"), works, checked))
        return [SyncHandle(self, handle) for handle in handles]

    def handle(self, id: str) -> SyncHandle[Any, Any]:
        return SyncHandle(self, self._client.handle(id))

    def cancel(self, ids: Any) -> int:
        return self.call(self._client.cancel(ids))

    def get(self, ids: Any) -> list[ItemState | None]:
        return self.call(self._client.get(ids))

    def close(self) -> None:
        """End the background loop, if there is one. An app on a loop of the user's is left alone."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _end(self) -> None:
        await self._client.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Carry a coroutine out on the app's loop, and wait for it here."""
        loop = core_of(self._client).loop or self._own_loop()
        if _running_here(loop):
            coroutine.close()
            raise RuntimeError("app.sync would block the event loop it runs on: await app.enqueue(...) here")
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="treadle sync", daemon=True
                )
                self._thread.start()
            return self._loop


def _running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that waits for nothing."""
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
