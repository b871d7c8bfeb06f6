"""One connection to Redis: commands go out in order, and their answers come in the same order.

Any number of calls may be on their way. A caller that is cancelled leaves its place in the line: the answer
is read and dropped. If the connection is lost, what is not answered may or may not have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import hiredis

from treadle.base.loop_mark import LoopMark, keep_for_ever
from treadle.errors import StoreUnavailable
from treadle.store.listening import keep_alive

from .errors import LOST

Part: TypeAlias = bytes | str | int | float
"""A part of a command."""
OnPush: TypeAlias = Callable[[list[Any]], None]
pack: Final[Callable[[tuple[Part, ...]], bytes]] = cast("Any", hiredis).pack_command
"""A command as bytes for the server."""

CLOSE_SECONDS: Final = 1.0
"""Seconds that the server may take to receive what was sent before a connection is closed."""
KEEPALIVE: Final = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 3000}
"""The kernel asks after 2 s of silence, and gives up after 3 s without an acknowledgement."""


class RedisConnection(asyncio.Protocol):
    """Made by the event loop when it has connected.

    patience: seconds after which a call without an answer closes the connection.
    on_push: called with each message of a subscription. None: there are no subscriptions.
    """

    def __init__(self, patience: float, on_push: OnPush | None = None) -> None:
        self.mark = LoopMark()
        self.lost = asyncio.Event()
        self.on_lost: Callable[[], None] | None = None
        """Called when it is lost."""
        self._loop = self.mark.loop
        self._patience = patience
        self._on_push = on_push
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[asyncio.Future[Any] | None, float]] = deque()
        """The futures of the answers to come, and when each was sent. None: no caller waits for it."""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._reason = LOST

    @property
    def is_usable(self) -> bool:
        return not self._transport.is_closing()

    # -- what the callers use --------------------------------------------------------------------------

    def call(self, *parts: Part) -> asyncio.Future[Any]:
        """Send a command. The future has the answer; an error of the server is a `hiredis.ReplyError`."""
        return self.send(pack(parts))

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Send one packed command."""
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()
        if self._transport.is_closing():
            future.set_exception(StoreUnavailable(self._reason))
            return future
        self._waiting.append((future, loop.time()))
        if self._timer is None:
            self._timer = loop.call_later(self._patience, self._check_patience)
        self._transport.write(packed)
        return future

    def send_unanswered(self, packed: bytes) -> None:
        """Send one packed command whose answer no caller needs."""
        if self._transport.is_closing():
            return
        self._waiting.append((None, self._loop.time()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience, self._check_patience)
        self._transport.write(packed)

    def last_call(self) -> asyncio.Future[Any] | None:
        """The last call that is on its way, if a caller waits for one."""
        future: asyncio.Future[Any] | None
        for future, _ in reversed(self._waiting):
            if future is not None and not future.done():
                return future
        return None

    async def close(self) -> None:
        """Close it when what was sent is on its way, and wait until it is closed. Calls without an answer
        raise."""
        self._transport.close()
        try:
            await asyncio.wait_for(self.lost.wait(), CLOSE_SECONDS)
        except TimeoutError:
            self._transport.abort()
            await self.lost.wait()

    def abort(self, reason: str = LOST) -> None:
        """Close it at once. Calls without an answer raise `StoreUnavailable` with this reason."""
        self._reason = reason
        self._transport.abort()

    def abandon(self) -> None:
        """End it: its event loop is gone. A forked process shares its parent's socket: it must not write a
        byte into it, not even to end the connection."""
        transport: Any = self._transport
        if self.mark.is_inherited:
            keep_for_ever((self, transport))
            return
        with contextlib.suppress(RuntimeError):  # the transport needs its loop
            transport.abort()
        inner: Any = getattr(transport, "_ssl_protocol", None)
        each: Any
        for each in (transport, getattr(inner, "_transport", None)):
            link = getattr(each, "_sock", None)
            if link is not None:
                link.close()
                each._sock = None  # else its destructor warns that it was not closed

    # -- what the event loop calls ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by its class: the transports of uvloop are no subclasses of it.
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport, KEEPALIVE)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        try:
            while (answer := reader.gets()) is not False:
                if self._on_push is not None and self._pushed(answer):
                    continue
                future, _ = waiting.popleft()
                if future is None or future.done():
                    continue
                if isinstance(answer, hiredis.ReplyError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except (hiredis.ProtocolError, IndexError):
            self.abort("the server sent what no Redis sends: is this its address?")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if future is not None and not future.done():
                error = StoreUnavailable(self._reason)
                error.__cause__ = exc
                future.set_exception(error)
        self.lost.set()
        if self.on_lost is not None:
            self.on_lost()

    def _pushed(self, answer: Any) -> bool:
        if not isinstance(answer, list) or not answer or answer[0] not in _PUSHES:
            return False
        assert self._on_push is not None
        self._on_push(answer)  # pyright: ignore[reportUnknownArgumentType]
        return True

    def _check_patience(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        left = self._waiting[0][1] + self._patience - self._loop.time()
        if left <= 0:
            self.abort(
                f"Redis did not answer for {self._patience:g} s: the call may or may not have happened. It "
                "hangs, or is busy with a large call: split that, or raise patience= in the URL"
            )
        else:
            self._timer = self._loop.call_later(left, self._check_patience)


_PUSHES: Final = frozenset({b"message", b"smessage", b"unsubscribe", b"sunsubscribe"})
"""What the server sends on its own. It answers a call of SUBSCRIBE with one message for each channel."""
