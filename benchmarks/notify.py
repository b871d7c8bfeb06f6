"""How soon an idle worker in another process starts an item of PostgreSQL, by what carries the wake-ups:
LISTEN/NOTIFY, Redis, NATS, in turn."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import percentile
from benchmarks.processes import ready_worker, stamp
from benchmarks.stores import Stores
from treadle import Client

ROUNDS = 10


async def notify(stores: Stores, times: int) -> dict[str, dict[str, float]]:
    """Milliseconds from enqueue in one process to the start in another. With polls alone it would be half of
    poll_interval=1 on average."""
    with _carriers() as carriers:
        taken: dict[str, list[float]] = {name: [] for name in carriers}
        async with stores.fresh("postgres") as url, AsyncExitStack() as stack:
            clients: dict[str, Client] = {}
            for n, (name, carrier) in enumerate(carriers.items()):
                prefix = f"carrier{n}"
                client = Client(url, work=[stamp], notify=carrier, prefix=prefix)
                clients[name] = await stack.enter_async_context(client)
                worker = await ready_worker(url, "" if carrier is True else str(carrier), prefix)
                stack.push_async_callback(worker.communicate, b"\n")
            for _ in range(ROUNDS):
                for name, client in clients.items():
                    taken[name] += await _measured(client, max(1, times // ROUNDS))
    return {
        name: {"p50": percentile(each, 0.5), "p99": percentile(each, 0.99)} for name, each in taken.items()
    }


async def _measured(client: Client, times: int) -> list[float]:
    taken: list[float] = []
    for _ in range(times):
        before = time.time()
        taken.append((await client.enqueue(stamp(0.0)).result(30) - before) * 1000)
        await asyncio.sleep(0.01)
    return taken


@contextmanager
def _carriers() -> Generator[Mapping[str, bool | str]]:
    from tests.support.nats import NatsServer
    from tests.support.valkey import ValkeyServer, free_ports

    with tempfile.TemporaryDirectory(prefix="treadle-bench-notify-") as directory:
        valkey = ValkeyServer(Path(directory) / "valkey", free_ports(1)[0], {"appendonly": "no"})
        nats = NatsServer(Path(directory) / "nats")
        try:
            valkey.start()
            nats.start()
            yield {"LISTEN/NOTIFY": True, "Redis": valkey.url, "NATS": nats.url}
        finally:
            valkey.remove()
            nats.remove()
