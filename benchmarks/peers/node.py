"""Peers that run in Node: where their packages are, and a process that submits for them.

Each request of this process costs a line to and from Node, which is little beside the requests.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.peers.shared import URL

PEERS = ("bullmq", "graphile")


def is_installed(peer: str) -> bool:
    return shutil.which("node") is not None and _modules(peer).is_dir()


def _modules(peer: str) -> Path:
    """See the Makefile."""
    return Path(sys.prefix) / peer / "node_modules"


def command(peer: str, role: str) -> list[str]:
    """The command line of a peer's program. NODE_PATH, where it finds its packages, is set for all
    processes that are started from here."""
    os.environ["NODE_PATH"] = str(_modules(peer))
    return ["node", str(Path(__file__).with_name(f"{peer}.cjs")), role]


class NodeClient:
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


@asynccontextmanager
async def client(peer: str) -> AsyncGenerator[NodeClient]:
    process = await asyncio.create_subprocess_exec(
        *command(peer, "client"),
        env={**os.environ, "PEERS_URL": URL},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield NodeClient(process)
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()
