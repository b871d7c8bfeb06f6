"""How classes that msgspec does not know are written and read.

Pydantic models are recognised by their methods, so that pydantic is never imported here.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PurePath
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

# Classes that `str` writes and the constructor reads.
_TEXT: Final = (
    PurePath,
    Fraction,
    ZoneInfo,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)

# Without an exponent: `Fraction("1e10000000")` would compute ten million digits.
_FRACTION: Final = re.compile(r"[-+]?[0-9]{1,4300}(?:[./][0-9]{1,4300})?")

MOST_MISTAKES: Final = 5
"""How many of the mistakes in a value are named."""

_to_json = msgspec.json.Encoder().encode


def bare(cls: Any) -> type:
    """Return the class without its type arguments, since `isinstance` does not accept `Iterable[int]`."""
    origin = typing.get_origin(cls) or cls
    return origin if isinstance(origin, type) else object


def is_model(cls: Any) -> bool:
    return hasattr(cls, "model_validate_json") and hasattr(cls, "model_dump")


def is_known(cls: Any) -> bool:
    """Whether `write` and `read` support this class."""
    return is_model(cls) or issubclass(bare(cls), _TEXT)


def write(value: Any) -> Any:
    """Turn an instance into JSON-native values. Raises NotImplementedError, as msgspec expects of a hook."""
    if is_model(value):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, _TEXT):
        return str(value)
    # msgspec writes str, int and float, but not their subclasses.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise NotImplementedError(f"{type(value).__qualname__} has no form in JSON")


def read(cls: Any, value: Any) -> Any:
    """Make an instance of `cls` from the output of `write`. Raises TypeError or ValueError."""
    if is_model(cls) and not isinstance(value, cls):
        return _read_model(cls, value)
    kind = bare(cls)
    if isinstance(value, kind):
        return value
    if issubclass(kind, _TEXT) and isinstance(value, str):
        if issubclass(kind, Fraction) and not _FRACTION.fullmatch(value):
            raise ValueError("not a fraction of at most 4,300 digits each, as in 3/4")
        try:
            return cls(value)
        except Exception:  # noqa: BLE001  it quotes the value, which may be secret
            raise ValueError(f"not a text for {kind.__name__}") from None
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _read_model(cls: Any, value: Any) -> Any:
    try:
        # From JSON first: a strict model accepts text for a datetime only from JSON.
        return cls.model_validate_json(_to_json(value))
    except ValueError:
        try:
            return cls.model_validate(value)
        except ValueError as error:
            problem = _without_values(error)
    raise ValueError(f"{cls.__name__}: {problem}")


def _without_values(error: Any) -> str:
    """What pydantic says of a value, without the value: it may be secret, and the error is stored and
    shown."""
    try:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        mistakes = [_mistake(each["loc"], each["msg"]) for each in found]
    except Exception:  # noqa: BLE001  an error of the user's own, which has no such method
        return type(error).__name__
    return "; ".join(mistakes[:MOST_MISTAKES]) + ("; ..." if len(mistakes) > MOST_MISTAKES else "")


def _mistake(steps: Sequence[object], message: str) -> str:
    return f"{'.'.join(map(str, steps))}: {message}" if steps else message
