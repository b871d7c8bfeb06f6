"""`treadle worker`: real processes and real signals, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import math
import mmap
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.cli import shop
from tests.cli.calling import call
from tests.cli.forks import Forked, common_server
from tests.support.proxy import Proxy
from tests.support.tiers import one_of
from treadle import Client, WorkFailed
from treadle.cli import supervisor
from treadle.cli.child import ChildOptions
from treadle.cli.reports import ChildReport, LoopLiveness
from treadle.cli.supervisor import END_GRACE, ChildLeases, Supervisor
from treadle.item import Heartbeat, WorkerState
from treadle.store.fleet import Fleet
from treadle.worker import lease_times

PROJECT = Path(__file__).parents[2]
LEASE = 2.0


class Shop:
    """The app's store and ledger, and the supervisors that the test started."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.path = directory / "ledger"
        self.path.touch()
        self._errors = directory / "errors"
        self._started: list[Forked] = []

    def start(self, *options: str, app: str = "tests.cli.shop:app", lease: float = LEASE) -> Forked:
        # With uvloop on PostgreSQL, if it is installed, and without it on SQLite.
        loop = "asyncio" if self.url.startswith("sqlite") else "auto"
        with self._errors.open("ab") as errors:
            process = common_server().start(
                ["treadle", "worker", app, "--loop", loop, *options],
                PROJECT,
                {
                    **os.environ,
                    "SHOP_URL": self.url,
                    "SHOP_LEDGER": str(self.path),
                    "SHOP_LEASE": str(lease),
                },
                errors=errors.fileno(),
            )
        self._started.append(process)
        return process

    def lines(self) -> list[str]:
        """The lines that the handlers wrote to the ledger."""
        return self.path.read_text().splitlines()

    def errors(self) -> str:
        """The standard error of the supervisors and their children."""
        return self._errors.read_text()

    async def written(self, text: str, times: int = 1, patience: float = 30.0) -> list[str]:
        """Wait until the ledger has this many lines that begin with the text, and return them."""
        deadline = time.monotonic() + patience
        while True:
            lines = [line for line in self.lines() if line.startswith(text)]
            if len(lines) >= times:
                return lines
            assert time.monotonic() < deadline, f"{text!r} was not written {times} time(s): {self.lines()}"
            await asyncio.sleep(0.02)

    async def logged(self, text: str, patience: float = 30.0) -> None:
        """Wait until the supervisor or a child has logged the text."""
        deadline = time.monotonic() + patience
        while text not in self.errors():
            assert time.monotonic() < deadline, f"{text!r} was not logged: {self.errors()}"
            await asyncio.sleep(0.02)

    def client(self) -> Client:
        types = [shop.greet, shop.block, shop.hold_gil, shop.linger, shop.sleep, shop.crash, shop.leave]
        return Client(self.url, work=types, poll_interval=0.2)

    async def suspend(self, pids: list[int]) -> None:
        """Stop these processes while none of them holds the lock of the SQLite file: a stopped process would
        keep it, and no other could write."""
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            if not self._is_locked():
                return
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.01)

    def _is_locked(self) -> bool:
        if not self.url.startswith("sqlite"):
            return False
        path = self.url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            connection.execute("ROLLBACK")
            return False

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(params=one_of("sqlite", "postgres"))
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'work.db'}"
    url: str = request.getfixturevalue("prepared_url")
    return url


@pytest.fixture
def make(store_url: str, tmp_path: Path, processes: None) -> Generator[Shop]:
    opened = Shop(store_url, tmp_path)
    yield opened
    opened.end()


@pytest.fixture
async def client(make: Shop) -> AsyncGenerator[Client]:
    async with make.client() as client:
        yield client


@pytest.fixture
def here(tmp_path: Path) -> Generator[Shop]:
    """A shop on SQLite, for what does not depend on the store."""
    opened = Shop(f"sqlite:///{tmp_path / 'work.db'}", tmp_path)
    yield opened
    opened.end()


async def test_burst_runs_due_items_and_exits_with_0(make: Shop, client: Client) -> None:
    handles = await client.enqueue_many([shop.greet(name) for name in ("a", "b", "c")])
    assert await asyncio.to_thread(make.start("--burst").wait, 50) == 0
    assert [await handle.result(timeout=1) for handle in handles] == ["hello a", "hello b", "hello c"]


@pytest.mark.parametrize(
    ("store_url", "poison"), [("sqlite", shop.crash), ("postgres", shop.leave)], indirect=["store_url"]
)
async def test_a_burst_goes_on_after_a_process_has_died(make: Shop, client: Client, poison: Any) -> None:
    """With a new process, until nothing is due."""
    killer = await client.enqueue(poison())
    handles = await client.enqueue_many([shop.greet(name) for name in ("a", "b", "c")])
    assert await asyncio.to_thread(make.start("--burst", "--concurrency", "1").wait, 50) == 0
    assert [await handle.result(timeout=1) for handle in handles] == ["hello a", "hello b", "hello c"]
    assert (await killer.state()).status in ("scheduled", "dead")
    assert await make.written(poison.name)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("app", "error"), [("broken", "BrokenClaim"), ("unready", "LookupError")])
async def test_a_burst_that_fails_exits_with_1(make: Shop, client: Client, app: str, error: str) -> None:
    """A loop of its worker has died, or the worker could not start. It says why."""
    await client.enqueue(shop.greet("a"))
    assert await asyncio.to_thread(make.start("--burst", app=f"tests.cli.shop:{app}").wait, 50) == 1
    assert "the burst failed" in make.errors()
    assert error in make.errors()


async def test_sigterm_lets_handlers_finish_and_exits_with_0(make: Shop, client: Client) -> None:
    handle = await client.enqueue(shop.linger(1.0))
    process = make.start("--processes", "2")
    await make.written("linger")
    process.terminate()
    assert await asyncio.to_thread(process.wait, 30) == 0
    assert await handle.result(timeout=1) == 1


ENDING = """
import faulthandler, os, signal
from treadle.cli.child import show_stacks_when_asked
show_stacks_when_asked(None)
faulthandler.unregister(signal.SIGUSR1)  # as the interpreter does at its end
os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.usefixtures("processes")
def test_a_process_that_ends_survives_a_late_question() -> None:
    """The supervisor asks for stacks when the event loop does not run: it does not at the end either."""
    assert subprocess.run([sys.executable, "-c", ENDING], check=False).returncode == 0


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_process_whose_worker_is_asked_to_stop_is_not_replaced(make: Shop, client: Client) -> None:
    """Its handler finishes. The supervisor ends with the last of them, and the log says who asked."""
    handle = await client.enqueue(shop.linger(1.0))
    process = make.start("--processes", "2")
    await make.written("linger")
    state = await handle.state()
    assert state.worker is not None
    async with asyncio.timeout(30):  # without the other one, the command would warn
        while len(await client.workers()) < 2:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.02)
    arguments = ("workers", "drain", state.worker, "--url", make.url, "--because", "a deploy")
    asked = await asyncio.to_thread(call, *arguments, env={"TREADLE_ACTOR": "ann"})
    assert (asked.code, asked.err) == (0, "")
    assert await handle.result(timeout=60) == 1
    await make.logged("no other is started in its place")
    assert f"worker {state.worker} was asked to stop by ann (a deploy)" in make.errors()
    assert process.poll() is None
    (other,) = [worker.id for worker in await client.workers() if worker.id != state.worker]
    assert await client.drain_worker(other)
    assert await asyncio.to_thread(process.wait, 30) == 0
    assert "stopped after" in make.errors()


async def test_an_item_that_does_not_finish_in_time_is_given_back_without_a_lost_attempt(
    make: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DRAIN", "0.5")
    handle = await client.enqueue(shop.linger(60.0))
    process = make.start()
    await make.written("linger")
    process.terminate()
    assert await asyncio.to_thread(process.wait, 30) == 0
    state = await handle.state()
    assert (state.status, state.attempt) == ("ready", 0)


async def test_a_process_ends_before_the_threads_of_its_handlers(
    make: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread would sleep for a minute. The item is leased until the process has ended, and free then."""
    monkeypatch.setenv("SHOP_DRAIN", "0.5")
    handle = await client.enqueue(shop.sleep(60.0))
    process = make.start()
    (line,) = await make.written("sleep")
    child = psutil.Process(int(line.split()[1]))
    process.terminate()
    while child.is_running():
        status = (await handle.state()).status
        assert status == "running" or not child.is_running()
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(process.wait, 15) == 0
    assert (await handle.state()).status in ("ready", "scheduled")


async def test_a_blocked_event_loop_keeps_its_lease(make: Shop, client: Client) -> None:
    """It is blocked for 2.5 leases while another worker waits. The item runs once, and the blocking
    stack is reported."""
    lease = 1.2
    handle = await client.enqueue(shop.block(2.5 * lease))
    process = make.start("--processes", "2", lease=lease)
    await handle.result(timeout=60)
    assert len(await make.written("block")) == 1
    process.terminate()
    await asyncio.to_thread(process.wait, 30)
    errors = make.errors()
    assert f" by block {handle.id}; make that handler sync" in errors, errors
    assert errors.count("in block") == 1, "one dump"
    assert "heartbeat.py" not in errors, "of the threads with the user's code"


async def test_a_handler_that_holds_the_gil_keeps_its_lease(make: Shop, client: Client) -> None:
    """Each holds the GIL for 1.5 leases. No thread of its process can send heartbeats, the supervisor does,
    and another worker waits. Every item runs once."""
    lease = 0.8
    handles = await client.enqueue_many([shop.hold_gil(1.5 * lease) for _ in range(2)])
    make.start("--processes", "2", "--concurrency", "3", lease=lease)
    assert [await handle.result(timeout=60) for handle in handles] == [1] * 2
    assert len(await make.written("hold_gil", times=2)) == 2


async def test_a_killed_childs_items_run_again_at_once(make: Shop, client: Client) -> None:
    lease = 10.0
    handle = await client.enqueue(shop.linger(1.0))
    make.start("--processes", "2", lease=lease)
    (line,) = await make.written("linger")
    os.kill(int(line.split()[1]), signal.SIGKILL)
    killed = time.monotonic()
    await make.written("linger", times=2)
    assert time.monotonic() - killed < lease / 2  # sooner than the lease lapses
    assert await handle.result(timeout=10) == 2


async def test_a_child_blocked_for_too_long_is_killed_then_its_items_are_freed(
    make: Shop, client: Client
) -> None:
    handle = await client.enqueue(shop.block(600))
    process = make.start("--processes", "2", "--max-block", "1")
    first, second = await make.written("block", times=2)
    assert first != second
    process.kill()
    await handle.cancel()


async def test_an_item_that_crashes_its_process_too_often_is_dead(make: Shop, client: Client) -> None:
    """One loss is allowed, so it runs twice."""
    handle = await client.enqueue(shop.crash())
    make.start()
    with pytest.raises(WorkFailed) as failed:
        await handle.result(timeout=40)
    assert failed.value.reason == "lease_lost"
    assert len(await make.written("crash")) == 2


async def test_items_of_a_killed_supervisor_run_again_after_the_lease(make: Shop, client: Client) -> None:
    lease = 1.0
    handle = await client.enqueue(shop.linger(0.5))
    first = make.start(lease=lease)
    await make.written("linger")
    children = _children(first.pid)
    first.kill()
    for child in children:
        child.kill()
    killed = time.monotonic()
    make.start(lease=lease)
    await make.written("linger", times=2)
    assert time.monotonic() - killed < lease + 20  # includes the start of a process on a busy machine
    assert await handle.result(timeout=10) == 2


async def test_the_late_settlement_of_a_stopped_worker_is_refused(make: Shop, client: Client) -> None:
    """SIGSTOP lasts longer than the lease. Another worker runs the item, and the first worker's settlement
    changes nothing."""
    handle = await client.enqueue(shop.linger(1.0))
    first = make.start(lease=1.0)
    (line,) = await make.written("linger")
    tree = [first.pid, int(line.split()[1])]
    await make.suspend(tree)
    make.start(lease=1.0)
    assert await handle.result(timeout=40) == 2
    for pid in reversed(tree):
        os.kill(pid, signal.SIGCONT)
    await client.enqueue(shop.greet("after")).result(timeout=60)
    state = await handle.state()
    assert (state.status, state.result, state.attempt) == ("success", 2, 2)


async def test_a_killed_supervisor_leaves_no_files(
    make: Shop, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    await client.enqueue(shop.greet("x"))
    process = make.start()
    await make.written("greet")
    for one in [psutil.Process(process.pid), *_children(process.pid)]:
        one.kill()
    await asyncio.to_thread(process.wait, 20)
    assert not list(temporary.iterdir())


@pytest.mark.usefixtures("processes")
async def test_operators_see_that_a_child_is_stopped(here: Shop) -> None:
    """Its supervisor keeps its lease, and says that it does not run."""

    async def until_stands(client: Client, standing: str) -> WorkerState:
        async with asyncio.timeout(30):
            while True:
                fleet = Fleet(await client.workers(), await client.backend.now())
                if [fleet.standing(each) for each in fleet.workers] == [standing]:
                    return fleet.workers[0]
                await asyncio.sleep(0.05)

    async with here.client() as client:
        handle = await client.enqueue(shop.linger(0.1))
        here.start(lease=1.0)
        (line,) = await here.written("linger")
        await handle.result(timeout=60)
        worker = await until_stands(client, "alive")
        pid = int(line.split()[1])
        await here.suspend([pid])
        stopped = await until_stands(client, "blocked")
        assert (stopped.id, stopped.info and stopped.info.pid) == (worker.id, pid)
        waiting = await client.enqueue(shop.greet("stopped"))
        assert (await client.why(waiting)).reasons[0].kind == "worker_blocked"
        os.kill(pid, signal.SIGCONT)
        await until_stands(client, "alive")


async def test_a_supervisor_renews_a_lease_and_registers_no_worker(tmp_path: Path) -> None:
    """A child whose event loop runs may have no worker yet, or none any more. One that the supervisor
    registered would have every type: the time since when a type has had no worker would begin anew."""
    path = tmp_path / "liveness"
    path.write_bytes(bytes(mmap.PAGESIZE))
    liveness = LoopLiveness(path)
    writing = asyncio.ensure_future(liveness.run())
    child: Any = SimpleNamespace(
        worker="w1", pid=1, liveness=liveness, last_heartbeat=-math.inf, heartbeat=None
    )
    async with Client("memory://") as client:
        leases = ChildLeases(client.backend, lease_times(client), lambda child, code, freed: None)

        async def renew() -> list[WorkerState]:
            await asyncio.sleep(0)  # the event loop of the child says that it runs
            child.last_heartbeat = -math.inf
            leases.renew(child)
            await child.heartbeat
            return await client.workers()

        assert await renew() == []
        assert liveness.last_beat() == 0.0
        await client.backend.beat(Heartbeat(worker="w1", lease=1.0, types=("a",)))
        (before,) = await client.workers()
        (renewed,) = await renew()
        assert (renewed.until > before.until, renewed.types) == (True, ("a",))
        assert liveness.last_beat() > 0.0
    writing.cancel()


async def test_children_end_with_their_supervisor(make: Shop, client: Client) -> None:
    await client.enqueue(shop.greet("x"))
    process = make.start()
    await make.written("greet")
    children = _children(process.pid)
    process.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 20)
    assert not alive


@pytest.mark.usefixtures("processes")
async def test_a_child_that_ran_is_replaced_soon(here: Shop) -> None:
    process, began = here.start(), time.monotonic()
    async with Client(here.url, work=[shop.greet]) as client:
        assert await client.enqueue(shop.greet("first")).result(timeout=60)
        start = time.monotonic() - began  # a busy machine takes long to start a process
        for n in range(2):
            for child in _children(process.pid):
                child.kill()
            # The result comes from a new child.
            assert await client.enqueue(shop.greet(str(n))).result(timeout=4 + 2 * start)


async def test_a_child_that_ran_is_replaced_soon_however_often_it_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deaths of children whose event loops ran delay the next one by a second at most: an item may have
    killed them, and others wait. After seven deaths it used to be 6 to 10 s. Deaths of others delay more."""
    clock = 0.0
    started: list[Any] = []

    def child(options: ChildOptions) -> Any:
        """A child that has died at once."""
        started.append(options)
        return SimpleNamespace(
            worker=f"w{len(started)}",
            pid=len(started),
            alive=False,
            started_at=clock,
            ending_since=None,
            heartbeat=None,
            process=SimpleNamespace(wait=lambda: -signal.SIGKILL),
            reports=SimpleNamespace(read=lambda: None, last=ChildReport()),
            liveness=SimpleNamespace(blocked_for=lambda: ran),
            close=lambda: None,
        )

    monkeypatch.setattr(supervisor, "ChildProcess", child)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: clock))
    options = ChildOptions(app="shop:app", worker="", liveness="")
    for ran in (0.0, None):
        started.clear()
        async with Client("memory://") as client:
            supervising = Supervisor(
                client.backend, lease_times(client), options, processes=1, max_block=60.0
            )
            for _ in range(20):
                supervising.run_once()
                clock += 1.0 * (1 + supervisor.CRASH.jitter)
                await asyncio.sleep(0)
        assert len(started) == 20 if ran is not None else 4 < len(started) < 10


async def test_a_supervisor_does_not_wait_for_a_store_that_is_away(prepared_url: str, tmp_path: Path) -> None:
    """The network drops everything: a killed child is replaced at once, and SIGTERM is obeyed."""
    async with Proxy(prepared_url) as proxy, Client(prepared_url, work=[shop.greet]) as client:
        here = Shop(proxy.url, tmp_path)
        try:
            process = here.start(lease=1.0)
            await client.enqueue(shop.greet("a")).result(timeout=60)
            (child,) = _children(process.pid)
            proxy.stall()
            await asyncio.sleep(1.0)  # heartbeats are under way
            child.kill()
            killed = time.monotonic()
            while not {other.pid for other in _children(process.pid)} - {child.pid}:
                assert time.monotonic() - killed < 2
                await asyncio.sleep(0.02)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 10) == 0
        finally:
            here.end()


@pytest.mark.usefixtures("processes")
async def test_a_child_that_does_not_end_with_its_drain_is_killed(
    here: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop of one is blocked, the other is stopped by a signal. It took 60 s."""
    grace = END_GRACE - 3
    monkeypatch.setenv("SHOP_DRAIN", "0.2")
    monkeypatch.setenv("SHOP_END_GRACE", str(grace))
    async with here.client() as client:
        handles = [await client.enqueue(shop.block(300))]
        process = here.start("--processes", "2", lease=3)
        (line,) = await here.written("block")
        handles.append(await client.enqueue(shop.linger(300)))
        (stopped,) = await here.written("linger")
        os.kill(int(stopped.split()[1]), signal.SIGSTOP)
        began = time.monotonic()
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert 0.2 + grace < time.monotonic() - began < 0.2 + grace + 5
        assert [(await handle.state()).losses for handle in handles] == [1, 1]
    for pid in (line.split()[1], stopped.split()[1]):
        (why,) = [each for each in here.errors().splitlines() if f"killed process {pid}" in each]
        assert "was told to end" in why
        assert f"waiting for process {pid}" in here.errors()
    assert f"process {stopped.split()[1]} is stopped: " in here.errors()
    assert f"the stacks of process {stopped.split()[1]}" not in here.errors()


@pytest.mark.usefixtures("processes")
async def test_a_supervisor_that_cannot_start_a_process_keeps_the_others_and_tries_again(here: Shop) -> None:
    """It has no descriptors left when a child dies. It used to end with a traceback, and the other child with
    it."""
    async with here.client() as client:
        process = here.start("--processes", "2")
        handles = await client.enqueue_many([shop.linger(1.0) for _ in range(2)])
        await here.written("linger", times=2)
        first, second = _children(process.pid)
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        first.kill()
        await here.logged("could not start a process")
        assert second.is_running()
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        async with asyncio.timeout(20):
            while len(_children(process.pid)) < 2:  # noqa: ASYNC110  another process starts it
                await asyncio.sleep(0.05)
        for handle in handles:
            await handle.result(timeout=60)
        assert second.is_running()
    assert "Traceback" not in here.errors()


ASKS_AT_IMPORT = """
import asyncio
from tests.cli.shop import app

async def read_settings() -> None: ...

asyncio.run(read_settings())
"""
CONNECTS_AT_IMPORT = """
from tests.cli.shop import app

app.sync.connect()
"""
FAILS_IN_A_CHILD = """
import sys
from tests.cli.shop import app

if "--burst" not in sys.argv:
    raise ValueError("no settings here")
"""


@pytest.mark.usefixtures("processes")
async def test_an_app_may_run_an_event_loop_while_it_is_imported(
    here: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asks_at_import.py").write_text(ASKS_AT_IMPORT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with here.client() as client:
        handle = await client.enqueue(shop.greet("a"))
        process = here.start("--burst", app="asks_at_import:app")
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert await handle.result(timeout=1) == "hello a"


@pytest.mark.usefixtures("processes")
async def test_an_app_may_connect_with_its_sync_side_while_it_is_imported(
    here: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "connects_at_import.py").write_text(CONNECTS_AT_IMPORT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with here.client() as client:
        handle = await client.enqueue(shop.greet("a"))
        process = here.start("--burst", app="connects_at_import:app")
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert await handle.result(timeout=1) == "hello a"


HALF_DEPLOYED = """
import sys
from pathlib import Path

seen = Path(__file__).with_suffix(".seen")
if "treadle.cli.child" in sys.orig_argv and not seen.exists():
    seen.touch()
else:
    from tests.cli.shop import app
"""


@pytest.mark.usefixtures("processes")
async def test_a_process_that_does_not_find_the_app_is_followed_by_another(
    here: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor has found it: its files are being replaced."""
    (tmp_path / "half_deployed.py").write_text(HALF_DEPLOYED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with here.client() as client:
        handle = await client.enqueue(shop.greet("a"))
        process = here.start(app="half_deployed:app")
        assert await handle.result(timeout=40) == "hello a"
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0
    assert "could not load the app, trying again" in here.errors()


@pytest.mark.usefixtures("processes")
async def test_a_burst_whose_processes_cannot_import_the_app_exits_with_2(
    here: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails_in_a_child.py").write_text(FAILS_IN_A_CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = here.start("--burst", app="fails_in_a_child:app")
    assert await asyncio.to_thread(process.wait, 30) == 2
    assert "'fails_in_a_child' cannot be imported: ValueError: no settings here" in here.errors()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-block", "0"), "max-block"),
        (("--processes", "2"), "keeps its items in memory"),
    ],
)
def test_options_that_cannot_work_are_refused(options: tuple[str, ...], message: str) -> None:
    refused = call("worker", "tests.cli.shop:app", *options)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert message in refused.err


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("tests.cli.nothing:app", "there is no module"),
        ("tests.cli.shop:nothing", "it has app"),
        ("tests.cli.shop", "module:app"),
    ],
)
def test_an_app_that_cannot_be_found_is_reported(app: str, message: str) -> None:
    refused = call("worker", app)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert message in refused.err


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_migrate_is_idempotent_and_schema_prints_the_tables(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store_url = (
        f"sqlite:///{tmp_path / 'work.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    )
    first, second = call("migrate", store_url), call("migrate", store_url)
    assert (first.code, second.code) == (0, 0)
    assert "is made, version " in first.out
    assert second.out.endswith("is up to date\n")
    assert "create table" in call("schema", kind).out.lower()
