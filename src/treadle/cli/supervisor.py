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
- starts no other in place of a child whose worker was asked to stop (`treadle workers drain`), and ends with
  the last of them;
- handles the signals: the first SIGTERM or SIGINT lets children drain, a second one kills them. A child that
  has not ended some seconds after its drain is killed too.

It never waits for the store: heartbeats and removals are tasks, so that it watches its children and obeys
signals while the store is away.

If the supervisor itself dies, its children see the end of their standard input, and stop. Lease tokens
protect against the rest.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from msgspec.structs import replace

from treadle.backend import Backend, store_name
from treadle.cli.child import ChildOptions
from treadle.cli.child_process import ChildProcess, ended_how
from treadle.cli.exit_codes import (
    AWAY,
    CHILD_BURST_FAILED,
    CHILD_CANNOT_LOAD,
    CHILD_DRAINED,
    CHILD_STORE_AWAY,
    USAGE,
)
from treadle.cli.reports import ChildReport, merged, of_ended
from treadle.item import Heartbeat, Lease, Wake
from treadle.logs.lines import ERROR, INFO, WARNING, error_text, lines, log_line, named_items
from treadle.retry import Retry
from treadle.store.fleet import Fleet
from treadle.store.outage import StoreOutage, is_outage
from treadle.worker import LeaseTimes
from treadle.worker_info import encode_worker_info

from .load import open_store

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
slow link: then it has the `longest_stop` of its times more."""


class Supervisor:
    def __init__(
        self,
        backend: Backend,
        times: LeaseTimes,
        options: ChildOptions,
        *,
        processes: int,
        max_block: float,
        opened: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """opened: called once the store is open, and not waited for."""
        self._opened = opened
        self._backend = backend
        self._times = times
        self._options = options
        self._processes = processes
        """How many are to run. In a burst, one less for each that has nothing more to do."""
        self._max_block = max_block
        self._children: list[ChildProcess] = []
        self._leases = ChildLeases(backend, times, self._freed)
        self._stop_requests = 0
        self._stopping = asyncio.Event()
        self._short_lives = 0
        self._failed_starts = 0
        self._next_start = 0.0
        self._code = 0
        self._ended = ChildReport()
        """The counts of all children that have ended."""

    @property
    def children(self) -> tuple[ChildProcess, ...]:
        return tuple(self._children)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def report(self) -> ChildReport:
        """The counts of all children that there were, and how many items run now. Up to a second old. What a
        child counted in its last second is missing if it was killed."""
        return merged([self._ended, *(child.reports.last for child in self._children)])

    async def run(self) -> int:
        """Supervise until told to stop. Returns the exit code. Raises `StoreAway`, and what the store raises
        when it is opened."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        name = store_name(self._backend)
        if not await open_store(self._backend.open, name, self._options.wait, self._stopping):
            return 0
        opened = None if self._opened is None else asyncio.ensure_future(self._opened())
        try:
            while not self._is_over():
                self.run_once()
                await asyncio.sleep(CHECK)
        finally:
            await self._end_all()
            await self._leases.finish()
            if opened is not None:
                opened.cancel()
                await asyncio.wait({opened})
            await self._backend.close()
        return self._code

    def stop(self) -> None:
        """The first call lets children drain. The second kills them."""
        self._stop_requests += 1
        self._stopping.set()
        if self._stop_requests == 1:
            running = self.report().running  # up to a second old
            handlers = f"{running} item(s)" if running else "handlers"
            log_line(INFO, f"stopping, waiting up to {self._times.drain:g} s for {handlers}")
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
        reap_others({child.pid for child in self._children})

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
            if stacks := child.stacks():
                log_line(WARNING, f"the stacks of process {child.pid}:", trace=lines(stacks))
            self._leases.renew(child)

    def _check_end(self, child: ChildProcess, since: float) -> None:
        """Kill a child that was told to end and does not. Before that, log once that it is waited for."""
        late = since - self._times.drain
        runs = child.liveness.blocked_for() is not None and not child.is_blocked(self._times.heartbeat)
        grace = END_GRACE + (self._times.longest_stop if runs else 0.0)
        state = "still gives back what it was running" if runs else "has a blocked event loop, or is stopped"
        if late > grace:
            child.kill(f"it was told to end {since:.0f} s ago, and {state}")
        elif late > 1.0 and not child.waited_for:
            child.waited_for = True
            log_line(
                WARNING,
                f"waiting for process {child.pid}, which {state}: it is killed in {grace - late:.0f} s",
            )

    def _is_over(self) -> bool:
        return (bool(self._code) or self._is_ending()) and not self._children

    def _is_ending(self) -> bool:
        """Whether no more children are to be started."""
        return bool(self._stop_requests) or not self._processes

    def _start_children(self) -> None:
        if self._code or self._is_ending() or time.monotonic() < self._next_start:
            return
        if self._options.burst and self._leases.freeing:
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
        failed = f"could not start a process, trying again in {delay:.1f} s"
        log_line(ERROR, f"{failed}: {error_text(error)}")

    def _report_blocked(self, child: ChildProcess) -> None:
        was_reported, child.reported = child.reported, child.is_blocked(self._times.heartbeat)
        if was_reported or not child.reported:
            return
        limit = self._max_block
        if child.ending_since is not None:
            limit = min(limit, self._times.drain + END_GRACE)
        blocked_for = child.liveness.blocked_for()
        if child.stopped:
            log_line(
                WARNING, f"process {child.pid} is stopped: it is killed after {limit:.0f} s without SIGCONT"
            )
            return
        log_line(
            WARNING,
            f"the event loop of process {child.pid} has been blocked for {blocked_for:.1f} s; "
            f"the process is killed after {limit:.0f} s; what it runs: treadle workers --items",
        )
        child.ask_stacks()

    def _remove(self, child: ChildProcess) -> None:
        """Remove a child that has ended, and free its items."""
        self._children.remove(child)
        code = child.process.wait()
        child.reports.read()
        self._ended = of_ended(merged([self._ended, child.reports.last]))
        self._count_death(child, code)
        child.close()
        self._leases.free(child, code)

    def _freed(self, child: ChildProcess, code: int, freed: int | None) -> None:
        """The items of a child that has ended are free; None: the store could not be told."""
        if self._options.burst and freed is None and not self._stop_requests:
            self._fail_burst(child)
        elif self._options.burst and freed == 0 and not code:
            self._processes -= 1

    def _count_death(self, child: ChildProcess, code: int) -> None:
        if code == CHILD_DRAINED:
            self._processes -= 1
            log_line(INFO, f"process {child.pid} has stopped as asked; no other is started in its place")
            return
        not_begun = child.liveness.blocked_for() is None
        if code == CHILD_CANNOT_LOAD and self._options.burst:
            self._code = USAGE
            self.restart()
        elif code == CHILD_STORE_AWAY and self._options.burst:
            self._code = AWAY
            self.restart()
        elif code and child.ending_since is None:
            how = "could not load the app, trying again" if code == CHILD_CANNOT_LOAD else ended_how(code)
            log_line(ERROR, f"process {child.pid} {how}")
            if self._options.burst and (code == CHILD_BURST_FAILED or not_begun):
                self._fail_burst(child)
        failed = code and time.monotonic() - child.started_at < STEADY
        self._short_lives = self._short_lives + 1 if failed else 0
        if self._short_lives:
            policy = FAILED_START if not_begun else CRASH
            self._next_start = time.monotonic() + policy.delay(self._short_lives)

    def _fail_burst(self, child: ChildProcess) -> None:
        self._code = self._code or 1
        log_line(ERROR, f"the burst failed with process {child.pid}: items may be left")
        self.restart()

    async def _end_all(self) -> None:
        """Let the children that are left end: there are some only after an error."""
        self.restart()
        while self._children:
            self._check_children()
            await asyncio.sleep(CHECK)


def reap_others(own: Collection[int]) -> None:
    """Wait for dead children that are not `own`, if this is the first process. Never blocks.

    The first process of a container becomes the parent of every process whose own parent has died: those of
    `run_in="process"` whose worker was killed, and programs that handlers started. Dead ones stay in the
    table of processes until their parent waits for them.
    """
    if os.getpid() != 1:
        return
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there are no children
            return
        if found is None or found.si_pid in own:  # its exit code is read elsewhere, before the next look
            return
        os.waitpid(found.si_pid, os.WNOHANG)


# -- leases of the children --------------------------------------------------------------------------


BLOCKED: Final = 2.0
"""Heartbeats without a sign of its event loop, after which the store is told that a child is blocked. The
child notices itself that it was, after the same time."""


class ChildLeases:
    """Keeps the leases of children alive, and frees what a dead one was running. It never waits for the
    store: each call is a task of its own.

    on_freed: called when the leases of a child that has ended are dealt with: with the child, its exit code,
        and how many items were freed; None if the store could not be told.
    """

    def __init__(
        self,
        backend: Backend,
        times: LeaseTimes,
        on_freed: Callable[[ChildProcess, int, int | None], None],
    ) -> None:
        self._backend = backend
        self._times = times
        self._on_freed = on_freed
        self._outage = StoreOutage()
        self._outage.store = store_name(backend)
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def freeing(self) -> bool:
        """Whether the items of a child that has ended are being freed."""
        return bool(self._removals)

    def renew(self, child: ChildProcess) -> None:
        """Send a heartbeat for a child whose event loop runs, if one is due and none is under way."""
        due = time.monotonic() - child.last_heartbeat >= self._times.heartbeat
        under_way = child.heartbeat is not None and not child.heartbeat.done()
        if due and not under_way and child.liveness.blocked_for() is not None:
            child.heartbeat = asyncio.create_task(self._beat(child))

    async def _beat(self, child: ChildProcess) -> None:
        sent = time.monotonic()
        try:
            reply = await self._backend.beat(await self._heartbeat(child))
        except Exception as error:  # noqa: BLE001  the next one is tried
            self._failed(error, f"could not renew the leases of process {child.pid}")
            return
        child.last_heartbeat = sent
        if not reply.fresh:
            child.liveness.beat_sent(sent)
        self._outage.answered("renew")

    async def _heartbeat(self, child: ChildProcess) -> Heartbeat:
        """It registers no worker: a child that has not begun, or has stopped, has none. While the event loop
        of the child is blocked it says so. A child that goes on says what is true then."""
        heartbeat = Heartbeat(worker=child.worker, lease=self._times.lease, registers=False)
        blocked_for = child.liveness.blocked_for() or 0.0
        if blocked_for <= BLOCKED * self._times.heartbeat or "listing" not in self._backend.capabilities:
            return heartbeat
        worker = Fleet(await self._backend.workers(), now := await self._backend.now()).find(child.worker)
        if worker is None or worker.info is None or worker.info.blocked_since is not None:
            return heartbeat
        if not child.is_blocked(BLOCKED * self._times.heartbeat):
            return heartbeat  # it has gone on meanwhile
        info = replace(worker.info, blocked_since=round(now - blocked_for, 3))
        return replace(heartbeat, info=encode_worker_info(info))

    def _failed(self, error: Exception, what: str) -> None:
        if is_outage(error):
            self._outage.failed(error, "renew")
        else:
            log_line(WARNING, f"{what}: {error_text(error)}")

    def free(self, child: ChildProcess, code: int) -> None:
        """Free the items of a child whose end is certain."""
        removal = asyncio.create_task(self._free(child, code))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _free(self, child: ChildProcess, code: int) -> None:
        if child.heartbeat is not None:
            # If it came after the removal, the store would believe that the worker lives.
            child.heartbeat.cancel()
            await asyncio.wait([child.heartbeat])
        try:
            leases = await self._running(child)
            freed: int | None = await self._backend.remove_worker(child.worker)
        except Exception as error:  # noqa: BLE001  the lease lapses
            log_line(WARNING, f"could not free the items of process {child.pid}: {error_text(error)}")
            freed = None
        else:
            if freed:
                log_line(WARNING, _died(child.pid, freed, leases))
                await self._wake()
        self._on_freed(child, code, freed)

    async def _running(self, child: ChildProcess) -> list[Lease]:
        """What a child was running when it died: those of its leases that have begun."""
        try:
            leases = await self._backend.unknown_leases(child.worker, ())
        except Exception:  # noqa: BLE001  the line is shorter then
            return []
        return [lease for lease in leases if lease.begun]

    async def _wake(self) -> None:
        try:
            await self._backend.publish(Wake(ready=True))
        except Exception as error:  # noqa: BLE001  others poll
            self._failed(error, "could not wake other workers")

    async def finish(self) -> None:
        """Wait until all items are freed, but not for a store that is away: the leases lapse."""
        if self._removals:
            _, late = await asyncio.wait(self._removals, timeout=self._times.stop)
            for removal in late:
                removal.cancel()


def _died(pid: int, freed: int, running: list[Lease]) -> str:
    """What a dead process leaves behind."""
    waiting = freed - len(running)
    line = f"process {pid} died; {freed} item(s) can be claimed again"
    if running:
        line += f". It was running {named_items(running)}"
    if waiting > 0 and running:
        line += f"; {waiting} had not begun"
    return line
