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
import contextlib
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import asyncpg
from msgspec.structs import replace

from treadle.backend import store_name
from treadle.base.loop_mark import LoopMark
from treadle.errors import BackendError, TreadleError
from treadle.item import Wake
from treadle.retry import STORE_BACKOFF
from treadle.store.listening import ANSWER_SECONDS, PROBE_SECONDS, Listening, WakeListener
from treadle.store.wakeups import (
    EVERYTHING,
    MISSED,
    NOTHING,
    Answer,
    PubSub,
    WakePublisher,
    WakeReceivers,
    WakeupsAbsence,
    decode_wake,
    encode_wake,
    resolved,
)

from .errors import CONNECTION_ERRORS, brief
from .pool import abandon_connection
from .schema import Connection
from .statements import statement

log = logging.getLogger("treadle.postgres")

PROBE: Final = statement("wakeups", "probe")

LONE_PER_SECOND: Final = 1000
"""Wake-ups that stand for one occasion. With 250, no more than 250 items a second can be awaited one by
one."""
PER_SECOND: Final = 250
"""Occasions, when wake-ups stand for a few. With 50, an item every few milliseconds started 7.7 ms after it
was submitted (p50), with 250 after 3.8."""
PUBSUB_PER_SECOND: Final = 1000
"""Occasions, through another server: it takes no lock of the database."""
WHEN_BUSY: Final = 50
"""Wake-ups per second, when each stands for several occasions: the receivers are busy then."""
MOST_BYTES: Final = 7900
"""Longest payload, with its signature. The server refuses one of 8,000."""
SIGNATURE: Final = 64
"""Length of a signature, in hexadecimal digits."""
UNSIGNED: Final = '{"ready":true}'
"""Payload of a user's transaction, from a function in the database: there may be something to claim."""
ECHO_SECONDS: Final = ANSWER_SECONDS / 2
"""Seconds that sending an echo may take: less than a check of the connection, which may send one."""
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
    lists = (wake.items, wake.groups, wake.asking, wake.awaited, wake.streams)
    most = max(map(len, lists))
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
        streams=wake.streams[part],
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
        probed: Callable[[], Awaitable[None]],
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
        await self._connection.add_listener(channel, self._received)
        await self._connection.execute(PROBE)

    def _received(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._on_notify(str(payload))

    async def probe(self) -> None:
        await self._connection.execute(PROBE)
        await self._probed()

    async def close(self) -> None:
        self._connection.terminate()

    def abandon(self, mark: LoopMark) -> None:
        abandon_connection(self._connection, mark)


class NotifyWakeups(WakeListener):
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
        self._echo: str | None = None
        """A text of its own that has not come back: a pooler may accept LISTEN, and pass nothing on. Empty if
        it has. None if it could not be sent."""
        self._silence = WakeupsAbsence(CARRIER)
        self.problems = self._silence.news
        """Only that nothing comes back: what keeps the listener away shows in the calls too."""
        errors = (*CONNECTION_ERRORS, asyncpg.PostgresError, TreadleError)
        super().__init__(Listening(self._session, self._began, errors, brief))
        self.reconnect = self._listening.renew
        """The server gave no sign of life: do not rely on the connection."""
        self.publish = WakePublisher(
            lambda wake: send([signature.signed(text) for text in payloads(wake)]),
            lone=LONE_PER_SECOND,
            per_second=PER_SECOND,
            when_busy=WHEN_BUSY,
        ).publish

    async def _session(self) -> ListeningSession:
        return ListeningSession(await self._connect(), self._channel, self._on_notify, self._probed)

    async def _began(self, missed: bool) -> None:
        if missed:
            self._receivers.deliver(EVERYTHING)
        await self._send_echo()

    async def _send_echo(self) -> None:
        self._echo = f"echo {secrets.token_hex(8)}"
        try:
            async with asyncio.timeout(ECHO_SECONDS):
                await self._send([self._echo])
        except (TreadleError, TimeoutError):  # nothing can come back
            self._echo = None

    async def _probed(self) -> None:
        if self._echo is None:
            await self._send_echo()
        elif self._echo:
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


class PubSubWakeups:
    """Wake-ups through a PubSub of another server, instead of NOTIFY and LISTEN. `owned`: close it too.

    The users of that server are strangers. They can read what is published, so it has ids and no results.
    They cannot make it: what has no signature is ignored.

    The other server may be away, and a PubSub need not tell. So a process publishes, now and then, a text
    that says nothing, and checks that it arrives at itself. While the check fails, nothing else is published,
    work is found by polling, and the subscription is made anew, with back-off. When it succeeds again, the
    receivers get a wake-up that says that everything may have changed.
    """

    def __init__(self, pubsub: PubSub, signature: WakeSignature, *, owned: bool) -> None:
        self.carrier = store_name(pubsub)
        self._pubsub = pubsub
        self._signature = signature
        self._owned = owned
        self._receivers = WakeReceivers()
        self.publish = WakePublisher(
            self._send, lone=LONE_PER_SECOND, per_second=PUBSUB_PER_SECOND, when_busy=WHEN_BUSY
        ).publish
        self._absence = WakeupsAbsence(self.carrier)
        self._task: asyncio.Task[None] | None = None
        self._mark: LoopMark | None = None
        """Where the task runs."""
        self._end: Callable[[], Answer[None] | None] | None = None
        """Ends the subscription."""
        self._echo = ""
        """The text of the last check. Wake-ups may be published before it comes back."""
        self._start_anew()

    def _start_anew(self) -> None:
        self._task = self._mark = self._end = None
        self._tried = asyncio.Event()
        self._arrived = asyncio.Event()
        """The echo has come back."""
        self._check_now = asyncio.Event()

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        """When this returns, the first check is over."""
        unsubscribe = self._receivers.add(receive)
        if self._task is None:
            self._start_anew()
            self._mark = LoopMark()
            self._task = asyncio.create_task(self._run(), name="treadle-wakeups")
        await self._tried.wait()
        return unsubscribe

    async def close(self) -> None:
        task, self._task = self._task, None
        self._receivers.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._unsubscribe()
        close: Callable[[], Answer[None]] | None = getattr(self._pubsub, "close", None)
        if self._owned and close is not None:
            await _quietly(close)

    def abandon(self) -> None:
        """Forget what belongs to event loops that are gone."""
        self._receivers.abandon()
        if self._mark is not None and self._mark.is_gone:
            self._start_anew()
        abandon: Callable[[], None] | None = getattr(self._pubsub, "abandon", None)
        if abandon is not None:
            abandon()

    def reconnect(self) -> None:
        """The database gave no sign of life. The other server may be fine."""

    def problems(self) -> Sequence[BackendError]:
        return self._absence.news()

    # -- publishing ------------------------------------------------------------------------------------

    async def _send(self, wake: Wake) -> None:
        if self._absence.lasts:
            return  # `_run` tells when it is worth while again
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for text in payloads(replace(wake, results=())):
                    await resolved(self._pubsub.publish(self._signature.signed(text)))
        except Exception:
            self._check_now.set()
            raise

    # -- receiving -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Stay subscribed, and check now and then that wake-ups arrive."""
        failures = 0
        while True:
            self._check_now.clear()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._check()
            except Exception as error:  # noqa: BLE001  a PubSub may raise anything: it is tried again
                failures += 1
                self._absence.begin("none came back" if isinstance(error, TimeoutError) else brief(error))
                await self._unsubscribe()
            else:
                failures = 0
                if self._absence.end():
                    self._receivers.deliver(EVERYTHING)
            self._tried.set()
            await self._pause(failures)

    async def _check(self) -> None:
        """Subscribe, if it is not subscribed, and return when a text of this process has arrived."""
        if self._end is None:
            self._end = await resolved(self._pubsub.subscribe(self._on_message))
        self._arrived.clear()
        self._echo = self._signature.signed(f"check {secrets.token_hex(8)}")
        await resolved(self._pubsub.publish(self._echo))
        await self._arrived.wait()

    async def _pause(self, failures: int) -> None:
        """Return when the next check is due."""
        with contextlib.suppress(TimeoutError):
            wait = STORE_BACKOFF.delay(failures) if failures else PROBE_SECONDS
            await asyncio.wait_for(self._check_now.wait(), wait)

    async def _unsubscribe(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            await _quietly(end)

    def _on_message(self, text: str) -> None:
        """Called from any thread."""
        mark = self._mark
        if mark is not None and not mark.is_gone:
            mark.loop.call_soon_threadsafe(self._receive, text)

    def _receive(self, text: str) -> None:
        if text == MISSED:
            self._check_now.set()
            self._receivers.deliver(EVERYTHING)
            return
        if text == self._echo:
            self._arrived.set()
        wake = self._signature.opened(text) if len(text) <= MOST_BYTES else None
        if wake is not None and wake != NOTHING:
            self._receivers.deliver(wake)


async def _quietly(call: Callable[[], Answer[None] | None]) -> None:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await resolved(call())
    except Exception:
        log.debug("a PubSub could not be left", exc_info=True)
