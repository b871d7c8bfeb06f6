"""A world: one store, a client, some workers, weather, and fate that kills and pauses. One seed, one history."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import random
from typing import Any

from tests.simulation.loop import PROCESS, Process, SimClock, SimLoop
from tests.simulation.network import Network, Weather
from tests.simulation.program import RNG, TYPES, some_options, some_work
from tests.simulation.watch import Violation, Watch
from treadle import Client, StoreUnavailable, Treadle, TreadleError, WaitTimeout
from treadle.backends.memory import MemoryBackend
from treadle.doers import balanced, unlimited
from treadle.errors import ConflictError, InputError
from treadle.ids import set_id_generator
from treadle.item import OPEN

SETTLE_DOWN = 900.0
"""Simulated seconds that a fleet in fair weather has to finish everything."""
LEASE = 5.0


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = SimLoop(random.Random(self.rng.random()))
        self.store_clock = SimClock(self.loop)
        self.store = MemoryBackend(clock=self.store_clock)
        self.watch = Watch(self.store)
        self.watch.clock = self.loop.time
        self.weather = Weather(self.rng)
        self.kills = 0
        self._workers: list[tuple[Process, Treadle]] = []
        self._acknowledged: dict[tuple[str, str], str] = {}
        self._to_come: list[Any] = []
        self._numbers = 0
        self._swallowed: list[str] = []
        # Swarm: each seed is bad in its own way.
        self._kill_gap = self.rng.choice((None, 3.0, 10.0))
        self._pause_gap = self.rng.choice((None, None, 8.0))
        self._jump_gap = self.rng.choice((None, None, 15.0))
        self._workers_wanted = self.rng.randint(1, 4)
        self._submissions = self.rng.randint(3, 30)

    def run(self) -> Watch:
        """Live through it. Raises `Violation`, or whatever else went wrong."""
        set_id_generator(self._id)
        context = contextvars.copy_context()
        context.run(RNG.set, random.Random(self.rng.random()))
        try:
            asyncio.set_event_loop(self.loop)
            context.run(self.loop.run_until_complete, self._live())
            return self.watch
        finally:
            self._bury_the_dead(context)
            set_id_generator(None)
            asyncio.set_event_loop(None)
            self.loop.close()

    def _bury_the_dead(self, context: contextvars.Context) -> None:
        """End all tasks, those of killed processes too: nothing of this world reaches the next."""
        self.weather.clear()
        self.loop.steps = 0
        for process, _ in self._workers:
            process.dead, process.paused_until = False, 0.0
        for _ in range(3):
            if tasks := self.loop.unfinished():
                for task in tasks:
                    task.cancel()
                context.run(self.loop.run_until_complete, asyncio.wait(tasks, timeout=60))
        context.run(self.loop.run_until_complete, _close(self.loop.unfinished()))

    def _id(self) -> str:
        self._numbers += 1
        return f"{self._numbers:06d}"

    @property
    def history(self) -> str:
        """What happened, in one number: the same for the same seed."""
        return hashlib.sha256("\n".join(self.watch.timeline).encode()).hexdigest()[:16]

    # -- life ------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        client = self._client()
        for _ in range(self._workers_wanted):
            await self._hire()
        plagues = [
            asyncio.ensure_future(plague)
            for plague in (self._kill(), self._pause(), self._jump(), self._operate(client))
        ]
        await self._submit(client)
        await asyncio.sleep(self.rng.uniform(0, 20))
        for plague in plagues:
            plague.cancel()
        await self._settle_down(client)

    def _client(self) -> Client:
        process = Process("client")
        return Client(
            Network(self.store, self.weather, random.Random(self.rng.random()), self.watch),
            work=TYPES,
            poll_interval=1.0,
            clock=SimClock(self.loop, process),
            random=random.Random(self.rng.random()),
            generate_id=self._id,
            on_error=self._swallow,
        )

    async def _hire(self) -> None:
        """A worker in a process of its own."""
        process = Process(f"worker{len(self._workers)}")
        process.skew = self.rng.choice((0.0, -3600.0, 3600.0))
        app = Treadle(
            Network(self.store, self.weather, random.Random(self.rng.random()), self.watch),
            work=TYPES,
            poll_interval=1.0,
            lease=LEASE,
            drain=2.0,
            clock=SimClock(self.loop, process),
            random=random.Random(self.rng.random()),
            generate_id=self._id,
            on_error=self._swallow,
            doer=self.rng.choice((unlimited(), balanced(3))),
        )
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        self._workers.append((process, app))
        task = asyncio.get_running_loop().create_task(_started(app), context=context)
        await asyncio.wait({task}, timeout=30)
        self.watch.note(f"{process} started")

    def _swallow(self, error: BaseException, phase: str) -> None:
        if not isinstance(error, StoreUnavailable):
            self._swallowed.append(f"{phase}: {type(error).__name__}: {error}")

    # -- what users do ---------------------------------------------------------------------------------

    async def _submit(self, client: Client) -> None:
        waiting: list[asyncio.Future[Any]] = []
        for _ in range(self._submissions):
            await asyncio.sleep(self.rng.expovariate(1))
            tenant = self.rng.choice(("acme", "beta"))
            work = self._to_come.pop() if self._to_come and self.rng.random() < 0.5 else some_work(self.rng)
            if self.rng.random() < 0.2:
                self._to_come.append(some_work(self.rng))
            known = [id for owner, id in self._acknowledged if owner == tenant]
            options = some_options(self.rng, known, [each.id for each in self._to_come])
            if work.id in options.get("after", ()):
                continue
            await self._enqueue(client.tenant(tenant), tenant, work, options, waiting)
        for work in self._to_come:
            await self._enqueue(client.tenant("acme"), "acme", work, {}, waiting)
        self._waiting = waiting

    async def _enqueue(
        self, client: Client, tenant: str, work: Any, options: dict[str, Any], waiting: list[Any]
    ) -> None:
        try:
            handle = await client.enqueue(work, **options)
        except StoreUnavailable:
            self.watch.sometimes("enqueue gave up: stored or not, nobody knows")
            return
        except (ConflictError, InputError) as error:
            self.watch.sometimes(f"enqueue refused: {type(error).__name__}")
            return
        self.watch.note(f"enqueued {handle.id} {work.type} {options}")
        self._acknowledged[tenant, handle.id] = work.type
        if self.rng.random() < 0.3:
            waiting.append(asyncio.ensure_future(_outcome(handle)))

    async def _operate(self, client: Client) -> None:
        """Cancels, requeues and triggers, now and then."""
        while True:
            await asyncio.sleep(self.rng.expovariate(0.2))
            ids = [id for _, id in self._acknowledged]
            if not ids:
                continue
            try:
                verb = self.rng.choice(("cancel", "requeue", "requeue", "trigger", "complete"))
                self.watch.note(f"{verb}")
                await getattr(client, verb)(self.rng.choice(ids))
            except TreadleError as error:
                self.watch.sometimes(f"{type(error).__name__} to an operator")

    # -- what fate does --------------------------------------------------------------------------------

    async def _kill(self) -> None:
        while self._kill_gap is not None:
            await asyncio.sleep(self.rng.expovariate(1 / self._kill_gap))
            alive = [process for process, _ in self._workers if not process.dead]
            if alive:
                victim = self.rng.choice(alive)
                victim.dead = True
                self.kills += 1
                self.watch.note(f"{victim} killed")
            await self._hire()

    async def _pause(self) -> None:
        while self._pause_gap is not None:
            await asyncio.sleep(self.rng.expovariate(1 / self._pause_gap))
            alive = [process for process, _ in self._workers if not process.dead]
            if alive:
                victim = self.rng.choice(alive)
                victim.paused_until = self.loop.now + self.rng.uniform(0, 3 * LEASE)
                self.watch.note(f"{victim} paused until {victim.paused_until:.1f}")
                self.watch.sometimes("paused")

    async def _jump(self) -> None:
        while self._jump_gap is not None:
            await asyncio.sleep(self.rng.expovariate(1 / self._jump_gap))
            self.store_clock.jumped += self.rng.uniform(0, 2 * LEASE)
            self.watch.sometimes("the store's clock jumped")
            self.watch.note("the store's clock jumped")

    # -- the end ---------------------------------------------------------------------------------------

    async def _settle_down(self, client: Client) -> None:
        """Fair weather and a worker that lives: now everything must come to its end."""
        self.weather.clear()
        await self._hire()
        deadline = self.loop.now + SETTLE_DOWN
        while open_ones := await self._open():
            if self.loop.now > deadline:
                raise Violation(f"still open after {SETTLE_DOWN:g} s of fair weather: {open_ones[:5]}")
            await asyncio.sleep(5)
        await self._check_waiters()
        await self._check_workers()
        await self._check_counts()
        self.watch.audit()
        if self._swallowed:
            raise Violation(f"the engine swallowed {self._swallowed[:3]}")

    async def _open(self) -> list[str]:
        states = await self._states()
        missing = [ref for ref, state in states.items() if state is None]
        if missing:
            raise Violation(f"acknowledged and lost: {missing}")
        waiting_for_nobody = {ref for ref, state in states.items() if state is not None and state.waiting_for}
        return [
            f"{ref} {state.type} {state.status}"
            for ref, state in states.items()
            if state is not None and state.status in OPEN and not self._waits(ref, states, waiting_for_nobody)
        ]

    def _waits(self, ref: Any, states: dict[Any, Any], hopeless: set[Any]) -> bool:
        """Whether it waits, perhaps through others, for an id that never came."""
        if ref in hopeless:
            return True
        state = states.get(ref)
        if state is None or state.status != "blocked":
            return False
        return any(self._waits((ref[0], id), states, hopeless) for id in state.after)

    async def _states(self) -> dict[tuple[str, str], Any]:
        states: dict[tuple[str, str], Any] = {}
        for tenant in ("acme", "beta"):
            ids = [id for owner, id in self._acknowledged if owner == tenant]
            for id, state in zip(ids, await self.store.get(ids, tenant=tenant), strict=True):
                states[tenant, id] = state
        return states

    async def _check_waiters(self) -> None:
        for future in self._waiting:
            try:
                await asyncio.wait_for(asyncio.shield(future), 60)
            except TimeoutError:
                if not future.done():
                    future.cancel()
                    self.watch.sometimes("waited for what never came")

    async def _check_workers(self) -> None:
        for process, app in self._workers:
            crew = app.worker.crew
            if process.dead or crew is None:
                continue
            if crew.failed is not None and crew.failed.done():
                raise Violation(f"a loop of {process} died: {crew.failed.exception()}")

    async def _check_counts(self) -> None:
        """Every `counting` group counts its children that succeeded, exactly."""
        for tenant, id in self._acknowledged:
            (group,) = await self.store.group([id], tenant=tenant)
            if group is None or group.type != "counting" or group.open:
                continue
            page = await self.store.list(_members(tenant, id), limit=1000)
            counted = sum(item.type == "counted" and item.status == "success" for item in page.items)
            completed = sum(item.worker is None and item.status == "success" for item in page.items)
            if completed:
                continue  # an operator had a hand in it
            value = _number(group.value)
            if counted != value:
                raise Violation(f"group {id} counted {value}, but {counted} of its children succeeded")


def _members(tenant: str, id: str) -> Any:
    from treadle.item import Filter

    return Filter(tenant=tenant, group_id=id)


def _number(value: object) -> int:
    return int(value.rpartition(b"\x00")[2]) if isinstance(value, bytes) else 0


async def _close(tasks: list[asyncio.Task[Any]]) -> None:
    """What was killed before its first step, or between two, cannot be cancelled: nobody steps it."""
    for task in tasks:
        if task is not asyncio.current_task():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]


async def _started(app: Treadle) -> None:
    while True:
        try:
            await app.start()
        except StoreUnavailable:
            continue
        return


async def _outcome(handle: Any) -> Any:
    try:
        return await handle.group()
    except WaitTimeout:
        raise
    except TreadleError as error:
        return error
