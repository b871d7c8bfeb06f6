"""Several Valkey servers that belong together: a cluster, and a primary with a replica and Sentinels."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hiredis

from tests.support.valkey import ValkeyServer, free_ports

SLOTS = 16384
NODE_TIMEOUT_MS = 1000
PATIENT_MS = 600_000


class ValkeyCluster:
    """Three primaries, each with a replica. The last three servers are the replicas of the first three."""

    def __init__(self, home: Path) -> None:
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            "cluster-replica-validity-factor": "0",
            "databases": "1",
            "repl-diskless-sync-delay": "0",
        }
        self.servers = [
            ValkeyServer(home / f"valkey-{number}", port, settings)
            for number, port in enumerate(free_ports(6))
        ]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])
        return f"redis+cluster://{hosts}"

    def start(self) -> None:
        """Start it, and wait until every node knows the others and each replica its primary."""
        _start(self.servers)
        for number, server in enumerate(self.servers):
            server.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        primaries, replicas = self.servers[:3], self.servers[3:]
        for number, server in enumerate(primaries):
            server.call("CLUSTER", "ADDSLOTSRANGE", number * SLOTS // 3, (number + 1) * SLOTS // 3 - 1)
        for server in self.servers[1:]:
            server.call("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        wait_until(lambda: all(_info(server)["cluster_known_nodes"] == "6" for server in self.servers))
        for primary, replica in zip(primaries, replicas, strict=True):
            replica.call("CLUSTER", "REPLICATE", primary.call("CLUSTER", "MYID"))
        wait_until(self.is_whole)

    def keep_primaries(self, keep: bool = True) -> None:
        """From now on replace no primary that is slow: the machine may be busy. Or do so again."""
        for server in self.servers:
            server.call("CONFIG", "SET", "cluster-node-timeout", PATIENT_MS if keep else NODE_TIMEOUT_MS)

    def is_whole(self) -> bool:
        """Whether every node would answer, and name three primaries with a replica each that follows."""
        rows = [server.call("CLUSTER", "SLOTS") for server in self.servers]
        roles = [server.call("ROLE") for server in self.servers]
        follow = [role[2] for role in roles if role[0] == b"master"]
        return (
            len(follow) == 3
            and all(follow)
            and self.is_up()
            and all(len(found) == 3 and all(len(row) == 4 for row in found) for found in rows)
        )

    def is_up(self) -> bool:
        """Whether every node knows a node for every slot."""
        return all(_info(server)["cluster_state"] == "ok" for server in self.servers)

    def owner_of(self, slot: int) -> ValkeyServer:
        """The primary that has a slot, as the first running node sees it."""
        for server in self.servers:
            try:
                rows = server.call("CLUSTER", "SLOTS")
            except OSError:
                continue
            port = next(row[2][1] for row in rows if row[0] <= slot <= row[1])
            return next(each for each in self.servers if each.port == port)
        raise RuntimeError("no node of the cluster runs")

    def replica_of(self, primary: ValkeyServer) -> ValkeyServer:
        """The replica that follows a primary."""
        _, port, _ = primary.call("ROLE")[2][0]
        return next(each for each in self.servers if each.port == int(port))

    def fail_over(self, replica: ValkeyServer) -> None:
        """Let a replica take the place of its primary, which agrees, and wait until it has."""
        replica.call("CLUSTER", "FAILOVER")
        wait_until(lambda: replica.call("ROLE")[0] == b"master")

    def stop(self) -> None:
        for server in self.servers:
            server.remove()


class ValkeySentinels:
    """A primary, a replica, and three Sentinels that watch them under the name `work`."""

    def __init__(self, home: Path) -> None:
        ports = free_ports(5)
        settings = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
        self.primary = ValkeyServer(home / "valkey-0", ports[0], settings)
        self.replica = ValkeyServer(
            home / "valkey-1", ports[1], {**settings, "replicaof": f"127.0.0.1 {ports[0]}"}
        )
        watched = {
            "sentinel monitor work": f"127.0.0.1 {ports[0]} 2",
            "sentinel down-after-milliseconds work": "500",
            "sentinel failover-timeout work": "2000",
        }
        self.sentinels = [
            ValkeyServer(home / f"valkey-{number}", port, watched, sentinel=True)
            for number, port in enumerate(ports[2:], 2)
        ]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.sentinels)
        return f"redis+sentinel://{hosts}/work"

    def start(self) -> None:
        """Start it, and wait until the Sentinels know each other and the replica."""
        _start([self.primary, self.replica])
        wait_until(lambda: self.replica.call("ROLE")[3] == b"connected")
        _start(self.sentinels)
        wait_until(lambda: all(self._is_ready(sentinel) for sentinel in self.sentinels))

    def _is_ready(self, sentinel: ValkeyServer) -> bool:
        found = sentinel.call("SENTINEL", "MASTER", "work")
        fields = dict(zip(found[::2], found[1::2], strict=True))
        return fields[b"num-slaves"] == b"1" and fields[b"num-other-sentinels"] == b"2"

    def fail_over(self) -> None:
        """Kill the primary, and wait until the Sentinels have made the replica the primary."""
        self.primary.kill()
        wait_until(lambda: self.replica.call("ROLE")[0] == b"master")

    def switch(self) -> None:
        """Let the Sentinels make the replica the primary. The old one takes writes for ten seconds more."""
        self.sentinels[0].call("SENTINEL", "FAILOVER", "work")
        wait_until(lambda: self.replica.call("ROLE")[0] == b"master")
        self.primary, self.replica = self.replica, self.primary

    def listeners(self, sentinel: ValkeyServer) -> int:
        """How many clients are subscribed at this Sentinel to what becomes of a primary."""
        clients: str = sentinel.call("CLIENT", "LIST").decode()
        return sum(" sub=0 " not in client and "cmd=subscribe" in client for client in clients.splitlines())

    def stop(self) -> None:
        for server in (*self.sentinels, self.replica, self.primary):
            server.remove()


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (OSError, hiredis.ReplyError):
            pass  # it is not there yet
        if time.monotonic() > deadline:
            raise TimeoutError("the servers did not find each other")
        time.sleep(0.02)


def _start(servers: list[ValkeyServer]) -> None:
    with ThreadPoolExecutor(len(servers)) as threads:
        list(threads.map(ValkeyServer.start, servers))


def _info(server: ValkeyServer) -> dict[str, str]:
    text: str = server.call("CLUSTER", "INFO").decode()
    return {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}
