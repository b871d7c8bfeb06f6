"""Wake-ups: NOTIFY, at a bounded rate, and LISTEN, on one connection that is opened again when it is lost.

A NOTIFY takes a lock that the whole server shares until its transaction has committed, so it is never part
of a transaction that does work. One publisher per process sends at most `LONE_PER_SECOND` times a second, and
less often under load; one connection per process listens.

Every role of a database can LISTEN and NOTIFY on any channel whose name it knows. So the name of the channel
follows from a random key in the schema, and payloads are signed with it: only roles that may read the schema
can read and make them. (Decision 0016.)
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import asyncpg
from msgspec.structs import replace

from treadle.base.loop_mark import LoopMark
from treadle.errors import BackendError, TreadleError
from treadle.item import Wake
from treadle.store.listening import ANSWER_SECONDS, Listening
from treadle.store.wakeups import (
    EVERYTHING,
    NOTHING,
    WakePublisher,
    WakeReceivers,
    WakeupsAbsence,
    decode_wake,
    encode_wake,
)

from .errors import CONNECTION_ERRORS, brief
from .pool import abandon_connection
from .schema import Connection
from .statements import statement

PROBE: Final = statement("wakeups", "probe")

LONE_PER_SECOND: Final = 1000
"""Wake-ups that stand for one occasion. With 250, no more than 250 items a second can be awaited one by
one."""
PER_SECOND: Final = 250
"""Occasions, when wake-ups stand for a few. With 50, an item every few milliseconds started 7.7 ms after it
was submitted (p50), with 250 after 3.8."""
WHEN_BUSY: Final = 50
"""Wake-ups per second, when each stands for several occasions: the receivers are busy then."""
MOST_BYTES: Final = 7900
"""Longest payload, with its signature. The server refuses one of 8,000."""
SIGNATURE: Final = 64
"""Length of a signature, in hexadecimal digits."""
UNSIGNED: Final = '{"ready":true}'
"""Payload of a user's transaction, from a function in the database: there may be something to claim."""
CARRIER: Final = "LISTEN/NOTIFY"
UNHEARD: Final = (
    "none came back (behind a pooler in transaction mode, PostgresBackend needs listen_url= past it)"
)


def channel_name(key: str) -> str:
    """The channel of a schema, given the key in it."""
    return "treadle_" + hashlib.sha256(f"channel {key}".encode()).hexdigest()[:40]


def payloads(wake: Wake) -> list[str]:
    """The wake-up as texts that the server accepts, as many as it needs. They are not signed."""
    text = encode_wake(wake)
    if len(text) + SIGNATURE <= MOST_BYTES:
        return [text.decode()]
    most = max(len(wake.items), len(wake.groups), len(wake.asking), len(wake.awaited))
    if most > 1:
        half = most // 2
        rest = Wake(sender=wake.sender)
        return payloads(_part(wake, wake, slice(half))) + payloads(_part(rest, wake, slice(half, None)))
    if wake.results:
        return payloads(replace(wake, results=()))
    return [encode_wake(Wake(sender=wake.sender, ready=True, everything=True)).decode()]


def _part(like: Wake, wake: Wake, part: slice) -> Wake:
    """As `like`, with a part of the ids of `wake`."""
    return replace(
        like,
        items=wake.items[part],
        results=wake.results[part],
        groups=wake.groups[part],
        asking=wake.asking[part],
        awaited=wake.awaited[part],
    )


class WakeSignature:
    """Signs and checks texts with the key of a schema: HMAC with SHA-256. `use` is called on opening."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def use(self, key: str) -> None:
        self._key = key.encode()

    def signed(self, text: str) -> str:
        return self._of(text.encode()) + text

    def checked(self, message: str) -> str | None:
        """The text; None if no process with this key has signed it."""
        signature, text = message[:SIGNATURE], message[SIGNATURE:]
        try:
            given, data = signature.encode(), text.encode()
        except UnicodeEncodeError:
            return None
        return text if hmac.compare_digest(given, self._of(data).encode()) else None

    def opened(self, message: str) -> Wake | None:
        """The wake-up in a message; None if there is none, or no process with this key has signed it."""
        text = self.checked(message)
        return decode_wake(text) if text else None

    def _of(self, data: bytes) -> str:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()


class ListeningSession:
    """A connection that listens. `probed`: called when it has answered."""

    def __init__(
        self,
        connection: Connection,
        channel: Callable[[Connection], Awaitable[str]],
        on_notify: Callable[[str], None],
        probed: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._on_notify = on_notify
        self._probed = probed
        self.lost = asyncio.Event()
        self.abort = connection.terminate
        connection.add_termination_listener(lambda _: self.lost.set())

    async def begin(self) -> None:
        """Other roles with rights to monitor see the last statement of a connection: it must not be LISTEN
        with the name of the channel."""
        channel = await self._channel(self._connection)
        await self._connection.add_listener(channel, lambda *got: self._on_notify(str(got[-1])))
        await self._connection.execute(PROBE)

    async def probe(self) -> None:
        await self._connection.execute(PROBE)
        self._probed()

    async def close(self) -> None:
        self._connection.terminate()

    def abandon(self, mark: LoopMark) -> None:
        abandon_connection(self._connection, mark)


class NotifyWakeups:
    """Wake-ups by NOTIFY and LISTEN.

    connect: opens a connection to listen on. channel: asks it for the name of the channel.
    send: sends payloads to that channel.
    """

    carrier = CARRIER

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        channel: Callable[[Connection], Awaitable[str]],
        send: Callable[[list[str]], Awaitable[object]],
        signature: WakeSignature,
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._send = send
        self._signature = signature
        self._echo = ""
        """A text of its own that has not come back. A pooler may accept LISTEN, and pass nothing on."""
        self._silence = WakeupsAbsence(CARRIER)
        self.problems = self._silence.news
        """Only that nothing comes back: what keeps the listener away shows in the calls too."""
        self._receivers = WakeReceivers()
        self._listening = Listening(
            self._session, self._began, (*CONNECTION_ERRORS, asyncpg.PostgresError, TreadleError), brief
        )
        self.reconnect = self._listening.renew
        """The server gave no sign of life: do not rely on the connection."""
        self.publish = WakePublisher(
            lambda wake: send([signature.signed(text) for text in payloads(wake)]),
            lone=LONE_PER_SECOND,
            per_second=PER_SECOND,
            when_busy=WHEN_BUSY,
        ).publish

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        """When this returns, the first try to connect is over."""
        unsubscribe = self._receivers.add(receive)
        self._listening.start()
        await self._listening.tried.wait()
        return unsubscribe

    async def close(self) -> None:
        self._receivers.clear()
        await self._listening.stop()

    def abandon(self) -> None:
        """Forget the receivers whose event loops are gone, and the connection if its loop is."""
        self._receivers.abandon()
        self._listening.abandon()

    async def _session(self) -> ListeningSession:
        return ListeningSession(await self._connect(), self._channel, self._on_notify, self._probed)

    async def _began(self, missed: bool) -> None:
        if missed:
            self._receivers.deliver(EVERYTHING)
        self._echo = f"echo {secrets.token_hex(8)}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._send([self._echo])
        except (TreadleError, TimeoutError):  # nothing can come back
            self._echo = ""

    def _probed(self) -> None:
        if self._echo:
            self._silence.begin(UNHEARD)

    def _on_notify(self, text: str) -> None:
        if text == self._echo:
            self._echo = ""
            self._silence.end()
            return
        wake = Wake(ready=True) if text == UNSIGNED else self._signature.opened(text)
        if wake is not None and wake != NOTHING:
            self._receivers.deliver(wake)


class NoWakeups:
    """Wake-ups within this process only. Other processes find work by polling."""

    carrier = None

    def __init__(self) -> None:
        self._receivers = WakeReceivers()
        self.abandon = self._receivers.abandon

    async def publish(self, wake: Wake) -> None:
        self._receivers.deliver(wake)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return self._receivers.add(receive)

    async def close(self) -> None:
        self._receivers.clear()

    def reconnect(self) -> None: ...

    def problems(self) -> Sequence[BackendError]:
        return ()
