"""The contract on a Valkey cluster: each verb keeps to the one slot of its namespace.

`make redis-cluster` kills servers too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backends.redis_store import RedisSubject
from tests.support.valkey import Client
from tests.support.valkey_cluster import ValkeyCluster
from treadle.backends.redis.topology import slot_of
from treadle.testing import BackendContract


@pytest.fixture(scope="module")
def cluster(valkey_home: Path) -> Generator[ValkeyCluster]:
    cluster = ValkeyCluster(valkey_home)
    try:
        cluster.start()
        cluster.keep_primaries()
        yield cluster
    finally:
        cluster.stop()


class ClusterSubject(RedisSubject):
    """A namespace on one of the nodes."""

    def __init__(self, cluster: ValkeyCluster) -> None:
        super().__init__(cluster.url)
        self._cluster = cluster

    @contextmanager
    def client(self) -> Generator[Client]:
        with self._cluster.owner_of(slot_of(self.prefix)).client() as client:
            yield client


@pytest.mark.usefixtures("cluster")
class TestRedisCluster(BackendContract):
    @pytest.fixture
    async def subject(self, cluster: ValkeyCluster) -> AsyncIterator[RedisSubject]:
        subject = ClusterSubject(cluster)
        await subject.backend.open()
        yield subject
        await subject.close()
        assert subject.audit() == []
        with subject.client() as client:
            client.call("FLUSHALL")
