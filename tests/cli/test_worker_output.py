"""What `treadle worker` prints: its banner, its lines, its summary, and why it does not start."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli import noisy
from tests.cli.calling import call
from tests.cli.forks import common_server
from treadle import Client, __version__

PROJECT = Path(__file__).parents[2]
APP = "tests.cli.noisy:app"
LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO|WARNING|ERROR) +\[\d+\] (.*)$")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'work.db'}"


def treadle(
    *arguments: str, url: str = "memory://", path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends. `path`: where its modules are."""
    env = {**os.environ, "NOISY_URL": url, "PYTHONPATH": str(PROJECT), "COLUMNS": "80", **environment}
    return common_server().run(["treadle", *arguments], path or PROJECT, env, timeout=50)


async def submit(url: str, *works: str) -> list[str]:
    """Submit `mail.send` to these addresses, or `crash`. Returns the ids."""
    async with Client(url, work=[noisy.send, noisy.crash]) as client:
        items = [noisy.crash() if each == "crash" else noisy.send(each) for each in works]
        return [handle.id for handle in await client.enqueue_many(items)]


def messages(output: str) -> list[str]:
    return [found[2] for line in output.splitlines() if (found := LINE.match(line))]


@pytest.mark.usefixtures("processes")
async def test_a_worker_says_what_it_is_what_failed_and_what_it_did(url: str) -> None:
    good, bad = await submit(url, "good", "bad")
    done = treadle("worker", APP, "--burst", "--concurrency", "1", url=url)
    assert done.returncode == 0
    output = done.stderr
    head = output.splitlines()[:7]
    assert head[0] == f"treadle {__version__}  {APP}"
    assert head[1] == f"  store        {url}"
    assert head[2:5] == [
        "  queues       all",
        "  types        crash, mail.send, wait",
        "  processes    1, each up to 1 item at once",
    ]
    assert re.fullmatch(r"  pid          \d+", head[5])
    lines = messages(output)
    assert f"sending to good [mail.send {good} attempt 1]" in lines
    error = r"ConnectionError: no such user\nbad\x1b[2J"
    assert f"mail.send {bad} failed (attempt 1 of 2), tried again at once: {error}" in lines
    assert f"mail.send {bad} is dead after attempt 2 of 2, exhausted: {error}" in lines
    assert output.count("Traceback") == 1
    assert "\x1b" not in output
    assert "made a new, empty store" not in output
    assert re.fullmatch(r"stopped after .*s: 3 started, 1 succeeded, 2 failed, 1 dead", lines[-1])


@pytest.mark.usefixtures("processes")
async def test_the_line_about_a_dead_process_names_what_it_was_running(url: str) -> None:
    (poison,) = await submit(url, "crash")
    done = treadle("worker", APP, "--burst", url=url)
    assert done.returncode == 0
    first, second, third, _ = messages(done.stderr)
    assert re.fullmatch(r"process \d+ was killed by SIGSEGV", first)
    assert second.endswith(f"died; 1 item(s) can be claimed again. It was running crash {poison}")
    assert third.startswith(f"crash {poison} is dead, lease_lost: LeaseLost: ")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("processes")
async def test_json_lines_have_the_fields_of_the_item(url: str) -> None:
    (bad,) = await submit(url, "bad")
    done = treadle("worker", "--burst", "--log-format", "json", url=url, TREADLE_APP=APP)
    assert done.returncode == 0
    assert done.stderr.startswith("{"), done.stderr
    first, *others = [json.loads(line) for line in done.stderr.splitlines()]
    assert (first["app"], first["store"], first["processes"], first["version"]) == (APP, url, 1, __version__)
    assert first["types"] == ["crash", "mail.send", "wait"]
    assert (first["queues"], first["tenants"]) == (None, None), "all of them"
    (record,) = [each for each in others if each["level"] == "error"]
    assert (record["level"], record["id"], record["type"]) == ("error", bad, "mail.send")
    assert (record["attempt"], record["tenant"], record["reason"]) == (2, "default", "exhausted")
    assert record["workflow"] is None
    assert record["traceback"].startswith("Traceback")


@pytest.mark.usefixtures("processes")
async def test_logging_that_the_app_has_set_up_is_left_alone(url: str, tmp_path: Path) -> None:
    await submit(url, "bad")
    (tmp_path / "spoken.py").write_text(
        "import logging\nlogging.basicConfig(format='APP %(message)s', level='WARNING')\n"
        "from tests.cli.noisy import app\n"
    )
    done = treadle("worker", "spoken:app", "--burst", "--log-format", "json", url=url, path=tmp_path)
    assert done.returncode == 0
    assert "APP mail.send" in done.stderr
    assert "stopped after" not in done.stderr
    assert '"level"' not in done.stderr


@pytest.mark.usefixtures("processes")
async def test_the_first_signal_waits_for_handlers_and_the_second_kills_them(
    url: str, tmp_path: Path
) -> None:
    async with Client(url, work=[noisy.wait]) as client:
        handle = await client.enqueue(noisy.wait())
    worker = RunningWorker(url, tmp_path / "log")
    try:
        worker.until("waiting [wait")
        worker.interrupt()
        worker.until("stopping, waiting up to 30 s for ")
        worker.interrupt()
        assert worker.end() == 0
    finally:
        worker.kill()
    *_, killed, died, stopped = messages(worker.log())
    assert killed.startswith("killed process")
    assert died.endswith(f"It was running wait {handle.id}")
    assert stopped.startswith("stopped after")
    assert "Traceback" not in worker.log()


class RunningWorker:
    """A worker that must be stopped. Ctrl-C of a terminal reaches all its processes."""

    def __init__(self, url: str, log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            env = {**os.environ, "NOISY_URL": url, "PYTHONPATH": str(PROJECT)}
            self._process = common_server().start(
                ["treadle", "worker", APP], PROJECT, env, errors=errors.fileno()
            )

    def log(self) -> str:
        return self._log.read_text()

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 40
        while text not in self.log():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def interrupt(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self) -> int:
        return self._process.wait(30)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line on which a worker that did not start said why, after its banner."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("treadle: ")]
    assert done.stderr.rstrip().endswith(line)
    return line


@pytest.mark.usefixtures("processes")
def test_a_store_that_is_away_is_waited_for_then_exit_3() -> None:
    """Its address is named, without the password."""
    url = "postgresql://shop:secret@127.0.0.1:1/orders"
    done = treadle("worker", APP, "--wait", "0.3", url=url)
    assert "postgresql://shop:***@127.0.0.1:1/orders was unavailable for" in refused(done, 3)
    (waiting,) = messages(done.stderr)
    assert "is unavailable, trying again for 300 ms: PostgreSQL did not answer" in waiting
    assert "secret" not in done.stderr
    done = treadle("worker", APP, "--wait", "0", url=url)
    assert "127.0.0.1:1/orders is unavailable: PostgreSQL did not answer" in refused(done, 3)
    assert not messages(done.stderr)


def test_a_database_that_is_missing_is_named(postgres_url: str) -> None:
    missing = re.sub(r"/treadle_\w+", "/nowhere", postgres_url)
    assert '"nowhere" does not exist' in refused(treadle("worker", APP, "--wait", "0", url=missing), 3)


@pytest.mark.usefixtures("processes")
def test_what_the_store_refuses_is_one_line_and_exit_1(tmp_path: Path) -> None:
    done = treadle("worker", APP, url=f"sqlite:///{tmp_path}/none/work.db")
    assert "none does not exist: check the path, or create it" in refused(done, 1)
    new = treadle("worker", APP, "--burst", url=f"sqlite:///{tmp_path}/mistyped.db")
    assert f"made a new, empty store: sqlite:///{tmp_path}/mistyped.db" in new.stderr
    file = tmp_path / "work.db"
    assert call("migrate", f"sqlite:///{file}").code == 0
    with sqlite3.connect(file) as connection:
        connection.execute("update treadle_meta set value = 99 where name = 'schema'")
    connection.close()
    assert "newer" in refused(treadle("worker", APP, url=f"sqlite:///{file}"), 1)
    done = treadle("worker", APP, "--log-format", "json", url=f"sqlite:///{file}")
    *_, why = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, why["level"]) == (1, "error")
    assert "newer" in why["message"]


RAISES = (
    "from tests.cli.noisy import app\ndef settings():\n    raise ValueError('no\\x1b settings')\nsettings()\n"
)


@pytest.mark.parametrize(
    ("source", "frames", "last"),
    [
        (RAISES, ["raises.py", "raises.py"], "ValueError: no\\x1b settings"),
        ("x = (\n", ["raises.py"], "SyntaxError: '(' was never closed"),
        ("import no_such_module\n", ["raises.py"], "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_module_that_raises_shows_the_users_frames_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, frames: Sequence[str], last: str
) -> None:
    (tmp_path / "raises.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    done = call("worker", "raises:app")
    assert done.code == 2
    *trace, line = done.err.splitlines()
    assert re.findall(r'File ".*/(\w+\.py)"', done.err) == list(frames)
    assert trace[-1] == last
    assert line.startswith("treadle: the module 'raises' cannot be imported: ")


def test_the_version() -> None:
    assert call("--version").out == f"treadle {__version__}\n"
