"""A fleet over two stores, between which tenants move while clients, workers and operators go on.

Movers are processes of their own. They are killed or fall asleep at any of their calls, go on with what
others have begun, give up, and come two at a time. `parts` has the checks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.simulation.coverage import STEPS, missing_moves
from tests.simulation.loop import Process, SimClock
from tests.simulation.network import FaultyNetwork, NetworkFaults
from tests.simulation.parts import PairChecker, PartStore
from tests.simulation.plan import TENANTS, Plan
from tests.simulation.program import TYPES, limited_types
from tests.simulation.reference import must
from tests.simulation.simulation import Simulation
from tests.simulation.step_program import STEP_TYPES
from tests.support.around_moves import AroundMoves
from treadle import Client, StoreUnavailable
from treadle.backend import Backend
from treadle.backends.many import ManyStores
from treadle.errors import BackendError, PlacementError
from treadle.item import AuditNote

T = TypeVar("T")

NAMES = ("eu", "us")
ANY_SKEW = 1e9
LAST_TRIES = 20
"""How often a move is tried at the end, when nothing happens to the tenant any more but keys that expire."""
HAS_NOT_KEPT = "has not kept"


class MovingPlan(Plan):
    """The plan of a seed, with movers."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        draw = random.Random(rng.random())
        for _ in range(draw.randint(2, 10)):
            self.add("move", draw.uniform(0, self.span), draw.random())
        self.actions.sort(key=lambda action: action.at)


class Fate:
    """What befalls a mover at one of its calls: it is killed, or sleeps for some seconds."""

    def __init__(self, rng: random.Random) -> None:
        self.seconds = rng.choice((None, rng.uniform(0.1, 5), rng.uniform(60, 100)))
        """None: it is killed."""
        self.is_before = rng.random() < 0.5
        """Before the call is sent, or when it was answered."""
        self._step = rng.choice(STEPS)
        self._left = rng.choice((1, 1, 2, 3, 6))

    def meets(self, verb: str) -> bool:
        """Whether this call is the one."""
        self._left -= verb == self._step
        return verb == self._step and self._left == 0


class MovingNetwork(FaultyNetwork):
    """The connection of one process to one of the stores. Movers use it too."""

    def __init__(
        self,
        inner: PartStore,
        faults: NetworkFaults,
        rng: random.Random,
        checker: PairChecker,
        process: Process,
    ) -> None:
        super().__init__(inner, faults, rng, checker)
        self.capabilities = inner.capabilities
        self.fate: Fate | None = None
        self._moves = AroundMoves(inner.tenant_moves, self)
        self._process = process

    @property
    def tenant_moves(self) -> AroundMoves:
        return self._moves

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if self.fate is None or not self.fate.meets(verb):
            return await super().around(verb, args, call)
        if self.fate.is_before:
            await self._befall(self.fate, f"before {verb}")
        answer = await super().around(verb, args, call)
        if not self.fate.is_before:
            await self._befall(self.fate, f"after {verb}")
        return answer

    async def _befall(self, fate: Fate, when: str) -> None:
        what = "was killed" if fate.seconds is None else "slept"
        self._checker.cover(f"a mover {what} {when}")
        self._checker.note(f"{self._process} {what} {when}")
        if fate.seconds is None:
            self._process.dead = True
        else:
            self._process.paused_until = asyncio.get_running_loop().time() + fate.seconds
        await asyncio.sleep(0)  # it goes on from here when the process does


class MovingSimulation(Simulation):
    name = "simulator with two stores"
    setting = "STORES=2 "
    missing = staticmethod(missing_moves)
    checker: PairChecker

    def __init__(self, seed: int, without: frozenset[Any] = frozenset()) -> None:
        super().__init__(seed, without)
        draw = random.Random(f"two stores {seed}")
        clocks = [self.store_clock, SimClock(self.loop)]
        self.skew = draw.choice((0.0, 0.0, 0.9, -0.9, 20.0, -20.0))
        clocks[1].jumped = self.skew
        self.stores = {name: PartStore(clock=clock) for name, clock in zip(NAMES, clocks, strict=True)}
        self.stores["us"].store.random_bits = draw.choice((random.Random(1), random.Random(2))).getrandbits
        self.checker = PairChecker(self.stores, self.loop.time)
        self.handlers = self.checker.handlers
        self.handlers.strict_timing = self.handlers.prompt = False
        self.store: Any = ManyStores({**self.stores}, clock=SimClock(self.loop))
        self._first = {tenant: draw.choice((None, *NAMES)) for tenant in TENANTS}
        """Where tenants are placed by hand."""
        self._movers = 0

    def _make_plan(self, rng: random.Random) -> Plan:
        return MovingPlan(rng)

    def _works(self) -> list[Any]:
        return [*TYPES, *STEP_TYPES, *limited_types("tenant")]

    def _connect(self, process: Process) -> Backend:
        return self._stores_of(process)[0]

    def _stores_of(self, process: Process) -> tuple[ManyStores, list[MovingNetwork]]:
        networks = {
            name: MovingNetwork(store, self.faults, random.Random(self.rng.random()), self.checker, process)
            for name, store in self.stores.items()
        }
        return ManyStores({**networks}, clock=SimClock(self.loop, process)), [*networks.values()]

    async def _before_again(self) -> None:
        """While a store is away, calls are refused at once."""
        await asyncio.sleep(0.05)

    async def _run(self) -> None:
        await self.store.open()
        for tenant, name in self._first.items():
            if name is not None:
                await self.store.place(tenant, name)
        await super()._run()

    # -- movers ----------------------------------------------------------------------------------------

    async def _move(self, rng: random.Random, client: Client) -> None:
        """A mover, and sometimes another one beside it."""
        tenant = rng.choice(TENANTS)
        movers = [self._mover(random.Random(rng.random()), tenant) for _ in range(rng.choice((1, 1, 2)))]
        await asyncio.gather(*movers)

    async def _mover(self, rng: random.Random, tenant: str) -> None:
        self._movers += 1
        process = Process(f"mover{self._movers}")
        process.skew = rng.choice((0.0, 3600.0))
        self.checker.movers[process] = tenant
        stores, networks = self._stores_of(process)
        fate = Fate(rng) if rng.random() < 0.7 else None
        running = self._run_in(process, self._move_to_and_fro(rng, stores, networks, fate, tenant))
        while not running.done() and not process.dead:
            await asyncio.wait({running}, timeout=1.0)
        if running.done():
            running.result()
            process.stopped = True
            del self.checker.movers[process]

    async def _move_to_and_fro(
        self,
        rng: random.Random,
        stores: ManyStores,
        networks: list[MovingNetwork],
        fate: Fate | None,
        tenant: str,
    ) -> None:
        await self._until_answered(stores.open)
        for network in networks:
            network.fate = fate
        to = self._other(tenant)
        for _ in range(rng.choice((1, 4, 12))):
            if self._finishing:
                break
            try:
                if rng.random() < 0.1:
                    given_up = await stores.give_up_move(tenant)
                    self.checker.cover("a mover gave up") if given_up else None
                await self._move_once(rng, stores, tenant, to)
                to = self._other(tenant)
            except StoreUnavailable as error:
                self.checker.note(f"a move of {tenant} to {to}: {error}")
                self.checker.cover("a move was refused, or not answered")
                self.checker.cover("a freeze ended by itself") if self._is_thawed(tenant) else None
            except PlacementError:
                self.checker.cover("a tenant without a store could not be moved")
            except BackendError as error:
                self.checker.note(f"a move of {tenant} to {to}: {error}")
                must(HAS_NOT_KEPT not in str(error), str(error))
                self.checker.cover(f"a move was refused: {' '.join(str(error).split()[:2])}")
                if "has begun" in str(error):
                    to = next(name for name in NAMES if name != to)
            await asyncio.sleep(rng.uniform(0, 1))
        await self._until_answered(stores.close)

    async def _move_once(self, rng: random.Random, stores: ManyStores, tenant: str, to: str) -> None:
        begun = any(each.dead and moved == tenant for each, moved in self.checker.movers.items())
        moved = await stores.move_tenant(
            tenant,
            to,
            resume=rng.random() < 0.7,
            skew=rng.choice((1.0, ANY_SKEW, ANY_SKEW, ANY_SKEW)),
            freeze=rng.choice((0.5, 10.0)),
            note=AuditNote(actor="ann", reason="room") if rng.random() < 0.3 else None,
        )
        if moved.finished:
            self.checker.cover("a mover found the tenant there")
            return
        self.checker.cover("a mover has moved a tenant")
        self.checker.cover("a mover has moved a tenant that another one began to move") if begun else None
        self.checker.cover("a mover has moved items that run") if moved.running else None

    def _is_thawed(self, tenant: str) -> bool:
        """Whether a freeze is over, and no one has decided."""
        marks = ((store.mark_of(tenant), store.store.now()) for store in self.stores.values())
        return any(mark is not None and mark.state == "frozen" and mark.until <= now for mark, now in marks)

    def _other(self, tenant: str) -> str:
        return "us" if self.checker.where.get(tenant) == "eu" else "eu"

    async def _until_answered(self, call: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await self._before_again()

    # -- the end ---------------------------------------------------------------------------------------

    async def _check_what_is_stored(self) -> None:
        """M5: end what has begun, and move each tenant there and back."""
        for tenant in TENANTS:
            await self._end_move(tenant)
            self.checker.guard(self._check_nothing_left, tenant)
            for _ in NAMES:
                if tenant in self.checker.where:
                    await self._last_move(tenant, self._other(tenant))
                    self.checker.guard(self._check_nothing_left, tenant)
        await super()._check_what_is_stored()

    async def _end_move(self, tenant: str) -> None:
        marks = [store.mark_of(tenant) for store in self.stores.values()]
        begun = [mark for mark in marks if mark is not None and mark.move and mark.state != "importing"]
        if begun and self.rng.random() < 0.5:
            await self._last_move(tenant, begun[0].to)
            self.checker.cover("a move was resumed at the end")
        elif await self.store.give_up_move(tenant):
            self.checker.cover("a move was given up at the end")

    async def _last_move(self, tenant: str, to: str) -> None:
        for _ in range(LAST_TRIES):
            try:
                await self.store.move_tenant(tenant, to, resume=True, skew=ANY_SKEW)
            except StoreUnavailable as error:
                self.checker.note(f"the last move of {tenant} to {to}: {error}")
                await asyncio.sleep(1)
                continue
            return
        must(False, f"{tenant} cannot be moved to {to} any more")

    def _check_nothing_left(self, tenant: str) -> None:
        owners = 0
        for name, store in self.stores.items():
            mark = store.mark_of(tenant)
            must(tenant not in store.store.arriving, f"something of {tenant} is left on its way to {name}")
            must(mark is None or mark.state in ("owned", "away"), f"{name} says of {tenant}: {mark}")
            must(mark is None or mark.state == "away" or not mark.move, f"a move of {tenant} is left: {mark}")
            owners += mark is None or mark.state == "owned"
            there = any(row.kind.tenant == tenant for row in store.store.log if not row.gone)
            must(not there or self.checker.where[tenant] == name, f"{name} has items of {tenant}")
        must(owners, f"no store owns {tenant}")
