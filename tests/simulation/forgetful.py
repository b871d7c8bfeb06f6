"""A store that forgets: it goes back to an earlier state while its workers live on.

So does a replica that was behind and took over, or a server that had not written its last steps. What the
reference expects is not true any more. What must be true at the end is:

| F1 | all that the store knows ends: no item stays running that its worker has settled |
| F2 | all permits are returned |
| F3 | the tables agree with a recount |
| F4 | if nothing else goes wrong, F1 holds for each lease within two leases of the worker |

A store whose claims and heartbeats do not wait for its disk forgets only those if it crashes. Then also:

| F5 | no token is handed out twice, and nothing ends by a lease that is forgotten |
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.backends.memory_audit import audit
from tests.simulation.checker import Checker
from tests.simulation.network import FAULTS
from tests.simulation.plan import LEASE, TENANTS
from tests.simulation.reference import Violation, must
from tests.simulation.simulation import TIME_TO_FINISH, Simulation
from tests.simulation.threads import SimThread
from treadle import Client, Context
from treadle.item import GROUP_MARK, ItemState, Ref, Signal

SLACK = 3.0
"""Seconds: what claims and answers take beside the two leases."""
LOOK_EVERY = 0.5


@contextlib.contextmanager
def deep_structs() -> Iterator[None]:
    """Let `deepcopy` copy structs that refer to each other. A frozen one stays itself."""
    structs = [struct for struct in _subclasses(msgspec.Struct) if struct.__module__.startswith("treadle.")]
    dispatch: dict[type, Any] = copy._deepcopy_dispatch  # type: ignore[attr-defined]
    limit = sys.getrecursionlimit()
    dispatch.update(dict.fromkeys(structs, _deepcopy_struct))
    dispatch[itertools.count] = _deepcopy_count
    sys.setrecursionlimit(50_000)  # rows are linked
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        for copied in (*structs, itertools.count):
            del dispatch[copied]


def _subclasses(of: type) -> set[type]:
    return {of}.union(*(_subclasses(one) for one in of.__subclasses__()))


def _deepcopy_struct(struct: Any, memo: dict[int, Any]) -> Any:
    if struct.__struct_config__.frozen:
        return struct
    copied = memo[id(struct)] = copy.copy(struct)
    for name in struct.__struct_fields__:
        setattr(copied, name, copy.deepcopy(getattr(struct, name), memo))
    return copied


def _deepcopy_count(count: Any, memo: dict[int, Any]) -> Any:
    # By its text, `count(7)`: from Python 3.14 on nothing else says where it is.
    return itertools.count(int(repr(count).removeprefix("count(").removesuffix(")")))


READS = frozenset({"get", "ended", "unknown_leases"})


class BlindChecker(Checker):
    """Counts the steps, and checks none. `stepped` is called after each."""

    stepped: Callable[..., None] | None = None

    def check_step(self, verb: str, now: float, *args: Any) -> None:
        self.steps += 1
        self.calls[verb] += 1
        if self.stepped is not None:
            self.stepped(verb, *args)

    def guard(self, check: Callable[..., None], *args: Any) -> None:
        pass


class ForgetfulSimulation(Simulation):
    """The plan of a seed, on a store that goes back in time once or a few times."""

    def __init__(self, seed: int, without: frozenset[Any] = frozenset()) -> None:
        super().__init__(seed, without)
        self.checker = self.store.checker = BlindChecker(self.store, self.loop.time)
        self.handlers = self.checker.handlers
        draw = random.Random(f"forgetful {seed}")
        self.forgettings = sorted(
            (draw.uniform(1, self.plan.span), draw.choice((0.05, 0.5, 3.0)) * draw.random())
            for _ in range(draw.randint(1, 4))
        )
        """When it goes back, and by how many seconds."""
        self.forgotten = 0
        """How many leases of settled items it had to find again."""
        self._since: dict[tuple[str, int], float] = {}
        """Since when the store has a lease that its worker does not know."""
        self._is_calm = self.faults.reliable and not self.plan.has("pause", "jump_clock", "kill", "poison")

    async def _run(self) -> None:
        self._going_back = asyncio.ensure_future(self._go_back())
        looking = asyncio.ensure_future(self._look())
        try:
            await super()._run()
        finally:
            self._going_back.cancel()
            looking.cancel()

    async def _go_back(self) -> None:
        for at, by in self.forgettings:
            await asyncio.sleep(max(0.0, at - by - self.loop.now))
            earlier = self._copy()
            await asyncio.sleep(by)
            self._put_back(earlier, f"the store has forgotten the last {by:.3f} s")

    def _put_back(self, earlier: Any, note: str) -> None:
        self.store.store.cut_all()
        self.store.store = earlier
        self.checker.note(note)

    def _copy(self) -> Any:
        with deep_structs():
            return copy.deepcopy(self.store.store, {id(self.store_clock): self.store_clock})

    async def _look(self) -> None:
        """F4: look for leases that a live worker does not know."""
        while True:
            unknown = {(id, token) for id, tokens in self._unknown_leases() for token in tokens}
            now = self.loop.now
            self._since = {each: self._since.get(each, now) for each in unknown}
            for each, since in self._since.items():
                if self._is_calm and now - since > 2 * LEASE + SLACK:
                    self._report(f"{each} is leased to a worker that does not know it, for {now - since:g} s")
            await asyncio.sleep(LOOK_EVERY)

    def _unknown_leases(self) -> list[tuple[str, set[int]]]:
        runtimes = {app.worker.id: app.worker._runtime for _, app in self._alive()}
        return [
            (id, worker.held.keys() - set(runtime.held.tokens()))
            for id, worker in self.store.store.workers.items()
            if (runtime := runtimes.get(id)) is not None
        ]

    # -- what handlers do: nothing of it is checked ------------------------------------------------------

    def block(self, ctx: Context, seconds: float) -> None:
        SimThread.current().sleep(seconds)

    def running(self, ctx: Context) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def called(self, ctx: Context, name: str) -> str:
        return name

    def saw(self, ctx: Context, name: str, value: object) -> None:
        return None

    # -- the end -----------------------------------------------------------------------------------------

    async def _finish(self, client: Client, running: list[asyncio.Task[None]]) -> None:
        self._finishing = True
        self.faults.clear(*FAULTS)
        self.checker.note("no more faults")
        for kind in range(len(self.plan.kinds)):
            await self._start_worker(kind, restricted=False)
        if running:
            await asyncio.wait(running, timeout=120)
        await self._going_back
        await self.store.drop_schedule("beat")
        await self._check_everything_ends()
        await self._check_handlers_end()
        await self._check_permits_are_returned()
        problems = audit(self.store)
        must(not problems, "; ".join(problems[:5]))
        await self._stop_everything(client)

    async def _check_everything_ends(self) -> None:
        """F1."""
        deadline = self.loop.now + TIME_TO_FINISH
        while stuck := await self._stuck():
            must(self.loop.now < deadline, f"still open after {TIME_TO_FINISH:g} s: {stuck[:3]}")
            for order in list(self.store.store.orders.values()):
                await self.store.withdraw(order)
            await self._answer_stuck([state for state in stuck if state.suspended])
            await asyncio.sleep(1)

    async def _answer_stuck(self, stuck: list[ItemState]) -> None:
        """Send the signals that these items wait for. Nothing else ends these waits."""
        for state in stuck:
            (found,) = await self.store.steps([state.id], tenant=state.tenant)
            for step in () if found is None else found.steps:
                if step.kind == "signal" and not step.over and step.until is None:
                    signal = Signal(id=state.id, name=step.signal, value=b'"the end"')
                    await self.store.signal([signal], tenant=state.tenant)

    async def _stuck(self) -> list[ItemState]:
        """The open items, without those that wait for ids that do not exist, or for each other."""
        states = [state for tenant in TENANTS for state in await self._open_items(tenant)]
        if all(state.status == "blocked" for state in states):
            return [state for state in states if not await self._waits(state)]
        return [state for state in states if state.status != "blocked"]

    async def _open_items(self, tenant: str) -> list[ItemState]:
        ids = [row.item.id for row in self.store.store.log if not row.gone and row.item.tenant == tenant]
        found = [state for state in await self.store.get(ids, tenant=tenant) if state is not None]
        return [state for state in found if state.status not in ("success", "dead", "cancelled")]

    async def _waits(self, state: ItemState) -> bool:
        """Whether it waits for something that has not ended."""
        row = self.store.store.find(state.tenant, state.id)
        names = () if row is None else row.item.after
        return any([await self._is_open((state.tenant, name)) for name in names])

    async def _is_open(self, ref: Ref) -> bool:
        tenant, name = ref
        if name.startswith(GROUP_MARK):
            (group,) = await self.store.group([name[1:]], tenant=tenant)
            return group is None or group.open > 0
        (state,) = await self.store.get([name], tenant=tenant)
        return state is None or state.status not in ("success", "dead", "cancelled")

    async def _check_permits_are_returned(self) -> None:
        """F2."""
        deadline = self.loop.now + 6 * LEASE
        while held := self.store.store.limits.held:
            if self.loop.now > deadline:
                raise Violation(f"nothing runs, and permits are held: {dict(held)}")
            await asyncio.sleep(1)


class CrashingSimulation(ForgetfulSimulation):
    """The plan of a seed, on a store that crashes: it forgets the claims and heartbeats since its last other
    change."""

    def __init__(self, seed: int, without: frozenset[Any] = frozenset()) -> None:
        super().__init__(seed, without)
        assert isinstance(self.checker, BlindChecker)
        self.checker.stepped = self._stepped
        self._earlier: Any = None
        """What is on the disk, while it is about to crash."""
        self._may_crash = asyncio.Event()
        self._unwritten: set[int] = set()
        """The tokens that only the store's memory has, while it is about to crash."""
        self._handed_out: set[int] = set()
        self.voided: set[int] = set()
        """The tokens that it has forgotten."""

    async def _go_back(self) -> None:
        for at, by in self.forgettings:
            await asyncio.sleep(max(0.0, at - by - self.loop.now))
            self._earlier = self._copy()
            while self._earlier is not None and not self._finishing:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._may_crash.wait(), 1)
                await asyncio.sleep(by / 10)
                if self._unwritten:
                    self._crash()
        self._earlier = None

    def _crash(self) -> None:
        self.voided |= self._unwritten
        self._put_back(self._earlier, f"the store has forgotten {len(self._unwritten)} leases")
        self._earlier = None
        self._on_disk()

    def _on_disk(self) -> None:
        self._unwritten.clear()
        self._may_crash.clear()

    def _stepped(self, verb: str, *args: Any) -> None:
        """F5, and what the disk has."""
        if verb == "claim":
            self._hand_out([lease.token for lease in args[1].leases])
        elif verb == "submit":
            answers = [each for answer in args[1] if isinstance(answer, tuple) for each in answer]
            self._hand_out([each.lease.token for each in answers if each.lease and not each.existing])
        elif verb == "settle":
            applied = zip(args[0], args[1].outcomes, strict=True)
            ended = {one.lease.token for one, outcome in applied if outcome.verb == "applied"}
            if forgotten := ended & self.voided:
                self._report(f"{forgotten} have settled, and the store has forgotten them")
        if self._earlier is not None and verb not in READS | {"claim", "beat"}:
            self._earlier = self._copy()
            self._on_disk()

    def _hand_out(self, tokens: list[int]) -> None:
        if again := self._handed_out.intersection(tokens):
            self._report(f"tokens are handed out twice: {again}")
        self._handed_out.update(tokens)
        if self._earlier is not None and tokens:
            self._unwritten.update(tokens)
            self._may_crash.set()
