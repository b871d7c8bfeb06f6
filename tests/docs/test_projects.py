"""The projects in `examples/projects`: their own tests pass, and each runs as its README says.

Real servers, real workers, each in a process of its own.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.docs.terminal import only_our_plugins

ROOT = Path(__file__).parents[2]
PROJECTS = ROOT / "examples" / "projects"
LIMIT = 100

pytestmark = [pytest.mark.timeout(LIMIT + 15), pytest.mark.usefixtures("deployment")]


def environment(**more: object) -> dict[str, str]:
    """That of this process, with the sources of treadle, and without the settings of other tests."""
    path = filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
    given = {name: str(value) for name, value in more.items()}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **given}


def run(project: str, *command: str, **more: object) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the directory of a project, to its end."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=PROJECTS / project,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


def pytest_of(project: str, **more: object) -> str:
    options = f"{only_our_plugins()} -p no:cacheprovider"
    done = run(project, "-m", "pytest", "-q", PYTEST_ADDOPTS=options, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def started(project: str, *command: str, pass_fds: tuple[int, ...] = (), **more: object) -> Generator[None]:
    """A Python program in the directory of a project. At the end it gets SIGTERM, and must end well."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=PROJECTS / project,
        env=environment(**more),
        pass_fds=pass_fds,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=20)
        assert process.returncode in (0, -signal.SIGTERM), printed
    finally:
        if process.poll() is None:
            process.kill()
            print(process.communicate()[0])  # noqa: T201  what a failed test shows


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port that a server is given: a caller waits until it serves."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


def site(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def until_shown(caller: httpx.Client, path: str, text: str) -> None:
    """Wait until a page shows a text."""
    deadline = time.monotonic() + 30
    while text not in (page := caller.get(path).text):
        assert time.monotonic() < deadline, page
        time.sleep(0.02)


# ---------------------------------------------------------------------------------------- FastAPI


def test_the_tests_of_the_fastapi_shop_pass(postgres_url: str) -> None:
    assert "11 passed" in pytest_of("fastapi_shop", TREADLE_TEST_POSTGRES=postgres_url)


def test_the_fastapi_shop_serves_and_works(postgres_url: str, listener: socket.socket) -> None:
    settings = {
        "SHOP_DATABASE": postgres_url.replace("postgresql://", "postgresql+asyncpg://"),
        "SHOP_BANK": f"{site(listener)}/bank/",
        "SHOP_PASSWORD": "sesame",
    }
    serve = ("-m", "uvicorn", "shop.main:api", "--log-level", "warning", "--fd", str(listener.fileno()))
    with ExitStack() as stack:
        stack.enter_context(started("fastapi_shop", *serve, pass_fds=(listener.fileno(),), **settings))
        stack.enter_context(
            started("fastapi_shop", "-m", "treadle", "worker", "shop.main:treadle", **settings)
        )
        ada = {"X-Customer": "ada"}
        caller = stack.enter_context(httpx.Client(base_url=site(listener), headers=ada, timeout=30))

        def order(key: str, **more: object) -> httpx.Response:
            new = {"sku": "lamp", "address": "Rue 1", **more}
            return caller.post("/orders", json=new, headers={"Idempotency-Key": key})

        first, again, failing = order("1"), order("1"), order("2", address="nowhere")
        assert (first.status_code, first.json()["id"]) == (202, again.json()["id"])
        state = caller.get(first.headers["Location"], params={"wait": 30}).json()
        assert state["group"]["value"].endswith("to Rue 1")
        state = caller.get(failing.headers["Location"], params={"wait": 30}).json()
        assert (state["ended"], state["group"]["failed"]) == (True, 1)
        orders = [caller.get(f"/orders/{each.json()['id']}").json() for each in (first, failing)]
        assert [each["status"] for each in orders] == ["shipped", "cancelled"]
        assert caller.get("/treadle/").status_code == 401
        board = caller.get("/treadle/items", auth=("staff", "sesame"))
        assert "order.undo" in board.text


# ---------------------------------------------------------------------------------------- Django


def test_the_tests_of_the_django_shop_pass(tmp_path: Path) -> None:
    done = run("django_shop", "-W", "error", "manage.py", "test", SHOP_DATA=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Ran 7 tests" in done.stderr


def test_the_django_shop_serves_and_works(tmp_path: Path, listener: socket.socket) -> None:
    settings = {"SHOP_DATA": tmp_path, "SHOP_SECRET": "of tests"}
    for command in (["migrate", "--verbosity=0"], ["restock", "lamp", "1"]):
        done = run("django_shop", "manage.py", *command, **settings)
        assert done.returncode == 0, done.stderr
    serve = ("-m", "gunicorn", "project.wsgi", "--bind", f"fd://{listener.fileno()}")
    with ExitStack() as stack:
        stack.enter_context(started("django_shop", *serve, pass_fds=(listener.fileno(),), **settings))
        stack.enter_context(started("django_shop", "manage.py", "treadle", "worker", **settings))
        caller = stack.enter_context(httpx.Client(base_url=site(listener), timeout=30, follow_redirects=True))
        page = caller.get("/").text
        form = re.search(r'action="(\S+)"', page)
        token = re.search(r'name="csrfmiddlewaretoken" value="(\S+)"', page)
        assert form is not None
        assert token is not None
        order = caller.post(
            form[1], data={"csrfmiddlewaretoken": token[1], "email": "ann@example.org"}
        ).url.path
        until_shown(caller, order, "Confirmed")


# ---------------------------------------------------------------------------------------- the pipeline


def test_the_tests_of_the_pipeline_pass() -> None:
    assert "4 passed" in pytest_of("pipeline")


def test_the_pipeline_runs(tmp_path: Path) -> None:
    logs, out = str(tmp_path / "logs"), str(tmp_path / "out")
    made = run("pipeline", "-m", "pipeline", "sample", logs, "--files", "10", "--lines", "300")
    assert made.returncode == 0, made.stderr
    done = run("pipeline", "-W", "error", "-m", "pipeline", "run", logs, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("a new run\n3000 requests")
