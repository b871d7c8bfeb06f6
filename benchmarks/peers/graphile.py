"""Graphile Worker on PostgreSQL, by Node: jobs, workers and the process that submits are its own. It keeps no
results, deletes a job that has ended, and cannot be awaited.

Tuned as its own benchmark (https://worker.graphile.org/docs/performance): 24 jobs at once in a process, a
pool of 25, a local queue of 500, and ends of jobs written in batches.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from benchmarks.peers import node
from benchmarks.peers.node import NodeClient
from benchmarks.peers.shared import batches

TUNED = "24 at once, local queue of 500, ends in batches, addJobs by 1,000; no results"
PACKAGE = "graphile-worker"
VERSION = "0.17"
PACE = 10_000
LEFT = "select count(*) from graphile_worker._private_jobs"


def client() -> AbstractAsyncContextManager[NodeClient]:
    """It makes the tables, too."""
    return node.client("graphile")


async def one(client: NodeClient, _: int) -> None:
    await client.request("one")


async def many(client: NodeClient, numbers: range) -> None:
    for batch in batches(numbers, 1000):
        await client.request("many", len(batch))


def commands(processes: int) -> list[list[str]]:
    return [node.command("graphile", "worker")] * processes
