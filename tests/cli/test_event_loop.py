"""`treadle worker --loop`: which event loop the worker processes run on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.cli.calling import call
from tests.cli.forks import common_server
from treadle import Client, Treadle, work
from treadle.cli.child import EventLoop, chosen_loop, run_on


@work(name="where")
async def where() -> str:
    raise NotImplementedError


PROGRAM = """
import asyncio
from treadle import Treadle

app = Treadle("sqlite:///work.db")

@app.work(name="where")
async def where() -> str:
    return type(asyncio.get_running_loop()).__module__
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("loop", "module"), [("asyncio", "asyncio.unix_events"), ("uvloop", "uvloop")])
async def test_a_worker_runs_on_the_loop_that_is_named(tmp_path: Path, loop: str, module: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    (tmp_path / "program.py").write_text(PROGRAM)
    async with Client(f"sqlite:///{tmp_path / 'work.db'}") as client:
        handle = await client.enqueue(where())
        command = ["treadle", "worker", "program:app", "--burst", "--loop", loop]
        done = await asyncio.to_thread(common_server().run, command, tmp_path, os.environ, timeout=50)
        assert done.returncode == 0, done.stderr
        assert f"  event loop   {loop}\n" in done.stderr
        assert await handle.result(timeout=1) == module


def test_auto_is_uvloop_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.cli.child.find_spec", str)
    assert chosen_loop(EventLoop.auto) is EventLoop.uvloop
    assert chosen_loop(EventLoop.asyncio) is EventLoop.asyncio


def test_without_uvloop_auto_is_asyncio_and_uvloop_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("treadle.cli.child.find_spec", {}.get)
    assert chosen_loop(EventLoop.auto) is EventLoop.asyncio
    assert chosen_loop(EventLoop.uvloop) is None
    refused = call("worker", "tests.cli.shop:app", "--burst", "--loop", "uvloop")
    assert refused.code == 2
    assert "--loop uvloop: it is not installed" in refused.err


def test_a_program_runs_to_its_end_on_either_loop() -> None:
    async def answer() -> int:
        return 42

    assert run_on("asyncio", answer()) == 42
    pytest.importorskip("uvloop")
    assert run_on("uvloop", answer()) == 42


@work(name="double")
async def double(number: int) -> int:
    return 2 * number


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("store", ["sqlite", "postgres", "valkey", "wakeups by valkey", "wakeups by nats"])
def test_every_store_works_on_uvloop(store: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("uvloop")
    fixtures = {"sqlite": "quick_file", "valkey": "valkey_url"}
    found = request.getfixturevalue(fixtures.get(store, "prepared_url"))
    notify = {"wakeups by valkey": "valkey_url", "wakeups by nats": "nats_url"}.get(store)
    app = Treadle(
        f"sqlite:///{found}" if store == "sqlite" else found,
        work=[double],
        notify=True if notify is None else request.getfixturevalue(notify),
    )

    async def run() -> int:
        async with app:
            return await app.enqueue(double(21)).result(timeout=60)

    assert run_on("uvloop", run()) == 42
