"""Several stores: one that is down, hangs or is slow costs its own items, and no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, TypeVar

import pytest

from tests.support.databases import Prepared
from tests.support.proxy import Proxy
from treadle import Client, Result, Retry, Treadle, work
from treadle.backend import missing_stores
from treadle.backends.many import ManyStores
from treadle.backends.many.workers import ManyHeartbeat
from treadle.backends.memory import MemoryBackend
from treadle.errors import InputError, PlacementError, StoreTooSlow, StoreUnavailable
from treadle.handle import Handle
from treadle.handler.context import Context
from treadle.item import Demand, Filter, Heartbeat, HeartbeatReply
from treadle.operate.operator import core_of
from treadle.operate.tell import ProblemWatch
from treadle.operate.webhook import EVERY
from treadle.problems import ProblemChange
from treadle.testing import ManualClock, WrappedBackend
from treadle.testing.contract.build import item, submit

T = TypeVar("T")


class Link(WrappedBackend):
    """A store behind a network that can be cut."""

    state: Literal["up", "down", "hangs"] = "up"
    delay = 0.0
    calls = 0

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        self.calls += 1
        if self.state == "down":
            raise StoreUnavailable("connection refused")
        while self.state == "hangs" and verb != "close":  # noqa: ASYNC110  a test sets it
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.delay)
        return await call()


class Fleet:
    """An app over three stores, with one tenant in each. The tenant is called as its store."""

    def __init__(self) -> None:
        self.links = {name: Link(MemoryBackend()) for name in ("eu", "us", "asia")}
        self.ran: list[str] = []
        ran = self.ran

        @work(name="note")
        async def note(what: str, seconds: float = 0.0) -> str:
            await asyncio.sleep(seconds)
            ran.append(what)
            return what

        self.note = note
        self.app = Treadle(
            ManyStores(self.links), work=[note], poll_interval=0.1, lease=1.5, drain=1, statistics=False
        )

    async def enqueue(self, store: str, what: str, seconds: float = 0.0) -> Handle[str, Any]:
        return await self.app.tenant(store).enqueue(self.note(what, seconds))


@pytest.fixture
async def fleet(processes: None) -> AsyncIterator[Fleet]:
    fleet = Fleet()
    await fleet.app.start()
    for name in fleet.links:
        assert await fleet.app.place(name, name) == name
    yield fleet
    for link in fleet.links.values():
        link.state = "up"
    await fleet.app.stop(drain=0)


@pytest.mark.parametrize("state", ["down", "hangs"])
async def test_the_items_of_other_stores_go_on(fleet: Fleet, state: Literal["down", "hangs"]) -> None:
    """Submit, claim, settle and wait. When the store is back, what it has is done."""
    held = await fleet.enqueue("asia", "before", seconds=0.2)
    await asyncio.sleep(0.1)
    fleet.links["asia"].state = state
    took: list[float] = []
    for n in range(20):
        began = time.monotonic()
        for store in ("eu", "us"):
            handle = await fleet.enqueue(store, f"{store}{n}")
            assert await handle.result(5) == f"{store}{n}"
        took.append(time.monotonic() - began)
    assert sorted(took)[10] < 0.3
    fleet.links["asia"].state = "up"
    assert await held.result(10) == "before"
    handle = await fleet.enqueue("asia", "after")
    assert await handle.result(10) == "after"
    assert fleet.ran.count("before") in (1, 2)


async def test_a_slow_store_delays_its_own_items_only(fleet: Fleet) -> None:
    fleet.links["asia"].delay = 0.3
    slow = [await fleet.enqueue("asia", f"slow{n}") for n in range(3)]
    took: list[float] = []
    for n in range(10):
        began = time.monotonic()
        handle = await fleet.enqueue("us", f"quick{n}")
        assert await handle.result(5) == f"quick{n}"
        took.append(time.monotonic() - began)
    assert sorted(took)[5] < 0.3
    for handle in slow:
        await handle.result(10)


class SlowClaims(WrappedBackend):
    """seconds: that a claim takes. blocks: those of the event loop."""

    seconds = 0.0
    blocks = False

    def __init__(self, inner: MemoryBackend) -> None:
        super().__init__(inner)
        self.settled: list[int] = []

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb == "settle":
            self.settled.append(len(args[0]))
        if verb == "claim":
            if self.blocks:
                time.sleep(self.seconds)  # noqa: ASYNC251  this process is busy
            await asyncio.sleep(0.01 if self.blocks else self.seconds)
        return await call()


@pytest.fixture
async def slow_claims(processes: None) -> AsyncIterator[tuple[ManyStores, SlowClaims]]:
    """Five items wait in the store whose claims are slow."""
    slow = SlowClaims(MemoryBackend())
    many = ManyStores({"eu": MemoryBackend(), "us": slow})
    await many.open()
    await many.place("acme", "us")
    await submit(many, *(item(f"i{n}", tenant="acme") for n in range(5)))
    await many.beat(Heartbeat(worker="w", lease=60.0, types=["work"]))
    yield many, slow
    await many.close()


async def test_what_comes_late_and_has_no_room_is_given_back_in_one_step(
    slow_claims: tuple[ManyStores, SlowClaims],
) -> None:
    many, slow = slow_claims
    slow.seconds = 0.5
    assert not (await many.claim(Demand(worker="w", limit=5))).leases
    await asyncio.sleep(0.5)
    slow.seconds = 0.0
    await many.claim(Demand(worker="w", limit=0))
    await asyncio.sleep(0.1)
    assert slow.settled == [5]
    assert len((await many.claim(Demand(worker="w", limit=5, thorough=True))).leases) == 5


async def test_a_store_is_not_slow_because_this_process_was(
    slow_claims: tuple[ManyStores, SlowClaims],
) -> None:
    many, slow = slow_claims
    slow.seconds, slow.blocks = 0.6, True
    assert len((await many.claim(Demand(worker="w", limit=5))).leases) == 5


async def test_an_idle_worker_makes_few_calls(fleet: Fleet) -> None:
    """It polls one store at a time, and its heartbeats are rare where it holds nothing."""
    await asyncio.sleep(0.5)
    before = {name: link.calls for name, link in fleet.links.items()}
    await asyncio.sleep(1.5)
    calls = {name: link.calls - before[name] for name, link in fleet.links.items()}
    assert calls["us"] + calls["asia"] <= calls["eu"] + 4, calls


async def test_a_read_names_the_store_that_did_not_answer(fleet: Fleet) -> None:
    """It raises, or the reader asks to be told."""
    for store in fleet.links:
        await (await fleet.enqueue(store, store)).result(5)
    fleet.links["us"].state = "down"
    with pytest.raises(StoreUnavailable) as raised:
        await fleet.app.list()
    assert raised.value.store == "us"
    with missing_stores() as missing:
        page = await fleet.app.list()
        counts = await fleet.app.counts(ended=True)
    assert missing == {"us"}
    assert {state.store for state in page.items} == {"eu", "asia"}
    assert {count.tenant for count in counts} == {"eu", "asia"}
    assert [state.store async for state in _listed(fleet.app.tenant("eu"))] == ["eu"]
    states = {state.name: state for state in await fleet.app.stores()}
    assert {name: state.answers for name, state in states.items()} == {"eu": True, "us": False, "asia": True}


async def _listed(client: Any) -> AsyncIterator[Any]:
    for state in (await client.list()).items:
        yield state


async def test_lists_and_counts_of_one_store() -> None:
    """Items, groups, workflows, marks, problems: all of them, or what one store has."""

    @work(name="leaf")
    async def leaf() -> None: ...

    @work(name="burst", retry=Retry(attempts=1))
    async def burst(ctx: Context, deep: bool = False) -> Result[None, None]:
        if not deep:
            raise OSError("away")
        return ctx.queue(leaf())

    app = Treadle(ManyStores({name: MemoryBackend() for name in ("eu", "us")}), work=[leaf, burst])
    async with app:
        for store in ("eu", "us"):
            await app.place(store, store)
            await (await app.tenant(store).enqueue(burst(True), workflow="flow")).group(5)
            await (await app.tenant(store).enqueue(burst())).wait(5)
        assert {each.store for each in (await app.list()).items} == {"eu", "us"}
        page = await app.list(store="us", limit=1)
        second = await app.list(store="us", cursor=page.cursor)
        assert {each.store for each in (*page.items, *second.items)} == {"us"}
        assert len(second.items) == 2
        assert [each.store for each in (await app.dead.list(store="us")).items] == ["us"]
        assert sorted(each.store for each in (await app.groups()).items) == ["eu", "us"]
        assert [each.store for each in (await app.groups(store="us")).items] == ["us"]
        assert [each.store for each in (await app.workflows(store="eu")).items] == ["eu"]
        assert {each.tenant for each in await app.counts(ended=True, store="us")} == {"us"}
        assert {each.tenant for each in (await app.overview(store="us")).counts} == {"us"}
        assert [(each.count, each.stores) for each in await app.dead.marks()] == [(2, ("eu", "us"))]
        assert [(each.count, each.stores) for each in await app.dead.marks(store="us")] == [(1, ("us",))]
        assert [(each.kind, each.items) for each in await app.problems(store="us")] == [("dead", 1)]
        acme = app.tenant("eu")
        assert await acme.counts(store="us") == []
        assert (await acme.list(store="us")).items == ()
        assert (await acme.overview(store="us")).counts == ()


async def test_a_bulk_action_on_one_store() -> None:
    @work(name="never")
    async def never() -> None: ...

    stores = {name: MemoryBackend() for name in ("eu", "us")}
    app = Treadle(ManyStores(stores), work=[never], poll_interval=0.05)
    async with app:
        for store in ("eu", "us"):
            await app.place(store, store)
            await app.tenant(store).enqueue(never(), delay=3600)
        with pytest.raises(InputError, match="store='asia' is no store of this app: it has eu, us"):
            await app.bulk.start("cancel", store="asia")
        action = await app.bulk.start("cancel", store="us")
        while (state := await app.bulk.state(action.id)) is None or state.ended_at is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert state.where == "store:us"
        left = [each.store for each in (await app.list(type="never", status="scheduled")).items]
        assert left == ["eu"]


async def test_an_app_with_one_store_has_none_to_choose() -> None:
    """It does not show, or change, all of it instead."""
    async with Client(MemoryBackend()) as client:
        for call in (client.list, client.groups, client.workflows, client.counts, client.overview):
            with pytest.raises(InputError, match="this app has one store"):
                await call(store="us")
        for call in (client.problems, client.dead.marks, client.dead.list, client.dead.delete):
            with pytest.raises(InputError, match="this app has one store"):
                await call(store="us")
        with pytest.raises(InputError, match="this app has one store"):
            await client.bulk.start("cancel", store="us")


async def test_a_list_of_the_store_that_is_away_is_no_empty_list(fleet: Fleet) -> None:
    fleet.links["us"].state = "down"
    for call in (fleet.app.list, fleet.app.counts, fleet.app.groups, fleet.app.dead.marks):
        with pytest.raises(StoreUnavailable, match="us"):
            await call(store="us")
        await call(store="eu")
    with missing_stores() as missing:
        assert (await fleet.app.list(store="us")).items == ()
    assert missing == {"us"}


async def test_a_cursor_goes_on_where_a_store_was_when_it_went_away(fleet: Fleet) -> None:
    """What it has comes when it is back: nothing is skipped, or shown twice."""
    for n in range(5):
        for store in fleet.links:
            await fleet.enqueue(store, f"{store}{n}", 60.0)
    seen: list[str] = []
    page = await fleet.app.list(limit=4)
    seen += [state.id for state in page.items]
    fleet.links["us"].state = "down"
    with missing_stores() as missing:
        page = await fleet.app.list(limit=4, cursor=page.cursor)
    assert missing == {"us"}
    seen += [state.id for state in page.items]
    fleet.links["us"].state = "up"
    await asyncio.sleep(1.2)  # it is asked again after a pause
    while page.cursor is not None:
        page = await fleet.app.list(limit=4, cursor=page.cursor)
        seen += [state.id for state in page.items]
    assert len(seen) == len(set(seen)) == 15


async def test_an_order_reaches_a_store_that_was_away(fleet: Fleet) -> None:
    """Before it hands out anything."""
    fleet.links["us"].state = "down"
    await fleet.app.pause("default")
    fleet.links["us"].state = "up"
    await asyncio.sleep(1.2)
    handle = await fleet.enqueue("us", "paused")
    await asyncio.sleep(0.5)
    assert fleet.ran == []
    await fleet.app.resume("default")
    assert await handle.result(10) == "paused"


async def test_an_outage_of_one_store_is_logged_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.links["us"].state = "down"
    await asyncio.sleep(0.5)
    for n in range(3):
        with pytest.raises(StoreUnavailable):
            await fleet.enqueue("us", f"{n}")
    said = [record.getMessage() for record in caplog.records if "unavailable" in record.getMessage()]
    assert len(said) == 1, said
    assert said[0].startswith("the store us (memory://) is unavailable")


async def test_a_schedule_fires_in_the_store_of_its_tenant() -> None:
    fleet = Fleet()
    async with fleet.app as app:
        await app.place("acme", "us")
        app.tenant("acme").schedule("often", every=0.1, run=lambda: fleet.note("fired"))
        for _ in range(100):
            await asyncio.sleep(0.05)
            if "fired" in fleet.ran:
                break
        page = await app.list(limit=1)
        assert page.items[0].store == "us"
        await app.tenant("acme").schedules.cancel("often")
        assert await app.schedules.list() == []


async def test_a_transaction_is_in_the_store_of_the_tenant(tmp_path: Any) -> None:
    """And other tenants are not in it."""
    outcomes: list[str] = []

    @work(name="book")
    async def book(ctx: Context, other: str) -> str:
        async with ctx.transaction() as connection:
            connection.execute("create table if not exists booking (id text)")
            connection.execute("insert into booking values (?)", (ctx.id,))
            try:
                await app.tenant(other).enqueue(book("none"))
            except PlacementError as error:
                outcomes.append(str(error))
            return "booked"

    stores = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("eu", "us")}
    app = Treadle(stores, by="tenant", work=[book], poll_interval=0.1, drain=1)
    async with app:
        await app.place("acme", "us")
        await app.place("rival", "eu")
        handle = await app.tenant("acme").enqueue(book("rival"))
        assert await handle.result(10) == "booked"
        assert outcomes == [
            "the transaction is in the store 'us', and the tenant 'rival' is in 'eu': do this outside of the "
            "transaction"
        ]


@pytest.mark.parametrize("how", ["hangs", "is gone"])
async def test_one_of_two_servers(how: str, prepared: Prepared) -> None:
    """Real databases, one of them behind a network that swallows all packets, or is cut."""
    ran: list[str] = []

    @work(name="note")
    async def note(what: str) -> str:
        ran.append(what)
        return what

    with prepared.database() as eu, prepared.database() as us:
        proxy = Proxy(us)
        await proxy.__aenter__()
        app = Treadle({"eu": eu, "us": proxy.url}, work=[note], poll_interval=0.2, lease=3, drain=1)
        try:
            async with app:
                for name in ("eu", "us"):
                    await app.place(name, name)
                    await (await app.tenant(name).enqueue(note(f"before in {name}"))).result(10)
                if how == "hangs":
                    proxy.stall()
                else:
                    await proxy.__aexit__(None, None, None)
                took: list[float] = []
                for n in range(30):
                    began = time.monotonic()
                    handle = await app.tenant("eu").enqueue(note(f"{n}"))
                    assert await handle.result(10) == f"{n}"
                    took.append(time.monotonic() - began)
                    await asyncio.sleep(0.05)
                assert sorted(took)[27] < 1.0, took
                if how == "hangs":
                    proxy.resume()
                    await asyncio.sleep(1.5)
                    handle = await app.tenant("us").enqueue(note("after"))
                    assert await handle.result(20) == "after"
        finally:
            if how == "hangs":
                await proxy.__aexit__(None, None, None)


class Processes:
    """A client and a worker over the same stores, as in two processes. Nobody polls."""

    def __init__(self, *names: str) -> None:
        self.stores = {name: MemoryBackend() for name in names}
        self.fired: list[float] = []
        fired = self.fired

        @work(name="note")
        async def note(what: str) -> str:
            return what

        @work(name="tick")
        async def tick() -> None:
            fired.append(time.monotonic())

        self.note, self.tick = note, tick
        self.client_links, self.worker_links = self._links(), self._links()
        self.client = Client(ManyStores(self.client_links), work=[note], poll_interval=30)
        self.worker = Treadle(
            ManyStores(self.worker_links), work=[note, tick], poll_interval=30, drain=0, statistics=False
        )

    def _links(self) -> dict[str, Link]:
        return {name: Link(store) for name, store in self.stores.items()}

    def set(self, store: str, state: Literal["up", "down", "hangs"], delay: float = 0.0) -> None:
        for links in (self.client_links, self.worker_links):
            links[store].state, links[store].delay = state, delay

    async def __aenter__(self) -> Processes:
        for name in self.stores:
            await self.client.place(name, name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in self.stores:
            self.set(name, "up")
        await self.worker.stop(drain=0)
        await self.client.close()


@pytest.mark.parametrize(("away", "state"), [("eu", "down"), ("eu", "hangs"), ("us", "hangs")])
async def test_wake_ups_need_no_other_store(
    away: str, state: Literal["down", "hangs"], processes: None
) -> None:
    """Of items to claim, and of results. Also if home is away."""
    well = "us" if away == "eu" else "eu"
    async with Processes("eu", "us") as two:
        await two.worker.start()
        await (await two.client.tenant(well).enqueue(two.note("before"))).result(5)
        two.set(away, state)
        for n in range(5):
            handle = await two.client.tenant(well).enqueue(two.note(f"{n}"))
            assert await handle.result(5) == f"{n}"
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(("away", "state"), [("us", "down"), ("eu", "hangs")])
async def test_schedules_of_other_stores_fire(
    away: str, state: Literal["down", "hangs"], processes: None
) -> None:
    """Also one that is new."""
    well = "us" if away == "eu" else "eu"
    async with Processes("eu", "us") as two:
        await two.worker.start()
        clients = two.worker.tenant(well), two.worker.tenant(away)
        for client in clients:
            client.schedule("old", every=0.2, run=two.tick)
        await asyncio.sleep(0.5)
        two.set(away, state)
        two.fired.clear()
        await asyncio.sleep(2)
        assert len(two.fired) >= 5
        clients[0].schedule("new", every=0.2, run=two.tick)
        await asyncio.sleep(2)
        assert any(state.name == f"{well}/new" for state in await two.stores[well].schedules())
        two.set(away, "up")
        await asyncio.sleep(1.5)
        assert len(await two.worker.schedules.list()) == 3


async def test_a_worker_starts_while_a_store_hangs(processes: None) -> None:
    """And the items of other stores run."""
    async with Processes("eu", "us") as two:
        two.set("us", "hangs")
        await asyncio.wait_for(two.worker.start(), 8)
        handle = await two.client.tenant("eu").enqueue(two.note("x"))
        assert await handle.result(5) == "x"


async def test_results_of_a_slow_store_come_although_it_is_waited_for_briefly(processes: None) -> None:
    async with Processes("eu", "us") as two:
        two.client_links["us"].delay = 0.6
        waiting = await two.client.tenant("eu").enqueue(two.tick())
        handle = await two.client.tenant("us").enqueue(two.note("slow"))
        result = asyncio.ensure_future(handle.result(8))
        other = asyncio.ensure_future(waiting.result(8))
        await asyncio.sleep(0.1)
        await two.worker.start()
        assert await result == "slow"
        await other


async def test_a_read_that_takes_too_long_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """The store answers everything else."""

    class Slow(Link):
        async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
            if verb == "workers":
                raise StoreTooSlow("it took too long")
            return await super().around(verb, args, call)

    async with Client(ManyStores({"eu": MemoryBackend(), "us": Slow(MemoryBackend())})) as client:
        with missing_stores() as missing:
            await client.workers()
        assert missing == {"us"}
        assert client.stores_away == ()
        await client.tenant("us").list()
    assert "unavailable" not in caplog.text


class Line:
    """A connection for heartbeats, over a network that may hang."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def open(self) -> None:
        await self._link.now()

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._link.beat(beat)

    async def close(self) -> None: ...


async def test_heartbeats_of_another_thread_do_not_wait_for_a_store_that_hangs() -> None:
    """It gets them again when it is back."""
    links = {name: Link(MemoryBackend()) for name in ("eu", "us")}
    connection = ManyHeartbeat([lambda link=link: Line(link) for link in links.values()])
    beat = Heartbeat(worker="w", lease=3.0)
    await connection.open()
    await connection.beat(beat)
    links["us"].state = "hangs"
    await asyncio.wait_for(connection.beat(beat), 2)
    links["us"].state = "up"
    before = links["us"].calls
    await connection.beat(beat)
    assert links["us"].calls == before + 2  # connected, and beaten
    await connection.close()


async def test_problems_of_a_tenant_are_told_in_its_store(processes: None) -> None:
    """The schedule of the looks is where its messages are."""
    told: list[ProblemChange] = []
    async with Processes("eu", "us") as two:
        client = two.client.tenant("us")
        watch = ProblemWatch(core_of(client), "us", told.append)
        await watch.run_once()
        (schedule,) = await two.stores["us"].schedules()
        assert schedule.name == watch.name


async def test_dead_items_of_one_store_are_requeued() -> None:
    @work(name="fails", retry=Retry(attempts=1))
    async def fails() -> None:
        raise OSError("away")

    stores = {name: MemoryBackend() for name in ("eu", "us")}
    async with Treadle(ManyStores(stores), work=[fails]) as app:
        for store in stores:
            await app.place(store, store)
            await (await app.tenant(store).enqueue(fails())).wait(5)
        await app.stop(drain=0)
    async with Client(ManyStores(stores)) as client:
        changed = await client.backend.requeue(Filter(store="us"))
        assert [each.tenant for each in changed.items] == ["us"]
        with pytest.raises(InputError, match="this app has one store"):
            await stores["us"].requeue(Filter(store="us"))


@pytest.mark.parametrize("name", ["eu", "us"])
async def test_a_stop_names_the_store_that_hangs_and_frees_what_others_have(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Home, and another one. It ends soon after the grace."""
    for store in fleet.links:
        await fleet.enqueue(store, store, 60.0)
    while len(fleet.app.active()) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    fleet.links[name].state = "hangs"
    began = time.monotonic()
    await fleet.app.stop(drain=0)
    assert time.monotonic() - began < 8
    assert f"the store '{name}' does not answer" in caplog.text
    for store, link in fleet.links.items():
        page = await link.inner.list(Filter(type="note"))
        assert [each.status for each in page.items] == ["running" if store == name else "ready"]


async def test_a_manual_lease_waits_for_a_store_that_is_slow() -> None:
    """No other claim brings what comes late. Its first store is another one each time."""
    links = {name: Link(MemoryBackend()) for name in ("eu", "us")}

    @work(name="pulled")
    async def pulled() -> None: ...

    async with Client(ManyStores(links), work=[pulled]) as client:
        for store in links:
            await client.place(store, store)
            for _ in range(2):
                await client.tenant(store).enqueue(pulled())
        found = [await client.claim_one(types=[pulled]) for _ in range(2)]
        assert {each.tenant for each in found if each is not None} == {"eu", "us"}
        for link in links.values():
            link.delay = 0.03
        found = [await client.claim_one(types=[pulled]) for _ in range(2)]
        assert {each.tenant for each in found if each is not None} == {"eu", "us"}
        assert await client.claim_one(types=[pulled]) is None


async def test_a_store_that_is_away_is_told_once_and_when_it_is_back() -> None:
    """By whichever process looks. What it has is not over meanwhile."""
    clock = ManualClock()
    links = {name: Link(MemoryBackend(clock)) for name in ("eu", "us")}
    told: list[tuple[str, str, tuple[str, ...]]] = []

    @work(name="fails", retry=Retry(attempts=1))
    async def fails() -> None:
        raise OSError("no")

    def tell(change: ProblemChange) -> None:
        told.append((change.change, change.kind, change.refs))

    def app_of() -> Treadle:
        return Treadle(ManyStores(links, clock=clock), work=[fails], clock=clock)

    async with app_of() as app:
        await app.place("acme", "us")
        await (await app.tenant("acme").enqueue(fails())).wait(5)
    clients = [Client(ManyStores(links, clock=clock), clock=clock) for _ in range(3)]

    async def look() -> None:
        await clock.advance(EVERY + 1)
        await asyncio.gather(*(client.watch_problems(tell, once=True) for client in clients))

    await look()
    assert told == [("appeared", "dead", ("fails",))]
    links["us"].state = "down"
    await look()
    await look()
    assert told[1:] == [("appeared", "store_away", ("us",))]
    links["us"].state = "up"
    await look()
    await look()
    assert told[2:] == [("ended", "store_away", ("us",))]
    for client in clients:
        await client.close()
