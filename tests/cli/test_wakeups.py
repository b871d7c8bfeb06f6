"""`treadle doctor` says what carries wake-ups, and whether one arrives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli import looked_at
from tests.cli.calling import call
from tests.cli.conftest import APP
from treadle import Treadle
from treadle.cli import doctor


def _finding(url: str, monkeypatch: pytest.MonkeyPatch, notify: Any) -> dict[str, Any]:
    monkeypatch.setattr(looked_at, "app", Treadle(url, work=looked_at.TYPES, notify=notify))
    (found,) = [
        each
        for each in call("doctor", "--app", APP, "--json").objects
        if each["check"] == "wake-ups" or "wake-ups" in each["text"]
    ]
    return found


def test_wake_ups_by_the_database(prepared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _finding(prepared_url, monkeypatch, True)
    assert (found["outcome"], found["text"]) == ("fine", "one arrived by LISTEN/NOTIFY")


def test_wake_ups_by_another_server(
    prepared_url: str, valkey: str, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (valkey, nats_url):
        found = _finding(prepared_url, monkeypatch, url)
        assert (found["outcome"], found["text"]) == ("fine", f"one arrived by {url}")


def test_no_wake_ups(prepared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _finding(prepared_url, monkeypatch, None)
    assert (found["outcome"], found["text"]) == (
        "note",
        "none are sent, so processes find work by polling",
    )


def test_wake_ups_that_do_not_arrive(prepared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "WAKEUP", 0.1)
    found = _finding(prepared_url, monkeypatch, "nats://app:secret@127.0.0.1:9")
    assert found["outcome"] == "problem"
    assert found["text"].startswith("none arrived by nats://app:***@127.0.0.1:9 within ")


def test_a_store_whose_processes_do_not_hear_themselves(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing about wake-ups."""
    monkeypatch.setattr(looked_at, "app", Treadle(f"sqlite:///{tmp_path / 'a.db'}", work=looked_at.TYPES))
    call("migrate", "--app", APP)
    assert "wake-ups" not in call("doctor", "--app", APP).out
