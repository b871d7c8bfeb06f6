"""`treadle tail`: events from what a store keeps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading

import pytest

from tests.cli.calling import start
from tests.cli.conftest import Store
from tests.cli.looked_at import report, send
from treadle import Treadle
from treadle.cli.tail import LastSeen, compare, event_line
from treadle.errors import WorkFailed
from treadle.item import Attempt, ItemState


def _state(**fields: object) -> ItemState:
    return ItemState(
        **{"id": "i1", "type": "t", "status": "ready", "queued_at": 10.0, "due_at": 10.0, **fields}
    )  # type: ignore[arg-type]


def _names(before: LastSeen | None, state: ItemState, start: float = 0.0) -> list[str]:
    return [each.name for each in compare(before, state, 100.0, start)]


def test_a_new_item_was_queued_and_what_became_of_it_since() -> None:
    assert _names(None, _state()) == ["queued"]
    done = _state(status="success", attempt=1, started_at=20.0, ended_at=30.0)
    assert _names(None, done) == ["queued", "started", "succeeded"]
    assert _names(None, done, start=25.0) == ["succeeded"]  # the rest was before the first look


def test_an_item_has_started_if_it_still_runs_at_the_next_look() -> None:
    """A worker that cannot decode what it has claimed gives it back: it never starts."""
    running = _state(status="running", attempt=1, started_at=20.0, claimed_at=20.0)
    claimed = LastSeen("running", 0, 0, 0, 20.0)
    assert _names(LastSeen("ready", 0, 0, 0), running) == []
    assert _names(claimed, running) == ["started"]
    assert _names(claimed, _state(status="success", attempt=1, ended_at=30.0)) == ["started", "succeeded"]
    assert _names(claimed, _state(status="scheduled", claimed_at=20.0)) == []
    again = _state(status="running", attempt=1, started_at=25.0, claimed_at=25.0)
    assert _names(claimed, again) == []


def test_every_failed_attempt_of_the_history_is_an_event() -> None:
    history = tuple(Attempt(number, "E", "no", "", 20.0 + number, "w") for number in (1, 2, 3))
    state = _state(
        status="dead",
        reason="exhausted",
        attempt=3,
        failures=3,
        ended_at=50.0,
        history=history,
        error="E: no",
    )
    found = list(compare(LastSeen("scheduled", 1, 1, 0), state, 100.0, 0.0))
    assert [(each.name, each.attempt) for each in found] == [
        ("started", 3),
        ("failed", 2),
        ("failed", 3),
        ("dead", 3),
    ]


def test_a_lost_lease_is_an_event() -> None:
    lost = _state(attempt=1, losses=1, history=(Attempt(1, "LeaseLost", "", "", 40.0, "w"),))
    assert _names(LastSeen("running", 1, 0, 0), lost) == ["lost"]


def test_an_item_is_suspended_and_goes_on() -> None:
    """Its attempt is given back. What happened between two looks is told."""
    waits = _state(status="scheduled", suspended=True, started_at=20.0, claimed_at=20.0, due_at=160.0)
    assert _names(None, waits) == ["queued", "started", "suspended"]
    assert _names(LastSeen("running", 1, 0, 0, 20.0), waits) == ["suspended"]
    assert _names(LastSeen("running", 0, 0, 0, 20.0), waits) == ["started", "suspended"]
    still = LastSeen("scheduled", 0, 0, 0, 20.0, True)
    assert _names(still, waits) == []
    assert _names(still, _state(suspended=True, claimed_at=20.0)) == []  # ready: a signal came
    again = _state(status="scheduled", suspended=True, started_at=30.0, claimed_at=30.0, due_at=160.0)
    assert _names(still, again) == ["resumed", "started", "suspended"]
    running = _state(status="running", attempt=1, started_at=30.0, claimed_at=30.0)
    assert _names(still, running) == []
    assert _names(LastSeen("running", 0, 0, 0, 30.0, True), running) == ["resumed", "started"]
    assert _names(LastSeen("running", 0, 0, 0, 30.0, True), again) == ["resumed", "started", "suspended"]
    done = _state(status="success", attempt=1, started_at=30.0, claimed_at=30.0, ended_at=40.0)
    assert _names(still, done) == ["resumed", "started", "succeeded"]
    assert _names(still, _state(status="cancelled", claimed_at=20.0, ended_at=40.0)) == ["cancelled"]
    (_, _, suspended) = compare(None, waits, 100.0, 0.0)
    assert event_line(suspended, None).endswith("◷ suspended  i1  t  goes on in 1 min at the latest")


def test_what_has_not_changed_is_no_event() -> None:
    assert _names(LastSeen("ready", 0, 0, 0), _state()) == []
    assert _names(LastSeen("success", 1, 0, 0), _state(status="success", attempt=1, ended_at=30.0)) == []


def test_a_line_fits_the_terminal_and_is_plain() -> None:
    dead = _state(status="dead", reason="aborted", ended_at=30.0, error="E: \x1b[2J" + "x" * 300)
    (happened,) = compare(LastSeen("running", 0, 0, 0), dead, 100.0, 0.0)
    line = event_line(happened, 80)
    assert line.isprintable()
    assert len(line) == 80
    assert line.startswith("00:00:30.000  ✕ dead       i1  t  aborted: E: \\x1b[2J")
    assert "  (acme)  " in event_line(happened._replace(item=_state(tenant="acme")), None, tenant=True)


@pytest.mark.usefixtures("processes")
def test_events_of_other_processes_are_told(store: Store) -> None:
    process = start("tail", "--url", store.url, "--json", "--event", "queued,started,failed,dead,succeeded")
    stop = threading.Event()

    async def fill(app: Treadle) -> None:
        while not stop.is_set():  # until the other process has begun to look
            await app.enqueue(report()).result()
            await asyncio.sleep(0.05)
        failing = await app.enqueue(send(3))
        with contextlib.suppress(WorkFailed):
            await failing.result()
        await app.tenant("acme").enqueue(report("last"))

    filling = threading.Thread(target=store.work_off, args=(fill,))
    filling.start()
    assert process.stdout is not None
    assert process.stderr is not None
    events: list[tuple[str, str]] = []
    for line in process.stdout:
        stop.set()
        told = json.loads(line)
        events.append((told["event"], told["type"]))
        if told["tenant"] == "acme":
            break
    filling.join()
    assert ("dead", "mail.send") in events
    assert ("started", "mail.send") in events
    assert events.count(("failed", "mail.send")) == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


def test_an_unknown_event_is_refused(store: Store) -> None:
    refused = store.call("tail", "--event", "failled")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
