"""The fingerprint of a death: which deaths count as alike."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import treadle
from treadle.item import DeathReason, ErrorInfo
from treadle.logs.tracebacks import mark_of


def raised(fn: Callable[..., Any], *args: Any) -> Exception:
    """What it raises, as if this function were not the user's."""
    try:
        fn(*args)
    except Exception as error:  # noqa: BLE001
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    raise AssertionError("it raised nothing")


def mark(error: Exception, type: str = "mail.send", reason: DeathReason = "exhausted") -> str:
    return mark_of(type, reason, ErrorInfo(error.__class__.__name__, str(error)), error)


def send(to: str) -> None:
    raise LookupError(f"no mailbox {to}")


def send_later(to: str) -> None:
    raise LookupError(f"no mailbox {to}")


def parse(text: str) -> None:
    json.loads(text)


def test_the_message_makes_no_difference() -> None:
    assert mark(raised(send, "a")) == mark(raised(send, "b"))


def test_the_type_the_class_and_the_function_make_a_difference() -> None:
    first = raised(send, "a")
    others = [mark(first, type="mail.read"), mark(raised(send_later, "a")), mark(raised(int, "x"))]
    assert len({mark(first), *others}) == 4


def test_a_function_of_a_library_counts_as_the_function_that_called_it() -> None:
    assert mark(raised(parse, "{")) == mark(raised(parse, "[1"))
    assert mark(raised(parse, "{")) != mark(raised(json.loads, "{"))


PACKAGES = Path(sysconfig.get_path("purelib"))


def in_file(file: Path, text: str) -> dict[str, Any]:
    """What a module with this text would define."""
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    return names


@pytest.mark.parametrize(
    "directory",
    [Path(f"{Path(treadle.__file__).parent}-shop"), Path(sys.prefix) / "shop", PACKAGES / "shop"],
    ids=["beside treadle, with a similar name", "inside the virtual environment", "installed as a package"],
)
def test_an_app_has_a_place_wherever_its_files_are(directory: Path) -> None:
    http = in_file(PACKAGES / "http_lib" / "client.py", "def get(path): raise LookupError(path)")
    read = in_file(directory / "read.py", "def read(get, path): get(path)\ndef other(get, path): get(path)")
    app = in_file(directory / "app.py", "def handle(read, get, path): read(get, path)")
    marks = [
        mark(raised(app["handle"], read[name], http["get"], path))
        for name, path in (("read", "a"), ("read", "b"), ("other", "a"))
    ]
    assert marks[0] == marks[1] != marks[2]


def test_without_a_place_the_reason_makes_the_difference() -> None:
    failure = ErrorInfo("DeadlineExceeded", "late")
    expired = mark_of("mail.send", "expired", failure, None)
    assert expired == mark_of("mail.send", "expired", ErrorInfo("DeadlineExceeded", "very late"), None)
    assert expired != mark_of("mail.send", "unknown_type", failure, None)
    assert len(expired) == 12
