"""Stores that stay: a million ended items and 200,000 open ones on SQLite, PostgreSQL and Valkey. Each takes
minutes to fill.

`python -m benchmarks.kept start DIRECTORY` starts the servers on what is in the directory, fills what is
empty, and prints the addresses. `measure` also measures all pages of the dashboard on each store. `stop`
stops the servers. What they keep stays.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.dashboard import MOST_CALLS, fill, measure
from benchmarks.operate import ENDED, OPEN
from tests.support import postgres, valkey

KINDS = ("sqlite", "postgres", "redis")
REDIS_ENDED = 100_000
"""There they are ended by verbs, and kept in memory."""
PORT = 7399
SECONDS = 80.0
"""For each store."""


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory / 'kept.db'}"


def postgres_url(directory: Path) -> str:
    os.environ.setdefault("TREADLE_TEST_PG_FSYNC", "1")
    return postgres.keep(directory)


def redis_url(directory: Path) -> str:
    server = _valkey(directory)
    try:
        server.call("PING")
    except OSError:
        server.start()
    return server.url


def _valkey(directory: Path) -> valkey.ValkeyServer:
    return valkey.ValkeyServer(directory / "valkey", PORT)


URLS: dict[str, Callable[[Path], str]] = {
    "sqlite": sqlite_url,
    "postgres": postgres_url,
    "redis": redis_url,
}
"""Each starts the server if it does not run, and returns its address."""


async def start(directory: Path, kinds: tuple[str, ...], ended: int, open: int) -> None:
    """Start the servers, and fill the stores that are empty."""
    for kind in kinds:
        url, filled = URLS[kind](directory), directory / f"{kind}.filled"
        if not filled.exists():
            await fill(url, min(ended, REDIS_ENDED) if kind == "redis" else ended, open)
            filled.touch()
        print(url, flush=True)


def stop(directory: Path) -> None:
    postgres.halt(directory)
    _valkey(directory).stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.kept", description=__doc__)
    parser.add_argument("what", choices=("start", "measure", "stop"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--on", choices=KINDS, action="append", help="only this store")
    parser.add_argument("--ended", type=int, default=ENDED)
    parser.add_argument("--open", type=int, default=OPEN)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each store")
    parser.add_argument("--only", default="", help="pages whose name contains this")
    given = parser.parse_args()
    given.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory, kinds = given.directory.resolve(), tuple(given.on or KINDS)
    if given.what == "stop":
        stop(directory)
        return
    asyncio.run(start(directory, kinds, given.ended, given.open))
    if given.what == "measure":
        for kind in kinds:
            asyncio.run(measure(URLS[kind](directory), MOST_CALLS, given.only, given.seconds))


if __name__ == "__main__":
    main()
