"""How classes that msgspec does not know are written and read.

Pydantic models are recognised by their methods, so that pydantic is never imported here.
"""

from __future__ import annotations

import re
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PurePath
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
from msgspec import inspect as info

from treadle.errors import shown

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


# -- collections of the standard library -------------------------------------------------------------------
# They are stored as a dict or a list, and rebuilt where they are declared. A `defaultdict` is refused: its
# factory is code, which is not stored.

_STORED: Final[dict[type, Any]] = {OrderedDict: dict, Counter: dict, deque: list}


def stored_as(cls: Any) -> Any:
    """Return the type that values of `cls` are stored as, such as `dict[str, int]` for `Counter[str]`. None
    if `cls` is no such collection."""
    origin, args = typing.get_origin(cls) or cls, typing.get_args(cls)
    stored: Any = _STORED.get(origin) if isinstance(origin, type) else None
    if stored is None:
        return None
    if origin is Counter:
        args = (*(args or (Any,)), int)
    if not args:
        args = (Any,) if stored is list else (Any, Any)
    return stored.__class_getitem__(args)


def plain(cls: Any, value: Any) -> Any:
    """Return the dict or list that stands for `value`. Raises TypeError for a value of another kind."""
    origin = typing.get_origin(cls) or cls
    stored = _STORED[origin]
    if not isinstance(value, (origin, stored)):
        raise TypeError(f"Expected `{origin.__name__}`, got `{type(value).__name__}`")
    if isinstance(value, deque) and value.maxlen is not None:
        raise ValueError("a deque with a maxlen, which is not stored")
    return stored(value)


def rebuild(cls: Any, value: Any) -> Any:
    return (typing.get_origin(cls) or cls)(value)


def is_defaultdict(cls: Any) -> bool:
    origin = typing.get_origin(cls) or cls
    return isinstance(origin, type) and issubclass(origin, defaultdict)


# -- enums with numbers ------------------------------------------------------------------------------------
# msgspec writes and reads their members, and refuses them where it validates a value (`Expected int, got
# Color`). So they are validated as their numbers.


def numbered(parts: Iterable[info.Type]) -> frozenset[type[Enum]]:
    """Return the enums and flags among the parts of a type whose members are no `int` or `str` themselves."""
    enums = [part.cls for part in parts if isinstance(part, info.EnumType)]
    return frozenset(each for each in enums if not issubclass(each, int | str))


def as_numbers(value: Any, enums: AbstractSet[type[Enum]]) -> Any:
    """Return `value` with the members of these enums replaced by what they stand for."""
    kind = value.__class__
    if kind in enums:
        return value.value
    if kind in _REMADE:
        return kind([as_numbers(each, enums) for each in value])
    if kind is dict:
        return {as_numbers(key, enums): as_numbers(each, enums) for key, each in value.items()}
    if hasattr(kind, "_make"):  # a named tuple
        return kind._make([as_numbers(each, enums) for each in value])
    return value


_REMADE: Final[frozenset[Any]] = frozenset((list, set, frozenset, tuple))


def to_json(value: object) -> Any:
    """A Python value as JSON-native values. What has no form in JSON is shown as text."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_write_or_show)
    except Exception:  # noqa: BLE001  a class of the user may raise anything
        return shown(value)


def _write_or_show(value: object) -> object:
    try:
        return write(value)
    except Exception:  # noqa: BLE001  a class of the user, read by a codec of the user
        return str(value)
