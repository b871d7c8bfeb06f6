"""The log of `treadle worker`: no record breaks a line, whatever is in it."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from treadle.logging import JsonFormatter, TextFormatter


class Rude:
    def __repr__(self) -> str:
        raise KeyboardInterrupt


class RudeError(Exception):
    __cause__ = property(lambda _: repr(Rude()))  # type: ignore[assignment]


def record(
    message: str, *args: object, error: BaseException | None = None, **fields: Any
) -> logging.LogRecord:
    made = logging.LogRecord("treadle", logging.WARNING, "file.py", 1, message, args, None)
    if error is not None:
        try:
            raise error
        except BaseException:  # noqa: BLE001  for its traceback
            made.exc_info = sys.exc_info()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


HOSTILE = "two\nlines\x1b[2J\x9b31m\ud800\u202e" + "x" * 100_000


@pytest.mark.parametrize(
    "made",
    [
        record(HOSTILE),
        record("%s", HOSTILE, id=HOSTILE, type=HOSTILE, attempt=1),
        record("too few %s %s", 1),
        record("rude %s", Rude()),
        record("failed", error=RudeError()),
        record("failed", error=ValueError(HOSTILE)),
        record(
            "odd fields", level=1, size=float("nan"), big=10**400, rude=Rude(), raw=b"\xff", some={1: Rude()}
        ),
    ],
)
def test_nothing_breaks_a_line(made: logging.LogRecord) -> None:
    line, *trace = TextFormatter(colour=False).format(made).split("\n")
    assert line.isprintable()
    assert bool(trace) == bool(made.exc_info)
    assert all(each.isprintable() and each.startswith("  ") for each in trace)
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert len(text) < 50_000
    assert text.isprintable()
    decoded = json.loads(text)
    assert {"time", "level", "logger", "pid", "message"} <= decoded.keys()


def test_a_line_of_ctx_log_names_its_item_and_json_has_all_fields() -> None:
    made = record("sent to %s", "a", id="i1", type="mail", attempt=2, workflow=None, order=7, tags=["x"])
    assert TextFormatter(colour=False).format(made).endswith("] sent to a [mail i1 attempt 2]")
    decoded = json.loads(JsonFormatter().format(made))
    assert (decoded["message"], decoded["id"], decoded["order"], decoded["tags"]) == (
        "sent to a",
        "i1",
        7,
        ["x"],
    )
    assert decoded["workflow"] is None


def test_levels_are_coloured_on_a_terminal_only() -> None:
    assert "\x1b[33mWARNING" in TextFormatter(colour=True).format(record("a"))
    assert "\x1b" not in TextFormatter(colour=False).format(record("a"))
