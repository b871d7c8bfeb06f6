"""The log of an outage: PostgreSQL is stopped for a while below busy workers, and their lines are counted.

python -m tests.chaos.outage --seconds 30 --processes 4
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos import outage_app
from tests.support import postgres
from tests.support.run import Run
from treadle import Client

PROJECT = Path(__file__).parents[2]
LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+ +\[(\d+)\] ")
PATIENCE = 60.0


class OutageLog:
    """What the processes of one supervisor wrote while the store was away, and just after."""

    def __init__(self, text: str, seconds: float) -> None:
        self.text = text
        self.seconds = seconds
        """For how long lines were collected."""
        self.by_process = Counter(found[1] for line in text.splitlines() if (found := LINE.match(line)))
        self.others = [line for line in text.splitlines() if line and not LINE.match(line)]
        """Lines that are no records: of tracebacks, and of programs that write past the log."""

    def most_per_minute(self) -> float:
        """The lines of the process that wrote most, per minute, and per process if it was shorter."""
        return max(self.by_process.values(), default=0) / max(1.0, self.seconds / 60)


async def outage(home: Path, *, seconds: float, processes: int) -> OutageLog:
    """Stop the server of `home` for this number of seconds."""
    url = postgres.start(home, forgetful=False)
    workers = Workers(url, home / "worker.log", processes)
    try:
        await _submit(url, processes)
        before = len(workers.log())
        began = time.monotonic()
        await asyncio.to_thread(postgres.halt, home)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(postgres.resume, home)
        async with asyncio.timeout(PATIENCE):
            while workers.log()[before:].count("is available again") <= processes:  # noqa: ASYNC110  other processes
                await asyncio.sleep(0.1)
        await asyncio.sleep(2)  # lost leases are collected for a second
        return OutageLog(workers.log()[before:], time.monotonic() - began)
    finally:
        workers.kill()


class Workers:
    """A supervisor with its processes."""

    def __init__(self, url: str, log: Path, processes: int) -> None:
        self._log = log
        options = ("tests.chaos.outage_app:app", "--processes", str(processes))
        with log.open("wb") as errors:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "treadle", "worker", *options],
                cwd=PROJECT,
                env={**os.environ, "OUTAGE_URL": url},
                stderr=errors,
                start_new_session=True,
            )

    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        os.killpg(self._supervisor.pid, signal.SIGKILL)
        self._supervisor.wait()


def own_home(directory: Path) -> Path:
    """A directory for a server that is stopped, within that of a run."""
    home = Path(tempfile.mkdtemp(prefix="own-", dir=directory))
    home.chmod(0o755)
    return home


async def _submit(url: str, processes: int) -> None:
    """Let every process run items."""
    async with Client(url, work=[outage_app.tick, outage_app.steady]) as client:
        await client.enqueue_many([outage_app.steady() for _ in range(10 * processes)])
        await client.enqueue_many([outage_app.tick() for _ in range(20_000)])
        async with asyncio.timeout(PATIENCE):
            while await _busy(client) < processes:  # noqa: ASYNC110  other processes
                await asyncio.sleep(0.1)
        await client.enqueue(outage_app.tick(), priority=1).result(timeout=PATIENCE)


async def _busy(client: Client) -> int:
    return len([worker for worker in await client.backend.workers() if worker.running])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=4)
    given = parser.parse_args()
    run = Run.begin()
    try:
        home = own_home(run.directory)
        log = asyncio.run(outage(home, seconds=given.seconds, processes=given.processes))
    finally:
        run.end()
    print(log.text)  # noqa: T201
    lines = ", ".join(f"{pid}: {count}" for pid, count in sorted(log.by_process.items()))
    print(f"lines by process in {log.seconds:.0f} s: {lines}; others: {len(log.others)}")  # noqa: T201
    sys.exit(log.most_per_minute() > 5 or bool(log.others))


if __name__ == "__main__":
    main()
