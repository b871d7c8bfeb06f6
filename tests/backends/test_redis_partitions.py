"""Partitions of a cluster: evenly spread over its nodes, and both contracts by root over four of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Generator, Mapping
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from tests.backends.test_many import StoresSubject
from tests.backends.test_many_by_root import RootsSubject, as_by_root, is_together
from tests.support.valkey_cluster import SLOTS, ValkeyCluster
from treadle import Treadle, work
from treadle.backend import Backend
from treadle.backends.redis import RedisBackend
from treadle.backends.redis.partitions import partition_prefixes
from treadle.backends.redis.topology import slot_of
from treadle.base.timing import Clock
from treadle.errors import InputError, WrongStore
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
    "url",
    ["redis://one?partitions=4", "redis+cluster://one?partitions=1", "redis+cluster://one?partitions=257"],
)
def test_partitions_need_a_cluster_and_a_number(url: str) -> None:
    with pytest.raises(InputError, match="partitions="):
        RedisBackend(url)


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


async def test_an_app_takes_a_whole_cluster(cluster: ValkeyCluster) -> None:
    """Its number of partitions stays."""
    url = f"{cluster.url}?prefix={uuid4().hex[:8]}&partitions="
    async with Treadle(f"{url}4", work=[double]) as app:
        handles = [await app.enqueue(double(n)) for n in range(20)]
        assert [await handle.result(10) for handle in handles] == [2 * n for n in range(20)]
        assert [state.answers for state in await app.stores()] == [True] * 4
    with pytest.raises(WrongStore, match="these are 4 stores by root, and the app names 3"):
        async with Treadle(f"{url}3", work=[double]):
            pass


class PartitionsSubject(RootsSubject):
    """Four partitions of a cluster, whose clocks can be moved."""

    def __init__(self, cluster: ValkeyCluster, *, engine: bool = False, together: bool = False) -> None:
        self._cluster = cluster
        self._url = f"{cluster.url}?prefix={uuid4().hex[:8]}&partitions=4"
        self._shift = 0.0
        super().__init__(self._connect, engine=engine, together=together)

    def _partitions(self) -> list[RedisBackend]:
        return list(RedisBackend(self._url, test_clock=True).partitions())

    def _connect(self, clock: Clock) -> Mapping[str, Backend]:
        return {f"p{n}": each for n, each in enumerate(self._partitions())}

    async def advance(self, seconds: float) -> None:
        self._shift += seconds
        prefix = RedisBackend(self._url).partitions()
        for each in prefix:
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
