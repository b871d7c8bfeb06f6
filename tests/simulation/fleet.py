"""The simulated fleet: one store, a client process, and worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Coroutine
from typing import Any

from tests.simulation.checker import Checker
from tests.simulation.loop import PROCESS, Process, SimClock, SimLoop
from tests.simulation.network import FAULTS, FaultyNetwork, NetworkFaults
from tests.simulation.plan import Plan
from tests.simulation.program import TYPES, tick
from tests.simulation.reference import Violation
from tests.simulation.store import CheckedStore
from treadle import Client, StoreUnavailable, Treadle
from treadle.doers import balanced, unlimited

LEASE = 5.0

Workers = list[tuple[Process, Treadle]]


class Fleet:
    """`without`: numbers of actions to leave out, and names of faults that do not happen."""

    def __init__(self, seed: int, without: frozenset[Any] = frozenset()) -> None:
        self.seed = seed
        rng = random.Random(seed)
        self.plan = Plan(random.Random(rng.random()))
        self.plan.without(frozenset(one for one in without if isinstance(one, int)))
        self.faults = NetworkFaults(
            random.Random(rng.random()), frozenset(one for one in without if isinstance(one, str))
        )
        self.rng = random.Random(rng.random())
        self.loop = SimLoop(random.Random(rng.random()))
        self.store_clock = SimClock(self.loop)
        self.store = CheckedStore(clock=self.store_clock)
        self.checker = self.store.checker = Checker(self.store, self.loop.time)
        self.checker.strict_timing = self.faults.reliable and not self.plan.has("pause", "jump_clock")
        self.kills = 0
        self._workers: Workers = []
        self._client_process = Process("client")
        self._acknowledged: dict[tuple[str, str], str] = {}
        self._later_works: list[Any] = []
        self._waiting: list[asyncio.Task[None]] = []
        self._unknown: list[tuple[str, str]] = []
        self._starting: dict[Process, asyncio.Task[None]] = {}
        self._numbers = 0

    def _id(self) -> str:
        self._numbers += 1
        return f"{self._numbers:06d}"

    def _client(self) -> Client:
        return Client(
            FaultyNetwork(self.store, self.faults, random.Random(self.rng.random()), self.checker),
            work=TYPES,
            poll_interval=1.0,
            clock=SimClock(self.loop, self._client_process),
            random=random.Random(self.rng.random()),
            generate_id=self._id,
            on_error=self._on_error,
        )

    async def _start_worker(self, *, may_be_bound: bool = True) -> None:
        """Start a worker in its own process. Some workers serve one tenant only."""
        process = Process(f"worker{len(self._workers)}")
        process.skew = self.rng.choice((0.0, -3600.0, 3600.0))
        app = Treadle(
            FaultyNetwork(self.store, self.faults, random.Random(self.rng.random()), self.checker),
            work=TYPES,
            poll_interval=1.0,
            lease=LEASE,
            heartbeat=LEASE / 2.5,
            drain=2.0,
            clock=SimClock(self.loop, process),
            random=random.Random(self.rng.random()),
            generate_id=self._id,
            on_error=self._on_error,
            on_event=self.checker.on_event,
            doer=self.rng.choice((unlimited(), balanced(3))),
            tenants=["acme"] if may_be_bound and self.rng.random() < 0.2 else None,
        )
        if self.plan.schedules is not None:
            catch_up: Any = self.plan.schedules
            app.tenant("acme").schedule("beat", every=self.plan.every, run=tick, catch_up=catch_up)
        self._workers.append((process, app))
        self._starting[process] = self._run_in(process, _start(app))
        await asyncio.wait({self._starting[process]}, timeout=30)
        self.checker.note(f"{process} ({app.worker.id}) started")

    def _run_in(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return asyncio.get_running_loop().create_task(coroutine, context=context)

    def _alive(self) -> Workers:
        return [(one, app) for one, app in self._workers if not (one.dead or one.stopping)]

    def _on_error(self, error: BaseException, phase: str) -> None:
        if not isinstance(error, StoreUnavailable) and self.checker.violation is None:
            self.checker.violation = Violation(f"unexpected error, {phase}: {type(error).__name__}: {error}")

    def _check(self, check: Any) -> None:
        self.checker.guard(check)

    def _report(self, what: str) -> None:
        if self.checker.violation is None:
            self.checker.violation = Violation(what)

    def _end_all_tasks(self, context: contextvars.Context) -> None:
        """End all tasks, including those of killed processes, so that none runs in the next simulation."""
        self.faults.clear(*FAULTS)
        self.loop.steps = 0
        for process, _ in self._workers:
            process.dead, process.paused_until = False, 0.0
        for _ in range(3):
            if tasks := self.loop.unfinished():
                for task in tasks:
                    task.cancel()
                with contextlib.suppress(Exception):
                    context.run(self.loop.run_until_complete, asyncio.wait(tasks, timeout=1))
        with contextlib.suppress(Exception):
            context.run(self.loop.run_until_complete, _close(self.loop.unfinished()))


async def _close(tasks: list[asyncio.Task[Any]]) -> None:
    """Close the tasks of killed processes. They cannot be cancelled, because no callback of theirs runs."""
    for task in tasks:
        if task is not asyncio.current_task():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]


async def _start(app: Treadle) -> None:
    while True:
        try:
            await app.start()
        except StoreUnavailable:
            continue
        return
