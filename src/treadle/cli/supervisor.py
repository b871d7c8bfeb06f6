"""Supervisor: a small process that starts worker processes and keeps their leases alive.

A thread cannot send heartbeats while a C call holds the GIL for a minute. Another process can. The supervisor
imports the app, but runs no other code of the user. For each child it

- sends heartbeats, on its own connection, as long as the child lives and its event loop runs;
- notices its death at once, and *then* removes the worker from the store: its items start elsewhere in well
  under a second. It starts a new child, after a growing delay if children keep dying;
- kills it when its event loop has been blocked for `max_block`: it dumps the stacks, kills the process, waits
  for its end, and only then frees its items. In any other order two runs of an item could overlap;
- in a burst, starts no other in place of a child that found nothing more to do. If a child died, another one
  looks again, when its items are free. An error ends the burst, with exit code 1;
- handles the signals: the first SIGTERM or SIGINT lets children drain, a second one kills them. A child that
  has not ended some seconds after its drain is killed too.

It never waits for the store: heartbeats and removals are tasks, so that it watches its children and obeys
signals while the store is away.

If the supervisor itself dies, its children see the end of their standard input, and stop. Lease tokens
protect against the rest.
"""

from __future__ import annotations

import asyncio
import mmap
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from treadle.backend import Backend
from treadle.cli.child import BURST_FAILED, LOAD_ERROR, USAGE_ERROR, ChildOptions
from treadle.cli.liveness import LoopLiveness
from treadle.cli.reports import ChildReport, ReportReader, merged
from treadle.engine import store_retry
from treadle.engine.hooks import LOGGER
from treadle.engine.settings import Settings
from treadle.ids import generate_id
from treadle.item import Heartbeat, Wake
from treadle.retry import Retry

CHECK = 0.1
"""Seconds between two checks of the children."""
FAILED_START = Retry(attempts=None, base=0.1, factor=2.0, max=10.0, jitter=0.2)
"""How long to wait for a new child if children die before their event loops run."""
CRASH = Retry(attempts=None, base=0.1, factor=2.0, max=1.0, jitter=0.2)
"""The same if they die soon after: an item may have killed them, and the others must not wait long for it."""
STEADY = 10.0
"""The death of a child that lived this many seconds delays nothing."""
END_GRACE = 5.0
"""Seconds that a child has to end after its drain. If its event loop runs, it may be giving items back over a
slow link: then it has `LONGEST_STOP` seconds more."""


class ChildProcess:
    """One worker process, and the id of its worker."""

    def __init__(self, options: ChildOptions) -> None:
        self.worker = generate_id()
        self.started_at = time.monotonic()
        self.last_heartbeat = 0.0
        self.heartbeat: asyncio.Task[None] | None = None
        """The heartbeat that is being sent."""
        self.reported = False
        """Its blocked event loop was logged."""
        self.ending_since: float | None = None
        """When it was told to end, by the monotonic clock."""
        self.waited_for = False
        """That it has not ended with its drain was logged."""
        self._killed = False
        # A file without a name: no other user can open it, and if this process is killed nothing is left.
        with tempfile.TemporaryFile() as file:
            file.truncate(mmap.PAGESIZE)
            path = Path(f"/dev/fd/{file.fileno()}")
            self.reports = ReportReader()
            self.liveness = LoopLiveness(path)
            options = msgspec.structs.replace(
                options, worker=self.worker, liveness=str(path), reports=self.reports.writing
            )
            command = [sys.executable, "-m", "treadle.cli.child", msgspec.json.encode(options).decode()]
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, pass_fds=[file.fileno(), self.reports.writing]
                )
            except BaseException:
                self.liveness.close()
                self.reports.close()
                raise
            finally:
                self.reports.passed()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def is_blocked(self, seconds: float) -> bool:
        """Whether its event loop has been blocked for longer than `seconds`."""
        blocked_for = self.liveness.blocked_for()
        return blocked_for is not None and blocked_for > seconds

    def terminate(self) -> None:
        """Tell it to drain and end."""
        if self.ending_since is None and self.alive:
            self.ending_since = time.monotonic()
            self.process.terminate()

    def kill(self, why: str) -> None:
        """Kill it, once. A later check finds that it has ended."""
        if not self._killed:
            self._killed = True
            LOGGER.error("killed process %d: %s", self.pid, why)
            self.process.kill()

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.liveness.close()
        self.reports.close()


class Supervisor:
    def __init__(
        self, backend: Backend, settings: Settings, options: ChildOptions, *, processes: int, max_block: float
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._options = options
        self._processes = processes
        """How many are to run. In a burst, one less for each that has nothing more to do."""
        self._max_block = max_block
        self._children: list[ChildProcess] = []
        self._removals: set[asyncio.Task[None]] = set()
        self._stop_requests = 0
        self._short_lives = 0
        self._failed_starts = 0
        self._next_start = 0.0
        self._code = 0
        self._ended = ChildReport()
        """The counts of all children that have ended."""

    def report(self) -> ChildReport:
        """The counts of all children that there were, and how many items run now. Up to a second old. What a
        child counted in its last second is missing if it was killed."""
        return merged([self._ended, *(child.reports.last for child in self._children)])

    async def run(self) -> int:
        """Supervise until told to stop. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self._backend.open()
        try:
            while not self._is_over():
                self.run_once()
                await asyncio.sleep(CHECK)
        finally:
            await self._end_all()
            await self._finish_removals()
            await self._backend.close()
        return self._code

    def stop(self) -> None:
        """The first call lets children drain. The second kills them."""
        self._stop_requests += 1
        if self._stop_requests == 1:
            pids = ", ".join(str(child.pid) for child in self._children)
            LOGGER.info(
                "stopping: waiting up to %.0f s for the handlers of process %s", self._settings.drain, pids
            )
            self.restart()
        else:
            for child in self._children:
                child.kill("a second signal came")

    def restart(self) -> None:
        """Let every child drain. Unless the supervisor is ending, others are started in their places."""
        for child in self._children:
            child.terminate()

    def run_once(self) -> None:
        self._start_children()
        self._check_children()

    def _check_children(self) -> None:
        for child in list(self._children):
            child.reports.read()
            if not child.alive:
                self._remove(child)  # its end is certain: only now its items are freed
                continue
            if child.is_blocked(self._max_block):
                child.kill(f"its event loop was blocked for {self._max_block:.0f} s")
            elif child.ending_since is not None:
                self._check_end(child, time.monotonic() - child.ending_since)
            self._report_blocked(child)
            self._send_heartbeat(child)

    def _check_end(self, child: ChildProcess, since: float) -> None:
        """Kill a child that was told to end and does not. Before that, log once that it is waited for."""
        late = since - self._settings.drain
        runs = child.liveness.blocked_for() is not None and not child.is_blocked(self._settings.heartbeat)
        grace = END_GRACE + (store_retry.LONGEST_STOP if runs else 0.0)
        state = "still gives back what it was running" if runs else "has a blocked event loop, or is stopped"
        if late > grace:
            child.kill(f"it was told to end {since:.0f} s ago, and {state}")
        elif late > 1.0 and not child.waited_for:
            child.waited_for = True
            LOGGER.warning(
                "waiting for process %d, which %s: it is killed in %.0f s", child.pid, state, grace - late
            )

    def _is_over(self) -> bool:
        return (bool(self._code) or self._is_ending()) and not self._children

    def _is_ending(self) -> bool:
        """Whether no more children are to be started."""
        return bool(self._stop_requests) or not self._processes

    def _start_children(self) -> None:
        if self._code or self._is_ending() or time.monotonic() < self._next_start:
            return
        if self._options.burst and self._removals:
            return  # a new child would not see the items of one that died
        while len(self._children) < self._processes:
            try:
                self._children.append(ChildProcess(self._options))
            except (OSError, MemoryError) as error:
                self._start_later(error)
                return
            self._failed_starts = 0

    def _start_later(self, error: BaseException) -> None:
        """The machine is short of descriptors, memory or processes. The other children go on."""
        self._failed_starts += 1
        delay = FAILED_START.delay(self._failed_starts)
        self._next_start = time.monotonic() + delay
        LOGGER.error("could not start a process, trying again in %.1f s: %r", delay, error)

    def _report_blocked(self, child: ChildProcess) -> None:
        if child.reported or not child.is_blocked(self._settings.heartbeat):
            return
        child.reported = True
        limit = self._max_block
        if child.ending_since is not None:
            limit = min(limit, self._settings.drain + END_GRACE)
        LOGGER.warning(
            "the event loop of process %d has been blocked for %.1f s; the process is killed after %.0f s. "
            "The stacks of its threads follow",
            child.pid,
            child.liveness.blocked_for(),
            limit,
        )
        child.process.send_signal(signal.SIGUSR1)  # it writes the stacks of its threads to standard error

    def _send_heartbeat(self, child: ChildProcess) -> None:
        due = time.monotonic() - child.last_heartbeat >= self._settings.heartbeat
        under_way = child.heartbeat is not None and not child.heartbeat.done()
        if due and not under_way and child.liveness.blocked_for() is not None:
            child.heartbeat = asyncio.create_task(self._beat(child))

    async def _beat(self, child: ChildProcess) -> None:
        sent = time.monotonic()
        try:
            await self._backend.beat(Heartbeat(worker=child.worker, lease=self._settings.lease))
            child.last_heartbeat = sent
            child.liveness.beat_sent(sent)
        except Exception as error:  # noqa: BLE001  the next one is tried
            LOGGER.warning("could not renew the leases of process %d: %s", child.pid, error)

    def _remove(self, child: ChildProcess) -> None:
        """Remove a child that has ended, and free its items."""
        self._children.remove(child)
        code = child.process.wait()
        child.reports.read()
        self._ended = msgspec.structs.replace(merged([self._ended, child.reports.last]), running=0)
        self._count_death(child, code)
        child.close()
        removal = asyncio.create_task(self._free(child, code))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _free(self, child: ChildProcess, code: int) -> None:
        if child.heartbeat is not None:
            # If it came after the removal, the store would believe that the worker lives.
            child.heartbeat.cancel()
            await asyncio.wait([child.heartbeat])
        try:
            freed = await self._backend.remove_worker(child.worker)
            if freed:
                LOGGER.warning("process %d died; %d item(s) can be claimed again", child.pid, freed)
                await self._backend.publish(Wake(ready=True))
        except Exception as error:  # noqa: BLE001  the lease lapses
            LOGGER.warning("could not free the items of process %d: %s", child.pid, error)
            if self._options.burst and not self._stop_requests:
                self._fail_burst(child)
            return
        if self._options.burst and not freed and not code:
            self._processes -= 1

    async def _finish_removals(self) -> None:
        """Wait for them, but not for a store that is away: the leases lapse."""
        if self._removals:
            _, late = await asyncio.wait(self._removals, timeout=store_retry.STOP_TIMEOUT)
            for removal in late:
                removal.cancel()

    def _count_death(self, child: ChildProcess, code: int) -> None:
        not_begun = child.liveness.blocked_for() is None
        if code == USAGE_ERROR or (code == LOAD_ERROR and self._options.burst):
            self._code = USAGE_ERROR
            self.restart()
        elif code and child.ending_since is None:
            LOGGER.error("process %d ended with code %d", child.pid, code)
            if self._options.burst and (code == BURST_FAILED or not_begun):
                self._fail_burst(child)
        failed = code and time.monotonic() - child.started_at < STEADY
        self._short_lives = self._short_lives + 1 if failed else 0
        if self._short_lives:
            policy = FAILED_START if not_begun else CRASH
            self._next_start = time.monotonic() + policy.delay(self._short_lives)

    def _fail_burst(self, child: ChildProcess) -> None:
        self._code = self._code or 1
        LOGGER.error("the burst failed with process %d: items may be left", child.pid)
        self.restart()

    async def _end_all(self) -> None:
        """Let the children that are left end: there are some only after an error."""
        self.restart()
        while self._children:
            self._check_children()
            await asyncio.sleep(CHECK)
