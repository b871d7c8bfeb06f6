"""Handlers with `run_in="process"`: results that cannot be sent back, and programs without a main guard."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp, failure
from treadle import Retry, work


@work(name="lock", run_in="process")
def lock_in_process() -> Any:
    return threading.Lock()


@work(name="add", run_in="process")
def add_in_process(n: int) -> int:
    return n + 1


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved
async def test_a_result_that_cannot_be_pickled_is_dead_at_once(make_app: MakeApp, sound: None) -> None:
    """§17. It was retried, each time in vain."""
    async with make_app(lock_in_process, add_in_process, processes=1) as app:
        died = await failure(app.enqueue(lock_in_process()).result(PATIENCE))
        assert (died.reason, died.attempts, died.error_type) == ("bad_result", 1, "BadResultError")
        assert "a lock, which cannot be sent back from its process" in died.error
        assert "return plain data, or run it in a thread" in died.error
        assert await app.enqueue(add_in_process(1)).result(PATIENCE) == 2


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_attempt_whose_process_cannot_be_started_fails(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§17. It ran for ever, without a process and without its timeout."""

    def fail(self: BaseProcess) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(BaseProcess, "start", fail)
    async with make_app(add_in_process, processes=1, retry=Retry(attempts=2, base=0)) as app:
        died = await failure(app.enqueue(add_in_process(1)).result(PATIENCE))
    assert (died.reason, died.attempts, died.error_type) == ("exhausted", 2, "ProcessNotStarted")
    assert "the process for add could not be started" in died.error


PROGRAM = """
import asyncio
from treadle import Treadle, work

@work(run_in="process")
def double(n: int) -> int:
    return n * 2

app = Treadle(work=[double], processes=1)

async def main() -> None:
    async with app:
        print("result", await app.enqueue(double(2)).result(30), flush=True)

async def once() -> None:
    async with app:
        print("runs", flush=True)
    await main()

"""


def run_program(path: Path, last_line: str) -> subprocess.CompletedProcess[str]:
    path.write_text(PROGRAM + last_line)
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.usefixtures("processes")
def test_a_program_without_a_main_guard_gets_a_clear_error(tmp_path: Path) -> None:
    """It ran a second time inside the child process. Each attempt ran it again."""
    done = run_program(tmp_path / "unguarded.py", "asyncio.run(once())")
    assert (done.returncode, done.stdout) == (1, "runs\n")
    hint = 'under `if __name__ == "__main__":`'
    assert f"DefinitionError: put the code that starts this program {hint}" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "bad_result, attempt 1" in last
    assert hint in last


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("arguments", [("-",), ("-c", PROGRAM)])
def test_a_handler_in_no_file_is_refused_where_it_is_defined(arguments: tuple[str, ...]) -> None:
    """Its process could not import it. That was found at run time, and tried again."""
    done = subprocess.run(
        [sys.executable, *arguments], input=PROGRAM, capture_output=True, text=True, timeout=60, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "TypeError: '__main__.double' is defined in no file" in last
    assert "define it in a module" in last


@pytest.mark.usefixtures("processes")
def test_a_program_with_a_main_guard_runs_its_handlers(tmp_path: Path) -> None:
    done = run_program(tmp_path / "guarded.py", 'if __name__ == "__main__":\n    asyncio.run(once())')
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\nresult 4\n", "")


INTERRUPTED = """
import os, signal
if __name__ == "__mp_main__":
    os.kill(os.getpid(), signal.{name})
if __name__ == "__main__":
    asyncio.run(once())
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_a_process_that_is_starting_does_nothing(tmp_path: Path, name: str) -> None:
    """Ctrl-C reaches the whole group. The process died of it with a traceback, which cost an attempt."""
    done = run_program(tmp_path / "interrupted.py", INTERRUPTED.format(name=name))
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\nresult 4\n", "")
