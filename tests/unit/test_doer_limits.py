"""Doers with fleet-wide limits: which tasks start, what is charged, and which permits are returned."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from treadle import Treadle
from treadle.doers import Task, balanced, concurrency, rate_limited
from treadle.doers.base import BaseDoer, Failing
from treadle.doers.limited import LimitedDoer
from treadle.doers.permit_queue import PermitReturns
from treadle.errors import InputError, NotStarted, StoreUnavailable
from treadle.item import Algorithm, Limit, PermitReply, PermitRequest
from treadle.store.rules.limits import LimitState, permit
from treadle.testing.clock import ManualClock


class Store:
    """Gives permits as the contract says, by the arithmetic of the backends. It can be made to fail."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.states: dict[Limit, LimitState] = {}
        self.held: Counter[tuple[str, Limit]] = Counter()
        self.take_calls = self.return_calls = 0
        self.peak = 0
        self.broken = False
        self.answers_lost = False
        self.answering = asyncio.Event()
        self.answering.set()

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        self.take_calls += 1
        await self._reach()
        replies = [self._reply(request, worker) for request in requests]
        self._lose_answer()
        return replies

    def _reply(self, request: PermitRequest, worker: str) -> PermitReply:
        reply, states = permit(request, self.states, self._clock.now())
        self.states |= states
        for limit in request.limits:
            if limit.algorithm == "slots":
                self.held[worker, limit] += reply.count
                self.peak = max(self.peak, int(self.states[limit].used))
        return reply

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        self.return_calls += 1
        await self._reach()
        for request in requests:
            for limit in request.limits:
                number = min(request.count, self.held[worker, limit])
                if number:
                    self.held[worker, limit] -= number
                    state = self.states[limit]
                    self.states[limit] = state._replace(used=state.used - number)
        self._lose_answer()

    async def _reach(self) -> None:
        await self.answering.wait()
        if self.broken:
            raise StoreUnavailable("down")

    def _lose_answer(self) -> None:
        if self.answers_lost:
            raise StoreUnavailable("lost")

    def in_use(self) -> int:
        return sum(self.held.values())


class Crowd:
    """Tasks named by their lane and a number (`a1`). They run until the test ends them."""

    def __init__(self, doer: BaseDoer) -> None:
        self.doer = doer
        self.started: list[str] = []
        self.running: set[str] = set()
        self.tasks: dict[str, Task] = {}
        self._ends: dict[str, asyncio.Event] = {}

    def submit(self, *names: str, tenant: str = "t", priority: int = 0) -> None:
        for name in names:
            self.tasks[name] = self._task(name)
            self.doer.submit(
                self.tasks[name],
                lane=name[0],
                priority=priority,
                queued_at=float(len(self.tasks)),
                tenant=tenant,
            )

    async def end(self, *names: str) -> None:
        for name in names or list(self.running):
            self._ends.setdefault(name, asyncio.Event()).set()
        await run_tasks()

    def _task(self, name: str) -> Task:
        async def run() -> None:
            self.started.append(name)
            self.running.add(name)
            await self._ends.setdefault(name, asyncio.Event()).wait()
            self.running.discard(name)

        return run


async def run_tasks(count: int = 12) -> None:
    """Let other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return Store(clock)


class Bench:
    """Makes doers on the store, and closes each of them."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.crowds: list[Crowd] = []
        self.errors: list[tuple[str, Failing]] = []

    def __call__(self, doer: LimitedDoer, worker: str = "w") -> Crowd:
        doer.bind(self.store, self.clock, worker, "type")
        doer.on_error(lambda error, failing: self.errors.append((str(error), failing)))
        self.crowds.append(Crowd(doer))
        return self.crowds[-1]


@pytest.fixture
async def bench(store: Store, clock: ManualClock) -> AsyncIterator[Bench]:
    bench = Bench(store, clock)
    yield bench
    for crowd in bench.crowds:
        crowd.doer.cancel_pending()
        await crowd.end()
        await crowd.doer.close()
        await crowd.doer.idle()


# ------------------------------------------------------------------------------------------------------ rates


async def test_a_rate_limit_bounds_the_starts_in_a_window(bench: Bench, clock: ManualClock) -> None:
    crowd = bench(rate_limited(2, 10, "fixed_window"))
    crowd.submit("a1", "a2", "a3", "a4", "a5")
    await run_tasks()
    assert crowd.started == ["a1", "a2"]
    assert crowd.doer.available() == 0
    await clock.advance(9)
    assert crowd.started == ["a1", "a2"]
    await clock.advance(1)
    await run_tasks()
    assert crowd.started == ["a1", "a2", "a3", "a4"]
    await clock.advance(10)
    await run_tasks()
    assert len(crowd.started) == 5
    await crowd.end()
    await crowd.doer.idle()


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_window"])
async def test_every_algorithm_starts_all_tasks_in_order(
    bench: Bench, clock: ManualClock, algorithm: str
) -> None:
    crowd = bench(rate_limited(2, 10, algorithm))  # type: ignore[arg-type]
    names = [f"a{n}" for n in range(6)]
    crowd.submit(*names)
    for _ in range(30):
        await run_tasks()
        await clock.advance(2)
    assert crowd.started == names
    assert bench.store.take_calls < 30, "asked again when something can be had, not all the time"


async def test_permits_go_by_priority_then_age(bench: Bench, clock: ManualClock) -> None:
    crowd = bench(rate_limited(1, 10))
    crowd.submit("a1")
    await run_tasks()
    crowd.submit("a2")
    crowd.submit("a3", priority=5)
    for _ in range(2):
        await run_tasks()
        await clock.advance(10)
    await run_tasks()
    assert crowd.started == ["a1", "a3", "a2"]


async def test_all_waiting_tasks_share_one_timer(bench: Bench, clock: ManualClock) -> None:
    crowd = bench(rate_limited(1, 10, per="lane"))
    for lane in "abcdef":
        crowd.submit(f"{lane}1", f"{lane}2")
        await run_tasks()
    assert clock.sleepers == 1


async def test_a_limit_per_lane_avoids_only_the_lanes_that_reached_it(
    bench: Bench, clock: ManualClock
) -> None:
    crowd = bench(rate_limited(1, 10, per="lane"))
    crowd.submit("a1", "a2", "b1")
    await run_tasks()
    assert crowd.started == ["a1", "b1"]
    assert crowd.doer.avoid() == {("t", "a"), ("t", "b")}, "both are known to be at their limit"
    assert crowd.doer.available() > 0, "other lanes have room"
    crowd.submit("a1 of u", tenant="u")
    await run_tasks()
    assert crowd.started[-1] == "a1 of u"
    await clock.advance(10)
    await run_tasks()
    assert crowd.started[-1] == "a2"
    assert crowd.doer.avoid() == {("t", "a")}
    await clock.advance(10)
    await run_tasks()
    assert crowd.doer.avoid() == set()


async def test_a_limit_per_tenant_counts_each_tenant(bench: Bench) -> None:
    crowd = bench(rate_limited(1, 10, per="tenant"))
    crowd.submit("a1", "b1")
    crowd.submit("c1", tenant="u")
    await run_tasks()
    assert crowd.started == ["a1", "c1"]
    assert crowd.doer.avoid() == {("t", None), ("u", None)}, "with all their lanes"


async def test_two_workers_share_the_limit(bench: Bench) -> None:
    one, two = bench(rate_limited(3, 10), "one"), bench(rate_limited(3, 10), "two")
    one.submit("a1", "a2")
    await run_tasks()
    two.submit("a3", "a4")
    await run_tasks()
    assert (one.started, two.started) == (["a1", "a2"], ["a3"])


async def test_doers_of_different_types_share_a_limit_only_by_name(store: Store) -> None:
    for name, together in ((None, 2), ("api", 1)):
        started = 0
        for type in ("mail", "text"):
            doer = rate_limited(1, 10, name=name)
            doer.bind(store, ManualClock(), "w", type)
            crowd = Crowd(doer)
            crowd.submit("a1")
            await run_tasks()
            started += len(crowd.started)
            doer.cancel_pending()
            await crowd.end()
            await doer.close()
        assert started == together


# -------------------------------------------------------------------------------------------- several limits


async def test_a_lane_is_not_charged_for_permits_that_the_common_limit_denies(
    bench: Bench, clock: ManualClock
) -> None:
    """The lane may start three a minute, and all lanes together one a second. The lane starts three in
    three seconds."""
    crowd = bench(rate_limited(1, 1, inner=rate_limited(3, 60, "fixed_window", per="lane")))
    crowd.submit("a1", "a2", "a3", "a4")
    for _ in range(10):
        await run_tasks()
        await clock.advance(0.5)
    assert crowd.started == ["a1", "a2", "a3"]


async def test_a_lane_at_its_limit_does_not_delay_other_lanes(bench: Bench) -> None:
    crowd = bench(rate_limited(10, 60, inner=rate_limited(1, 60, per="lane")))
    crowd.submit("a1", "a2", "b1")
    await run_tasks()
    assert crowd.started == ["a1", "b1"]


async def test_a_common_limit_serves_tasks_in_order_across_lanes(bench: Bench) -> None:
    crowd = bench(rate_limited(3, 60, inner=rate_limited(3, 60, per="lane")))
    crowd.submit("a1", "b1", "a2", "b2")
    await run_tasks()
    assert crowd.started == ["a1", "b1", "a2"]


async def test_nothing_is_available_while_a_limit_of_all_lanes_is_reached(
    bench: Bench, clock: ManualClock
) -> None:
    """Otherwise each lane would be claimed once to find out."""
    crowd = bench(rate_limited(2, 60, "fixed_window", inner=rate_limited(1, 60, per="lane")))
    crowd.submit("a1", "b1")
    await run_tasks()
    assert (crowd.started, crowd.doer.available()) == (["a1", "b1"], 0)
    await clock.advance(60)
    await run_tasks()
    assert crowd.doer.available() > 0


async def test_an_inner_doer_bounds_the_tasks_that_got_a_permit(bench: Bench) -> None:
    crowd = bench(rate_limited(10, 60, inner=balanced(2)))
    crowd.submit("a1", "a2", "a3")
    await run_tasks()
    assert (crowd.started, crowd.doer.available()) == (["a1", "a2"], 0)
    await crowd.end("a1")
    assert crowd.started == ["a1", "a2", "a3"]


async def test_two_limits_of_one_kind_are_refused() -> None:
    with pytest.raises(InputError, match="keep the lower one"):
        rate_limited(1, 60, inner=rate_limited(2, 60))
    rate_limited(1, 60, inner=rate_limited(2, 1))
    concurrency(5, inner=concurrency(1, per="lane"))


# ------------------------------------------------------------------------------------------ concurrency


async def test_a_concurrency_limit_bounds_the_running_tasks(bench: Bench, store: Store) -> None:
    crowd = bench(concurrency(2))
    freed: list[int] = []
    crowd.doer.on_free(lambda: freed.append(crowd.doer.available()))
    crowd.submit("a1", "a2", "a3")
    await run_tasks()
    assert (crowd.started, crowd.doer.available(), store.in_use()) == (["a1", "a2"], 0, 2)
    await crowd.end("a1")
    assert crowd.started == ["a1", "a2", "a3"]
    await crowd.end("a2")
    assert freed[-1] > 0
    await crowd.end("a3")
    await crowd.doer.idle()
    assert (store.in_use(), store.peak) == (0, 2)


async def test_one_at_a_time_per_lane(bench: Bench) -> None:
    crowd = bench(concurrency(1, per="lane"))
    crowd.submit("a1", "a2", "b1", "a3")
    await run_tasks()
    assert crowd.started == ["a1", "b1"]
    assert crowd.doer.avoid() == {("t", "a"), ("t", "b")}
    await crowd.end("b1")
    assert crowd.doer.avoid() == {("t", "a")}
    await crowd.end("a1")
    await crowd.end("a2")
    assert crowd.started == ["a1", "b1", "a2", "a3"]


async def test_permits_held_elsewhere_are_asked_for_again(bench: Bench, clock: ManualClock) -> None:
    one, two = bench(concurrency(1), "one"), bench(concurrency(1), "two")
    one.submit("a1")
    await run_tasks()
    two.submit("a2")
    await run_tasks()
    assert two.started == []
    await one.end("a1")
    assert two.started == []
    await clock.advance(1)
    await run_tasks()
    assert two.started == ["a2"]


async def test_a_permit_returned_by_one_lane_serves_another_of_its_tenant(bench: Bench) -> None:
    crowd = bench(concurrency(1, per="tenant", inner=concurrency(5, per="lane")))
    crowd.submit("a1", "b1")
    await run_tasks()
    assert crowd.started == ["a1"]
    await crowd.end("a1")
    assert crowd.started == ["a1", "b1"]


async def test_a_task_that_fails_returns_its_permit(bench: Bench, store: Store) -> None:
    crowd = bench(concurrency(1))

    async def broken() -> None:
        raise ValueError("boom")

    crowd.doer.submit(broken)
    await crowd.doer.idle()
    assert bench.errors == [("boom", "task")]
    assert store.in_use() == 0


async def test_many_short_tasks_all_run_within_the_limit(bench: Bench, store: Store) -> None:
    crowd = bench(concurrency(3, per="lane"))
    ran: list[int] = []

    def task(n: int) -> Task:
        async def run() -> None:
            await run_tasks(n % 4)
            ran.append(n)

        return run

    for n in range(300):
        crowd.doer.submit(task(n), lane=str(n % 2), tenant="t")
    await asyncio.wait_for(crowd.doer.idle(), 30)
    assert sorted(ran) == list(range(300))
    assert (store.in_use(), store.peak) == (0, 3)
    assert crowd.doer.avoid() == set()


# ---------------------------------------------------------------------------------------------- room to claim


async def test_the_room_grows_while_all_get_permits_and_shrinks_when_one_is_denied(bench: Bench) -> None:
    crowd = bench(rate_limited(40, 1000, per="lane"))
    rooms = [crowd.doer.available()]
    crowd.submit(*(f"a{n}" for n in range(rooms[0])))
    await run_tasks()
    rooms.append(crowd.doer.available())
    crowd.submit(*(f"a{n}" for n in range(100, 100 + rooms[1])))
    await run_tasks()
    rooms.append(crowd.doer.available())
    assert rooms == [16, 32, 16]


async def test_nothing_is_available_while_the_common_limit_is_reached(
    bench: Bench, clock: ManualClock
) -> None:
    crowd = bench(rate_limited(1, 10))
    crowd.submit("a1", "a2")
    await run_tasks()
    freed: list[int] = []
    crowd.doer.on_free(lambda: freed.append(crowd.doer.available()))
    assert crowd.doer.available() == 0
    await clock.advance(10)
    await run_tasks()
    assert (crowd.started, freed, crowd.doer.available()) == (["a1", "a2"], [], 0)
    await clock.advance(10)
    await run_tasks()
    assert freed == [1], "no more than the limit permits at once"


# --------------------------------------------------------------------------------------------- giving back


async def test_a_task_that_cannot_start_soon_is_given_back(bench: Bench, clock: ManualClock) -> None:
    """It is leased while it waits. Nothing more is claimed until the limit has permits again."""
    crowd = bench(rate_limited(1, 60))
    given_back: list[Task] = []
    crowd.doer.on_give_back(given_back.extend)
    crowd.submit("a1", "a2")
    await run_tasks()
    crowd.submit("a3")  # its claim was under way
    assert given_back == [crowd.tasks["a2"], crowd.tasks["a3"]]
    assert crowd.doer.available() == 0
    await clock.advance(60)
    await run_tasks()
    assert crowd.doer.available() == 1
    assert crowd.started == ["a1"]


async def test_tasks_that_may_start_soon_wait_in_the_doer(bench: Bench, clock: ManualClock) -> None:
    """As many as may start within a quarter of a second are claimed ahead: the limit is reached without
    gaps. More are claimed when most of them have started, not after each."""
    crowd = bench(rate_limited(1, 0.05))
    given_back: list[Task] = []
    crowd.doer.on_give_back(given_back.extend)
    crowd.submit(*(f"a{n}" for n in range(9)))
    await run_tasks()
    assert given_back == [crowd.tasks[f"a{n}"] for n in (6, 7, 8)]
    assert crowd.doer.available() == 0
    for started, room in ((2, 0), (3, 0), (4, 3)):
        await clock.advance(0.06)
        await run_tasks()
        assert (len(crowd.started), crowd.doer.available()) == (started, room)


async def test_a_lane_that_reopens_soon_is_claimed_ahead(bench: Bench) -> None:
    crowd = bench(rate_limited(1, 0.1, per="lane"))
    crowd.submit("a1", "b1")
    await run_tasks()
    assert crowd.doer.avoid() == frozenset()
    crowd.submit("a2", "a3", "a4")
    assert crowd.doer.avoid() == {("t", "a")}, "three are ahead"


async def test_all_denied_tasks_wait_while_the_worker_drains(bench: Bench, clock: ManualClock) -> None:
    """And a limit counts as reached only once it has denied a task: there may be none left."""
    crowd = bench(rate_limited(1, 60, per="lane"))
    given_back: list[Task] = []
    crowd.doer.on_give_back(given_back.extend)
    crowd.submit("a1")
    await run_tasks()
    assert crowd.doer.avoid() == {("t", "a")}
    crowd.doer.keep_denied("all")
    assert crowd.doer.avoid() == frozenset()
    crowd.submit("a2", "a3")
    await run_tasks()
    assert (given_back, crowd.doer.avoid()) == ([], {("t", "a")})
    await clock.advance(60)
    await run_tasks()
    assert crowd.started == ["a1", "a2"]
    crowd.doer.keep_denied("none")
    assert crowd.doer.cancel_pending() == [crowd.tasks["a3"]]
    crowd.submit("a4")
    assert given_back == [crowd.tasks["a4"]]


async def test_a_task_that_is_over_takes_no_permit(bench: Bench, store: Store, clock: ManualClock) -> None:
    crowd = bench(concurrency(1, inner=balanced(1, buffer=5)))
    crowd.submit("a1", "a2", "a3")
    await run_tasks()
    crowd.doer.remove(lambda task: task is crowd.tasks["a2"])
    await crowd.end("a1")
    assert crowd.started == ["a1", "a3"]
    assert store.in_use() == 1


async def test_one_task_asks_for_permits_that_other_workers_hold(bench: Bench, clock: ManualClock) -> None:
    """Until there is a permit, no more are claimed to be denied."""
    other, crowd = bench(concurrency(1), "other"), bench(concurrency(1), "w")
    given_back: list[Task] = []
    crowd.doer.on_give_back(given_back.extend)
    other.submit("a1")
    await run_tasks()
    crowd.submit("b1", "b2")
    for _ in range(5):
        await run_tasks()
        assert crowd.doer.available() == 0
        await clock.advance(1)
    assert given_back == [crowd.tasks["b2"]]
    await other.end("a1")
    await clock.advance(1)
    await run_tasks()
    assert crowd.started == ["b1"]


async def test_a_permitted_task_that_is_over_returns_its_permit(bench: Bench, store: Store) -> None:
    """It waits in the inner doer."""
    crowd = bench(concurrency(2, inner=balanced(1, buffer=5)))
    crowd.submit("a1", "a2")
    await run_tasks()
    assert (crowd.started, store.in_use()) == (["a1"], 2)
    crowd.doer.remove(lambda task: task is crowd.tasks["a2"])
    await run_tasks()
    assert store.in_use() == 1
    await crowd.end("a1")
    assert crowd.started == ["a1"]
    await crowd.doer.idle()


# --------------------------------------------------------------------------------------------- cancel_pending


async def test_waiting_tasks_can_be_cancelled(bench: Bench, store: Store) -> None:
    crowd = bench(concurrency(1))
    crowd.submit("a1", "a2", "a3")
    await run_tasks()
    assert crowd.doer.cancel_pending() == [crowd.tasks["a2"], crowd.tasks["a3"]]
    await crowd.end("a1")
    await asyncio.wait_for(crowd.doer.idle(), 5)
    assert (crowd.started, store.in_use()) == (["a1"], 0)


async def test_a_task_cancelled_during_the_request_returns_its_permit(bench: Bench, store: Store) -> None:
    crowd = bench(concurrency(2))
    store.answering.clear()
    crowd.submit("a1")
    await run_tasks()
    assert crowd.doer.available() > 0
    assert crowd.doer.cancel_pending() == [crowd.tasks["a1"]]
    store.answering.set()
    await asyncio.wait_for(crowd.doer.idle(), 5)
    assert (crowd.started, store.take_calls, store.in_use()) == ([], 1, 0)


async def test_a_permitted_task_that_waits_in_the_inner_doer_can_be_cancelled(
    bench: Bench, store: Store
) -> None:
    crowd = bench(concurrency(3, inner=balanced(1, buffer=5)))
    crowd.submit("a1", "a2", "a3", "a4")
    await run_tasks()
    assert set(crowd.doer.cancel_pending()) == {crowd.tasks[name] for name in ("a2", "a3", "a4")}
    await crowd.end("a1")
    await crowd.doer.idle()
    assert (crowd.started, store.in_use()) == (["a1"], 0)


async def test_tasks_submitted_during_a_permit_request_wait_behind_it(bench: Bench, store: Store) -> None:
    crowd = bench(rate_limited(2, 10, per="lane"))
    store.answering.clear()
    crowd.submit("a1", "a2")
    await run_tasks()
    crowd.submit("a3")
    store.answering.set()
    await run_tasks()
    assert crowd.started == ["a1", "a2"]
    assert crowd.doer.cancel_pending() == [crowd.tasks["a3"]]


# ---------------------------------------------------------------------------------------- a store that fails


async def test_a_failing_store_is_reported_and_asked_again_less_and_less_often(
    bench: Bench, store: Store, clock: ManualClock
) -> None:
    crowd = bench(rate_limited(5, 10))
    store.broken = True
    crowd.submit("a1")
    for _ in range(100):
        await run_tasks()
        await clock.advance(0.1)
    assert set(bench.errors) == {("down", "permits")}
    assert 5 <= store.take_calls <= 10, "0.1 s, then twice as long each time"
    store.broken = False
    await clock.advance(5)
    await run_tasks()
    assert crowd.started == ["a1"]


async def test_permits_of_a_call_without_an_answer_are_returned(
    bench: Bench, store: Store, clock: ManualClock
) -> None:
    crowd = bench(concurrency(2))
    store.answers_lost = True
    crowd.submit("a1", "a2")
    await run_tasks()
    assert (crowd.started, store.in_use()) == ([], 2)
    store.answers_lost = False
    await clock.advance(1)
    await run_tasks()
    assert (crowd.started, store.in_use()) == (["a1", "a2"], 2)
    await crowd.end()
    await crowd.doer.idle()
    assert (store.in_use(), store.peak) == (0, 2)


@pytest.mark.parametrize("trouble", ["broken", "answers_lost"])
async def test_a_return_without_an_answer_never_frees_a_permit_in_use(
    bench: Bench, store: Store, clock: ManualClock, trouble: str
) -> None:
    crowd = bench(concurrency(2))
    crowd.submit("a1", "a2")
    await run_tasks()
    setattr(store, trouble, True)
    await crowd.end("a1")
    setattr(store, trouble, False)
    for _ in range(20):
        await clock.advance(1)
        await run_tasks()
    assert store.in_use() >= 1, "a2 still runs"
    crowd.submit("a3", "a4")
    for _ in range(5):
        await clock.advance(1)
        await run_tasks()
    assert len(crowd.running) <= 2
    await crowd.end()
    for _ in range(5):
        await clock.advance(1)
        await run_tasks()
    await crowd.end()
    await crowd.doer.idle()
    assert set(crowd.started) == {"a1", "a2", "a3", "a4"}
    assert (store.in_use(), store.peak) == (0, 2)


@pytest.mark.parametrize("seed", range(15))
async def test_limits_hold_and_every_task_runs_despite_errors(
    store: Store, clock: ManualClock, seed: int
) -> None:
    """Two workers, three lanes, a store that fails now and then: no lane runs more than its limit, no task is
    lost, none runs twice, and in the end every permit is returned."""
    draw = random.Random(seed)
    running: Counter[str] = Counter()
    ran: list[int] = []
    errors: list[Exception] = []
    doers = [concurrency(2, per="lane", inner=concurrency(4, per="tenant")) for _ in range(2)]
    for n, doer in enumerate(doers):
        doer.bind(store, clock, f"w{n}", "type")
        doer.on_error(lambda error, _: errors.append(error))

    def task(n: int, lane: str) -> Task:
        async def run() -> None:
            running[lane] += 1
            assert running[lane] <= 2
            assert running.total() <= 4
            await run_tasks(draw.randrange(30))
            running[lane] -= 1
            ran.append(n)

        return run

    for n in range(120):
        lane = draw.choice("abc")
        draw.choice(doers).submit(task(n, lane), lane=lane, tenant="t", priority=draw.randrange(3))
        store.broken, store.answers_lost = draw.random() < 0.2, draw.random() < 0.2
        await run_tasks(draw.randrange(5))
        await clock.advance(draw.random() * 0.3)
    store.broken = store.answers_lost = False
    async with asyncio.timeout(30):
        while len(ran) < 120 or store.in_use():
            await run_tasks()
            await clock.advance(1)
    assert sorted(ran) == list(range(120))
    assert {type(error) for error in errors} == {StoreUnavailable}
    for doer in doers:
        assert (doer.avoid(), doer.cancel_pending()) == (frozenset(), [])
        await doer.idle()
        await doer.close()


async def test_a_task_that_the_inner_doer_refuses_is_submitted_again(
    bench: Bench, clock: ManualClock
) -> None:
    class Moody:
        def __init__(self) -> None:
            self.refused = 0
            self.tasks: list[asyncio.Task[None]] = []

        def available(self) -> int:
            return 1

        def submit(self, task: Task, **_: object) -> None:
            if not self.refused:
                self.refused += 1
                raise RuntimeError("not now")
            self.tasks.append(asyncio.ensure_future(task()))

        async def idle(self) -> None:
            if self.tasks:
                await asyncio.wait(self.tasks)

    crowd = bench(concurrency(1, inner=Moody()))
    crowd.submit("a1")
    await run_tasks()
    assert (crowd.started, bench.errors) == ([], [("not now", "doer")])
    await clock.advance(5)
    await run_tasks()
    assert crowd.started == ["a1"]


# -------------------------------------------------------------------------------------------------- lifecycle


async def test_a_doer_must_be_bound() -> None:
    with pytest.raises(NotStarted):
        Crowd(concurrency(1)).submit("a1")


async def test_close_cancels_permit_requests_under_way(
    bench: Bench, store: Store, clock: ManualClock
) -> None:
    crowd = bench(rate_limited(1, 10))
    crowd.submit("a1", "a2")
    await run_tasks()
    assert clock.sleepers == 1
    store.answering.clear()
    await clock.advance(10)
    await crowd.doer.close()
    assert (clock.sleepers, crowd.doer.cancel_pending()) == (0, [crowd.tasks["a2"]])
    await crowd.end("a1")
    await crowd.doer.idle()


def test_limit_names_fit_and_are_distinct() -> None:
    from treadle.doers.limit_rules import LimitRule

    rule = LimitRule(1, 1.0, "slots", "lane")
    places = [
        ("a", "b:c"),
        ("a:b", "c"),
        ("a", ""),
        ("", "a"),
        ("x" * 255, "y" * 255),
        ("x" * 255, "y" * 254 + "z"),
    ]
    names = [rule.limit_for("type", tenant, lane).name for tenant, lane in places]
    assert len(set(names)) == len(places)
    assert all(len(name.encode()) <= 255 for name in names)


def test_a_lane_cannot_make_a_limit_look_like_that_of_another_tenant() -> None:
    from treadle.doers.limit_rules import LimitRule, Per, is_limit_of_all, is_limit_of_tenant

    def name(per: Per, tenant: str, lane: str, algorithm: Algorithm = "slots") -> str:
        return LimitRule(1, 0.5, algorithm, per).limit_for("a:b", tenant, lane).name

    lanes = ["x:tenant:acme", "x:all", "x:slots:all", "x:slots:tenant:acme", "x:lane:4:acme:", ":4:acme:\n"]
    for foreign in [name("lane", "foo", lane) for lane in lanes] + [name("tenant", "foo:tenant:acme", "")]:
        assert not is_limit_of_all(foreign)
        assert not is_limit_of_tenant(foreign, "acme")
    for own in (name("lane", "acme", "x:all", "fixed_window"), name("tenant", "acme", "x", "token_bucket")):
        assert is_limit_of_tenant(own, "acme")
        assert not is_limit_of_tenant(own, "acm")
        assert not is_limit_of_all(own)
    assert is_limit_of_all(name(None, "foo", "x", "sliding_window"))
    assert not is_limit_of_tenant(name(None, "foo", "x"), "foo")
    assert not is_limit_of_tenant("of:something:else", "else")


def test_a_limit_of_each_tenant_has_its_own_bound_beside_one_for_all() -> None:
    from treadle.engine.declared_limits import declared_limits, limit_of
    from treadle.operate.operator import core_of

    lane = concurrency(1, per="lane")
    doer = concurrency(9, inner=concurrency(2, per="tenant", inner=lane))
    declared = declared_limits(core_of(Treadle("memory://", doer=doer)))
    names = ["app:slots:all", "app:slots:tenant:acme", "app:slots:lane:4:acme:x", "app:slots:other"]
    assert [limit_of(declared, each) for each in names] == [9, 2, 1, None]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: rate_limited(0, 1), "limit"),
        (lambda: rate_limited(1, 0), "window"),
        (lambda: rate_limited(1, -1), "window"),
        (lambda: rate_limited(1, 1, "leaky"), "algorithm"),  # type: ignore[arg-type]
        (lambda: rate_limited(1, 1, per="queue"), "per"),  # type: ignore[arg-type]
        (lambda: concurrency(1.5), "limit"),  # type: ignore[arg-type]
        (lambda: concurrency(1, per="type"), "per"),  # type: ignore[arg-type]
        (lambda: concurrency(1, name=""), "name"),
    ],
)
def test_bad_arguments_of_limits_are_refused(make: object, field: str) -> None:
    with pytest.raises(InputError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.parameters == (field,)


def test_permits_of_a_request_that_arrives_late_are_returned_at_the_next_denial() -> None:
    """The answer was lost, the permits were returned, and only then the store counted them."""
    limit = Limit("single", 1, 1.0, "slots")
    returns = PermitReturns()
    returns.denied([limit])
    assert returns.take_out(()) == []
    returns.doubt([limit], 1)
    assert returns.take_out(()) == [PermitRequest((limit,), 1)]
    assert returns.take_out(()) == []
    returns.denied([limit])
    assert returns.take_out((limit.name,)) == []  # a task here holds a permit of it
    assert returns.take_out(()) == [PermitRequest((limit,), 1)]
