"""`treadle worker --metrics`: real processes, asked over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.cli import shop
from tests.cli.calling import call
from tests.cli.forks import common_server
from treadle import Client, MemoryBackend
from treadle.cli import metrics_server
from treadle.cli.metrics_server import Health, ListenAddress, MetricsServer, read_address
from treadle.cli.reports import ChildReport, LoopLiveness, make_report, merged, of_ended
from treadle.errors import InputError
from treadle.metrics import METRICS, PROCESS_METRICS, Metrics
from treadle.testing import FaultyBackend

PROJECT = Path(__file__).parents[2]
PATIENCE = 30.0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9100", ListenAddress(None, 9100)),
        ("9100", ListenAddress(None, 9100)),
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0)),
        ("[::1]:9100", ListenAddress("::1", 9100)),
        ("metrics.local:65535", ListenAddress("metrics.local", 65535)),
    ],
)
def test_addresses(text: str, address: ListenAddress) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize("text", ["localhost", ":", ":70000", "::1:9100", "http://x:1", "a b:1", "x:1\n"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be host:port or :port"):
        read_address(text)


# ------------------------------------------------------------------------------------ adding up processes


def _report(started: int, active: int) -> ChildReport:
    metrics = Metrics(now=lambda: 1000.0 + started)
    series = metrics.of("mail")
    for _ in range(started):
        series.claimed()
        series.began(0.2, "bulk")
    for _ in range(started - active):
        series.succeeded_in(0.1, 0.3, 1, queue="bulk")
    return make_report(metrics, active, rows=True)


def _values(report: ChildReport) -> dict[tuple[str, ...], float]:
    return {(row.name, *row.labels): row.value for row in report.rows}


def test_what_processes_counted_is_added_up_and_stays_when_they_end() -> None:
    one, other = _report(3, 2), _report(5, 1)
    both = _values(merged([one, other]))
    assert both["treadle_started_total", "mail", "bulk"] == 8
    assert both["treadle_run_seconds", "mail", "bulk"] == pytest.approx(0.5)
    assert both["treadle_running", "mail"] == 3
    assert both["treadle_peak_active", "mail"] == 5
    assert both["treadle_last_started_timestamp_seconds", "mail"] == 1005.0
    after = _values(merged([of_ended(one), other]))
    assert after.pop(("treadle_running", "mail")) == 1
    assert after.pop(("treadle_active", "mail")) == 1
    assert {name: both[name] for name in after} == after
    assert after["treadle_started_total", "mail", "bulk"] == 8


def test_rows_that_are_not_known_are_left_out() -> None:
    report = _report(1, 0)
    known = _values(merged([report]))
    row = report.rows[0]
    strange = [
        type(row)("treadle_new_total", ("mail",), 1),
        type(row)("treadle_run_seconds", ("mail", "bulk"), 1, (1, 2)),
        type(row)("treadle_queued_total", ("mail", "bulk"), 1),
    ]
    assert _values(merged([report, ChildReport(rows=strange)])) == known


# ------------------------------------------------------------------------------------------------ health


class Supervised:
    """A supervisor, as the server sees it, with real files for the liveness of its children."""

    def __init__(self, directory: Path, children: int) -> None:
        self.children: list[Any] = []
        self.is_stopping = False
        for number in range(children):
            path = directory / f"child{number}"
            path.write_bytes(bytes(16))
            self.children.append(SimpleNamespace(pid=number, liveness=LoopLiveness(path)))

    def report(self) -> ChildReport:
        return ChildReport()

    async def turn(self, *numbers: int) -> None:
        """Let the event loops of these children turn once."""
        for number in numbers:
            turning = asyncio.ensure_future(self.children[number].liveness.run())
            await asyncio.sleep(0)
            turning.cancel()


async def test_ready_means_that_the_store_answers_and_all_loops_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FaultyBackend(MemoryBackend())
    supervisor = Supervised(tmp_path, 0)
    health = Health(supervisor, backend)
    server = MetricsServer(supervisor, health, None)
    assert await server.ready() == (
        503,
        "not ready: no process has been started\n",
        "text/plain; charset=utf-8",
    )
    supervisor.children += Supervised(tmp_path, 2).children
    await supervisor.turn(0)
    assert await health.problem() == "process 1 is starting"
    await supervisor.turn(1)
    assert await health.problem() is None
    assert (await server.ready())[:2] == (200, "ready\n")
    with backend.faults.outage() as outage:
        assert await health.problem() is None, "the answer of the store is used for a while"
        monkeypatch.setattr(metrics_server, "STORE_SECONDS", 0.0)
        assert await health.problem() == "the store does not answer"
        assert outage.hits <= 1
    monkeypatch.setattr(metrics_server, "STORE_SECONDS", 2.0)
    health = Health(supervisor, backend)
    monkeypatch.setattr(metrics_server, "LOOP_SECONDS", -1.0)
    assert await health.problem() == "the event loop of process 0 has been blocked for 0 s"
    assert (await server.live()).status == 200
    supervisor.is_stopping = True
    assert await health.problem() == "it is being stopped"


# ----------------------------------------------------------------------------------------- real processes


class Fleet:
    """A supervisor with its port."""

    def __init__(self, url: str, directory: Path, *options: str) -> None:
        ledger = directory / "ledger"
        ledger.touch()
        self.errors = directory / "errors"
        with self.errors.open("wb") as errors:
            self.process = common_server().start(
                ["treadle", "worker", "tests.cli.shop:app", *options],
                PROJECT,
                {**os.environ, "SHOP_URL": url, "SHOP_LEDGER": str(ledger), "SHOP_LEASE": "5"},
                errors=errors.fileno(),
            )

    def port(self) -> int:
        marker = "metrics at http://127.0.0.1:"
        self.wait(lambda: marker in self.errors.read_text())
        return int(self.errors.read_text().partition(marker)[2].partition("/")[0])

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.05)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """The values, by name and labels. The text is well-formed, and no series is there twice."""
        parser = pytest.importorskip("prometheus_client.parser")
        _, text = self.get("/metrics")
        families = list(parser.text_string_to_metric_families(text))
        names = [family.name for family in families]
        assert len(names) == len(set(names))
        assert len(names) >= len((*METRICS, *PROCESS_METRICS))
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        assert len({line[0] for line in lines}) == len(lines)
        return {name: float(value) for name, _, value in lines}

    def kill_group(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def fleet(tmp_path: Path) -> Generator[Callable[..., Fleet]]:
    started: list[Fleet] = []

    def start(*options: str) -> Fleet:
        started.append(Fleet(f"sqlite:///{tmp_path / 'work.db'}", tmp_path, *options))
        return started[-1]

    yield start
    for each in started:
        each.kill_group()


STARTED = 'treadle_started_total{type="greet",queue="default"}'


@pytest.mark.usefixtures("processes")
def test_the_supervisor_answers_for_all_its_processes(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    async def greet(*names: str) -> None:
        async with Client(f"sqlite:///{tmp_path / 'work.db'}", work=[shop.greet, shop.crash]) as client:
            for handle in await client.enqueue_many([shop.greet(name) for name in names]):
                await handle.result(timeout=PATIENCE)

    running = fleet("--metrics", "127.0.0.1:0", "--processes", "2")
    assert running.get("/health/live") == (200, "live\n")
    running.wait(lambda: running.get("/health/ready") == (200, "ready\n"))
    assert running.get("/other")[0] == 404
    asyncio.run(greet("a", "b", "c"))
    running.wait(lambda: running.metrics().get(STARTED) == 3)
    found = running.metrics()
    assert found["treadle_store_up"] == 1
    assert found["treadle_workers"] >= 1
    assert found["treadle_settle_seconds_count"] >= 1
    child = psutil.Process(running.process.pid).children()[0]
    child.kill()
    running.wait(
        lambda: len({each.pid for each in psutil.Process(running.process.pid).children()} - {child.pid}) == 2
    )
    assert running.metrics()[STARTED] == 3, "counters do not go back when a process ends"
    asyncio.run(greet("d"))
    running.wait(lambda: running.metrics()[STARTED] == 4)
    running.process.terminate()
    assert running.process.wait(PATIENCE) == 0


@pytest.mark.usefixtures("processes")
def test_a_port_in_use_is_one_line_and_exit_code_2(fleet: Callable[..., Fleet]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        ended = fleet("--metrics", f"127.0.0.1:{number}")
        assert ended.process.wait(PATIENCE) == 2
    last = ended.errors.read_text().splitlines()[-1]
    assert last.endswith(f"--metrics: cannot listen on 127.0.0.1:{number}: address already in use")


def test_a_wrong_address_is_one_line_and_exit_code_2() -> None:
    refused = call("worker", "tests.cli.shop:app", "--metrics", "localhost")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "must be host:port or :port" in refused.err
