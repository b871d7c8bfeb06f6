"""Supervisor: a small process that keeps its children's leases alive, and buries them when they are dead.

A thread cannot beat while a C call holds the GIL for a minute; another process can. Past importing the app,
the supervisor runs none of the user's code. For each child it

- beats, on a connection of its own, for as long as the child lives and its event loop turns;
- notices its death at once, and *then* takes its lease away: what it was running starts elsewhere in well
  under a second. It starts a new child (with a growing delay, should children keep dying);
- ends it when its event loop has stood still for `max_block`: stacks dumped, killed, waited for, and only
  then freed. The other order would let two runs overlap;
- owns the signals: the first SIGTERM or SIGINT lets children drain, a second one ends them.

If the supervisor itself dies, its children see their standard input end, and stop by themselves; tokens fence
the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from treadle.backend import Backend
from treadle.cli.child import USAGE_ERROR, Orders
from treadle.cli.tick import Tick
from treadle.engine.hooks import LOGGER
from treadle.errors import BackendError
from treadle.ids import generate_id
from treadle.item import Heartbeat
from treadle.retry import Retry

CHECK = 0.1
"""How often the supervisor looks at its children."""
RESPAWN = Retry(attempts=None, base=0.1, factor=2.0, max=10.0, jitter=0.2)
STEADY = 10.0
"""A child that lived this long was no failure to start."""


class Child:
    """One worker process, and the name under which it is leased."""

    def __init__(self, orders: Orders, directory: Path) -> None:
        self.worker = generate_id()
        path = directory / self.worker
        self.tick = Tick(path)
        self.born = time.monotonic()
        self.beaten = 0.0
        orders = msgspec.structs.replace(orders, worker=self.worker, tick=str(path))
        command = [sys.executable, "-m", "treadle.cli.child", msgspec.json.encode(orders).decode()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stands_still(self, longer_than: float) -> bool:
        silence = self.tick.silence()
        return silence is not None and silence > longer_than

    def dump(self) -> None:
        """Make it write the stacks of its threads to standard error."""
        self.process.send_signal(signal.SIGUSR1)

    def terminate(self) -> None:
        if self.alive:
            self.process.terminate()

    def kill(self) -> None:
        if self.alive:
            self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.tick.close()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


class Supervisor:
    def __init__(
        self,
        backend: Backend,
        orders: Orders,
        *,
        processes: int,
        lease: float,
        heartbeat: float,
        drain: float,
        max_block: float,
    ) -> None:
        self._backend = backend
        self._orders = orders
        self._processes = processes
        self._lease = lease
        self._heartbeat = heartbeat
        self._drain = drain
        self._max_block = max_block
        self._children: list[Child] = []
        self._stopping = 0
        self._deaths = 0
        self._next_birth = 0.0
        self._code = 0
        self._failures = 0
        self._reported: set[str] = set()

    async def run(self) -> int:
        """Supervise until told to stop. The exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self._backend.open()
        with tempfile.TemporaryDirectory(prefix="treadle-") as directory:
            try:
                while not self._over():
                    await self.run_once(Path(directory))
                    await asyncio.sleep(CHECK)
            finally:
                await self._end_all()
                await self._backend.close()
        return self._code

    def stop(self) -> None:
        """The first time: let children drain. The second: end them now."""
        self._stopping += 1
        for child in self._children:
            if self._stopping == 1:
                child.terminate()
            elif child.alive:
                child.process.kill()

    def restart(self) -> None:
        """Let every child drain, and be replaced: the code has changed."""
        for child in self._children:
            child.terminate()

    async def run_once(self, directory: Path) -> None:
        self._hire(directory)
        for child in list(self._children):
            if not child.alive:
                await self._bury(child)
            elif child.stands_still(self._max_block):
                await self._end(child)
            else:
                await self._keep(child)

    def _over(self) -> bool:
        if self._code:
            return True
        return (bool(self._stopping) or (self._orders.burst and self._deaths > 0)) and not self._children

    def _hire(self, directory: Path) -> None:
        done = self._stopping or (self._orders.burst and self._deaths > 0)
        while not done and len(self._children) < self._processes and time.monotonic() >= self._next_birth:
            self._children.append(Child(self._orders, directory))

    async def _keep(self, child: Child) -> None:
        """Beat for it, if it is time; report an event loop that stands still."""
        if child.stands_still(self._heartbeat) and child.worker not in self._reported:
            self._reported.add(child.worker)
            LOGGER.warning(
                "the event loop of process %d has stood still for %.1f s; it is killed after %.0f s. "
                "The stacks of its threads follow",
                child.process.pid,
                child.tick.silence(),
                self._max_block,
            )
            child.dump()
        if child.tick.silence() is None or time.monotonic() - child.beaten < self._heartbeat:
            return
        try:
            await self._backend.beat(Heartbeat(worker=child.worker, lease=self._lease))
            child.beaten = time.monotonic()
        except BackendError as error:
            LOGGER.warning("could not renew the lease of process %d: %s", child.process.pid, error)

    async def _end(self, child: Child) -> None:
        """Kill it, make sure that it is dead, and only then free what it was running."""
        LOGGER.error(
            "killed process %d: its event loop stood still for %.0f s", child.process.pid, self._max_block
        )
        child.kill()
        await self._bury(child)

    async def _bury(self, child: Child) -> None:
        self._children.remove(child)
        code = child.process.wait()
        child.close()
        self._note_death(child, code)
        try:
            freed = await self._backend.remove_worker(child.worker)
        except BackendError as error:
            LOGGER.warning("could not free what process %d was running: %s", child.process.pid, error)
            return
        if freed:
            LOGGER.warning("process %d died; %d item(s) are free again", child.process.pid, freed)

    def _note_death(self, child: Child, code: int) -> None:
        self._deaths += 1
        if code == USAGE_ERROR:
            self._code = USAGE_ERROR
        elif code and not self._stopping:
            LOGGER.error("process %d ended with code %d", child.process.pid, code)
        quickly = time.monotonic() - child.born < STEADY
        self._failures = self._failures + 1 if quickly and code else 0
        if self._failures:
            self._next_birth = time.monotonic() + RESPAWN.delay(self._failures)

    async def _end_all(self) -> None:
        deadline = time.monotonic() + self._drain + 5.0
        for child in self._children:
            child.terminate()
        for child in self._children:
            left = max(0.0, deadline - time.monotonic())
            await asyncio.to_thread(_wait, child.process, left)
        for child in list(self._children):
            child.kill()
            await self._bury(child)
