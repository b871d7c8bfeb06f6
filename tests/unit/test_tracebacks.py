"""Tracebacks begin where the user's code begins, and no error can break them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from treadle.codec import default_codec
from treadle.engine.hooks import Hooks
from treadle.engine.run.decide import failure_of
from treadle.errors import DecodeError
from treadle.logs.lines import ERROR, Seldom, log_line, traceback_of
from treadle.logs.tracebacks import RemoteTraceback, frames_of, traceback_text, user_frames


def raised(call: Callable[[], object]) -> BaseException:
    """What a call raises, without the frame of this function."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return error.with_traceback(None if error.__traceback__ is None else error.__traceback__.tb_next)
    raise AssertionError("it raised nothing")


def within_treadle(call: Callable[[], Any]) -> BaseException:
    """What treadle raises if it calls this."""
    return raised(partial(Seldom(monotonic=call).occurrence, "key"))


def of_user() -> float:
    return 1 / 0


def wraps() -> None:
    try:
        of_user()
    except ZeroDivisionError as error:
        raise LookupError("wrapped") from error


def test_frames_before_the_users_code_are_left_out() -> None:
    error = within_treadle(of_user)
    assert "lines.py" in traceback_text(error, whole=True)
    assert traceback_text(error) == failure_of(error).traceback
    _, first, *_ = traceback_text(error).splitlines()
    assert first.endswith("in of_user")
    frames = user_frames(error)
    assert frames is not None
    assert frames.tb_frame.f_code is of_user.__code__


def test_frames_of_treadle_between_the_users_are_left_out() -> None:
    """As a middleware's, which calls the handler through treadle."""

    def middleware() -> None:
        Seldom(monotonic=of_user).occurrence("key")

    text = traceback_of(raised(middleware))
    assert ("in middleware" in text, "in of_user" in text, "lines.py" in text) == (True, True, False)


def test_causes_are_shown_in_the_same_way() -> None:
    text = traceback_text(within_treadle(wraps))
    assert "lines.py" not in text
    assert text.count("Traceback (most recent call last)") == 2
    assert text.endswith("LookupError: wrapped\n")


def test_without_code_of_the_user_all_is_shown() -> None:
    error = raised(partial(Seldom().occurrence, []))
    assert user_frames(error) is None
    assert "lines.py" in traceback_text(error)


def test_an_error_about_data_has_only_its_message() -> None:
    error = raised(partial(default_codec.decode, b"{"))
    assert isinstance(error, DecodeError)
    assert traceback_text(error) == ""
    wrapped = within_treadle(of_user)
    assert "in of_user" in traceback_text(raised(partial(_raise, DecodeError("upcast raised"), wrapped)))


def _raise(error: BaseException, cause: BaseException) -> None:
    raise error from cause


def test_an_error_of_another_process_shows_only_what_was_there() -> None:
    error = raised(partial(Seldom().occurrence, []))
    error.__cause__ = RemoteTraceback("Traceback ...\n  in their_code\n")
    text = traceback_text(error)
    assert "in their_code" in text
    assert "lines.py" not in text
    assert text.count("Traceback") == 2, "of the text, and the name of the class"


class Hostile(Exception):
    def _trap(self) -> Any:
        raise KeyboardInterrupt

    __traceback__ = property(_trap)  # type: ignore[assignment]
    __cause__ = property(_trap)  # type: ignore[assignment]
    __context__ = property(_trap)  # type: ignore[assignment]
    __notes__ = property(_trap)
    __str__ = _trap
    __repr__ = _trap


def test_no_error_breaks_its_log_line(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise Hostile
    except Hostile as caught:
        error = caught
    assert frames_of(error) is not None
    assert traceback_of(error) == ""
    log_line(ERROR, "it failed", error=error, trace=traceback_of(error))
    log_line(ERROR, "it failed", error=error, trace="a text of its own")
    Hooks().log(error, "hook", "a hook failed")
    logging.getLogger("treadle").debug("handlers format what they got")
    first, second, third = caplog.records
    assert first.exc_info is None
    assert second.exc_text == "a text of its own"
    assert third.getMessage() == "a hook failed: Hostile: (its message cannot be shown)"


def test_of_a_deep_stack_both_ends_are_shown() -> None:
    """Each frame costs time on the event loop, and texts are cut anyway. A short stack is whole."""

    def down(left: int) -> None:
        if not left:
            raise ValueError("the bottom")
        up(left - 1)

    def up(left: int) -> None:
        down(left)

    for whole in (False, True):
        text = traceback_text(raised(partial(down, 300)), whole=whole)
        assert text.count("File ") == 100
        assert "\n  [" in text
        assert " frames are left out]\n  File " in text
        assert text.endswith("ValueError: the bottom\n")
        assert "left out" not in traceback_text(raised(partial(down, 40)), whole=whole)
