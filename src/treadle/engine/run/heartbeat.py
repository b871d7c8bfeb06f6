"""Heartbeat: keep this worker alive in the store, and learn which of its leases are lost.

One heartbeat renews one row for all items of the worker. The event loop sends it. While a handler
blocks the loop, a thread does, on a connection of its own. (A C call that holds the GIL stops the thread too:
`treadle worker` sends heartbeats from a separate process.)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec.structs import replace

from treadle.base.wording import duration
from treadle.engine import store_retry
from treadle.engine.core import Core
from treadle.engine.settings import WorkerSettings
from treadle.engine.tasks import finish
from treadle.item import Heartbeat, Lease, Record
from treadle.logs.lines import WARNING, item_fields, lines, log_line, named_items
from treadle.worker_info import WorkerInfo, encode_worker_info

from .attempt import AttemptRunner
from .bound_types import BoundTypes
from .held import HeldLease, HeldLeases, Stop
from .worker_report import WorkerReport


class HeartbeatLoop:
    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        held: HeldLeases,
        types: BoundTypes,
        runner: AttemptRunner,
        report: WorkerReport,
        on_drain: Callable[[], None],
        on_unknown: Callable[[], None],
    ) -> None:
        """on_drain: called when someone has asked the worker to stop. on_unknown: called when the store has
        leases of the worker that it does not know."""
        self._on_drain = on_drain
        self._on_unknown = on_unknown
        self._unknown: frozenset[int] = frozenset()
        """Tokens that the last heartbeat named, and that this worker did not know."""
        self._begun = False
        """Whether what the store says is about this worker, not about a previous one with its id."""
        self._backend = core.backend
        self._clock = core.settings.clock
        self._hooks = core.hooks
        self._scheduler = core.scheduler
        self._worker = worker.id
        self.is_supervised = worker.last_supervisor_beat is not None
        self._last_supervisor_beat = worker.last_supervisor_beat or (lambda: -math.inf)
        self._lease = core.settings.lease
        self._release = core.settings.release
        self._heartbeat = core.settings.heartbeat
        self._held = held
        self._logs = RunningLogs(core, held)
        self._types = types
        self._interrupt = runner.interrupt
        self._report = report
        self.last_beat = 0.0
        """When the last heartbeat that was answered was sent, by the monotonic clock."""
        self.last_watchdog_beat = -math.inf
        """The same for the heartbeats of the watchdog."""
        self._woke = self._resumed = -math.inf
        """When this loop last woke up, and when it last woke up late."""
        self.blocked_by: Sequence[Lease] = ()
        """What blocks the event loop, as the watchdog has seen it."""

    def on_loop(self, task: asyncio.Task[Any] | None) -> list[Lease]:
        """The attempts that a task of the event loop runs. A thread calls it, while the loop is blocked."""
        found = [held for held in self._held.all() if task in (held.task, held.batch and held.batch.task)]
        return [held.lease for held in found] if task is not None else []

    async def begin(self) -> None:
        """Send the first heartbeat. If the store knows a worker of this name, it is a previous process: it is
        removed, and what it was running is free."""
        await self._report.open()
        if not await self.beat():
            await self._backend.remove_worker(self._worker)
            self._report.forget()
            await self.beat()
        self._begun = True

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        self._woke = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._heartbeat)
            self._wake()
            try:
                await self._beat_and_check()
                self._logs.write_soon()
            except Exception as error:  # noqa: BLE001  without heartbeats the worker would lose everything
                self._hooks.report(error, "renew", "could not renew the worker's lease; trying again")
                self._check_lease()

    async def _beat_and_check(self) -> None:
        """Send a heartbeat, and check the lease even while the store does not answer."""
        beating = asyncio.ensure_future(self.beat())
        try:
            while not beating.done():
                await asyncio.wait({beating}, timeout=self._heartbeat)
                self._wake()
                if not beating.done():
                    self._check_lease()
        finally:
            beating.cancel()
        beating.result()

    def _wake(self) -> None:
        """Note whether this loop wakes up late: then the process was suspended, or its event loop blocked."""
        now = self._clock.monotonic()
        if now - self._woke > 2 * self._heartbeat:
            self._resumed = now
            self._report.note_blockage(self._woke, now, self.blocked_by)
            self._report.forget()  # the store may have been told that it is blocked
            self.blocked_by = ()
        self._woke = now

    def blocked(self) -> WorkerInfo | None:
        """What there is to say if this loop should have woken up long ago. A thread calls it."""
        late = self._clock.monotonic() - self._woke > 2 * self._heartbeat
        return self._report.blocked(self._woke, self.blocked_by) if late else None

    async def beat(self) -> bool:
        """Send a heartbeat. Returns whether the worker was new to the store."""
        sent = self._clock.monotonic()
        leases, permits = self._held.leases(), self._types.permits.total
        info = self._report.due()
        heartbeat = Heartbeat(
            worker=self._worker,
            lease=self._lease,
            held=leases,
            types=self._types.names(),
            info=None if info is None else encode_worker_info(info),
            release=self._release,
        )
        reply = await finish(self._backend.beat(heartbeat))
        self.last_beat = sent
        self._hooks.outage.answered("renew")
        if info is not None:
            self._report.sent(info, sent)
        elif reply.fresh:
            self._report.forget()  # the worker was removed meanwhile, and what it said with it
        for token, why in reply.lost.items():
            self.lose(token, why)
        if reply.silent:
            self._stop_silent(reply.silent)
        if reply.unknown is not None:
            self.compare_leases(reply.unknown)
        self._types.permits.compare(reply.permits, permits)
        if reply.drain and self._begun:
            self._on_drain()
        if reply.new_store:
            self._meet_new_store()
        return reply.fresh

    def compare_leases(self, tokens: Sequence[int]) -> None:
        """Compare the leases that the store has beside those that the heartbeat named with what is held now.
        The answer to a claim may be under way: so a lease has to be unknown twice in a row."""
        unknown = self._held.unknown_tokens(tokens) if tokens else frozenset[int]()
        if not unknown.isdisjoint(self._unknown):
            self._on_unknown()
        self._unknown = unknown

    def _meet_new_store(self) -> None:
        """The heartbeat has registered the worker and its types there. The schedules come now."""
        log_line(
            WARNING,
            f"{self._hooks.outage.name} is new: all items of the old one are lost. This process stores its "
            "types and schedules again",
        )
        self._scheduler.store_again()

    def lose(self, token: int, why: str) -> None:
        """Stop an attempt whose lease is lost."""
        held = self._held.by_token.get(token)
        if held is not None:
            self._interrupt(held, cast("Stop", why))

    def _stop_silent(self, tokens: Sequence[int]) -> None:
        """Stop the attempts of a store that has not answered for a whole lease: others may own the items."""
        found = (held for token in tokens if (held := self._held.by_token.get(token)) is not None)
        self._stop([held for held in found if held.stop is None and not held.over], self._lease)

    def silence(self) -> float:
        """Seconds since the last heartbeat that was answered was sent."""
        return self._clock.monotonic() - self.last_beat

    def _check_lease(self) -> None:
        """Without an answered heartbeat for a whole lease, others may own the items by now: stop all
        attempts.

        Heartbeats of the watchdog and of the supervisor count. A process that has just gone on first hears
        from the store: the reply to its next heartbeat says which leases are lost.
        """
        now = self._clock.monotonic()
        last = max(self.last_beat, self.last_watchdog_beat, self._last_supervisor_beat())
        if now - last > self._lease and now - self._resumed > self._heartbeat:
            self._stop_all(now - last)

    def _stop_all(self, silent: float) -> None:
        """Stop all attempts: the lease has lapsed."""
        self._stop(self._held.all(), silent)

    def _stop(self, stopping: Sequence[HeldLease], silent: float) -> None:
        stopped = [held.lease for held in stopping if held.stop is None and not held.over]
        for held in stopping:
            self._interrupt(held, "error")
        if stopped:
            log_line(
                WARNING,
                f"could not renew the worker's lease for {duration(silent)}: stopped {len(stopped)} "
                f"attempt(s), which do not count. Their items are given back: {named_items(stopped)}",
            )


class RunningLogs:
    """Writes what running handlers have logged since the last heartbeat, in one call."""

    def __init__(self, core: Core, held: HeldLeases) -> None:
        self._core = core
        self._held = held
        self._writing: asyncio.Task[None] | None = None

    def write_soon(self) -> None:
        """In a task: an item that a transaction has locked must not delay heartbeats."""
        if self._writing is not None and not self._writing.done():
            return
        news = [held for held in self._held.unfinished() if held.has_news and held.transaction is None]
        if news:
            records = [Record(lease=held.lease, log=held.log()) for held in news]
            self._writing = self._core.tasks.start(self._write(records), "record")

    async def _write(self, records: Sequence[Record]) -> None:
        try:
            await finish(self._core.backend.record(records))
        except Exception as error:  # noqa: BLE001  the settlement brings them
            what = f"could not write what {len(records)} running item(s) logged"
            self._core.hooks.report(error, "renew", what)


class Watchdog:
    """A thread that sends heartbeats when those of the event loop are late: the loop is blocked (then it logs
    by what), or the store does not answer."""

    def __init__(self, core: Core, worker: str, loop_heartbeat: HeartbeatLoop) -> None:
        self._loop_heartbeat = loop_heartbeat
        self._connect = core.backend.heartbeat_connection
        self._log = core.hooks.log
        self._message = Heartbeat(worker=worker, lease=core.settings.lease, registers=False)
        self._heartbeat = core.settings.heartbeat
        self.over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="treadle watchdog", daemon=True)
        self._blocked = False
        self.keep_lease: Callable[[], bool] | None = None
        """Set when the worker has stopped: send all heartbeats, also while the loop runs. It says whether
        handlers still run in threads."""

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self.over.set()
        with contextlib.suppress(RuntimeError):  # no thread can be started that could wait for it
            await asyncio.to_thread(self._thread.join, store_retry.STOP_TIMEOUT)

    def _run(self) -> None:
        while not self.over.wait(self._heartbeat / 2):
            if self._is_alone():
                return
            if not self._is_late():
                self._blocked = False
                continue
            self._report_blocked()
            asyncio.run(self._beat_here())

    def _is_late(self) -> bool:
        loop = self._loop_heartbeat
        return self.keep_lease is not None or (loop.last_beat > 0 and loop.silence() > self._heartbeat * 1.5)

    def _is_alone(self) -> bool:
        """Whether the event loop is closed: the worker is gone with it, and sends no heartbeats any more,
        unless a handler of it still runs in a thread."""
        return self._loop.is_closed() and (self.keep_lease is None or not self.keep_lease())

    def _report_blocked(self) -> None:
        """Log, once per blockage, what blocks the event loop."""
        if not self._blocked and self.keep_lease is None and not self._loop_answers():
            self._blocked = True
            if self._loop_heartbeat.is_supervised:
                here, stack = "", ""  # the supervisor shows it, also if a C call lets no thread run
            else:
                frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
                here, stack = ". It is here:", "" if frame is None else "".join(traceback.format_stack(frame))
            running = self._loop_heartbeat.blocked_by = self._loop_heartbeat.on_loop(
                asyncio.current_task(self._loop)
            )
            by = f" by {named_items(running)}" if running else ""
            log_line(
                WARNING,
                f"the event loop has been blocked for over {duration(self._heartbeat * 1.5)}{by}; make that "
                f"handler sync (it then runs in a thread), or run_in='process'{here}",
                item_fields(running[0]) if len(running) == 1 else None,
                trace=lines(stack),
            )

    def _next_message(self) -> Heartbeat:
        info = self._loop_heartbeat.blocked() if self._blocked else None
        return self._message if info is None else replace(self._message, info=encode_worker_info(info))

    def _loop_answers(self) -> bool:
        """Whether the loop runs: then it is the store that is slow."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return True  # the loop is closed
        return answered.wait(self._heartbeat / 4)

    async def _beat_here(self) -> None:
        """Send heartbeats from this thread, on a connection of its own, until the loop does so again."""
        try:
            connection = self._connect()
            try:
                await connection.open()
                while self._is_late() and not self.over.is_set() and not self._is_alone():
                    sent = time.monotonic()
                    await connection.beat(self._next_message())
                    self._loop_heartbeat.last_watchdog_beat = sent
                    self._report_blocked()
                    self.over.wait(self._heartbeat)  # this thread's loop has nothing else to do
            finally:
                await connection.close()
        except Exception as error:  # noqa: BLE001  the thread must live on, and tries again
            self._log(error, "watchdog", "could not renew the worker's lease from the watchdog")
