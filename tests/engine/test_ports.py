"""An app on three ports: ports that fail, and what only queues do.

The numbers are those of the failure cases. `test_store_failures.py` runs them on stores that do each step at
once. Here a step is many calls of ports, and each call may fail alone.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, Errors, MakeApp, Seen, failure, until, until_status
from treadle import Context, Result, Retry, SystemClock, Treadle, UnsupportedError, work
from treadle.events import Dead, GroupDone, Succeeded
from treadle.item import Demand, Heartbeat, Item, Submission
from treadle.ports import MemoryQueue, PortsBackend, memory_pubsub, memory_queue, memory_store
from treadle.store.rules import settlement
from treadle.testing import Faults, FaultyPort, ManualClock

WHEN = pytest.mark.parametrize("when", ["before", "after"])
"""Before: the request is lost. After: it is carried out, and the answer is lost."""

pytestmark = pytest.mark.usefixtures("brief_pauses")

FAST: dict[str, Any] = {"poll_interval": 0.05, "lease": 5.0}


class Plain:
    """A port without its optional methods."""

    def __init__(self, port: Any, *optional: str) -> None:
        self._port = port
        self._optional = optional

    def __getattr__(self, name: str) -> Any:
        if name in self._optional:
            raise AttributeError(name)
        return getattr(self._port, name)


@pytest.fixture
def queue() -> MemoryQueue:
    return memory_queue()


@pytest.fixture(params=["swap", "no swap"])
def store(request: pytest.FixtureRequest, queue: MemoryQueue, faults: Faults) -> Callable[[], PortsBackend]:
    """Make backends on the same three ports. The ports fail as `faults` says."""
    plain: Any = memory_store() if request.param == "swap" else Plain(memory_store(), "swap")
    pubsub = memory_pubsub()
    return lambda: PortsBackend(*(FaultyPort(port, faults) for port in (queue, pubsub, plain)))


@pytest.fixture
async def make_app(store: Callable[[], PortsBackend], faults: Faults) -> AsyncGenerator[MakeApp]:
    """Make apps on these ports, and stop them at the end."""
    apps: list[Treadle] = []

    def make(*types: Any, **settings: Any) -> Treadle:
        apps.append(Treadle(settings.pop("backend", None) or store(), work=types, **{**FAST, **settings}))
        return apps[-1]

    yield make
    faults.clear()
    for app in apps:
        await app.stop(drain=0)


def names(word: str) -> Callable[..., bool]:
    """Match a call whose first argument contains the word."""
    return lambda first, *_: word in str(first)


# ------------------------------------------------------------------------------------------ ports that fail


@WHEN
async def test_a1_push_fails_while_a_retry_is_settled(make_app: MakeApp, faults: Faults, when: Any) -> None:
    """The retry runs once."""
    calls: list[int] = []

    @work(name="flaky", retry=AT_ONCE)
    async def flaky(ctx: Context) -> str:
        calls.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("once")
        return "done"

    fault = faults.fail("push", when=when, skip=1)  # the first push is the submission's
    errors = Errors()
    async with make_app(flaky, on_error=errors) as app:
        handle = await app.enqueue(flaky())
        assert await handle.result(PATIENCE) == "done"
        assert (await handle.state()).attempt == 2
    assert (calls, fault.hits, errors.phases()) == ([1, 2], 1, ["settle"])


@WHEN
async def test_a2_push_fails_when_a_dependency_is_met(make_app: MakeApp, faults: Faults, when: Any) -> None:
    """The dependent runs exactly once."""
    ran: Counter[str] = Counter()

    @work(name="step")
    async def step(name: str) -> str:
        ran[name] += 1
        return name

    end = step("end")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(step("a"), step("b")).next(end)

    fault = faults.fail("push", when=when, match=names(end.id))
    async with make_app(root, step) as app:
        assert await app.enqueue(root()).group(PATIENCE) == "end"
    assert (ran, fault.hits) == ({"a": 1, "b": 1, "end": 1}, 1)


async def test_a3_a_dependency_that_cannot_be_met_ends_at_once(make_app: MakeApp) -> None:
    """If a child is dead, the item that waits for its success ends, and so does the group."""

    @work(name="bad", retry=Retry(attempts=1))
    async def bad() -> None:
        raise ValueError("bad")

    @work(name="then")
    async def then() -> None: ...

    blocked = then()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(bad()).next(blocked)

    async with make_app(root, bad, then) as app:
        await failure(app.enqueue(root()).group(PATIENCE))
        assert (await failure(app.handle(blocked.id).result(PATIENCE))).reason == "unsatisfiable"


@WHEN
async def test_a4_the_third_child_cannot_be_pushed(make_app: MakeApp, faults: Faults, when: Any) -> None:
    """The parent and its three children run once each."""
    ran: Counter[str] = Counter()

    @work(name="child")
    async def child(n: int) -> int:
        ran[f"child {n}"] += 1
        return n

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        ran["root"] += 1
        return ctx.queue(*(child(n) for n in range(3)))

    fault = faults.fail("push", when=when, skip=3)
    async with make_app(root, child) as app:
        assert await app.enqueue(root()).group(PATIENCE) in (0, 1, 2)
    assert ran == {"root": 1, "child 0": 1, "child 1": 1, "child 2": 1}
    assert fault.hits == 1


async def test_a5_two_workers_finish_the_same_item(
    make_app: MakeApp, store: Callable[[], PortsBackend]
) -> None:
    """The first worker was removed: its settlement is refused, and the group ends once."""
    first, second, seen = Barrier(), Barrier(), Seen()

    @work(name="slow")
    async def slow(ctx: Context) -> str:
        barrier = first if ctx.attempt == 1 else second
        await barrier.wait()
        return f"attempt {ctx.attempt}"

    one = make_app(slow, worker_id="one", on_event=seen)
    two = make_app(slow, worker_id="two", on_event=seen)
    await one.start()
    handle = await one.enqueue(slow())
    await first.reached()
    await two.start()
    await store().remove_worker("one")
    await second.reached()
    first.go.set()
    await asyncio.sleep(0.1)  # nothing must happen, and there is no event to wait for
    assert (await two.handle(handle.id).state()).status == "running"
    second.go.set()
    assert await two.handle(handle.id).group(PATIENCE) == "attempt 2"
    await seen.until(GroupDone)
    assert len(seen.of(GroupDone)) == len(seen.of(Succeeded)) == 1


async def test_a6_an_item_whose_workers_die_too_often_ends_dead(
    make_app: MakeApp, store: Callable[[], PortsBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One loss is allowed, two workers die: the item is dead and does not run a third time."""
    monkeypatch.setattr(settlement, "loss_delay", lambda losses, number: 0.05)
    backend = store()
    await backend.submit([Submission((Item(id="a", type="killer", input=b"{}", attempts=2),))])
    for n in range(2):
        await backend.beat(Heartbeat(worker=f"w{n}", lease=60))
        (lease,) = (await backend.claim(Demand(worker=f"w{n}", limit=1))).leases
        assert lease.attempt == n + 1
        await backend.remove_worker(f"w{n}")
    runs: list[int] = []

    @work(name="killer", retry=Retry(max_losses=1))
    async def killer() -> None:
        runs.append(1)

    async with make_app(killer) as app:
        error = await failure(app.handle("a").result(PATIENCE))
    assert (error.reason, error.attempts, runs) == ("lease_lost", 3, [])


async def test_a7_the_result_cannot_be_written(make_app: MakeApp, faults: Faults) -> None:
    """The handler runs once. Its result is stored when the store is back."""
    runs: list[int] = []
    errors = Errors()

    @work(name="once")
    async def once() -> str:
        runs.append(1)
        return "here"

    fault = faults.fail("set", times=None, match=names(":end:"))
    async with make_app(once, on_error=errors) as app:
        handle = await app.enqueue(once())
        await errors.until("settle")
        await until(lambda: fault.hits >= 3)
        fault.end()
        assert await handle.result(PATIENCE) == "here"
    assert runs == [1]


async def test_a8_an_unknown_type_is_left_alone_until_its_grace_is_over(make_app: MakeApp) -> None:
    """It uses no attempts while it waits, and ends when the grace is over."""

    @work(name="known")
    async def known() -> str:
        return "known"

    unknown = work.declare("unknown", known.fn)
    async with make_app(known, unknown, unknown_type_grace=0.1) as app:
        handle = await app.enqueue(unknown(), retry=Retry(attempts=2))
        assert await app.enqueue(known()).result(PATIENCE) == "known"
        error = await failure(handle.result(PATIENCE))
        assert (error.reason, error.attempts) == ("unknown_type", 0)


@pytest.mark.parametrize(
    ("verb", "word", "phase"),
    [("heartbeat", "", "renew"), ("get", ":worker:", "claim"), ("pop", "", "claim")],
)
async def test_a9_background_failures_are_reported(
    make_app: MakeApp, faults: Faults, verb: str, word: str, phase: str
) -> None:
    """The process and the item survive."""
    barrier, errors = Barrier(), Errors()

    @work(name="slow")
    async def slow() -> str:
        await barrier.wait()
        return "done"

    async with make_app(slow, on_error=errors, lease=1.0) as app:
        handle = await app.enqueue(slow())
        await barrier.reached()
        faults.fail(verb, times=2, match=names(word) if word else None)
        await errors.until(phase)
        barrier.go.set()
        assert await handle.result(PATIENCE) == "done"


async def test_lost_wakeups_cost_only_time(make_app: MakeApp, faults: Faults) -> None:
    """No wake-up arrives, and the item runs."""

    @work(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    faults.fail("publish", times=None)
    async with make_app() as producer, make_app(add):
        producer.register(work.declare("add", add.fn))
        assert await producer.enqueue("add", {"a": 1, "b": 2}).result(PATIENCE) == 3


@WHEN
@pytest.mark.parametrize("verb", ["push", "set_if_absent", "increment", "pop", "ack", "set", "get"])
async def test_any_call_of_a_port_may_fail_once(
    make_app: MakeApp, faults: Faults, verb: str, when: Any
) -> None:
    """A small flow ends as it should, and each item runs once."""
    ran: Counter[str] = Counter()

    @work(name="child")
    async def child(n: int) -> int:
        ran[f"child {n}"] += 1
        return n

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        ran["root"] += 1
        return ctx.queue(child(1)).next(child(2))

    for skip in range(0, 12, 3):
        ran.clear()
        faults.fail(verb, when=when, skip=skip)
        async with make_app(root, child, lease=0.2) as app:
            assert await app.enqueue(root()).group(PATIENCE) == 2
        faults.clear()
        assert ran == {"root": 1, "child 1": 1, "child 2": 1}


# ------------------------------------------------------------------------------------------- what queues do


async def test_a_dead_item_becomes_a_dead_letter(make_app: MakeApp, queue: MemoryQueue) -> None:
    """The queue gets a dead letter, and its body is acked."""

    @work(name="bad", retry=Retry(attempts=1))
    async def bad(n: int) -> None:
        raise ValueError("always")

    async with make_app(bad) as app:
        error = await failure(app.enqueue(bad(7)).result(PATIENCE))
        assert "always" in str(error)
        await until(lambda: queue.size() == 0)
    (letter,) = queue.dead
    body = json.loads(letter.body)
    assert (body["type"], body["reason"], body["attempt"]) == ("bad", "exhausted", 1)
    assert "always" in letter.error


async def test_skip_queue_runs_the_first_attempt_without_the_queue(
    make_app: MakeApp, queue: MemoryQueue
) -> None:
    """T34: The second attempt comes from the queue."""
    attempts: list[int] = []
    pushed: list[str] = []

    @work(name="eager", retry=AT_ONCE, skip_queue=True)
    async def eager(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        pushed.append(str(queue.size()))
        if ctx.attempt == 1:
            raise ValueError("once")
        return "done"

    async with make_app(eager) as app:
        assert await app.enqueue(eager()).result(PATIENCE) == "done"
    assert (attempts, pushed) == ([1, 2], ["0", "1"])


async def test_bodies_that_are_not_treadles_are_dropped(make_app: MakeApp, queue: MemoryQueue) -> None:
    """T40: They become dead letters and do not delay items."""

    @work(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    for body in ("not json", '{"a": 1}', '["x"]', '["default", "missing"]'):
        queue.push(body)
    async with make_app(add) as app:
        assert await app.enqueue(add(1, 2)).result(PATIENCE) == 3
        await until(lambda: queue.size() == 0)
    assert [letter.body for letter in queue.dead] == ["not json", '{"a": 1}', '["x"]']


async def test_two_systems_share_the_ports(make_app: MakeApp) -> None:
    """T41: Each app accepts its own items, and a waiter gets both results."""

    @work(name="who")
    async def who(ctx: Context, name: str) -> str:
        return f"{name} on {ctx.worker_id}"

    def only(name: str) -> Callable[[Any], bool]:
        return lambda info: info.input["name"] == name

    async with (
        make_app(who, worker_id="a", accept=only("ping")) as a,
        make_app(who, worker_id="b", accept=only("pong")),
    ):
        handles = [await a.enqueue(who(name)) for name in ("ping", "pong")]
        results = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        states = [await handle.state() for handle in handles]
    assert results == ["ping on a", "pong on b"]
    assert [state.attempt for state in states] == [1, 1]


class CappedQueue(MemoryQueue):
    """Delays no body for longer than 50 ms, and counts calls."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.pushes = self.acks = self.pops = 0

    def push(self, body: str, *, delay: float = 0, dedupe_key: str | None = None) -> None:
        self.pushes += 1
        super().push(body, delay=min(delay, 0.05), dedupe_key=dedupe_key)

    def fail(self, pulled: Any, delay: float = 0, /) -> None:
        super().fail(pulled, min(delay, 0.05))

    def ack(self, pulled: Any, /) -> None:
        self.acks += 1
        super().ack(pulled)

    def pop(self, max: int, lease: float, /) -> Any:
        self.pops += 1
        return super().pop(max, lease)


async def test_early_arrivals_are_pushed_again_until_they_are_due() -> None:
    """T44: A queue with a maximum delay serves far-off items, and they use no attempt."""
    clock = ManualClock()
    queue = CappedQueue(clock)
    backend = PortsBackend(queue, memory_pubsub(), memory_store(clock), clock=clock)
    await backend.beat(Heartbeat(worker="w", lease=1000))
    await backend.submit([Submission((Item(id="a", type="t", input=b"", delay=1.0, attempts=1),))])
    for _ in range(19):
        assert (await backend.claim(Demand(worker="w", limit=10))).leases == ()
        clock.advance(0.05)
    assert queue.pushes == queue.acks + 1 > 15
    clock.advance(0.1)
    (lease,) = (await backend.claim(Demand(worker="w", limit=10))).leases
    assert (lease.id, lease.attempt) == ("a", 1)


async def test_early_arrivals_do_not_keep_a_worker_busy() -> None:
    """T45: An item that is not due is looked at only when the queue delivers it, and runs when it is due."""
    ran: list[float] = []
    clock = SystemClock()
    queue = CappedQueue(clock)

    @work(name="later", retry=Retry(attempts=1))
    async def later(ctx: Context) -> int:
        ran.append(clock.monotonic())
        return ctx.attempt

    backend = PortsBackend(queue, memory_pubsub(), memory_store())
    async with Treadle(backend, work=[later], poll_interval=0.02) as app:
        begun = clock.monotonic()
        handles = await app.enqueue_many([later() for _ in range(5)], delay=0.3)
        attempts = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
    assert attempts == [1] * 5
    assert min(ran) - begun >= 0.3
    assert queue.pops < 60


# ------------------------------------------------------------------------------------- what ports cannot do


async def test_unsupported_operations_raise(make_app: MakeApp) -> None:
    """The UnsupportedError names the backend."""

    @work(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    async with make_app(add) as app:
        handle = await app.enqueue(add(1, 2))
        assert await handle.result(PATIENCE) == 3
        for call in (app.list(), app.counts(), app.requeue([handle.id]), app.pause("default")):
            with pytest.raises(UnsupportedError, match="PortsBackend does not support"):
                await call


async def test_a_schedule_on_ports(make_app: MakeApp) -> None:
    """Each occurrence fires once."""
    seen = Seen()

    @work(name="tick")
    async def tick() -> None: ...

    async with make_app(tick, on_event=seen) as app, make_app(tick, on_event=seen) as other:
        for each in (app, other):
            each.schedule("ticks", every=0.1, run=tick)
        await seen.until(Succeeded, count=3)
        first = seen.of(Succeeded)[0]
        assert (await until_status(app, first.id, "success")).attempt == 1
    assert not seen.of(Dead)
