"""Wake-ups through a PubSub of another server, instead of NOTIFY and LISTEN.

The users of that server are strangers. They can read what is published, so it has ids and no results. They
cannot make it: each text has a signature by a key in the schema, and what has none is ignored.

The other server may be away, and a PubSub need not tell. So a process checks that what it publishes arrives
at itself: each wake-up of its own is a check, and after a silence it publishes one that says nothing. While
the check fails, nothing else is published, work is found by polling, and the subscription is made anew, with
back-off. When it succeeds again, the receivers get a wake-up that says that everything may have changed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from treadle.backend import store_name
from treadle.base.loop_mark import LoopMark
from treadle.errors import BackendError
from treadle.item import Wake
from treadle.retry import STORE_BACKOFF
from treadle.store.listening import ANSWER_SECONDS, PROBE_SECONDS
from treadle.store.pubsub import MISSED, Answer, PubSub, resolved
from treadle.store.wakeups import (
    EVERYTHING,
    NOTHING,
    WakePublisher,
    WakeReceivers,
    WakeupsAbsence,
)

from .errors import brief
from .wakeups import LONE_PER_SECOND, MOST_BYTES, WHEN_BUSY, WakeSignature, payloads

log = logging.getLogger("treadle.postgres")

PER_SECOND: Final = 1000
"""Occasions. More than with NOTIFY: a PubSub takes no lock of the database."""


class PubSubWakeups:
    """Publishes wake-ups through a PubSub, and delivers those that arrive. `owned`: close it too."""

    def __init__(self, pubsub: PubSub, signature: WakeSignature, *, owned: bool) -> None:
        self.carrier = store_name(pubsub)
        self._pubsub = pubsub
        self._signature = signature
        self._owned = owned
        self._receivers = WakeReceivers()
        self.publish = WakePublisher(
            self._send, lone=LONE_PER_SECOND, per_second=PER_SECOND, when_busy=WHEN_BUSY
        ).publish
        self._absence = WakeupsAbsence(self.carrier)
        self._task: asyncio.Task[None] | None = None
        self._mark: LoopMark | None = None
        """Where the task runs."""
        self._end: Callable[[], Answer[None] | None] | None = None
        """Ends the subscription."""
        self._sent = ""
        """The last payload that this process has published."""
        self._arrived_at = 0.0
        self._start_anew()

    def _start_anew(self) -> None:
        self._task = self._mark = self._end = None
        self._tried = asyncio.Event()
        self._arrived = asyncio.Event()
        """The last payload has come back."""
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
                    await self._publish(text)
        except Exception:
            self._check_now.set()
            raise

    async def _publish(self, text: str) -> None:
        self._sent = self._signature.signed(text)
        await resolved(self._pubsub.publish(self._sent))

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
        """Subscribe, if it is not subscribed, and return when a message of this process has arrived."""
        if self._end is None:
            self._end = await resolved(self._pubsub.subscribe(self._on_message))
        self._arrived.clear()
        await self._publish(f"check {secrets.token_hex(8)}")
        await self._arrived.wait()

    async def _pause(self, failures: int) -> None:
        """Return when the next check is due."""
        due = time.monotonic() + (STORE_BACKOFF.delay(failures) if failures else PROBE_SECONDS)
        while (wait := due - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._check_now.wait(), wait)
            except TimeoutError:
                # A wake-up of this process that has arrived meanwhile is as good as a check.
                due = max(due, 0.0 if failures else self._arrived_at + PROBE_SECONDS)
            else:
                return

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
        if text == self._sent:
            self._arrived_at = time.monotonic()
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
