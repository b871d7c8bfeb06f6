"""BullMQ on Valkey, by Node: jobs, workers and the process that submits are its own.

Tuned: 100 jobs at once in a process, no-ops removed when they are done.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from benchmarks.peers import node
from benchmarks.peers.node import NodeClient
from benchmarks.peers.shared import batches

TUNED = "concurrency 100, addBulk by 1,000, no-ops removed when done"
VERSION = "6"
PACE = 6_000


def client() -> AbstractAsyncContextManager[NodeClient]:
    return node.client("bullmq")


async def one(client: NodeClient, _: int) -> None:
    await client.request("one")


async def many(client: NodeClient, numbers: range) -> None:
    for batch in batches(numbers, 1000):
        await client.request("many", len(batch))


async def awaited(client: NodeClient, n: int) -> None:
    assert await client.request("awaited", n) == n * (n + 1) // 2


async def fan_in(client: NodeClient, n: int) -> None:
    assert await client.request("fan_in", n) == n * (n + 1) // 2


def commands(processes: int) -> list[list[str]]:
    return [node.command("bullmq", "worker")] * processes
