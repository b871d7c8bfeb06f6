"""Nodes: the connections to the nodes of a cluster that all partitions of an app share.

There is one for each kind of call to a node, however many partitions it has, and one on which it tells them
of wake-ups. A partition whose slot has moved leaves the connection to its old node to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import hiredis

from treadle.base.loop_mark import LoopMark

from .address import Endpoint
from .connection import OnPush, Part, RedisConnection

Key: TypeAlias = tuple[int, Endpoint, str]
"""The event loop, the node and the kind of a connection."""
Open: TypeAlias = Callable[[OnPush | None], Coroutine[Any, Any, RedisConnection]]
PUSHED: Final = "push"
"""The kind of connection on which a node sends on its own."""
PROBED: Final = 10.0
"""Seconds for which the answer to one probe of a connection holds for all who listen on it."""


class SharedConnection:
    """A connection, and who uses it."""

    def __init__(self, key: Key, open: Open) -> None:
        self.key = key
        self.mark = LoopMark()
        self.opening = asyncio.ensure_future(open(self.push if key[2] == PUSHED else None))
        self.opening.add_done_callback(_see)
        self.users = 0
        self.receivers: dict[bytes, Listener] = {}
        """By channel."""
        self.probed_at = 0.0

    @property
    def is_usable(self) -> bool:
        if self.mark.is_gone or not self.opening.done():
            return not self.mark.is_gone
        failed = self.opening.cancelled() or self.opening.exception() is not None
        return not failed and self.opening.result().is_usable

    def push(self, message: list[Any]) -> None:
        listener = self.receivers.get(message[1])
        if listener is not None:
            listener.on_push(message)

    def lost(self) -> None:
        for listener in self.receivers.values():
            listener.lost.set()
        self.receivers.clear()


class ClusterNodes:
    """Of one app. It may run in several event loops, each with connections of its own."""

    def __init__(self) -> None:
        self._shared: dict[Key, SharedConnection] = {}
        self._of: WeakKeyDictionary[RedisConnection, SharedConnection] = WeakKeyDictionary()
        self.warned: set[str] = set()
        """What the log has said about their settings."""

    async def connect(self, endpoint: Endpoint, kind: str, open: Open) -> RedisConnection:
        """The connection of this kind to a node. Give it back with `leave`."""
        shared = self._find(endpoint, kind, open)
        return await self._opened(shared)

    async def listen(self, endpoint: Endpoint, open: Open, on_push: OnPush) -> Listener:
        shared = self._find(endpoint, PUSHED, open)
        return Listener(self, shared, await self._opened(shared), on_push)

    def _find(self, endpoint: Endpoint, kind: str, open: Open) -> SharedConnection:
        key = (id(asyncio.get_running_loop()), endpoint, kind)
        shared = self._shared.get(key)
        if shared is None or not shared.is_usable:
            shared = self._shared[key] = SharedConnection(key, open)
        return shared

    async def _opened(self, shared: SharedConnection) -> RedisConnection:
        shared.users += 1
        try:
            connection = await asyncio.shield(shared.opening)
        except BaseException:
            shared.users -= 1
            if not shared.users and not shared.opening.done():
                shared.opening.cancel()
                self._forget(shared)
            raise
        if connection not in self._of:
            self._of[connection] = shared
            connection.on_lost = shared.lost
        return connection

    def leave(self, connection: RedisConnection) -> bool:
        """A user has gone. Returns whether it was the last one: the connection is to be closed."""
        shared = self._of.get(connection)
        if shared is None:
            return True
        shared.users -= 1
        if shared.users > 0:
            return False
        self._forget(shared)
        return True

    def _forget(self, shared: SharedConnection) -> None:
        if self._shared.get(shared.key) is shared:
            del self._shared[shared.key]


class Listener:
    """Listens to channels on a connection on which others listen to theirs. It has what a connection of its
    own would have."""

    def __init__(
        self, nodes: ClusterNodes, shared: SharedConnection, connection: RedisConnection, on_push: OnPush
    ) -> None:
        self._nodes = nodes
        self._shared = shared
        self._connection = connection
        self._is_left = False
        self.on_push = on_push
        self.lost = asyncio.Event()

    async def call(self, *parts: Part) -> Any:
        """Subscribe, or probe."""
        shared = self._shared
        now = shared.mark.loop.time()
        if len(parts) > 1:
            shared.receivers[bytes(parts[1])] = self  # type: ignore[arg-type]
        elif now - shared.probed_at < PROBED:
            return None
        else:
            shared.probed_at = now
        try:
            return await self._connection.call(*parts)
        except hiredis.ReplyError:
            raise
        except BaseException:
            self._connection.abort()  # the others are to notice too
            raise

    def _leave(self) -> bool:
        self.lost.set()
        mine = [channel for channel, each in self._shared.receivers.items() if each is self]
        for channel in mine:
            del self._shared.receivers[channel]
        is_left, self._is_left = self._is_left, True
        return not is_left and self._nodes.leave(self._connection)

    async def close(self) -> None:
        if self._leave():
            await self._connection.close()

    def abort(self) -> None:
        if self._leave():
            self._connection.abort()

    def abandon(self) -> None:
        if self._leave():
            self._connection.abandon()


def _see(task: asyncio.Task[RedisConnection]) -> None:
    if not task.cancelled():
        task.exception()  # its callers may all be gone
