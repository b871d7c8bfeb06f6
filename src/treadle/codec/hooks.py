"""How classes that msgspec does not know are written and read.

Pydantic models are recognised by their methods, so that pydantic is never imported here.
"""

from __future__ import annotations

import re
import typing
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
        try:
            # From JSON first: a strict model accepts text for a datetime only from JSON.
            return cls.model_validate_json(_to_json(value))
        except ValueError:
            return cls.model_validate(value)
    kind = bare(cls)
    if isinstance(value, kind):
        return value
    if issubclass(kind, _TEXT) and isinstance(value, str):
        if issubclass(kind, Fraction) and not _FRACTION.fullmatch(value):
            raise ValueError("not a fraction of at most 4,300 digits each, as in 3/4")
        return cls(value)
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
