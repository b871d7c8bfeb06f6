"""Partitions of a cluster: evenly spread over its nodes, and both contracts by root over four of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from tests.backends.test_many import StoresSubject
from tests.backends.test_many_by_root import RootsSubject, as_by_root, is_together
from tests.backends.test_redis_topology import until_answered
from tests.cli.calling import call
from tests.support.valkey import ValkeyServer
from tests.support.valkey_cluster import SLOTS, ValkeyCluster, wait_until
from treadle import Treadle, work
from treadle.backend import Backend, store_name
from treadle.backends.redis import RedisBackend
from treadle.backends.redis.partitions import partition_prefixes
from treadle.backends.redis.topology import slot_of
from treadle.base.timing import Clock
from treadle.errors import InputError, PlacementError, WrongStore
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.testing import BackendContract, WorkerContract

__all__ = ["as_by_root", "is_together"]


@pytest.mark.parametrize("partitions", [2, 3, 4, 16, 64])
@pytest.mark.parametrize("nodes", [2, 3, 5, 6])
def test_partitions_are_spread_evenly_over_nodes(partitions: int, nodes: int) -> None:
    prefixes = partition_prefixes("shop", partitions)
    assert prefixes[0] == "shop"
    assert len(set(prefixes)) == partitions
    on = Counter(slot_of(prefix) * nodes // SLOTS for prefix in prefixes)
    counts = [on[node] for node in range(nodes)]
    assert max(counts) - min(counts) <= 1


def test_neighbours_are_on_different_nodes() -> None:
    nodes = [slot_of(prefix) * 3 // SLOTS for prefix in partition_prefixes("shop", 16)]
    assert all(one != other for one, other in pairwise(nodes))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://one?partitions=4", r"needs a cluster: begin it with redis\+cluster://"),
        ("redis+sentinel://one/a?partitions=4", r"needs a cluster: begin it with redis\+cluster://"),
        ("redis+cluster://one?partitions=1", "is a number from 2 to 256"),
        ("redis+cluster://one?partitions=257", "is a number from 2 to 256"),
        ("redis+cluster://one?partitions=", "is a number from 2 to 256"),
        ("redis+cluster://one?partitions=four", "partitions is a whole number"),
    ],
)
def test_partitions_need_a_cluster_and_a_number(url: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Treadle(url)


def test_a_cluster_with_partitions_is_no_store_among_others() -> None:
    with pytest.raises(InputError, match="leave partitions= out"):
        Treadle({"a": "redis+cluster://one?partitions=4", "b": "memory://"}, by="root")


async def test_one_backend_is_not_all_partitions() -> None:
    with pytest.raises(InputError, match="is several stores: give it to Treadle"):
        await RedisBackend("redis+cluster://one?partitions=4").open()


@pytest.fixture(scope="module")
def cluster(valkey_home: Path) -> Generator[ValkeyCluster]:
    cluster = ValkeyCluster(valkey_home)
    try:
        cluster.start()
        cluster.keep_primaries()
        yield cluster
    finally:
        cluster.stop()


@work(name="double")
async def double(n: int) -> int:
    return 2 * n


def url_of(cluster: ValkeyCluster, partitions: int = 4, prefix: str | None = None) -> str:
    return f"{cluster.url}?prefix={prefix or uuid4().hex[:8]}&partitions={partitions}"


async def test_an_app_takes_a_whole_cluster(cluster: ValkeyCluster) -> None:
    async with Treadle(url_of(cluster), work=[double]) as app:
        handles = [await app.enqueue(double(n)) for n in range(20)]
        assert [await handle.result(10) for handle in handles] == [2 * n for n in range(20)]
        assert [state.name for state in await app.stores()] == [f"p{n}-of-4" for n in range(4)]
        assert [state.answers for state in await app.stores()] == [True] * 4
        assert {(await handle.state()).store for handle in handles} == {f"p{n}-of-4" for n in range(4)}


async def connected(url: str) -> None:
    async with Treadle(url):
        pass


async def test_the_number_of_partitions_stays(cluster: ValkeyCluster) -> None:
    prefix = uuid4().hex[:8]
    async with Treadle(url_of(cluster, 4, prefix)) as app:
        handle = await app.enqueue(double(1))
    message = r"has 4 partitions, and the URL says 3\. Their number stays: write partitions=4, or begin"
    with pytest.raises(WrongStore, match=message):
        await connected(url_of(cluster, 3, prefix))
    with pytest.raises(WrongStore, match="is one of 4 partitions: write partitions=4 into its URL"):
        await connected(f"{cluster.url}?prefix={prefix}")
    alone = cluster.owner_of(slot_of(prefix))
    with pytest.raises(WrongStore, match=r"begins with redis\+cluster://"):
        await connected(f"redis://127.0.0.1:{alone.port}?prefix={prefix}")
    async with Treadle(url_of(cluster, 4, prefix), work=[double]) as app:
        assert await app.handle(handle.id).result(10) == 2


async def test_a_wrong_number_of_partitions_makes_no_namespace(cluster: ValkeyCluster) -> None:
    """Commands that make none say what is wrong too."""
    prefix = uuid4().hex[:8]
    await connected(url_of(cluster, 4, prefix))
    url = url_of(cluster, 5, prefix)
    called = await asyncio.to_thread(call, "status", "--url", url)
    assert "has 4 partitions, and the URL says 5" in called.err
    with pytest.raises(WrongStore, match="has 4 partitions"):
        await connected(url)
    for name in {*partition_prefixes(prefix, 5)} - {*partition_prefixes(prefix, 4)}:
        assert cluster.owner_of(slot_of(name)).call("EXISTS", f"{{{name}}}:meta") == 0


async def test_what_all_partitions_share_is_said_once(
    cluster: ValkeyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Their address, and warnings about settings."""
    for server in cluster.servers[:3]:
        server.call("CONFIG", "SET", "appendfsync", "no")
    try:
        url = url_of(cluster)
        async with Treadle(url) as app:
            assert store_name(app.backend) == url
    finally:
        for server in cluster.servers[:3]:
            server.call("CONFIG", "SET", "appendfsync", "everysec")
    assert caplog.text.count("appendfsync no") == 1


async def test_a_namespace_in_use_is_not_divided(cluster: ValkeyCluster) -> None:
    """And goes on as it was."""
    prefix = uuid4().hex[:8]
    async with Treadle(f"{cluster.url}?prefix={prefix}") as app:
        handle = await app.enqueue(double(1))
    with pytest.raises(PlacementError, match="has items, whose ids say other places"):
        await connected(url_of(cluster, 4, prefix))
    async with Treadle(f"{cluster.url}?prefix={prefix}", work=[double]) as app:
        assert await app.handle(handle.id).result(10) == 2


async def test_partitions_share_connections(cluster: ValkeyCluster) -> None:
    """One of each kind to a node, however many partitions there are. None is left at the end."""

    def clients() -> int:
        """Of nodes, but for replicas."""
        kinds = ("NORMAL", "PUBSUB")
        return sum(
            len(server.call("CLIENT", "LIST", "TYPE", kind).splitlines())
            for server in cluster.servers[:3]
            for kind in kinds
        )

    before = clients()
    async with Treadle(url_of(cluster, 16), work=[double]) as app:
        handles = [await app.enqueue(double(n)) for n in range(64)]
        assert [await handle.result(10) for handle in handles] == [2 * n for n in range(64)]
        assert clients() - before <= 4 * 3
    await asyncio.to_thread(wait_until, lambda: clients() <= before)


async def test_wake_ups_of_all_partitions_are_heard(cluster: ValkeyCluster) -> None:
    """A worker of another process need not poll."""
    url = url_of(cluster, 7)
    worker = Treadle(url, work=[double], poll_interval=60)
    async with worker, Treadle(url, poll_interval=60) as client, asyncio.timeout(20):
        handles = [await client.enqueue(double(n)) for n in range(40)]
        assert [await handle.result() for handle in handles] == [2 * n for n in range(40)]


def test_commands_name_each_partition(cluster: ValkeyCluster) -> None:
    url = url_of(cluster)
    asyncio.run(connected(url))
    names = [f"p{n}-of-4" for n in range(4)]
    states = call("stores", "--json", "--url", url).objects
    assert [(state["name"], state["answers"], state["home"]) for state in states] == [
        (name, True, name == names[0]) for name in names
    ]
    found = call("doctor", "--json", "--url", url).objects
    for name in names:
        assert any(each["text"].startswith(f"{name}: one arrived by") for each in found)


# -- what happens to the cluster while work is under way ---------------------------------------------------


@work(name="split")
async def split(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue(*(double(n + i) for i in range(3))).next(together())


@work(name="together")
async def together(ctx: Context) -> int:
    return sum(await ctx.results(double))


@asynccontextmanager
async def under_way(url: str) -> AsyncGenerator[None]:
    """Work goes through an app while the block runs, and some more after it. Nothing is lost, and no attempt
    has failed."""
    stops = asyncio.Event()
    async with Treadle(url, work=[double, split, together], lease=5, heartbeat=1) as app:

        async def go_on() -> list[int]:
            done: list[int] = []
            while not stops.is_set() or len(done) < 200:
                n = len(done)
                works = [split(n + i) for i in range(10)]
                handles = [await until_answered(partial(app.enqueue, each)) for each in works]
                done += [await handle.group(60) for handle in handles]
            return done

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            stops.set()
            done = await task
        assert done == [6 * n + 6 for n in range(len(done))]
        assert not (await app.list(status=["dead", "running", "ready", "blocked"])).items


def masters(cluster: ValkeyCluster) -> list[ValkeyServer]:
    return [server for server in cluster.servers if server.call("ROLE")[0] == b"master"]


async def test_slots_that_are_moved_while_work_is_under_way_lose_nothing(cluster: ValkeyCluster) -> None:
    """Key by key, with ASK and TRYAGAIN on the way. The first two partitions go to another node, and back."""
    prefix = uuid4().hex[:8]
    async with under_way(url_of(cluster, 4, prefix)):
        for each in partition_prefixes(prefix, 4)[:2]:
            slot = slot_of(each)
            old = cluster.owner_of(slot)
            new = next(server for server in masters(cluster) if server is not old)
            for one, other in ((old, new), (new, old)):
                await asyncio.to_thread(move_slot, slot, one, other)
                assert cluster.owner_of(slot) is other


def move_slot(slot: int, old: ValkeyServer, new: ValkeyServer) -> None:
    ids = {server: server.call("CLUSTER", "MYID") for server in (old, new)}
    new.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[old])
    old.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[new])
    while keys := old.call("CLUSTER", "GETKEYSINSLOT", slot, 3):
        old.call("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
    for server in (new, old):
        server.call("CLUSTER", "SETSLOT", slot, "NODE", ids[new])


async def test_a_planned_failover_while_work_is_under_way_loses_nothing(cluster: ValkeyCluster) -> None:
    url = url_of(cluster)
    old = masters(cluster)[0]
    async with under_way(url):
        await asyncio.to_thread(cluster.fail_over, cluster.replica_of(old))
    await asyncio.to_thread(wait_until, lambda: old.call("ROLE")[3] == b"connected")


async def test_a_node_that_is_killed_while_work_is_under_way_loses_nothing(cluster: ValkeyCluster) -> None:
    """With `replicas=1`: its replica has all that was answered."""
    await asyncio.to_thread(wait_until, cluster.is_whole)
    old = masters(cluster)[0]
    cluster.keep_primaries(False)
    try:
        async with under_way(url_of(cluster) + "&replicas=1"):
            new = cluster.replica_of(old)
            old.kill()
            await asyncio.to_thread(wait_until, lambda: new.call("ROLE")[0] == b"master")
            old.start()
            await asyncio.to_thread(wait_until, cluster.is_whole)
    finally:
        cluster.keep_primaries()


# -- the contracts ---------------------------------------------------------------------------------------


class PartitionsSubject(RootsSubject):
    """Four partitions of a cluster, whose clocks can be moved."""

    def __init__(self, cluster: ValkeyCluster, *, engine: bool = False, together: bool = False) -> None:
        self._cluster = cluster
        self._url = url_of(cluster)
        self._shift = 0.0
        super().__init__(self._connect, engine=engine, together=together)

    def _connect(self, clock: Clock) -> Mapping[str, Backend]:
        return RedisBackend(self._url, test_clock=True).partitions()

    async def advance(self, seconds: float) -> None:
        self._shift += seconds
        for each in RedisBackend(self._url).partitions().values():
            tag = each.prefix
            with self._cluster.owner_of(slot_of(tag)).client() as client:
                client.call("SET", f"{{{tag}}}:shift", self._shift)

    async def set_back(self, seconds: float) -> None:
        await self.advance(-seconds)


@pytest.mark.usefixtures("another_form")
class TestFourPartitions(BackendContract):
    @pytest.fixture
    async def subject(self, cluster: ValkeyCluster, is_together: bool) -> AsyncIterator[StoresSubject]:
        async with PartitionsSubject(cluster, together=is_together) as subject:
            yield subject


@pytest.mark.usefixtures("another_form")
class TestWorkersOfFourPartitions(WorkerContract):
    @pytest.fixture
    async def subject(self, cluster: ValkeyCluster) -> AsyncIterator[StoresSubject]:
        async with PartitionsSubject(cluster, engine=True) as subject:
            yield subject
