"""A world: one store, a client, some workers, weather, and fate. One seed, one history."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import hashlib
import random
from collections.abc import Coroutine
from typing import Any

from msgspec.structs import replace

from tests.simulation.fate import TENANTS, Deed, Fate
from tests.simulation.loop import PROCESS, Process, SimClock, SimLoop
from tests.simulation.network import TROUBLES, Network, Weather
from tests.simulation.program import MAKERS, RNG, TYPES, some_options, tick
from tests.simulation.shadow import Thing, Violation, must
from tests.simulation.store import ObservedStore
from tests.simulation.watch import Watch
from treadle import Client, StoreUnavailable, Treadle, TreadleError, WorkFailed
from treadle.doers import balanced, unlimited
from treadle.errors import CycleError, InputError
from treadle.ids import set_id_generator
from treadle.item import Filter

SETTLE_DOWN = 900.0
"""Simulated seconds that a fleet in fair weather has to finish everything."""
LEASE = 5.0

Fleet = list[tuple[Process, Treadle]]


class World:
    """without: numbers of deeds that are not done, and troubles that the weather does not have."""

    def __init__(self, seed: int, without: frozenset[Any] = frozenset()) -> None:
        self.seed = seed
        rng = random.Random(seed)
        self.fate = Fate(random.Random(rng.random()))
        self.fate.without(frozenset(one for one in without if isinstance(one, int)))
        self.weather = Weather(
            random.Random(rng.random()), frozenset(one for one in without if isinstance(one, str))
        )
        self.rng = random.Random(rng.random())
        self.loop = SimLoop(random.Random(rng.random()))
        self.store_clock = SimClock(self.loop)
        self.store = ObservedStore(clock=self.store_clock)
        self.watch = self.store.watch = Watch(self.store, self.loop.time)
        self.watch.orderly = self.weather.reliable and not self.fate.has("pause", "jump")
        self.kills = 0
        self._fleet: Fleet = []
        self._users = Process("client")
        self._acknowledged: dict[tuple[str, str], str] = {}
        self._to_come: list[Any] = []
        self._waiting: list[asyncio.Task[None]] = []
        self._unknown: list[tuple[str, str]] = []
        self._starting: dict[Process, asyncio.Task[None]] = {}
        self._numbers = 0

    def run(self) -> Watch:
        """Live through it. Raises `Violation`, or whatever else went wrong."""
        set_id_generator(self._id)
        context = contextvars.copy_context()
        context.run(RNG.set, random.Random(self.rng.random()))
        asyncio.set_event_loop(self.loop)
        self.loop.broken = lambda: self.watch.broken
        gc.disable()  # a sixth of the time, and a world is small
        try:
            context.run(self.loop.run_until_complete, self._live())
            return self.watch
        finally:
            self.loop.broken = lambda: None
            self._bury_the_dead(context)
            gc.enable()
            set_id_generator(None)
            asyncio.set_event_loop(None)
            self.loop.close()

    def _bury_the_dead(self, context: contextvars.Context) -> None:
        """End all tasks, those of killed processes too: nothing of this world reaches the next."""
        self.weather.clear(*TROUBLES)
        self.loop.steps = 0
        for process, _ in self._fleet:
            process.dead, process.paused_until = False, 0.0
        for _ in range(3):
            if tasks := self.loop.unfinished():
                for task in tasks:
                    task.cancel()
                with contextlib.suppress(Exception):
                    context.run(self.loop.run_until_complete, asyncio.wait(tasks, timeout=1))
        with contextlib.suppress(Exception):
            context.run(self.loop.run_until_complete, _close(self.loop.unfinished()))

    def _id(self) -> str:
        self._numbers += 1
        return f"{self._numbers:06d}"

    @property
    def history(self) -> str:
        """What happened, in one number: the same for the same seed."""
        return hashlib.sha256("\n".join(self.watch.timeline).encode()).hexdigest()[:16]

    def figures(self) -> dict[str, float]:
        """How much happened."""
        things = self.watch.shadow.things.values()
        return {
            "seconds": self.loop.now,
            "steps of the store": self.watch.steps,
            "items": len(things),
            "leases": sum(thing.leases for thing in things),
            "workers killed": self.kills,
            "workers stopped": sum(process.stopped for process, _ in self._fleet),
        }

    # -- life ------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        client = self._client()
        for _ in range(self.fate.workers):
            await self._hire()
        doing: list[asyncio.Task[None]] = []
        for deed in self.fate.deeds:
            await asyncio.sleep(max(0.0, deed.at - self.loop.now))
            doing.append(asyncio.ensure_future(self._do(deed, client)))
        await asyncio.sleep(self.rng.uniform(0, 10))
        await self._settle_down(client, doing)

    async def _do(self, deed: Deed, client: Client) -> None:
        await getattr(self, f"_{deed.kind}")(random.Random(deed.seed), client)

    def _client(self) -> Client:
        return Client(
            Network(self.store, self.weather, random.Random(self.rng.random()), self.watch),
            work=TYPES,
            poll_interval=1.0,
            clock=SimClock(self.loop, self._users),
            random=random.Random(self.rng.random()),
            generate_id=self._id,
            on_error=self._swallow,
        )

    async def _hire(self, *, picky: bool = True) -> None:
        """A worker in a process of its own. Some work for one tenant only."""
        process = Process(f"worker{len(self._fleet)}")
        process.skew = self.rng.choice((0.0, -3600.0, 3600.0))
        app = Treadle(
            Network(self.store, self.weather, random.Random(self.rng.random()), self.watch),
            work=TYPES,
            poll_interval=1.0,
            lease=LEASE,
            heartbeat=LEASE / 2.5,
            drain=2.0,
            clock=SimClock(self.loop, process),
            random=random.Random(self.rng.random()),
            generate_id=self._id,
            on_error=self._swallow,
            on_event=self.watch.announced,
            doer=self.rng.choice((unlimited(), balanced(3))),
            tenants=["acme"] if picky and self.rng.random() < 0.2 else None,
        )
        if self.fate.schedules is not None:
            catch_up: Any = self.fate.schedules
            app.tenant("acme").schedule("beat", every=self.fate.every, run=tick, catch_up=catch_up)
        self._fleet.append((process, app))
        self._starting[process] = self._within(process, _started(app))
        await asyncio.wait({self._starting[process]}, timeout=30)
        self.watch.note(f"{process} ({app.worker.id}) started")

    def _within(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return asyncio.get_running_loop().create_task(coroutine, context=context)

    def _alive(self) -> Fleet:
        return [(one, app) for one, app in self._fleet if not (one.dead or one.stopping)]

    def _swallow(self, error: BaseException, phase: str) -> None:
        if not isinstance(error, StoreUnavailable) and self.watch.broken is None:
            self.watch.broken = Violation(f"swallowed, {phase}: {type(error).__name__}: {error}")

    # -- what users do ---------------------------------------------------------------------------------

    async def _submit(self, rng: random.Random, client: Client) -> None:
        tenant = rng.choice(TENANTS)
        work = self._to_come.pop() if self._to_come and rng.random() < 0.5 else self._mint(rng)
        if rng.random() < 0.2:
            self._to_come.append(self._mint(rng))
        known = [id for owner, id in self._acknowledged if owner == tenant]
        options = some_options(rng, work.type, known, [each.id for each in self._to_come])
        work = self._namesake(rng, tenant, work)
        if work.id not in options.get("after", ()):
            submitter = self._submitter(rng, client, work.type)
            await self._enqueue(submitter, tenant, work, options, waits=rng.random() < 0.4)

    def _mint(self, rng: random.Random) -> Any:
        return MAKERS[rng.choice(self.fate.mix)](rng)

    def _namesake(self, rng: random.Random, tenant: str, work: Any) -> Any:
        """The same id in both tenants, now and then: they must not meet."""
        mine = {id for owner, id in self._acknowledged if owner == tenant} | {id for _, id in self._unknown}
        others = [id for owner, id in self._acknowledged if owner != tenant and id not in mine]
        if others and rng.random() < 0.3:
            self.watch.sometimes("two tenants, one id")
            self._unknown.append((tenant, id := rng.choice(others)))
            return replace(work, id=id)
        return work

    def _submitter(self, rng: random.Random, client: Client, type: str) -> tuple[Process, Client]:
        """Who submits: the client, or an app that can run it at once."""
        apps = self._alive()
        return rng.choice(apps) if type == "local" and apps else (self._users, client)

    async def _enqueue(
        self, submitter: tuple[Process, Client], tenant: str, work: Any, options: Any, *, waits: bool
    ) -> None:
        process, client = submitter
        call = self._within(process, self._acknowledge(client.tenant(tenant), tenant, work, options))
        while not call.done() and not process.dead:
            await asyncio.wait({call}, timeout=1.0)
        handle = call.result() if call.done() else None
        if handle is not None and waits and not process.dead:
            self._waiting.append(self._within(process, self._await(handle, tenant, process)))

    async def _acknowledge(self, client: Client, tenant: str, work: Any, options: dict[str, Any]) -> Any:
        try:
            handle = await client.enqueue(work, **options)
        except StoreUnavailable:
            self.watch.sometimes("enqueue gave up: stored or not, nobody knows")
            self._unknown.append((tenant, work.id))
            return None
        except (CycleError, InputError) as error:
            self.watch.sometimes(f"enqueue refused: {type(error).__name__}")
            return None
        except TreadleError as error:
            self._broke(f"enqueue of a new item: {type(error).__name__}: {error}")
            return None
        self.watch.note(f"enqueued {tenant}/{handle.id} {work.type} {options}")
        self._acknowledged[tenant, handle.id] = work.type
        self._check(lambda: must(self.watch.shadow.knew((tenant, handle.id)), f"{handle.id} is lost"))
        own = handle.existing or handle.id == work.id
        self._check(lambda: must(own, f"{work.id} was stored as {handle.id}"))
        return handle

    async def _await(self, handle: Any, tenant: str, process: Process) -> None:
        try:
            await handle.group()
        except WorkFailed:
            self.watch.sometimes("a waiter was told of a failure")
        except TreadleError as error:
            self.watch.sometimes(f"a waiter was told {type(error).__name__}")
            return
        team = self.watch.shadow.teams.get((tenant, handle.group_id))
        if team is not None:
            self._check(lambda: must(team.closings, f"group {handle.group_id} was answered, and is open"))
        self.watch.sometimes("waited to the end")

    async def _operate(self, rng: random.Random, client: Client) -> None:
        """Cancels, requeues, triggers and completes: as an operator, or bound to a tenant, its own or not."""
        if not self._acknowledged:
            return
        ref = rng.choice(list(self._acknowledged))
        verb = rng.choice(("cancel", "requeue", "requeue", "trigger", "complete"))
        bound = client if rng.random() < 0.3 else client.tenant(rng.choice(TENANTS))
        arguments = (ref[1], 7) if verb == "complete" else (ref[1],)
        try:
            await asyncio.wait_for(self._within(self._users, getattr(bound, verb)(*arguments)), 60)
        except TreadleError as error:
            self.watch.sometimes(f"{type(error).__name__} to an operator")

    async def _hold(self, rng: random.Random, client: Client) -> None:
        queue, tenant = rng.choice(("default", "bulk")), rng.choice((None, *TENANTS))
        await self.store.pause(queue, True, tenant=tenant)
        await asyncio.sleep(rng.uniform(0, 8))
        await self.store.pause(queue, False, tenant=tenant)

    # -- what fate does --------------------------------------------------------------------------------

    async def _kill(self, rng: random.Random, client: Client) -> None:
        alive = [process for process, _ in self._fleet if not (process.dead or process.stopped)]
        if alive:
            victim = rng.choice(alive)
            victim.dead = True
            self.kills += 1
            self.watch.note(f"{victim} killed")
        await self._hire()

    async def _stop(self, rng: random.Random, client: Client) -> None:
        """A shutdown: what it was running is given back, and no attempt is spent on it."""
        if not (alive := [(one, app) for one, app in self._alive() if self._starting[one].done()]):
            return
        process, app = rng.choice(alive)
        process.stopping = True
        self.watch.note(f"{process} stops")
        if self.watch.orderly:
            self.watch.leaving.add(app.worker.id)
            self.watch.sometimes("an orderly shutdown")
        stopping = self._within(process, app.stop(drain=rng.choice((0, 1, 3))))
        while not stopping.done() and not process.dead:
            await asyncio.wait({stopping}, timeout=1.0)
        if not process.dead:
            stopping.result()
            process.stopped = True
            await self._leaves_nothing(process)
        await self._hire()

    async def _pause(self, rng: random.Random, client: Client) -> None:
        if alive := self._alive():
            victim = rng.choice(alive)[0]
            victim.paused_until = self.loop.now + rng.uniform(0, 3 * LEASE)
            self.watch.note(f"{victim} paused until {victim.paused_until:.1f}")
            self.watch.sometimes("paused")

    async def _jump(self, rng: random.Random, client: Client) -> None:
        self.store_clock.jumped += rng.uniform(0, 2 * LEASE)
        self.watch.sometimes("the store's clock jumped")
        self.watch.note("the store's clock jumped")

    # -- the end ---------------------------------------------------------------------------------------

    async def _settle_down(self, client: Client, doing: list[asyncio.Task[None]]) -> None:
        """Fair weather and a worker that lives: now everything must come to its end."""
        self.weather.clear(*TROUBLES)
        self.watch.note("fair weather")
        await self._hire(picky=False)
        if doing:
            await asyncio.wait(doing, timeout=120)
        for deed in doing:
            must(deed.done(), f"{deed} hangs")
            deed.result()
        for work in self._to_come:
            await self._enqueue((self._users, client), "acme", work, {}, waits=False)
        await self.store.drop_schedule("beat")
        await self._everything_ends()
        await self._handlers_end()
        await self._waiters_are_told()
        self._unknowns()
        await self._counts()
        self._check(self.watch.compare)
        self._check(self.watch.audit)
        await self._go_home(client)

    async def _everything_ends(self) -> None:
        deadline = self.loop.now + SETTLE_DOWN
        while stuck := self._open():
            must(self.loop.now < deadline, f"still open after {SETTLE_DOWN:g} s of fair weather: {stuck[:5]}")
            await asyncio.sleep(0.5 if self.loop.now < deadline - SETTLE_DOWN + 20 else 5)

    def _open(self) -> list[Thing]:
        """What has not ended and does not wait, perhaps through others, for an id that never came."""
        shadow = self.watch.shadow

        def waits(thing: Thing) -> bool:
            others = [shadow.things.get((thing.ref[0], id)) for id in thing.pending]
            return thing.status == "blocked" and any(
                other is None or (not other.ended and waits(other)) for other in others
            )

        return [thing for thing in shadow.open_ones() if thing.doom or not waits(thing)]

    async def _handlers_end(self) -> None:
        """Whose item was ended by others is told within a lease or so, and ends as well."""
        deadline = self.loop.now + 4 * LEASE
        while running := [lease.id for _, app in self._alive() for lease in app.active()]:
            must(self.loop.now < deadline, f"all has ended, but handlers of {running} go on")
            await asyncio.sleep(1)

    async def _waiters_are_told(self) -> None:
        """Whoever waits in a process that lives, for a group that has ended, hears of it."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=20)
        open_groups = {thing.team for thing in self.watch.shadow.open_ones()}
        dead = [process for process, _ in self._fleet if process.dead or process.stopping]
        gone = {task for process in dead for task in self.loop.left_by(process)}
        for waiter in self._waiting:
            if not waiter.done() and waiter not in gone:
                must(open_groups, "a waiter was never told")
                waiter.cancel()
            elif waiter.done():
                waiter.result()

    def _unknowns(self) -> None:
        for ref in self._unknown:
            there = ref in self.watch.shadow.things
            self.watch.sometimes("an unknown enqueue was stored" if there else "an unknown enqueue was not")

    async def _counts(self) -> None:
        """Every `counting` group counts its children that succeeded, exactly."""
        for (tenant, id), type in self._acknowledged.items():
            if type != "counting":
                continue
            (group,) = await self.store.group([id], tenant=tenant)
            if group is None or group.type != "counting" or group.open:
                continue
            page = await self.store.list(Filter(tenant=tenant, group_id=id), limit=1000)
            if any(item.worker is None and item.status == "success" for item in page.items):
                continue  # an operator had a hand in it
            counted = sum(item.type == "counted" and item.status == "success" for item in page.items)
            value = int(group.value.rpartition(b"\x00")[2]) if isinstance(group.value, bytes) else 0
            must(counted == value, f"group {id} counted {value}, but {counted} of its children succeeded")

    async def _go_home(self, client: Client) -> None:
        """Stop all that live: no loop of theirs has died, and they leave nothing behind."""
        for process, app in self._alive():
            runtime = app.worker._runtime
            if runtime is not None and runtime.failed is not None and runtime.failed.done():
                raise Violation(f"a loop of {process} died: {runtime.failed.exception()}")
            await asyncio.wait_for(self._starting[process], 60)
            process.stopping = True
            self.watch.leaving.add(app.worker.id)
            await asyncio.wait_for(self._within(process, app.stop()), 60)
            await self._leaves_nothing(process)
        await asyncio.wait_for(self._within(self._users, client.close()), 60)
        await self._leaves_nothing(self._users)

    async def _leaves_nothing(self, process: Process) -> None:
        """A call that is on its way when a process stops is waited for, a little, and then left to end."""
        if left := self._left_by(process):
            await asyncio.wait(left, timeout=60)
        must(process.dead or not (left := self._left_by(process)), f"{process} left {left[:3]} behind")

    def _left_by(self, process: Process) -> list[asyncio.Task[Any]]:
        return [task for task in self.loop.left_by(process) if task not in self._waiting]

    def _check(self, check: Any) -> None:
        self.watch.guarded(check)

    def _broke(self, what: str) -> None:
        if self.watch.broken is None:
            self.watch.broken = Violation(what)


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
