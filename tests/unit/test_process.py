"""The process pool: results, kills, children that die, and no process left behind."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from tests.unit import process_handlers as handlers
from treadle.engine.run import process_pool
from treadle.engine.run.process_pool import ProcessNotStarted, ProcessPool
from treadle.errors import (
    Abort,
    BadResultError,
    HandlerError,
    InputError,
    ProcessDied,
    RemoteError,
    Stopped,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="this system has no signals that kill")


Children = Callable[[], list[BaseProcess]]


@pytest.fixture
def children() -> Children:
    """The children that this test has started. A test that failed before it may have left others."""
    before = active_children()
    return lambda: [child for child in active_children() if child not in before]


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(2)
    yield pool
    await pool.close()


class Started:
    """A named pipe. The handler writes its pid to it when it starts."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        # Not in a thread: one that waits for a writer that never comes would keep the loop from closing.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def pid(self) -> int:
        loop, written = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pipe, written.set)
        try:
            await asyncio.wait_for(written.wait(), 30)
            return int(os.read(self._pipe, 100))
        finally:
            loop.remove_reader(self._pipe)
            os.close(self._pipe)


def gone(pid: int, within: float = 5.0) -> bool:
    try:
        psutil.Process(pid).wait(within)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


# ------------------------------------------------------------------------------------------- calls, answers


@pytest.mark.usefixtures("processes")
async def test_a_call_runs_in_another_process(pool: ProcessPool) -> None:
    assert await pool.run(handlers.add, (1,), {"b": 2}, name="math.add") == 3
    assert await pool.run(handlers.pid) != os.getpid()


@pytest.mark.usefixtures("processes")
async def test_children_start_when_needed_and_are_kept(pool: ProcessPool, children: Children) -> None:
    assert children() == []
    first = await pool.run(handlers.pid)
    assert [await pool.run(handlers.pid) for _ in range(3)] == [first] * 3
    pids = await asyncio.gather(*(pool.run(handlers.pid) for _ in range(6)))
    assert len(set(pids)) <= 2


@pytest.mark.usefixtures("processes")
async def test_large_values_can_be_sent(pool: ProcessPool) -> None:
    assert len(await pool.run(handlers.length, (b"x" * 3_000_000,))) == 6_000_000


@pytest.mark.usefixtures("processes")
async def test_a_decorated_function_can_be_called(pool: ProcessPool) -> None:
    assert await pool.run(handlers.original, (4,)) == 40


@pytest.mark.usefixtures("processes")
async def test_an_exception_comes_back_with_its_traceback(pool: ProcessPool) -> None:
    with pytest.raises(ValueError, match=r"^boom$") as caught:
        await pool.run(handlers.fail, ("boom",))
    assert "in fail" in "".join(traceback.format_exception(caught.value))


@pytest.mark.usefixtures("processes")
async def test_directives_come_back_as_they_are(pool: ProcessPool) -> None:
    with pytest.raises(Abort) as caught:
        await pool.run(handlers.abort)
    assert isinstance(caught.value.cause, KeyError)


@pytest.mark.usefixtures("processes")
async def test_an_exception_that_cannot_be_pickled_comes_back_as_remote_error(pool: ProcessPool) -> None:
    with pytest.raises(RemoteError) as caught:
        await pool.run(handlers.fail_unpicklably)
    assert (caught.value.error_type, caught.value.error) == ("tests.unit.process_handlers.Picky", "code 7")
    assert "in fail_unpicklably" in "".join(traceback.format_exception(caught.value))


@pytest.mark.usefixtures("processes")
async def test_sys_exit_fails_the_call_and_keeps_the_child(pool: ProcessPool) -> None:
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        await pool.run(handlers.leave)
    assert await pool.run(handlers.add, (1, 1)) == 2


@pytest.mark.usefixtures("processes")
async def test_a_result_that_cannot_be_pickled_is_refused(pool: ProcessPool) -> None:
    with pytest.raises(
        BadResultError, match=r"a lock, which cannot be sent back from its process .*return plain"
    ):
        await pool.run(handlers.give_unpicklable)
    assert await pool.run(handlers.add, (1, 1)) == 2


@pytest.mark.usefixtures("processes")
async def test_a_result_that_cannot_be_unpickled_is_refused(pool: ProcessPool) -> None:
    for give in (handlers.give_unreadable, handlers.give_deadly):
        with pytest.raises(BadResultError, match="cannot be read from its process"):
            await pool.run(give)
    assert await pool.run(handlers.add, (1, 1)) == 2


@pytest.mark.usefixtures("processes")
async def test_an_exception_whose_text_ends_the_process_comes_back(pool: ProcessPool) -> None:
    with pytest.raises(handlers.Silent):
        await pool.run(handlers.fail_silently)
    assert await pool.run(handlers.add, (1, 1)) == 2


async def test_an_argument_that_cannot_be_pickled_is_refused(pool: ProcessPool) -> None:
    with pytest.raises(HandlerError, match=r"an argument of math\.add cannot be sent"):
        await pool.run(handlers.add, (lambda: 1,), name="math.add")


async def test_only_functions_of_a_module_can_be_called(pool: ProcessPool, children: Children) -> None:
    def local() -> None: ...

    for function in (local, lambda: 1, handlers.renamed):
        with pytest.raises(InputError, match="define it at the top"):
            await pool.run(function)
    assert children() == []


@pytest.mark.usefixtures("processes")
async def test_children_ignore_sigint_and_sigterm(pool: ProcessPool) -> None:
    assert await pool.run(handlers.interrupt_and_go_on) == "still here"
    assert await pool.run(handlers.signals_of_a_program) == "False False\n"


@pytest.mark.usefixtures("processes")
async def test_a_handler_may_start_processes(pool: ProcessPool) -> None:
    assert await pool.run(handlers.in_a_process_of_its_own, (4,)) == 5


def test_a_pool_has_at_least_one_process() -> None:
    with pytest.raises(InputError, match="processes"):
        ProcessPool(0)


# ---------------------------------------------------------------------------------------------- death, kills


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("function", "exitcode", "signal_name"),
    [(handlers.segfault, -signal.SIGSEGV, "SIGSEGV"), (handlers.exit_hard, 9, None)],
)
async def test_a_child_that_dies_fails_only_its_own_call(
    pool: ProcessPool, tmp_path: Path, function: object, exitcode: int, signal_name: str | None
) -> None:
    started = Started(tmp_path / "pid")
    other = asyncio.ensure_future(pool.run(handlers.hang, (started.path,)))
    running = await started.pid()
    with pytest.raises(ProcessDied) as caught:
        await pool.run(function, name="media.resize")  # type: ignore[arg-type]
    assert (caught.value.exitcode, caught.value.signal) == (exitcode, signal_name)
    assert "media.resize" in str(caught.value)
    assert psutil.pid_exists(running)
    assert not other.done()
    assert await pool.run(handlers.add, (1, 1)) == 2
    other.cancel()
    await asyncio.wait([other])


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("function", [handlers.hang, handlers.hold_the_interpreter])
async def test_a_timeout_kills_the_child_within_a_second(
    pool: ProcessPool, tmp_path: Path, function: object
) -> None:
    started = Started(tmp_path / "pid")
    call = asyncio.ensure_future(pool.run(function, (started.path,)))  # type: ignore[arg-type]
    pid = await started.pid()
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, 0.01)
    assert time.monotonic() - begun < 1.0
    assert not psutil.pid_exists(pid), "the child must be gone when the call ends"
    assert await pool.run(handlers.add, (1, 1)) == 2


@pytest.mark.usefixtures("processes")
async def test_a_child_that_is_starting_survives_a_timeout(children: Children) -> None:
    """Otherwise a timeout shorter than the start of a process could never be met."""
    pool = ProcessPool(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.run(handlers.exit_hard), 0.001)
    await pool.ready()
    (child,) = children()
    assert await asyncio.wait_for(pool.run(handlers.pid), 5) == child.pid
    await pool.close()


@pytest.mark.usefixtures("processes")
async def test_a_pool_closed_while_its_child_starts_leaves_no_process(children: Children) -> None:
    pool = ProcessPool(1)
    call = asyncio.ensure_future(pool.run(handlers.add, (1, 2)))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(ProcessDied):
        await call
    assert children() == []


@pytest.mark.usefixtures("processes")
async def test_a_pool_closed_while_its_child_starts_slowly_leaves_no_process(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a start takes seconds."""
    starting = BaseProcess.start

    def start(self: BaseProcess) -> None:
        time.sleep(0.3)
        starting(self)

    monkeypatch.setattr(BaseProcess, "start", start)
    monkeypatch.setattr(process_pool, "END_WAIT", 0.01)
    pool = ProcessPool(1)
    call = asyncio.ensure_future(pool.run(handlers.add, (1, 2)))
    await asyncio.sleep(0)
    (child,) = pool._children
    await pool.close()
    assert child.ended.done()
    with pytest.raises(ProcessDied):
        await call
    assert children() == []


@pytest.mark.usefixtures("processes")
async def test_a_process_that_cannot_be_started_fails_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ready` waited for ever. Later calls try again."""
    starting = BaseProcess.start
    pool = ProcessPool(1)

    def fail(self: BaseProcess) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    async with asyncio.timeout(30):
        monkeypatch.setattr(BaseProcess, "start", fail)
        await pool.ready()
        for _ in range(2):
            with pytest.raises(
                ProcessNotStarted, match="process for add could not be started: BlockingIOError"
            ):
                await pool.run(handlers.add, (1, 2), name="add")
        monkeypatch.setattr(BaseProcess, "start", starting)
        await pool.ready()
        assert await pool.run(handlers.add, (1, 2)) == 3
        await pool.close()


@pytest.mark.usefixtures("processes")
async def test_an_idle_child_that_died_is_replaced(pool: ProcessPool) -> None:
    pid = await pool.run(handlers.pid)
    os.kill(pid, signal.SIGKILL)
    # Wait until it is dead. The pool collects its exit status.
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert await pool.run(handlers.pid) != pid


@pytest.mark.usefixtures("processes")
async def test_waiting_calls_run_in_order_and_cancelled_ones_are_skipped(tmp_path: Path) -> None:
    pool = ProcessPool(1)
    started = Started(tmp_path / "pid")
    first = asyncio.ensure_future(pool.run(handlers.hang, (started.path,)))
    await started.pid()
    second, third = (asyncio.ensure_future(pool.run(handlers.add, (n,))) for n in (2, 3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    assert await third == 3
    assert second.cancelled()
    await pool.close()


# ---------------------------------------------------------------------------------------------------- ends


@pytest.mark.usefixtures("processes")
async def test_close_ends_idle_and_busy_children(tmp_path: Path, children: Children) -> None:
    pool = ProcessPool(2)
    started = Started(tmp_path / "pid")
    busy = asyncio.ensure_future(pool.run(handlers.hang, (started.path,)))
    await started.pid()
    await pool.run(handlers.pid)
    await pool.close()
    assert children() == []
    with pytest.raises(ProcessDied):
        await busy
    with pytest.raises(Stopped):
        await pool.run(handlers.pid)
    await pool.close()


SCRIPT = """
import asyncio, signal, sys
from tests.unit import process_handlers as handlers
from treadle.engine.run.process_pool import ProcessPool

async def main():
    pool = ProcessPool(3)
    await pool.run(handlers.pid)
    calls = [pool.run(handlers.hang, (sys.argv[1],)), pool.run(handlers.{function}, (sys.argv[2],))]
    await asyncio.gather(*calls)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the test runner may ignore it
    asyncio.run(main())
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
async def test_children_end_when_the_parent_dies(tmp_path: Path, ending: signal.Signals) -> None:
    function = "hold_the_interpreter" if sys.platform == "linux" else "hang"
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT.format(function=function))
    starts = [Started(tmp_path / "a"), Started(tmp_path / "b")]
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        *(started.path for started in starts),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.DEVNULL,
    )
    try:
        pids = [await started.pid() for started in starts]
        children = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        assert set(pids) <= set(children)
        parent.send_signal(ending)
        await asyncio.wait_for(parent.wait(), 10)
        assert [pid for pid in children if not await asyncio.to_thread(gone, pid)] == []
    finally:
        if parent.returncode is None:
            parent.kill()
            await parent.wait()
