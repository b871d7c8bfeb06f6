"""Treadle in Flask: views, handlers in the app context, the commands, the dashboard, processes that fork."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import flask as flask_module
import httpx
import pytest
from flask import Flask, abort, redirect, url_for

from tests.contrib import flask_shop
from tests.contrib.flask_shop import create_app, greet, greet_async, greet_many
from treadle import InputError, Treadle, work
from treadle.contrib.flask import FlaskTreadle
from treadle.dashboard import Access
from treadle.worker import settings_of

ROOT = Path(__file__).parents[2]
SHOP = "tests.contrib.flask_shop"
GUNICORN = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"]


@pytest.fixture
def web() -> Iterator[Flask]:
    flask_shop.treadle.sync.start()
    yield create_app()
    flask_shop.treadle.sync.stop()


@pytest.fixture(scope="module", autouse=True)
def first_app() -> Flask:
    """The worker gets its context before it starts."""
    return create_app("hello")


# -- views and handlers --------------------------------------------------------------------------------------


def test_a_view_enqueues_and_a_handler_runs_in_the_app_context(web: Flask) -> None:
    visitor = web.test_client()
    answer = visitor.post("/greet?name=ada")
    assert answer.status_code == 202
    again = visitor.post("/greet?name=bob")
    assert again.json["loops"] == answer.json["loops"]  # one loop, also for the next request
    assert visitor.get(f"/greet/{answer.json['id']}").json["result"] == "hello ada 2"


@pytest.mark.usefixtures("web")
def test_every_kind_of_handler_runs_in_the_app_context() -> None:
    sync = flask_shop.jobs.sync
    assert sync.enqueue(greet_async("bob")).result(timeout=60) == "hello bob"
    handles = sync.enqueue_many([greet_many("ada"), greet_many("bob")])
    assert [handle.result(timeout=60) for handle in handles] == ["hello ada", "hello bob"]


def test_what_belongs_to_a_thread_is_closed_in_that_thread(web: Flask) -> None:
    """A teardown that fails would fail the attempt: sqlite3 refuses to close a connection elsewhere."""
    handle = flask_shop.jobs.sync.enqueue(greet("ada"))
    assert handle.result(timeout=60) == "hello ada 2"
    assert handle.state().attempt == 1


def test_mistakes_are_errors_where_they_are_made() -> None:
    app = Treadle("memory://")
    with pytest.raises(InputError, match="must be a Treadle app"):
        FlaskTreadle(app.sync)  # type: ignore[arg-type]
    flask = Flask("shop")
    jobs = FlaskTreadle(app, flask)
    with pytest.raises(InputError, match="has an app of treadle already"):
        jobs.init_app(flask)
    with pytest.raises(InputError, match="must begin with a slash"):
        jobs.mount_dashboard(flask, "treadle", access=lambda: None)


def test_nothing_is_started_before_it_is_used() -> None:
    app = Treadle("memory://")
    jobs = FlaskTreadle(app, Flask("shop"))
    assert not app.worker.running
    assert app._sync_loop._loop is None  # pyright: ignore[reportPrivateUsage]
    assert settings_of(app.worker).scope is not None
    assert jobs.sync.counts() == []
    jobs.sync.close()


# -- the dashboard -------------------------------------------------------------------------------------------


@work(name="mail.send")
async def send(to: str) -> None: ...


@pytest.fixture
def board() -> Iterator[Flask]:
    app = Treadle("memory://", work=[send])
    flask = Flask("shop")
    flask.secret_key = "for tests"
    jobs = FlaskTreadle(app, flask)

    @flask.get("/login/<user>")
    def login(user: str) -> str:
        flask_module.session["user"] = user
        return user

    def access() -> Any:
        user = flask_module.session.get("user")
        if user == "eve":
            abort(403)
        return Access(actor=user, can="all") if user else redirect(url_for("login", user="ada"))

    jobs.mount_dashboard(flask, access=access)
    app.sync.enqueue(send("ada@example.org"), id="first")
    yield flask
    app.sync.close()


def test_the_dashboard_knows_the_session_and_the_addresses_of_the_site(board: Flask) -> None:
    visitor = board.test_client()
    refused = visitor.get("/treadle/items")
    assert (refused.status_code, refused.headers["location"]) == (302, "/login/ada")
    assert visitor.get("/login/ada").text == "ada"
    page = visitor.get("/treadle/items")
    assert page.status_code == 200
    assert "mail.send" in page.text
    assert "/treadle/static/" in page.text
    assert visitor.get("/login/eve").text == "eve"
    assert visitor.get("/treadle/items").status_code == 403


# -- the commands --------------------------------------------------------------------------------------------


def test_the_commands_are_in_the_help(web: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TREADLE_APP", "FLASK_APP"):
        monkeypatch.setenv(name, "")  # the command sets them
    runner = web.test_cli_runner()
    assert "treadle" in runner.invoke(args=["--help"]).output
    assert "flask treadle [OPTIONS] COMMAND" in runner.invoke(args=["treadle", "--help"]).output
    wrong = runner.invoke(args=["treadle", "show"])
    assert (wrong.exit_code, "See `flask treadle show --help`" in wrong.output) == (2, True), wrong.output


def shop_environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "SHOP_URL": f"sqlite:///{tmp_path / 'work.db'}", **more}


@pytest.mark.usefixtures("processes")
def test_a_worker_of_a_factory_runs_handlers_in_its_context(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    app = Treadle(url, work=[greet])
    handle = app.sync.enqueue(greet("ada"))
    command = [sys.executable, "-m", "flask", "--app", f"{SHOP}:create_app('good day')", "treadle", "worker"]
    done = subprocess.run(
        [*command, "--burst"],
        cwd=ROOT,
        env=shop_environ(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert handle.result(timeout=60) == "good day ada 2"
    app.sync.close()


# -- processes -----------------------------------------------------------------------------------------------


def test_a_process_that_used_it_ends_in_silence(tmp_path: Path, prepared_url: str) -> None:
    """The connections are closed, and the loops are ended, when no thread can be started any more."""
    program = (
        "import sys\n"
        "from flask import Flask\n"
        "from treadle import Treadle\n"
        "from treadle.contrib.flask import FlaskTreadle\n"
        "for url in sys.argv[1:]:\n"
        "    print(FlaskTreadle(Treadle(url), Flask('shop')).sync.counts())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, f"sqlite:///{tmp_path / 'work.db'}", prepared_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n[]\n", "")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(find_spec("gunicorn") is None, reason="gunicorn is not installed")
def test_gunicorn_that_imports_it_before_it_forks(tmp_path: Path) -> None:
    """Two processes use one app that was imported before they were forked. While one waits for a result, the
    other answers."""
    worker = Treadle(shop_environ(tmp_path)["SHOP_URL"], work=[greet])
    FlaskTreadle(worker, flask := Flask("worker"))
    flask.config["GREETING"] = "hello"
    site = f"http://127.0.0.1:{(port := free_port())}"
    path = os.pathsep.join([str(ROOT), *sys.path])
    server = subprocess.Popen(
        [*GUNICORN, "--bind", f"127.0.0.1:{port}", f"{SHOP}:web"],
        env=shop_environ(tmp_path, SHOP_PRELOAD="1", PYTHONPATH=path, HOME=str(tmp_path)),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _until(lambda: server.poll() is not None or _answers(site))
        first = httpx.post(f"{site}/greet?name=ada").json()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(httpx.get, f"{site}/greet/{first['id']}", timeout=40)
            other = httpx.post(f"{site}/greet?name=bob", timeout=40).json()
            worker.sync.start()
            assert waiting.result().json() == {"result": "hello ada 2", "pid": ANY}
        assert (first["loops"], other["loops"]) == (1, 1)
        assert httpx.get(f"{site}/greet/{other['id']}").json()["result"] == "hello bob 2"
    finally:
        worker.sync.stop()
        server.terminate()
        output, _ = server.communicate(timeout=60)
    assert server.returncode == 0, output
    assert output.count("Booting worker") == 2
    assert not re.search("Traceback|Error|Warning", output), output


def _answers(site: str) -> bool:
    try:
        return httpx.get(f"{site}/nothing").status_code == 404
    except httpx.TransportError:
        return False


def _until(holds: Callable[[], bool], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
