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
from treadle import Abort, Context, Defer, Result, Retry, RetryAfter, work


@work(name="lock", run_in="process")
def lock_in_process() -> Any:
    return threading.Lock()


@work(name="add", run_in="process")
def add_in_process(n: int) -> int:
    return n + 1


class UnreadableError(Exception):
    """It can be pickled, and not read: its constructor takes other arguments than it stores."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")


class Unreadable:
    """As `UnreadableError`, for a value."""

    def __reduce__(self) -> tuple[Any, ...]:
        return UnreadableError, (1,)


@work.batch(name="outputs", size=8, max_wait=0.05, run_in="process", retry=Retry(attempts=2, base=0))
def outputs_in_process(kinds: list[str]) -> list[Any]:
    outputs: dict[str, Any] = {
        "error": UnreadableError(429, "slow down"),
        "lock": threading.Lock(),
        "unreadable": Unreadable(),
        "abort": Abort(UnreadableError(404, "not there")),
    }
    return [outputs.get(kind, kind) for kind in kinds]


@work.batch(name="results", size=8, max_wait=0.05, run_in="process", retry=Retry(attempts=1))
def results_in_process(contexts: list[Context], kinds: list[str]) -> list[Result[None, Any]]:
    return [
        ctx.result(None, append=lambda _: "local") if kind == "local" else ctx.queue(add_in_process(1))
        for ctx, kind in zip(contexts, kinds, strict=True)
    ]


@work(name="raises", run_in="process", retry=Retry(attempts=2, base=60))
def raises_in_process(ctx: Context, kind: str) -> str:
    cause = UnreadableError(404, "not there")
    match kind:
        case "abort":
            raise Abort(cause)
        case "retry":
            raise RetryAfter(0, cause)
        case "subclass":
            raise UnreadableAbort(1, "gone")
        case _:
            later = Defer(delay=0)
            later.add_note("a note")
            vars(later)["lock"] = threading.Lock()
            if not ctx.deferrals:
                raise later
    return "done"


class UnreadableAbort(Abort):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.lock = threading.Lock()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_output_of_a_batch_that_cannot_be_sent_fails_its_item_alone(
    make_app: MakeApp, sound: None
) -> None:
    """All items of the batch were dead at once, also those with plain outputs."""
    kinds = ["plain", "error", "lock", "unreadable", "abort"]
    async with make_app(outputs_in_process, processes=1) as app:
        handles = await app.enqueue_many([outputs_in_process(kind) for kind in kinds])
        assert await handles[0].result(PATIENCE) == "plain"
        failures = [await failure(handle.result(PATIENCE)) for handle in handles[1:]]
    assert [(died.reason, died.attempts, died.error_type) for died in failures] == [
        ("exhausted", 2, "RemoteError"),
        ("bad_result", 1, "BadResultError"),
        ("bad_result", 1, "BadResultError"),
        ("aborted", 1, "RemoteError"),
    ]
    assert "UnreadableError: 429 slow down" in failures[0].error
    assert "a lock, which cannot be sent back from its process" in failures[1].error
    assert "a value that cannot be read from its process" in failures[2].error
    assert "UnreadableError: 404 not there" in failures[3].error


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_result_of_a_batch_that_cannot_be_sent_fails_its_item_alone(
    make_app: MakeApp, sound: None
) -> None:
    """The others are carried out: what they returned is what their contexts have made."""
    async with make_app(results_in_process, add_in_process, processes=1) as app:
        good, local = await app.enqueue_many([results_in_process("good"), results_in_process("local")])
        assert await good.group(PATIENCE) == 2
        died = await failure(local.result(PATIENCE))
    assert (died.reason, died.error_type) == ("bad_result", "BadResultError")
    assert "a Result, which cannot be sent back from its process" in died.error
    assert "define its `append=`" in died.error


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_what_a_handler_in_a_process_asks_for_is_done_whatever_its_cause(make_app: MakeApp) -> None:
    """The cause cannot be read in the worker's process. `Abort` was retried, and the delays of `RetryAfter`
    and `Defer` were those of the retry policy: a minute here."""
    async with make_app(raises_in_process, processes=1) as app:
        found: list[tuple[str | None, int, str]] = []
        for kind in ("abort", "retry", "subclass"):
            died = await failure(app.enqueue(raises_in_process(kind)).result(PATIENCE))
            found.append((died.reason, died.attempts, died.error.rpartition(".")[2]))
        assert found == [
            ("aborted", 1, "UnreadableError: 404 not there"),
            ("exhausted", 2, "UnreadableError: 404 not there"),
            ("aborted", 1, "UnreadableAbort: 1 gone"),
        ]
        assert await app.enqueue(raises_in_process("defer")).result(PATIENCE) == "done"


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
