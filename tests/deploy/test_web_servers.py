"""Web servers with several processes: each of them enqueues, also if the app was used before the fork."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from treadle import Treadle

ROOT = Path(__file__).parents[2]
DJANGO = "tests.deploy.django_site.servers"
PATIENCE = 40.0


class Server:
    """A server in processes of its own. Their output goes to a file."""

    def __init__(self, command: list[str], directory: Path, **env: str) -> None:
        self._output = directory / "output"
        path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error::DeprecationWarning:treadle", "-m", *command],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": path, "HOME": str(directory), **env},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        return self._output.read_text()

    def until(self, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := holds()):
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)
        return found

    def stop(self) -> None:
        """As a process manager does. It ends, and says nothing of errors."""
        self.process.terminate()
        self.process.wait(PATIENCE)
        assert not re.search("Traceback|Error|Warning", self.output()), self.output()

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def serving(directory: Path, command: list[str], **env: str) -> Iterator[tuple[Server, httpx.Client]]:
    """A server that answers. PORT in the command is the one to use."""
    port = free_port()
    server = Server([part.replace("PORT", str(port)) for part in command], directory, **env)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as caller:

            def answers() -> bool:
                try:
                    return caller.get("/nothing").status_code == 404
                except httpx.TransportError:
                    return False

            server.until(answers)
            yield server, caller
    finally:
        server.end()


def enqueue_from_all(server: Server, caller: httpx.Client, path: str, processes: int) -> list[str]:
    """Enqueue from many threads until each process has answered. Returns the ids."""
    ids: list[str] = []
    pids: set[int] = set()

    def post(number: int) -> dict[str, Any]:
        answer = httpx.post(f"{caller.base_url}{path}{number}", timeout=PATIENCE)
        assert answer.status_code == 202, server.output()
        found: dict[str, Any] = answer.json()
        return found

    def enqueue() -> bool:
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(post, range(16)):
                ids.append(found["id"])
                pids.add(found["pid"])
        return len(pids) >= processes

    server.until(enqueue)
    return ids


@pytest.mark.skipif(find_spec("gunicorn") is None, reason="gunicorn is not installed")
@pytest.mark.parametrize(
    ("kind", "used"),
    [
        pytest.param("gthread", "1", id="used-before-the-fork"),
        pytest.param("gthread", "", id="threads"),
        pytest.param("sync", "", id="sync"),
        pytest.param("sync", "1", id="sync-used-before-the-fork"),
    ],
)
def test_gunicorn_with_preload_and_django(prepared_url: str, tmp_path: Path, kind: str, used: str) -> None:
    command = ["gunicorn", "--preload", "--workers", "2", "--worker-class", kind, "--bind", "127.0.0.1:PORT"]
    more = [] if kind == "sync" else ["--threads", "4"]
    env = {"SHOP_URL": prepared_url, "SHOP_USED_BEFORE_FORK": used}
    with serving(tmp_path, [*command, *more, f"{DJANGO}:wsgi"], **env) as (server, caller):
        ids = enqueue_from_all(server, caller, "/double/", processes=2)
        assert caller.get("/board/items").status_code == 200
        server.stop()
        assert server.process.returncode == 0
    app = Treadle(prepared_url)
    stored = app.sync.list(limit=1000).items
    assert {item.id for item in stored} >= set(ids)
    assert len(stored) == len(ids) + len(used)
    app.sync.close()


def test_uvicorn_workers(tmp_path: Path, prepared_url: str) -> None:
    command = ["uvicorn", "--workers", "2", "--port", "PORT", "--log-level", "warning"]
    app = Treadle(prepared_url)
    with serving(tmp_path, [*command, "tests.deploy.asgi_site:web"], SHOP_URL=prepared_url) as (
        server,
        caller,
    ):
        ids = enqueue_from_all(server, caller, "/double/", processes=2)
        assert len(ids) == len(set(ids))
        states = [caller.get(f"/work/{id}?wait=20").json() for id in ids]
        assert {state["status"] for state in states} == {"success"}
        server.stop()
    assert {item.id for item in app.sync.list(limit=1000).items} == set(ids)
    app.sync.close()


def test_the_dashboard_of_django_under_asgi(tmp_path: Path, prepared_url: str) -> None:
    """An open page is told what changes, and does not keep the server from stopping."""
    command = ["uvicorn", "--port", "PORT", "--log-level", "warning", f"{DJANGO}:asgi"]
    with serving(tmp_path, command, SHOP_URL=prepared_url) as (server, caller):
        assert "text/html" in caller.get("/board/items").headers["content-type"]
        with caller.stream("GET", "/board/live") as page:
            assert page.headers["content-type"] == "text/event-stream; charset=utf-8"
            received = page.iter_text()
            assert next(received) == "retry: 3000\n\n"
            enqueued = httpx.post(f"{caller.base_url}/double/1", timeout=PATIENCE)
            assert enqueued.status_code == 202
            assert "event: changed" in next(received)
            began = time.monotonic()
            server.process.terminate()
            "".join(received)
            server.process.wait(PATIENCE)
            assert time.monotonic() - began < 15
        assert not re.search("Traceback|Error|Warning", server.output()), server.output()
