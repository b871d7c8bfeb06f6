"""Worker processes of a peer. `python -m benchmarks.peers.workers PEER` runs one."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psutil

PATIENCE = 0.3
"""Seconds for a worker to end after SIGTERM. It has nothing left to do then."""


@asynccontextmanager
async def workers(peer: Any, processes: int) -> AsyncGenerator[None]:
    """This many worker processes with all their children, until the end of the block."""
    started = [
        psutil.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PEERS_WORKER": str(number), "PEERS_PROCESSES": str(processes)},
        )
        for number, command in enumerate(commands(peer, processes), 1)
    ]
    try:
        yield
    finally:
        await asyncio.to_thread(_end, started)


def _end(parents: list[psutil.Popen]) -> None:
    family: list[Any] = [*parents, *(each for parent in parents for each in _children(parent))]
    for parent in parents:
        parent.terminate()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    for each in alive:
        each.kill()
    psutil.wait_procs(alive, timeout=PATIENCE)


def _children(parent: psutil.Popen) -> list[psutil.Process]:
    try:
        return parent.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def commands(peer: Any, processes: int) -> list[list[str]]:
    if hasattr(peer, "commands"):
        found: list[list[str]] = peer.commands(processes)
        return found
    return [[sys.executable, "-m", __name__, peer.__name__.rpartition(".")[2]]] * processes


def load(peer: str) -> Any:
    return importlib.import_module(f"benchmarks.peers.{peer}")


def run(peer: Any, call: Coroutine[Any, Any, None]) -> None:
    """Run on the event loop that the peer's own program uses."""
    if getattr(peer, "UVLOOP", False):
        import uvloop

        uvloop.run(call)
    else:
        asyncio.run(call)


def main() -> None:
    peer = load(sys.argv[1])
    if inspect.iscoroutinefunction(peer.worker):
        run(peer, peer.worker())
    else:
        peer.worker()


if __name__ == "__main__":
    main()
