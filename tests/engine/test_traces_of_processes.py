"""One workflow, submitted here and run by two other processes, one of which is killed: one trace."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.kit import PATIENCE
from tests.engine.traced_program import facts, order
from tests.engine.traces import Spans
from treadle import Client


def start(url: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.engine.traced_program", url]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def killed(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait until a process has killed itself. Returns the spans that it has printed."""
    assert process.stdout is not None
    spans = [json.loads(line) for line in process.stdout]
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return spans


def ended(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """End a process. Returns the spans that it has printed."""
    output, _ = process.communicate("\n", timeout=PATIENCE)
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_workflow_across_processes_is_one_trace(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}" if kind == "sqlite" else request.getfixturevalue("prepared_url")
    sending = Spans()
    async with Client(url, work=[order], telemetry=sending.telemetry, poll_interval=0.05) as client:
        first = start(url)
        with sending.tracer.start_as_current_span("request"):
            waiting = asyncio.ensure_future(client.enqueue(order()).group(4 * PATIENCE))
            spans = await asyncio.to_thread(killed, first)
        second = start(url)
        assert await waiting == 3
        spans += await asyncio.to_thread(ended, second)
    spans += [facts(span) for span in sending.all()]

    names = {span["span"]: span["name"] for span in spans}
    shapes = {(span["name"], span["kind"], names.get(span["parent"])) for span in spans}
    assert shapes == {
        ("request", "INTERNAL", None),
        ("send default", "PRODUCER", "request"),
        ("process order", "CONSUMER", "send default"),
        ("process part", "CONSUMER", "process order"),
        ("process ship", "CONSUMER", "process order"),
    }
    assert len({span["trace"] for span in spans}) == 1
    (ship,) = [span for span in spans if span["name"] == "process ship"]
    assert [names[link] for link in ship["links"]] == ["process order"] * 3
    parts = [span for span in spans if span["name"] == "process part"]
    assert len({span["id"] for span in parts}) == 3
    assert {span["outcome"] for span in parts} == {"success"}
    # The attempt that was killed has no span: the part that killed it is only seen in its second attempt.
    seen = [{each["attempt"] for each in parts if each["id"] == id} for id in {span["id"] for span in parts}]
    assert {2} in seen
