"""Redis behind Sentinels, as a cluster, and with replicas that acknowledge."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.backends.redis_links import COUNT, ONCE, ScriptOfTest, linked, within
from tests.support.valkey import ValkeyServer, free_ports
from tests.support.valkey_cluster import ValkeyCluster, ValkeySentinels, wait_until
from treadle import StoreUnavailable
from treadle.backends.redis import RedisBackend
from treadle.backends.redis.address import Endpoint, parse_address
from treadle.backends.redis.connector import RedisConnector
from treadle.backends.redis.topology import check_primary, slot_of
from treadle.errors import AccessDenied
from treadle.item import Wake
from treadle.testing.contract.wakeups import WakeRecorder

T = TypeVar("T")

TWO_KEYS = ScriptOfTest("two_keys", "return redis.call('INCR', KEYS[1])", keys=("mark", "none"))


async def until_answered(call: Callable[[], Awaitable[T]], seconds: float = 20) -> T:
    """Repeat a call while the store is unavailable, as the engine does."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


# -- a cluster -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(valkey_home: Path) -> Generator[ValkeyCluster]:
    cluster = ValkeyCluster(valkey_home)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def test_a_namespace_lives_on_one_node_of_a_cluster(cluster: ValkeyCluster) -> None:
    """Whichever that is. Any node of the URL is asked for it, also if the first does not run."""
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    url = cluster.url.replace("://", f"://{nowhere},")
    owners: set[int] = set()
    for prefix in ("treadle", "shop", "a", "b", "ü"):
        slot: int = cluster.servers[0].call("CLUSTER", "KEYSLOT", f"{{{prefix}}}:x")
        assert slot_of(prefix) == slot
        owners.add(cluster.owner_of(slot).port)
        async with linked(url, prefix) as link:
            assert await link.run(COUNT, [1]) == 1
            assert await link.run(COUNT, [1], on="claim") == 2
    assert len(owners) > 1


async def test_a_cluster_needs_the_url_of_one(cluster: ValkeyCluster) -> None:
    slot = slot_of("ns")
    wrong = next(server for server in cluster.servers[:3] if server is not cluster.owner_of(slot))
    async with linked(wrong.url) as link:
        with pytest.raises(StoreUnavailable, match=r"begins with redis\+cluster://"):
            await link.run(COUNT, [1])


async def test_a_slot_that_moves_is_found_again(cluster: ValkeyCluster) -> None:
    """MOVED means that nothing was done. The same call goes on to the node that it names."""
    slot = slot_of("moving")
    old = cluster.owner_of(slot)
    new = next(server for server in cluster.servers[:3] if server is not old)
    async with linked(cluster.url, "moving") as link:
        assert await link.run(COUNT, [1]) == 1
        assert await link.command(b"GET", link.key("mark")) == b"1"
        await link.command(b"DEL", link.key("mark"))
        name = new.call("CLUSTER", "MYID")
        for server in (new, old):
            server.call("CLUSTER", "SETSLOT", slot, "NODE", name)
        assert await link.run(COUNT, [5]) == 5
        assert await link.command(b"GET", link.key("mark")) == b"5"


async def test_a_planned_failover_fails_no_call(cluster: ValkeyCluster) -> None:
    """And repeats none that has happened. There and back."""
    old = cluster.owner_of(slot_of("planned"))
    new = cluster.replica_of(old)
    cluster.keep_primaries()
    count = 0
    async with linked(cluster.url, "planned") as link:
        for before, after in ((old, new), (new, old)):
            failing_over = asyncio.create_task(asyncio.to_thread(cluster.fail_over, after))
            while not failing_over.done():
                count += 1
                assert await link.run(COUNT, [1]) == count
                assert await link.command(b"GET", link.key("mark")) == b"%d" % count
            await failing_over
            await asyncio.to_thread(wait_until, lambda before=before: before.call("ROLE")[3] == b"connected")
    assert old.call("GET", "{planned}:mark") == b"%d" % count
    cluster.keep_primaries(False)


async def test_a_slot_that_is_being_moved_is_unavailable(cluster: ValkeyCluster) -> None:
    """Until all its keys are there: a script needs them together."""
    slot = slot_of("half")
    old = cluster.owner_of(slot)
    new = next(
        server for server in cluster.servers if server is not old and server.call("ROLE")[0] == b"master"
    )
    async with linked(cluster.url, "half") as link:
        await link.run(COUNT, [1])
        new.call("CLUSTER", "SETSLOT", slot, "IMPORTING", old.call("CLUSTER", "MYID"))
        old.call("CLUSTER", "SETSLOT", slot, "MIGRATING", new.call("CLUSTER", "MYID"))
        try:
            assert await link.run(COUNT, [1]) == 2
            with pytest.raises(StoreUnavailable, match=r"ASK .* \(its slot is being moved to another node\)"):
                await link.command(b"GET", link.key("none"))
            with pytest.raises(StoreUnavailable, match=r"TRYAGAIN .* \(its slot is being moved"):
                await link.run(TWO_KEYS)
        finally:
            for server in (new, old):
                server.call("CLUSTER", "SETSLOT", slot, "STABLE")
        assert await link.run(TWO_KEYS) == 3


async def test_a_slot_without_a_node_is_unavailable(cluster: ValkeyCluster) -> None:
    """Until a node has it: nothing was done meanwhile."""
    slot = slot_of("nowhere")
    owner = cluster.owner_of(slot)
    async with linked(cluster.url, "nowhere") as link:
        await link.run(COUNT, [1])
        for server in cluster.servers:
            server.call("CLUSTER", "DELSLOTS", slot)
        try:
            with within(4), pytest.raises(StoreUnavailable, match=r"CLUSTERDOWN|found no node with the slot"):
                await link.run(COUNT, [1])
        finally:
            owner.call("CLUSTER", "ADDSLOTS", slot)
        assert await until_answered(lambda: link.run(COUNT, [1])) == 2
    await asyncio.to_thread(wait_until, cluster.is_up)


async def test_a_call_that_a_node_did_not_answer_is_not_sent_again(cluster: ValkeyCluster) -> None:
    """Though the node is looked up, and is there again."""
    owner = cluster.owner_of(slot_of("dying"))
    cluster.keep_primaries()
    async with linked(cluster.url, "dying") as link:
        await link.run(COUNT, [1])
        owner.freeze()
        call = asyncio.create_task(link.run(COUNT, [1]))
        await asyncio.sleep(0.05)
        owner.kill()
        owner.start()
        with pytest.raises(StoreUnavailable, match="may or may not have happened"):
            await call
        assert await until_answered(lambda: link.run(COUNT, [1])) == 2
    cluster.keep_primaries(False)


async def test_a_cluster_is_found_when_the_node_of_the_url_is_gone(cluster: ValkeyCluster) -> None:
    """The first answer named the other nodes."""
    named = cluster.servers[3]
    async with linked(f"redis+cluster://127.0.0.1:{named.port}", "found") as link:
        named.kill()
        try:
            assert await link.run(COUNT, [1], on="claim") == 1
        finally:
            named.start()


async def test_wake_ups_in_a_cluster_are_sharded(cluster: ValkeyCluster) -> None:
    """Only the node with the namespace has the subscription. When that node dies, its replica has it."""
    sender, receiver = (RedisBackend(cluster.url, prefix="waking") for _ in range(2))
    await sender.open()
    recorder = WakeRecorder()
    try:
        await receiver.subscribe(recorder)
        await sender.publish(Wake(items=(("t", "a"),)))
        await recorder.wait_for({("t", "a")})
        owner = cluster.owner_of(slot_of("waking"))
        assert owner.call("PUBSUB", "SHARDCHANNELS") == [b"{waking}:wake"]
        owner.kill()
        await recorder.wait_until(lambda: any(wake.everything for wake in recorder.wakes))
        await until_answered(sender.now)
        await sender.publish(Wake(items=(("t", "b"),)))
        await recorder.wait_until(lambda: recorder.wakes[-1].items == (("t", "b"),))
    finally:
        await receiver.close()
        await sender.close()


# -- Sentinels -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentinels(valkey_home: Path) -> Generator[ValkeySentinels]:
    sentinels = ValkeySentinels(valkey_home / "sentinels")
    try:
        sentinels.start()
        yield sentinels
    finally:
        sentinels.stop()


async def test_a_planned_failover_of_sentinels_is_followed_at_once(sentinels: ValkeySentinels) -> None:
    """By calls and by wake-ups, though the old primary still answers: what it acknowledges is lost."""
    old, new = sentinels.primary, sentinels.replica
    receiver, recorder = RedisBackend(sentinels.url, prefix="planned"), WakeRecorder()
    async with linked(sentinels.url, "planned") as link:
        try:
            await receiver.open()
            await receiver.subscribe(recorder)
            await link.run(COUNT, [1])
            await asyncio.to_thread(wait_until, lambda: sentinels.listeners(sentinels.sentinels[0]) == 2)
            await asyncio.to_thread(sentinels.switch)
            with within(3):
                while new.call("GET", "{planned}:mark") == b"1":
                    await until_answered(lambda: link.run(COUNT, [1]))
                await recorder.wait_until(lambda: any(wake.everything for wake in recorder.wakes))
            assert new.call("PUBSUB", "NUMSUB", "{planned}:wake") == [b"{planned}:wake", 1]
            assert old.call("ROLE")[0] == b"master"
        finally:
            await receiver.close()
    old.call("REPLICAOF", "127.0.0.1", new.port)
    await asyncio.to_thread(wait_until, lambda: old.call("ROLE")[3] == b"connected")


async def test_another_sentinel_is_listened_to_when_one_goes(sentinels: ValkeySentinels) -> None:
    """Until the link is closed."""
    first, second, _ = sentinels.sentinels
    async with linked(sentinels.url, "planned") as link:
        await asyncio.to_thread(wait_until, lambda: sentinels.listeners(first) == 1)
        first.kill()
        try:
            await asyncio.to_thread(wait_until, lambda: sentinels.listeners(second) == 1)
            assert link.reconnected == 0
        finally:
            first.start()
    await asyncio.to_thread(wait_until, lambda: not any(map(sentinels.listeners, sentinels.sentinels)))
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_another_event_loop_listens_anew(sentinels: ValkeySentinels) -> None:
    backend = RedisBackend(sentinels.url, prefix="loops")

    async def use() -> None:
        backend.abandon()
        await backend.open()
        await asyncio.to_thread(wait_until, lambda: sentinels.listeners(sentinels.sentinels[0]) == 1)

    for _ in range(2):
        asyncio.run(use())
    backend.abandon()
    wait_until(lambda: not any(map(sentinels.listeners, sentinels.sentinels)))


async def test_a_sentinel_that_hangs_is_passed_over(sentinels: ValkeySentinels) -> None:
    first = sentinels.sentinels[0]
    first.freeze()
    try:
        with within(5):
            async with linked(sentinels.url, "hangs") as link:
                assert await link.run(COUNT, [1]) == 1
    finally:
        first.thaw()


async def test_a_sentinel_may_ask_for_a_password_of_its_own(sentinels: ValkeySentinels) -> None:
    sentinel = sentinels.sentinels[0]
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/work"
    sentinel.call("ACL", "SETUSER", "default", "resetpass", ">secret")
    try:
        with pytest.raises(AccessDenied, match="asks for a password"):
            async with linked(url):
                pass
        with pytest.raises(AccessDenied, match="refuses the user or the password"):
            async with linked(f"{url}?sentinel_password=wrong"):
                pass
        async with linked(f"{url}?sentinel_password=secret", "locked") as link:
            assert await link.run(COUNT, [1]) == 1
    finally:
        with sentinel.client() as client:
            client.call("AUTH", "secret")
            client.call("ACL", "SETUSER", "default", "nopass")


async def test_sentinels_name_the_primary(sentinels: ValkeySentinels) -> None:
    """After a failover, too. A server that they name is asked whether it is one. A call that the old primary
    did not answer is not sent to the new one."""
    replica = await RedisConnector(parse_address(sentinels.replica.url), "ns", timeout=3).connect()
    with pytest.raises(StoreUnavailable, match="is a replica, though a Sentinel names it"):
        await check_primary(replica, Endpoint("here", 1))
    await replica.close()
    async with linked(sentinels.url) as link:
        assert await link.run(COUNT, [1]) == 1
        assert await link.command(b"WAIT", 1, 5000) == 1
        sentinels.primary.freeze()
        call = asyncio.create_task(link.run(COUNT, [1]))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(sentinels.fail_over)
        with pytest.raises(StoreUnavailable, match="may or may not have happened"):
            await call
        assert await until_answered(lambda: link.run(COUNT, [1])) == 2


async def test_a_service_that_no_sentinel_knows_is_named(sentinels: ValkeySentinels) -> None:
    with within(4), pytest.raises(StoreUnavailable, match="found no primary of the service 'other'"):
        async with linked(sentinels.url.replace("/work", "/other")):
            pass


# -- replicas --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replicated(valkey_home: Path) -> Generator[tuple[ValkeyServer, ValkeyServer]]:
    """A primary and its replica."""
    first, second = free_ports(2)
    primary = ValkeyServer(valkey_home / "valkey-p", first, {"repl-diskless-sync-delay": "0"})
    replica = ValkeyServer(valkey_home / "valkey-r", second, {"replicaof": f"127.0.0.1 {first}"})
    try:
        primary.start()
        replica.start()
        wait_until(lambda: replica.call("ROLE")[3] == b"connected")
        yield primary, replica
    finally:
        replica.remove()
        primary.remove()


async def test_a_sentinel_that_is_behind_is_not_followed(
    replicated: tuple[ValkeyServer, ValkeyServer],
) -> None:
    """It names a former primary, which is a replica: the connections stay where they are."""
    primary, replica = replicated
    named, asked_again = primary.port, asyncio.Semaphore(0)
    watchers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def sentinel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while command := await reader.read(1000):
                if b"SUBSCRIBE" in command:
                    writer.write(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n")
                elif b"SENTINEL" in command:
                    writer.write(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(named)), named))
                    if named == replica.port:
                        asked_again.release()
                else:
                    writer.write(b"+PONG\r\n")
                if b"+promoted-slave" in command:
                    watchers.put_nowait(writer)
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(sentinel, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with linked(f"redis+sentinel://127.0.0.1:{port}/work", "behind") as link:
            async with asyncio.timeout(30):
                watcher = await watchers.get()
                named = replica.port
                watcher.write(b"*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$8\r\nwork a b\r\n")
                for count in range(1, 6):
                    await asked_again.acquire()
                    assert await link.run(COUNT, [1]) == count
            assert link.reconnected == 0


async def test_writes_wait_for_replicas(replicated: tuple[ValkeyServer, ValkeyServer]) -> None:
    primary, replica = replicated
    async with linked(f"{primary.url}?replicas=1") as link:
        assert await asyncio.gather(*(link.run(COUNT, [1]) for _ in range(5))) == [1, 2, 3, 4, 5]
        assert replica.call("GET", "{ns}:mark") == b"5"


async def test_an_answer_about_the_write_of_another_waits_for_replicas(
    replicated: tuple[ValkeyServer, ValkeyServer],
) -> None:
    """An item that another connection has stored exists already, but may not be at the replica yet."""
    primary, replica = replicated
    url = f"{primary.url}?replicas=1"
    async with linked(url, "other") as first, linked(url, "other") as second:
        assert await first.run(ONCE) == 1
        assert await second.run(ONCE) == 0
        await first.command(b"DEL", first.key("mark"))
        replica.freeze()
        try:
            for link in (first, second):
                with pytest.raises(StoreUnavailable, match="0 of 1 replicas have acknowledged"):
                    await link.run(ONCE)
        finally:
            replica.thaw()
        assert await second.run(ONCE) == 0


async def test_a_primary_that_becomes_a_replica_is_unavailable(
    replicated: tuple[ValkeyServer, ValkeyServer],
) -> None:
    """A call that waits for the replicas just then may have happened."""
    primary, replica = replicated
    async with linked(f"{primary.url}?replicas=2") as link:
        call = asyncio.ensure_future(link.run(COUNT, [1]))
        await asyncio.sleep(0.1)
        primary.call("REPLICAOF", "127.0.0.1", replica.port)
        try:
            with pytest.raises(StoreUnavailable):
                await call
            with pytest.raises(StoreUnavailable, match="READONLY"):
                await link.run(COUNT, [1])
        finally:
            primary.call("REPLICAOF", "NO", "ONE")
    wait_until(lambda: replica.call("ROLE")[3] == b"connected")


async def test_a_write_that_no_replica_has_is_no_success(
    replicated: tuple[ValkeyServer, ValkeyServer],
) -> None:
    """It may be lost."""
    primary, replica = replicated
    async with linked(f"{primary.url}?replicas=1", "alone") as link:
        replica.kill()
        with within(3), pytest.raises(StoreUnavailable, match="0 of 1 replicas have acknowledged"):
            await link.run(COUNT, [1])
        assert await link.command(b"GET", link.key("mark")) == b"1"
