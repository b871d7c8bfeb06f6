"""Wake-ups: NOTIFY, at a bounded rate, and LISTEN, on one connection that is opened again when it is lost.

A NOTIFY takes a lock that the whole server shares until its transaction has committed, so it is never part
of a transaction that does work. One notifier per process sends at most `LONE_PER_SECOND` times a second, and
less often under load; one connection per process listens. Losing a wake-up costs latency, never work: after
the listener was away, it delivers a wake-up that says that everything may have changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import asyncpg

from treadle.base.loop_mark import LoopMark
from treadle.errors import BackendError, InputError, TreadleError, WakeupsLost
from treadle.item import Wake
from treadle.retry import STORE_BACKOFF

from .errors import CONNECTION_ERRORS, brief
from .pool import abandon_connection
from .schema import Connection
from .sealing import EVERYTHING, WakeSeal
from .statements import statement

log = logging.getLogger("treadle.postgres")

PROBE: Final = statement("wakeups", "probe")

LONE_PER_SECOND: Final = 1000
"""When each stands for one occasion. With 250, no more than 250 items a second can be awaited one by one."""
PER_SECOND: Final = 250
"""When some stand for a few. With 50, an item every few milliseconds started 7.7 ms after it was submitted
(p50), with 250 after 3.8."""
WHEN_BUSY: Final = 50
"""Per second, when each stands for several occasions: the receivers are busy then."""
PROBE_SECONDS: Final = 20.0
"""After this time a silent listening connection is checked."""
ANSWER_SECONDS: Final = 3.0
"""How long the server may take to answer on the listening connection."""
CARRIER: Final = "LISTEN/NOTIFY"
UNHEARD: Final = (
    "none came back (behind a pooler in transaction mode, PostgresBackend needs listen_url= past it)"
)

ABSENCE_SECONDS: Final = 60.0
"""Only an absence of the listener that lasts so long is logged."""


class PostgresNotifier:
    """Sends wake-ups, but not too often: the publisher collects those that come meanwhile."""

    def __init__(
        self,
        send: Callable[[list[str]], Awaitable[object]],
        seal: WakeSeal,
        *,
        per_second: float = PER_SECOND,
    ) -> None:
        self._send = send
        self._seal = seal
        self._per_second = per_second
        self._free_at = 0.0

    async def publish(self, wake: Wake) -> None:
        """Returns when it was sent, or could not be."""
        if wake == Wake():
            return
        now = time.monotonic()
        wait = self._free_at - now
        rate = LONE_PER_SECOND if wake.times <= 1 else self._per_second / wake.times
        self._free_at = max(self._free_at, now) + 1 / max(rate, WHEN_BUSY)
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            await self._send(self._seal.payloads(wake))
        except Exception:
            log.debug("a wake-up was not sent", exc_info=True)


class WakeReceivers:
    """The receivers of wake-ups. Each is called on its own event loop."""

    def __init__(self) -> None:
        self._receivers: dict[object, tuple[Callable[[Wake], None], LoopMark]] = {}

    def add(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        """Returns a function that removes it."""
        key = object()
        self._receivers[key] = (receive, LoopMark())

        def remove() -> None:
            self._receivers.pop(key, None)

        return remove

    def clear(self) -> None:
        self._receivers.clear()

    def abandon(self) -> None:
        """Forget the receivers whose event loops are gone."""
        self._receivers = {key: each for key, each in self._receivers.items() if not each[1].is_gone}

    def deliver(self, wake: Wake) -> None:
        here = asyncio.get_running_loop()
        for receive, mark in list(self._receivers.values()):
            if mark.loop is here:
                _receive(receive, wake)
            elif not mark.is_gone:
                mark.loop.call_soon_threadsafe(_receive, receive, wake)


class PostgresListener:
    """Delivers the wake-ups of a channel to the subscribers. `send`: sends payloads to it, as others do."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        send: Callable[[list[str]], Awaitable[object]],
        channel: str,
        seal: WakeSeal,
    ) -> None:
        self._connect = connect
        self._send = send
        self._channel = channel
        self._seal = seal
        self._echo = ""
        """A payload of its own that has not come back. A pooler may accept LISTEN, and pass nothing on."""
        self._silence = WakeupsAbsence(CARRIER)
        self.problems = self._silence.news
        self._receivers = WakeReceivers()
        self._task: asyncio.Task[None] | None = None
        self._mark: LoopMark | None = None
        """Where the task runs."""
        self._connection: Connection | None = None
        self._tried = asyncio.Event()

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        """When this returns, the first try to connect is over."""
        unsubscribe = self._receivers.add(receive)
        if self._task is None:
            self._tried, self._mark = asyncio.Event(), LoopMark()
            self._task = asyncio.create_task(self._run(), name="treadle-listen")
        await self._tried.wait()
        return unsubscribe

    async def close(self) -> None:
        task, self._task = self._task, None
        self._receivers.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def reconnect(self) -> None:
        """The server gave no sign of life: do not rely on the connection."""
        if self._connection is not None:
            self._connection.terminate()

    def abandon(self) -> None:
        """Forget the receivers whose event loops are gone, and the connection if its loop is."""
        self._receivers.abandon()
        if self._mark is not None and self._mark.is_gone:
            if self._connection is not None:
                abandon_connection(self._connection, self._mark)
            self._task = self._mark = self._connection = None

    async def _run(self) -> None:
        failures = 0
        absence = ListenerAbsence()
        while True:
            try:
                connection = self._connection = await self._connect()
            except (*CONNECTION_ERRORS, asyncpg.PostgresError, InputError) as error:
                failures += 1
                absence.failed(error, first_ever=not self._tried.is_set())
            else:
                absence.over()
                missed, failures = self._tried.is_set(), 0
                self._connection = connection
                try:
                    await self._listen(connection, missed)
                except (*CONNECTION_ERRORS, asyncpg.PostgresError):
                    failures = 1
                finally:
                    connection.terminate()
                    self._connection = None
            self._tried.set()
            await asyncio.sleep(STORE_BACKOFF.delay(max(1, failures)))

    async def _listen(self, connection: Connection, missed: bool) -> None:
        """Listen until the connection is lost."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        async with asyncio.timeout(ANSWER_SECONDS):
            await connection.add_listener(self._channel, self._on_notify)
        self._tried.set()
        if missed:
            self._receivers.deliver(EVERYTHING)
        await self._send_echo()
        while not lost.is_set():
            try:
                await asyncio.wait_for(lost.wait(), PROBE_SECONDS)
            except TimeoutError:
                # A connection can be dead without a sign of it.
                await connection.execute(PROBE, timeout=ANSWER_SECONDS)
                if self._echo:
                    self._silence.begin(UNHEARD)

    async def _send_echo(self) -> None:
        self._echo = self._seal.sealed(Wake())
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._send([self._echo])
        except (TreadleError, TimeoutError):  # nothing can come back
            self._echo = ""

    def _on_notify(self, _connection: object, _pid: int, _channel: str, text: object) -> None:
        if text == self._echo:
            self._echo = ""
            self._silence.end()
            return
        wake = self._seal.opened(str(text))
        if wake is not None and wake != Wake():
            self._receivers.deliver(wake)


class NotifyWakeups:
    """Wake-ups by NOTIFY and LISTEN."""

    carrier = CARRIER

    def __init__(self, notifier: PostgresNotifier, listener: PostgresListener) -> None:
        self.publish = notifier.publish
        self.subscribe = listener.subscribe
        self.close = listener.close
        self.abandon = listener.abandon
        self.reconnect = listener.reconnect
        self.problems = listener.problems
        """Only that nothing comes back: what keeps the listener away shows in the calls too."""


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


class ListenerAbsence:
    """Logs, once, that wake-ups have not been received for a while. The calls of the engine tell of an outage
    of the server sooner: only what lasts longer, or is there from the beginning, is worth a line."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._logged = False

    def failed(self, error: BaseException, *, first_ever: bool) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if not self._logged and (first_ever or now - self._since >= ABSENCE_SECONDS):
            self._logged = True
            log.warning("cannot listen for wake-ups, polling goes on: %s", brief(error))

    def over(self) -> None:
        if self._logged:
            log.warning("listening for wake-ups again")
        self._since, self._logged = None, False


class WakeupsAbsence:
    """The time in which wake-ups do not arrive. Logs its beginning and its end, and is a problem once."""

    def __init__(self, carrier: str) -> None:
        self._carrier = carrier
        self._since: float | None = None
        self._cause = ""
        self._reported = False

    @property
    def lasts(self) -> bool:
        return self._since is not None

    def begin(self, cause: str) -> None:
        if self._since is None:
            self._since, self._reported, self._cause = time.monotonic(), False, cause
            log.warning("wake-ups do not arrive by %s, polling goes on: %s", self._carrier, self._cause)

    def end(self) -> bool:
        """Returns whether it lasted until now."""
        lasted, self._since = self.lasts, None
        if lasted:
            log.warning("wake-ups arrive again by %s", self._carrier)
        return lasted

    def news(self) -> Sequence[BackendError]:
        if self._since is None or self._reported:
            return ()
        self._reported = True
        return (WakeupsLost(self._carrier, time.monotonic() - self._since, self._cause),)


def _receive(receive: Callable[[Wake], None], wake: Wake) -> None:
    try:
        receive(wake)
    except Exception:
        log.exception("a receiver of wake-ups raised")
