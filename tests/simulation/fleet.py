"""The simulated fleet: one store, a client process, and worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from tests.simulation.checker import Checker
from tests.simulation.handler_checks import SimWorker
from tests.simulation.loop import PROCESS, Process, SimClock, SimLoop
from tests.simulation.network import FAULTS, FaultyNetwork, NetworkFaults
from tests.simulation.plan import LEASE, Plan
from tests.simulation.program import TYPES, limited_types, tick
from tests.simulation.reference import Violation
from tests.simulation.step_program import STEP_TYPES
from tests.simulation.store import CheckedStore
from tests.simulation.threads import SimThread
from treadle import Client, Context, StoreUnavailable, Treadle, Worker
from treadle.backend import Backend
from treadle.backends.many.member import inner
from treadle.doers import balanced, unlimited

Workers = list[tuple[Process, Treadle]]


class Fleet:
    """`without`: numbers of actions to leave out, and names of faults that do not happen."""

    def __init__(self, seed: int, without: frozenset[Any] = frozenset()) -> None:
        self.seed = seed
        rng = random.Random(seed)
        self.plan = self._make_plan(random.Random(rng.random()))
        self.plan.without(frozenset(one for one in without if isinstance(one, int)))
        self.faults = NetworkFaults(
            random.Random(rng.random()), frozenset(one for one in without if isinstance(one, str))
        )
        self.rng = random.Random(rng.random())
        self.loop = SimLoop(random.Random(rng.random()))
        self.store_clock = SimClock(self.loop)
        self.store = CheckedStore(clock=self.store_clock)
        self.checker = self.store.checker = Checker(self.store, self.loop.time)
        self.handlers = self.checker.handlers
        self.handlers.strict_timing = self.faults.reliable and not self.plan.has("pause", "jump_clock")
        self.handlers.prompt = self.faults.calm and self.plan.roomy
        self.kills = 0
        self._workers: Workers = []
        self._client_process = Process("client")
        self._acknowledged: dict[tuple[str, str], str] = {}
        self._later_works: list[Any] = []
        self._reused: set[tuple[str, str]] = set()
        """What was deleted or pruned, and enqueued again with its id."""
        self._reusing: set[tuple[str, str]] = set()
        """Of these: what is being enqueued."""
        self._waiting: list[asyncio.Task[None]] = []
        self._unknown: list[tuple[str, str]] = []
        self._starting: dict[Process, asyncio.Task[None]] = {}
        self._replacing: list[asyncio.Task[None]] = []
        self._finishing = False
        """No more faults: every worker that starts now serves all tenants and queues."""
        self._numbers = 0

    def _make_plan(self, rng: random.Random) -> Plan:
        return Plan(rng)

    def _connect(self, process: Process) -> Backend:
        """What a process has of the store."""
        return FaultyNetwork(self.store, self.faults, random.Random(self.rng.random()), self.checker)

    def _works(self) -> list[Any]:
        """The types that each process defines."""
        return [*TYPES, *STEP_TYPES, *limited_types()]

    def _id(self) -> str:
        self._numbers += 1
        return f"{self._numbers:06d}"

    def _client(self) -> Client:
        return Client(
            self._connect(self._client_process),
            work=self._works(),
            poll_interval=self.plan.poll_interval,
            clock=SimClock(self.loop, self._client_process),
            random=random.Random(self.rng.random()),
            generate_id=self._id,
            on_error=self._on_error,
        )

    async def _start_worker(self, kind: int | None = None, *, restricted: bool = True) -> None:
        """Start a worker in its own process. Some workers serve one tenant, or some queues only."""
        process = Process(f"worker{len(self._workers)}")
        process.kind = self._rarest_kind() if kind is None else kind
        process.skew = self.rng.choice((0.0, -3600.0, 3600.0))
        app = Treadle(
            self._connect(process),
            work=self._works(),
            poll_interval=self.plan.poll_interval,
            lease=LEASE,
            heartbeat=LEASE / 2.5,
            drain=2.0,
            clock=SimClock(self.loop, process),
            random=random.Random(self.rng.random()),
            generate_id=self._id,
            on_error=self._on_error,
            on_event=lambda event: self.checker.on_event(event, worker),
        )
        worker = self._make_worker(process, app, restricted=restricted)
        if self.plan.schedules is not None:
            catch_up: Any = self.plan.schedules
            app.tenant("acme").schedule("beat", every=self.plan.every, run=tick, catch_up=catch_up)
        self._workers.append((process, app))
        self._starting[process] = self._run_in(process, self._start(app))
        await asyncio.wait({self._starting[process]}, timeout=30)
        if self._starting[process].done():
            self._starting[process].result()  # an error ends the simulation
        self.handlers.workers[app.worker.id] = worker._replace(born=self.store_clock.now())
        self.checker.note(f"{process} ({app.worker.id}) started")

    async def _start(self, app: Treadle) -> None:
        while True:
            try:
                return await app.start()
            except StoreUnavailable:
                await self._before_again()

    async def _before_again(self) -> None:
        """Wait before a call is repeated that a store has not answered. The network takes its time."""

    def _make_worker(self, process: Process, app: Treadle, *, restricted: bool) -> SimWorker:
        draw = self.rng.random
        types = self.plan.kinds[process.kind]
        tenants = ["acme"] if restricted and draw() < 0.2 else None
        queues = ["default", "bulk"] if restricted and draw() < 0.15 else None
        most = self.rng.choice((None, 200) if self.plan.roomy else (None, 3, 8))
        doer = unlimited() if most is None else balanced(most)
        threads = self.rng.choice((2, 32))
        app.worker = Worker(app, types=types, queues=queues, tenants=tenants, doer=doer, threads=threads)
        worker = SimWorker(process, app, types, queues, tenants, most, self.store_clock.now())
        self.handlers.workers[app.worker.id] = worker
        return worker

    def _rarest_kind(self) -> int:
        """The kind of worker of which the fewest are alive."""
        alive = Counter(process.kind for process, _ in self._alive())
        return min(range(len(self.plan.kinds)), key=lambda kind: alive[kind])

    # -- what handlers do to their process -----------------------------------------------------------------

    def block(self, ctx: Context, seconds: float) -> None:
        process = PROCESS.get()
        assert process is not None
        self._check(lambda: self.handlers.block((ctx.tenant, ctx.id), process, seconds))
        SimThread.current().sleep(seconds)

    def running(self, ctx: Context) -> contextlib.AbstractContextManager[None]:
        process = PROCESS.get()
        assert process is not None
        return self.handlers.running((ctx.tenant, ctx.id), process)

    def called(self, ctx: Context, name: str) -> str:
        found: list[str] = []
        token = self._token(ctx)
        self._check(lambda: found.append(self.checker.recorded.called((ctx.tenant, ctx.id), name, token)))
        return found[0] if found else name

    def said(self, call: str, number: int) -> str:
        return self.checker.recorded.said(call, number)

    def saw(self, ctx: Context, name: str, value: object) -> None:
        token = self._token(ctx)
        self._check(lambda: self.checker.recorded.saw((ctx.tenant, ctx.id), name, value, token))

    def _token(self, ctx: Context) -> int | None:
        """The token of the lease under which this handler runs."""
        process = PROCESS.get()
        for worker in self.handlers.workers.values():
            if worker.process is process:
                for held in worker.running():
                    if (held.lease.tenant, held.lease.id, held.lease.attempt) == (
                        ctx.tenant,
                        ctx.id,
                        ctx.attempt,
                    ):
                        return inner(held.lease.token)
        return None

    def crash(self) -> None:
        process = PROCESS.get()
        if process is not None and not process.dead:
            self.checker.cover("a process was killed by its item")
            process.dead, process.died_at = True, self.store_clock.now()
            context = contextvars.copy_context()
            context.run(PROCESS.set, None)
            self._replacing.append(self.loop.create_task(self._replace(process), context=context))

    async def _replace(self, process: Process) -> None:
        """Kill a process and start another one of its kind."""
        process.dead, process.died_at = True, self.store_clock.now()
        self.kills += 1
        self.checker.note(f"{process} killed")
        await asyncio.sleep(0.1)
        if self.plan.supervised:
            app = next(app for one, app in self._workers if one is process)
            await self.store.remove_worker(app.worker.id)
        await self._start_worker(process.kind, restricted=not self._finishing)

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
        for thread in list(self.loop.threads):
            thread.abandon()
        # What waits for a task that was closed is woken once more. Its errors are of no interest any more.
        self.loop.set_exception_handler(lambda *_: None)
        for process, _ in self._workers:
            process.dead, process.paused_until = False, 0.0
        for _ in range(3):
            if tasks := self.loop.unfinished():
                for task in tasks:
                    task.cancel()
                with contextlib.suppress(Exception):
                    context.run(self.loop.run_until_complete, asyncio.wait(tasks, timeout=1))
        closed: set[asyncio.Task[Any]] = set()
        while tasks := [task for task in self.loop.unfinished() if task not in closed]:
            if len(closed) > 10_000:
                return  # a process runs in circles: the violation says so
            self.loop.steps = 0
            # What is closed may start others, to return its permits.
            with contextlib.suppress(Exception):
                context.run(self.loop.run_until_complete, _close(tasks))
            closed.update(tasks)


async def _close(tasks: list[asyncio.Task[Any]]) -> None:
    """Close the tasks of killed processes. They cannot be cancelled, because no callback of theirs runs."""
    for task in tasks:
        if task is not asyncio.current_task():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]
