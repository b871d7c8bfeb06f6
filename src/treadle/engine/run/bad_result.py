"""Results that cannot be stored: what is wrong with them, and which handler returned them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from treadle.codec import Shape
from treadle.define.secret_values import holds_secret
from treadle.define.signature import type_text
from treadle.errors import BadResultError, DecodeError, EncodeError, PayloadError, path_text, shown

from .decide import Die, failure_of, undecodable
from .held import BoundType

_SHOWN: Final = (str, bytes, int, float)
"""Values of these classes are shown, and their subclasses are not. Others may hold anything."""


def unstorable(error: PayloadError) -> Die:
    """What an attempt leads to cannot be stored: its result, its children, or the value of its group."""
    if isinstance(error, DecodeError):  # what the group had before
        return undecodable(error)
    return Die("bad_result", failure_of(error), error)


def unfit_result(bound: BoundType, value: Any, error: EncodeError) -> BadResultError:
    """The error for a result that cannot be encoded."""
    problem = _problem(bound.result_shape, value, error)
    return BadResultError.of(bound.name, f"{problem}; the handler is in {_place(bound.fn)}")


def _problem(shape: Shape, value: Any, error: EncodeError) -> str:
    fits = shape.fits(value)
    start = "cannot be stored" if fits else f"does not fit its annotation `{type_text(shape.type)}`"
    if holds_secret(shape.type):
        return f"{start}: what is wrong is not shown, because it may be secret"
    if error.path != "$":
        return f"{start}: at {path_text(error.path)}: {error.problem}"
    if fits:
        return f"{start}: {error.problem}"
    got = f"got `{type_text(type(value))}`"
    if inspect.iscoroutine(value):
        value.close()
        return f"{start}: {got}: is an `await` missing?"
    return f"{start}: {got} ({shown(value)})" if type(value) in _SHOWN else f"{start}: {got}"


def _place(fn: Callable[..., Any]) -> str:
    """The file and the line of a function: `shop.py, line 12`."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
