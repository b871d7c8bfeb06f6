"""Tenancy for bound clients: two clients of one app use the same names and share one worker.

What each one gets from its verbs, handles, waiters and handlers does not depend on the other.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.tiers import seeds
from tests.tenancy.backend_program import KEYS, QUEUES, Exchange, by_id, comparable, counted
from tests.tenancy.conftest import EmptyStore, NewStore, in_memory
from tests.tenancy.leaky_backend import LeakyBackend
from tests.tenancy.shared_store import compare
from treadle import Abort, Client, Context, Result, Retry, Treadle, Work, Worker, work
from treadle.errors import TreadleError
from treadle.item import TERMINAL

SEEDS = int(os.environ.get("TREADLE_TENANCY_SEEDS", "2"))
ROUNDS = 40
PATIENCE = 30.0
ACME, ZOO = "acme", "zoo"
IDS = tuple(f"i{n}" for n in range(8))
MODES = ("ok", "ok", "ok", "dead", "retry", "queue", "queue", "claim", "look")

VERBS = {
    "enqueue": 10,
    "enqueue_many": 2,
    "wait": 6,
    "claim_one": 4,
    "get": 1,
    "states": 1,
    "group": 1,
    "workflow": 1,
    "list": 2,
    "counts": 1,
    "cancel": 2,
    "complete": 2,
    "requeue": 2,
    "trigger": 2,
    "delete": 2,
    "dead": 2,
    "pause": 2,
    "schedule": 2,
}


@work(name="behave", retry=Retry(attempts=2, base=0, jitter=0))
async def behave(ctx: Context, mode: str, whose: str) -> Result[Any, Any]:
    assert whose == ctx.tenant
    match mode:
        case "dead":
            raise Abort(f"failure of {ctx.tenant}")
        case "retry" if ctx.attempt == 1:
            raise OSError(f"failure of {ctx.tenant}")
        case "queue":
            children = [named(f"{ctx.id}.{n}", "ok", whose) for n in (1, 2)]
            return ctx.queue(children).next(named(f"{ctx.id}.3", "look", whose))
        case "claim":
            return ctx.result([await ctx.claim("k1"), f"of {ctx.tenant}"], append=add)
        case "look":
            seen = [state for state in await ctx.states(IDS) if state is not None]
            return ctx.result([{state.tenant for state in seen} <= {ctx.tenant}], append=add)
        case _:
            return ctx.result([f"result of {ctx.tenant}"], append=add)


def add(old: Any) -> Any:
    """Count contributions: the order in which members end does not matter."""
    return (old or 0) + 1


def named(id: str, mode: str, whose: str) -> Work[Any, Any]:
    new = behave(mode, whose)
    return Work(id, new.type, new.input, new.definition)


class ClientProgram:
    """The random calls of one tenant to its client."""

    def __init__(self, client: Client, name: str, seed: int) -> None:
        self.client = client
        self.name = name
        self.exchanges: list[Exchange] = []
        self._random = random.Random(f"{seed} {name}")
        self._waiting: dict[str, asyncio.Task[Any]] = {}

    async def step(self) -> None:
        verb = self._random.choices(list(VERBS), weights=list(VERBS.values()))[0]
        await getattr(self, verb)()

    async def call(
        self, asked: str, call: Awaitable[Any], plain: Callable[[Any], Any] = lambda answer: answer
    ) -> None:
        try:
            answer = plain(await call)
        except TreadleError as error:
            answer = (type(error).__name__, str(error))
        self.exchanges.append((asked, without_workers(comparable(answer))))

    def id(self) -> str:
        return self._random.choice(IDS)

    def work(self) -> Work[Any, Any]:
        return named(self.id(), self._random.choice(MODES), self.name)

    def options(self) -> dict[str, Any]:
        draw = self._random.choice
        return {
            "key": draw((None, None, *KEYS)),
            "key_scope": draw(("open", "any")),
            "workflow": draw((None, "flow")),
            "delay": draw((0, 0, 3600)),
            "queue": draw(QUEUES),
            "after": draw(((), (), (self.id(),))),
        }

    # -- submitting and waiting ------------------------------------------------------------------------

    async def enqueue(self) -> None:
        new, options = self.work(), self.options()
        call = self._submitted(new, options)
        await self.call(f"enqueue {new.id} {new.input} {options}", call)

    async def _submitted(self, new: Work[Any, Any], options: dict[str, Any]) -> Any:
        handle = await self.client.enqueue(new, **options)
        return [handle.id, handle.group_id, handle.existing]

    async def enqueue_many(self) -> None:
        new = {each.id: each for each in (self.work() for _ in range(3))}
        call = self.client.enqueue_many(list(new.values()))
        await self.call(f"enqueue_many {list(new)}", call, lambda handles: [each.id for each in handles])

    async def wait(self) -> None:
        """For an item or its group, until it has ended."""
        id = self.id()
        if id not in self._waiting:
            handle = self.client.handle(id)
            call = self._random.choice((handle.result, handle.group))
            self._waiting[id] = asyncio.create_task(self.call(f"wait {id}", call()))
            await self.check_waiters()

    async def check_waiters(self) -> None:
        """Waiters for ended or missing items have their answer, and no other waiter has."""
        ids = list(self._waiting)
        for id, state in zip(ids, await self.client.get(ids), strict=True):
            group = None if state is None else await self.client.group(state.group_id)
            if state is None or (state.status in TERMINAL and group is not None and group.open == 0):
                await asyncio.wait_for(self._waiting.pop(id), PATIENCE)
            elif state.status not in TERMINAL:
                assert not self._waiting[id].done(), f"{id} of {self.name}: answered too early"

    async def end(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)

    async def claim_one(self) -> None:
        queue, well = self._random.choice(QUEUES), self._random.random() < 0.6
        await self.call(f"claim_one {queue} {well}", self._claimed(queue, well))

    async def _claimed(self, queue: str, well: bool) -> Any:
        lease = await self.client.claim_one(queues=[queue])
        if lease is None:
            return None
        await (lease.complete([f"by hand of {self.name}"]) if well else lease.fail(f"failure of {self.name}"))
        return [lease.id, lease.tenant, lease.attempt, lease.input]

    # -- looking ---------------------------------------------------------------------------------------

    async def get(self) -> None:
        await self.call("get", self.client.get(IDS))

    async def states(self) -> None:
        id = self.id()
        await self.call(f"state {id}", self.client.handle(id).state())

    async def group(self) -> None:
        id = self.id()
        await self.call(f"group {id}", self.client.group(id))

    async def workflow(self) -> None:
        await self.call("workflow", self.client.workflow("flow"))

    async def list(self) -> None:
        where = {"status": self._random.choice((None, "dead", "ready")), "tenant": self._any()}
        await self.call(f"list {where}", self.client.list(**where), lambda page: page.items)

    def _any(self) -> str | None:
        return self._random.choice((None, None, ACME, ZOO))

    async def counts(self) -> None:
        await self.call("counts", self.client.counts(ended=True), counted)

    # -- operating -------------------------------------------------------------------------------------

    async def cancel(self) -> None:
        id = self.id()
        await self.call(f"cancel {id}", self.client.cancel(id))

    async def complete(self) -> None:
        id = self.id()
        await self.call(f"complete {id}", self.client.complete(id, [f"by hand of {self.name}"]))

    async def requeue(self) -> None:
        id = self.id()
        await self.call(f"requeue {id}", self.client.requeue(id))

    async def trigger(self) -> None:
        id = self.id()
        await self.call(f"trigger {id}", self.client.trigger(id))

    async def delete(self) -> None:
        id, cascade = self.id(), self._random.random() < 0.5
        await self.call(f"delete {id} {cascade}", self.client.delete(id, cascade=cascade))

    async def dead(self) -> None:
        dead, tenant = self.client.dead, self._any()
        verb = self._random.choice((dead.requeue, dead.delete, dead.list))
        shown = lambda answer: getattr(answer, "items", answer)  # noqa: E731
        await self.call(f"dead.{verb.__name__} {tenant}", verb(tenant=tenant), shown)

    async def pause(self) -> None:
        verb = self._random.choice((self.client.pause, self.client.resume, self.client.resume))
        queue = self._random.choice(QUEUES)
        await self.call(f"{verb.__name__} {queue}", verb(queue))

    async def schedule(self) -> None:
        """No schedule becomes due here. The test is about their names."""
        schedules, name = self.client.schedules, self._random.choice(KEYS)
        if self._random.random() < 0.4:
            self.client.schedule(name, every=86400, run=lambda: None)
        verb = self._random.choice((schedules.pause, schedules.resume, schedules.cancel))
        await self.call(f"schedule.{verb.__name__} {name}", verb(name))
        rows = lambda found: [(row.name, row.paused, row.next_at) for row in found]  # noqa: E731
        await self.call("schedules", schedules.list(), rows)

    async def read_everything(self) -> None:
        await self.get()
        await self.workflow()
        await self.counts()
        await self.call("list", self.client.list(limit=1000), lambda page: by_id(page.items))


def without_workers(answer: Any) -> Any:
    """Leave out the names of workers, which are random."""
    if isinstance(answer, dict):
        return {key: without_workers(each) for key, each in answer.items() if key != "worker"}
    return [without_workers(each) for each in answer] if isinstance(answer, list) else answer


async def run_programs(
    store: EmptyStore, seed: int, *names: str, leak: str = ""
) -> dict[str, list[Exchange]]:
    """Run this seed and return the calls and answers of each tenant."""
    backend: Any = LeakyBackend(store.backend, leak) if leak else store.backend
    app = Treadle(backend, work=[behave], clock=store.clock)
    tenants = [ClientProgram(app.tenant(name), name, seed) for name in names]
    rng = random.Random(f"fate {seed}")
    try:
        for _ in range(ROUNDS):
            if rng.random() < 0.3:
                await run_all(app)
            else:
                await asyncio.gather(*(tenant.step() for tenant in tenants))
            for tenant in tenants:
                await tenant.check_waiters()
                await tenant.read_everything()
    finally:
        for tenant in tenants:
            await tenant.end()
        await app.close()
    return {tenant.name: tenant.exchanges for tenant in tenants}


async def run_all(app: Treadle) -> None:
    """One worker runs everything that is due, for all tenants."""
    async with asyncio.timeout(PATIENCE), Worker(app) as worker:
        await worker.drain()


async def run_alone(new_store: NewStore, seed: int) -> dict[str, list[Exchange]]:
    """The calls and answers of each tenant, in a store of its own."""
    alone: dict[str, list[Exchange]] = {}
    for name in (ACME, ZOO):
        async with new_store() as store:
            alone |= await run_programs(store, seed, name)
    return alone


async def compare_alone_and_together(
    new_store: NewStore, seed: int, leak: str = "", alone: dict[str, list[Exchange]] | None = None
) -> None:
    """alone: what `run_alone` has returned for this seed, if it has run."""
    alone = alone or await run_alone(new_store, seed)
    async with new_store() as store:
        together = await run_programs(store, seed, ACME, ZOO, leak=leak)
    for name, other in ((ACME, ZOO), (ZOO, ACME)):
        leaked = f"of {other}" in repr(together[name])
        assert not leaked
        compare(alone[name], together[name])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_a_client_gets_the_same_answers_beside_another_tenant(new_store: NewStore, seed: int) -> None:
    await compare_alone_and_together(new_store, seed)


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("checks_tests")
@pytest.mark.parametrize("verb", ["get", "list", "cancel", "complete", "delete", "order"])
async def test_a_leak_in_one_verb_is_found_by_clients(verb: str) -> None:
    """Otherwise the comparison would prove nothing."""
    with pytest.raises(AssertionError):
        await run_seeds_with_leak(verb)


ALONE: dict[int, dict[str, list[Exchange]]] = {}
"""What tenants get alone, in memory, by seed. It is the same for all leaks."""

FIRST = {"cancel": 13, "complete": 3, "delete": 1, "order": 1}
"""The first seeds that find a leak in these verbs. Those of the others are 0."""


async def run_seeds_with_leak(leak: str) -> None:
    first = FIRST.get(leak, 0)
    for seed in (*range(first, 20), *range(first)):
        if seed not in ALONE:
            ALONE[seed] = await run_alone(in_memory, seed)
        await compare_alone_and_together(in_memory, seed, leak, ALONE[seed])
