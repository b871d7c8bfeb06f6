"""PortsBackend: a process that dies at any call of any port loses nothing. Other processes complete its work.

A small flow makes some hundred calls of ports. It runs twice for each of them: the process dies just before
the call, and just after. Then another process takes over. Submissions without an answer are repeated.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from treadle.item import (
    Contribution,
    Demand,
    ErrorInfo,
    Heartbeat,
    Item,
    Lease,
    Rejected,
    Settlement,
    Submission,
)
from treadle.ports import MemoryQueue, MemoryStore, PortsBackend, memory_pubsub, memory_queue, memory_store
from treadle.testing import ManualClock

LEASE = 30.0
MEMBERS = ("root", "a", "b", "then", "comp", "outside", "late", "skipped", "doomed")


class Died(BaseException):
    """Not an Exception, so that no code handles it."""


class Mortal:
    """A port of a process that dies before or after a call."""

    def __init__(self, port: Any, life: Life) -> None:
        self._port = port
        self._life = life

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._life.before()
            answer = method(*args, **kwargs)
            self._life.after()
            return answer

        return call


class Life:
    def __init__(self, calls: float = float("inf"), *, after: bool = False) -> None:
        self.calls = 0
        self._last = calls
        self._after = after

    def before(self) -> None:
        self.calls += 1
        if self.calls > self._last or (self.calls == self._last and not self._after):
            raise Died

    def after(self) -> None:
        if self.calls >= self._last:
            raise Died


class World:
    """Ports that survive the processes."""

    def __init__(self, swap: bool) -> None:
        self.clock = ManualClock()
        self.queue: MemoryQueue = memory_queue(self.clock)
        self.store: MemoryStore = memory_store(self.clock)
        self.swap = swap
        self.pubsub = memory_pubsub()
        self.closed: Counter[str] = Counter()

    def process(self, life: Life) -> PortsBackend:
        store: Any = Mortal(self.store, life)
        if not self.swap:
            store.swap = None
        return PortsBackend(Mortal(self.queue, life), Mortal(self.pubsub, life), store, clock=self.clock)


def item(id: str, **fields: Any) -> Item:
    return Item(id=id, type="work", input=b"{}", **fields)


SUBMISSIONS = (
    Submission((item("root"),)),
    Submission((item("outside", after=("a",), need=1, key="outside"),)),
    Submission((item("late", after=("root", "then"), need=2),)),
    Submission((item("skipped", lease_to="first"),)),
    Submission((item("doomed", after=("b",), need=1),)),
)


def settlement(lease: Lease) -> Settlement:
    """The settlements of the flow."""
    if lease.id == "b" or lease.verdict is not None:
        failure, children = ErrorInfo("Oops", "dead"), (item("comp"),) if lease.id == "b" else ()
        reason = lease.verdict or "exhausted"
        return Settlement(lease=lease, kind="dead", reason=reason, failure=failure, children=children)
    match lease.id:
        case "root":
            then = item("then", after=("a", "b"), need=2, counting="done")
            return Settlement(lease=lease, kind="success", children=(item("a"), item("b", attempts=1), then))
        case "a" | "skipped" if lease.attempt == 1:
            return Settlement(lease=lease, kind="retry", failure=ErrorInfo("Oops", "once"), delay=1.0)
        case _:
            return Settlement(lease=lease, kind="success", result=b"1", contribution=Contribution(b"1"))


async def submit_all(backend: PortsBackend) -> None:
    for submission in SUBMISSIONS:
        (answer,) = await backend.submit([submission])
        assert not isinstance(answer, Rejected) or answer.why == "duplicate_id"


async def work(world: World, backend: PortsBackend, worker: str, runs: Counter[str]) -> None:
    """Claim and settle often enough for the whole flow. Some claims find nothing."""
    for _ in range(12):
        await backend.beat(Heartbeat(worker=worker, lease=LEASE))
        claim = await backend.claim(Demand(worker=worker, limit=3))
        for lease in [
            *claim.leases,
            *await backend.unknown_leases(worker, [each.token for each in claim.leases]),
        ]:
            if lease.verdict is None:
                runs[lease.id] += 1
            settled = await backend.settle([settlement(lease)])
            world.closed.update(closed.id for closed in settled.effects.ended_groups)
        world.clock.advance(1.5)


async def run_process(world: World, life: Life, worker: str, runs: Counter[str]) -> bool:
    """Run one process. Return whether it died."""
    backend = world.process(life)
    try:
        await backend.beat(Heartbeat(worker=worker, lease=LEASE))
        await submit_all(backend)
        await work(world, backend, worker, runs)
    except Died:
        return True
    return False


async def run_until_call(calls: int, after: bool, swap: bool) -> tuple[bool, World, Counter[str]]:
    """Run a process that dies at a call, and another one when its lease is over."""
    world, runs = World(swap), Counter[str]()
    died = await run_process(world, Life(calls, after=after), "first", runs)
    if died:
        world.clock.advance(LEASE + 1)
        assert not await run_process(world, Life(), "second", runs)
    return died, world, runs


async def assert_complete(world: World, runs: Counter[str]) -> None:
    backend = world.process(Life())
    states = dict(zip(MEMBERS, await backend.get(MEMBERS), strict=True))
    statuses = {id: state and state.status for id, state in states.items()}
    ended = dict.fromkeys(MEMBERS, "success") | {"b": "dead", "doomed": "dead"}
    assert statuses == ended
    groups = await backend.group(["root", "outside", "late", "skipped", "doomed"])
    assert [group and (group.open, group.ended_at is not None) for group in groups] == [(0, True)] * 5
    assert all(count == 1 for count in world.closed.values()), world.closed
    assert runs["a"] <= 4
    assert runs["b"] <= 2
    world.clock.advance(10 * LEASE)
    await work(world, backend, "last", runs)
    assert world.queue.size() == 0


@pytest.mark.sample(4)
@pytest.mark.parametrize(("swap", "stride"), [(True, 1), (False, 4)], ids=["swap", "no swap"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_process_may_die_at_any_call(swap: bool, stride: int, after: bool) -> None:
    """Every item ends as it should, each group ends once, and the queue is empty at the end."""
    world, life = World(swap), Life()
    runs = Counter[str]()
    assert not await run_process(world, life, "first", runs)
    await assert_complete(world, runs)
    assert life.calls > 200
    for calls in range(1, life.calls + 1, stride):
        died, world, runs = await run_until_call(calls, after, swap)
        assert died
        try:
            await assert_complete(world, runs)
        except AssertionError as error:
            raise AssertionError(f"died {'after' if after else 'before'} call {calls}") from error
