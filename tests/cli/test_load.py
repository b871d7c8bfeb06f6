"""The app that a command names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.calling import call
from treadle.cli.load import load

CONNECTED = """
from treadle import Treadle, work

@work
def add(a: int, b: int) -> int:
    return a + b

app = Treadle("sqlite:///shop.db", work=[add])
app.sync.connect()
app.sync.enqueue(add(1, 2), id="first")
"""


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app that its module has connected with `app.sync`, as web applications do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "connected_shop", raising=False)
    (tmp_path / "connected_shop.py").write_text(CONNECTED)
    return "connected_shop:app"


def test_an_app_that_its_module_connected_is_free_for_the_loop_of_the_command(connected: str) -> None:
    answer = call("show", "first", "--app", connected)
    assert (answer.code, answer.err) == (0, "")
    assert "ready" in answer.out


def test_its_sync_side_can_be_used_again(connected: str) -> None:
    app = load(connected)
    with app.sync:
        assert app.sync.handle("first").result(timeout=60) == 3
