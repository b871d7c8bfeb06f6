"""The work router on a real server, in a process of its own: callers that go, and a server that stops."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def server() -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Uvicorn, and a caller of it."""

    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "uvicorn", "tests.contrib.asgi_shop:web", "--log-level", "warning"]
        process = subprocess.Popen(
            [*command, "--fd", str(listener.fileno())],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        site = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx.Client(base_url=site, timeout=30) as caller:
                yield process, caller
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("processes")
def test_callers_that_go_and_a_server_that_stops() -> None:
    with server() as (process, caller):

        def waits() -> int:
            count: int = caller.get("/inside").json()["waits"]
            return count

        short = caller.post("/sleep?seconds=0.2").json()
        assert caller.get(short["links"]["wait"]).json()["result"] == "rested"
        assert "event: end" in caller.get(short["links"]["events"]).text
        long = caller.post("/sleep?seconds=600").json()
        with pytest.raises(httpx.ReadTimeout):  # the caller gives up, and closes the connection
            httpx.get(f"{caller.base_url}{long['links']['wait']}", timeout=0.3)
        until(lambda: waits() == 0)
        with httpx.stream("GET", f"{caller.base_url}{long['links']['events']}", timeout=30) as stream:
            received = stream.iter_text()  # without a name it would be closed at once, and the stream with it
            assert "event: state" in next(received)
            until(lambda: waits() == 1)
        until(lambda: waits() == 0)
        with httpx.stream("GET", f"{caller.base_url}{long['links']['events']}", timeout=30) as stream:
            received = stream.iter_text()
            assert "event: state" in next(received)
            process.terminate()
            began = time.monotonic()
            assert "event: end" not in "".join(received)  # it ends as a stream does, not as a broken one
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 15  # without it, the server waits for the end of the stream
        assert process.returncode in (0, -15)
        assert errors == ""


@pytest.mark.usefixtures("processes")
def test_a_stream_that_breaks_again_and_again_has_no_gap_and_no_repeat() -> None:
    """As a browser does, the caller says with `Last-Event-ID` what it has seen."""
    half = 100
    with server() as (_, caller):
        work = caller.post(f"/count?chunks={half}").json()
        seen, last, connections, sent = list[int](), "", 0, False
        while not last.startswith("end"):
            connections += 1
            with caller.stream(
                "GET", work["links"]["events"], headers={"last-event-id": last} if last else {}
            ) as stream:
                lines = stream.iter_lines()
                for _ in range(3 * connections):  # then the connection breaks
                    event = next_event(lines)
                    last = event.get("id", last)
                    if event["event"] == "chunk":
                        seen.append(int(event["data"]))
                        assert event["id"] == event["data"]
                    elif last.startswith("end"):
                        break
                    if len(seen) == half and not sent:
                        sent = True
                        signal = f"{work['links']['state']}/signals/go"
                        answer = caller.post(signal, json=True, headers={"idempotency-key": "1"})
                        assert answer.status_code == 202
        assert connections > 3
        assert seen == list(range(1, 2 * half + 1))
        assert last == f"end.{2 * half}"
        answer = caller.get(work["links"]["events"], headers={"last-event-id": last})
        assert answer.status_code == 204


def next_event(lines: Iterator[str]) -> dict[str, str]:
    """The fields of the next event."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line and "event" in fields:
            return fields
        name, found, value = line.partition(": ")
        if found and name:
            fields[name] = value
    raise AssertionError("the stream has ended")
