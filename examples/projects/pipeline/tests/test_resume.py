"""kill -9 in the middle, and the same command again."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from treadle import Client

from pipeline import steps
from pipeline.logs import merge, summarize
from pipeline.results import read_all
from pipeline.sample import write_sample

PROJECT = Path(__file__).parents[1]
FILES = 8


@contextmanager
def running(logs: Path, out: Path) -> Generator[subprocess.Popen[str]]:
    """The command, in a process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", str(logs), "--out", str(out)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def saved(out: Path) -> int:
    try:
        return len(read_all(out))
    except sqlite3.OperationalError:  # the directory is not there yet
        return 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe stands in for a slow file")
def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    write_sample(logs, files=FILES, lines=10)
    slow = logs / "slow.log"
    os.mkfifo(slow)  # who reads it waits for what the test never writes
    with running(logs, out) as process, slow.open("w"):  # opens when the handler has begun to read
        deadline = time.monotonic() + 30
        while saved(out) < FILES:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "report.json").exists()

    slow.unlink()
    slow.write_text('10.0.0.1 - - [17/Nov/2026:05:00:00 +0000] "GET / HTTP/1.1" 200 5\n')
    with running(logs, out) as process:
        printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert printed.startswith("an earlier run goes on\n81 requests")
    assert merge(read_all(out)) == merge([summarize(file) for file in logs.iterdir()])

    client = Client(f"sqlite:///{out / 'work.db'}")
    with closing(client.sync):
        items = client.sync.list(type=steps.measure.name).items
    attempts = sorted(item.attempt for item in items)
    assert attempts == [1] * FILES + [2]  # only what was running ran again
