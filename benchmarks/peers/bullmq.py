"""BullMQ on Valkey, by Node: jobs, workers and the process that submits are its own.

Tuned: 100 jobs at once in a process, no-ops removed when they are done. Each request of this process costs a
line to and from Node, which is little beside the requests.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.peers.shared import URL, batches

TUNED = "concurrency 100, addBulk by 1,000, no-ops removed when done"
VERSION = "6"
PACE = 6_000
MODULES = Path(sys.prefix) / "bullmq" / "node_modules"
PROGRAM = str(Path(__file__).with_suffix(".cjs"))


def is_installed() -> bool:
    return shutil.which("node") is not None and MODULES.is_dir()


class BullClient:
    """A Node process that submits and awaits jobs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def request(self, what: str, n: int = 1) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {n}\n".encode())
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the Node process has ended")
        return int(line)


os.environ["NODE_PATH"] = str(MODULES)


@asynccontextmanager
async def client() -> AsyncGenerator[BullClient]:
    process = await asyncio.create_subprocess_exec(
        "node",
        PROGRAM,
        "client",
        env={**os.environ, "PEERS_URL": URL},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield BullClient(process)
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


async def one(client: BullClient, _: int) -> None:
    await client.request("one")


async def many(client: BullClient, numbers: range) -> None:
    for batch in batches(numbers, 1000):
        await client.request("many", len(batch))


async def awaited(client: BullClient, n: int) -> None:
    assert await client.request("awaited", n) == n * (n + 1) // 2


async def fan_in(client: BullClient, n: int) -> None:
    assert await client.request("fan_in", n) == n * (n + 1) // 2


def commands(processes: int) -> list[list[str]]:
    return [["node", PROGRAM, "worker"]] * processes
