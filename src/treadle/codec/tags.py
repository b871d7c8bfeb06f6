"""Tags: `{"$treadle": kind, "value": ...}` for values that JSON has no form for.

`tag` turns a value into a tree of JSON-native values, `untag` turns the tree back. A user's dict with the key
`"$treadle"` is written as kind `dict`, a list of pairs, like a dict whose keys are not strings. So no user
data can be mistaken for a tag.

A tag of an unknown kind is read as a plain dict: treadle did not write it.
"""

from __future__ import annotations

import base64
import builtins
import re
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from treadle.errors import RemoteError

from .bad_value import BadValue
from .collisions import check_hashes, checked

MARK: Final = "$treadle"
MAX_DEPTH: Final = 200

# Beyond this, JSON readers that use doubles for numbers would round.
_EXACT_INT: Final = 2**53
# Python limits how many decimal digits it converts. Larger integers are written in hexadecimal.
_DECIMAL_BITS: Final = 2000

_Write: TypeAlias = Callable[[Any, int], object]


def tag(value: object, depth: int = 0) -> object:
    """Turn `value` into JSON-native values."""
    write = _WRITERS.get(type(value)) or _writer_of_base(value)
    return write(value, depth)


def _writer_of_base(value: object) -> _Write:
    """Write an instance of a subclass as its base class: it reads back equal, but as the base class."""
    for base, write in _WRITERS.items():
        if isinstance(value, base):
            return write
    raise BadValue(_unknown(value))


def _unknown(value: object) -> str:
    name = type(value).__qualname__
    if isinstance(value, Enum) or _is_record(type(value)):
        return f"{name} can only be read back where it is declared: annotate the parameter or result with it"
    return (
        f"{name} has no form in JSON: pass plain data (make a class of yours a dataclass, a msgspec.Struct "
        "or a pydantic model), or use a codec that knows it"
    )


def _is_record(cls: type[Any]) -> bool:
    """Whether it is stored where it is declared: a dataclass, a Struct, a model, a class of attrs."""
    marks = ("__struct_fields__", "model_fields", "__attrs_attrs__", "_fields")
    return is_dataclass(cls) or any(hasattr(cls, mark) for mark in marks)


def _tagged(kind: str, value: object) -> dict[str, object]:
    return {MARK: kind, "value": value}


def _as_is(value: object, depth: int) -> object:
    return value


def _text(value: str, depth: int) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadValue("the text holds a lone surrogate, which UTF-8 cannot carry") from None
    return str.__str__(value)  # of a str-based enum, the value


def _int(value: int, depth: int) -> object:
    value = int(value)
    if -_EXACT_INT <= value <= _EXACT_INT:
        return value
    return _tagged("int", str(value) if value.bit_length() <= _DECIMAL_BITS else hex(value))


def _float(value: float, depth: int) -> object:
    value = float(value)
    return value if isfinite(value) else _tagged("float", repr(value))


def _each(values: Iterable[object], depth: int) -> list[object]:
    _check_depth(depth)
    written: list[object] = []
    try:
        for value in values:
            written.append(tag(value, depth + 1))
    except BadValue as refused:
        raise refused.at(len(written)) from None
    return written


def _dict(value: dict[Any, Any], depth: int) -> object:
    if MARK in value or not all(isinstance(key, str) for key in value):
        return _tagged("dict", _pairs(value, depth))
    _check_depth(depth)
    written: dict[str, object] = {}
    key: Any = None
    try:
        for key, item in value.items():
            written[_text(key, depth)] = tag(item, depth + 1)
    except BadValue as refused:
        raise refused.at(key) from None
    return written


def _pairs(value: dict[Any, Any], depth: int) -> list[object]:
    _check_depth(depth)
    written: list[object] = []
    key: Any = None
    try:
        for key, item in value.items():
            written.append([tag(key, depth + 1), tag(item, depth + 1)])
    except BadValue as refused:
        raise refused.at(key) from None
    return written


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise BadValue(f"nested deeper than {MAX_DEPTH} levels, or inside itself")


def _several(kind: str) -> _Write:
    return lambda values, depth: _tagged(kind, _each(values, depth))


def _by(kind: str, write: Callable[[Any], object]) -> _Write:
    return lambda value, depth: _tagged(kind, write(value))


def _time(value: time, depth: int) -> object:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise BadValue("a time of day in a zone without a fixed offset: pass a datetime instead")
    return _tagged("time", value.isoformat())


def _complex(value: complex, depth: int) -> object:
    return _tagged("complex", [_float(value.real, depth), _float(value.imag, depth)])


def _exception(error: BaseException, depth: int) -> object:
    """Never refused: an error that cannot be written would hide what failed."""
    if isinstance(error, RemoteError):
        return _tagged("exception", {"type": error.error_type, "message": _safe(error.error), "args": None})
    try:
        args: object = _each(error.args, depth)
    except BadValue:
        args = None
    return _tagged("exception", {"type": _qualified(type(error)), "message": _message(error), "args": args})


def _qualified(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return _safe(str(error))
    except BaseException:  # noqa: BLE001  a user's __str__ may raise any exception
        return f"<{type(error).__qualname__}>"


def _safe(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


# Base classes are tried in this order: a datetime is a date, a bool is an int.
_WRITERS: Final[dict[type, _Write]] = {
    type(None): _as_is,
    bool: _as_is,
    str: _text,
    int: _int,
    float: _float,
    list: _each,
    dict: _dict,
    tuple: _several("tuple"),
    set: _several("set"),
    frozenset: _several("frozenset"),
    datetime: _by("datetime", datetime.isoformat),
    date: _by("date", date.isoformat),
    time: _time,
    timedelta: _by("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: _by("Decimal", str),
    UUID: _by("UUID", str),
    bytes: _by("bytes", lambda value: base64.b64encode(value).decode()),
    bytearray: _by("bytes", lambda value: base64.b64encode(value).decode()),
    memoryview: _by("bytes", lambda value: base64.b64encode(value).decode()),
    complex: _complex,
    BaseException: _exception,
}


def untag(tree: Any) -> Any:
    """Turn a tree that `tag` made back into the value. Changes the containers of `tree`. Raises BadValue.

    It is one function, not three, to use fewer stack frames: a dict of pairs is three levels of JSON.
    """
    kind = type(tree)  # pyright: ignore[reportUnknownVariableType]
    step: Any = None
    try:
        if kind is list:
            for step, item in enumerate(tree):
                if type(item) in _CONTAINERS:
                    tree[step] = untag(item)
        elif kind is dict and not _is_tag(tree):
            for step, item in tree.items():
                if type(item) in _CONTAINERS:
                    tree[step] = untag(item)
        elif kind is dict:
            value = tree["value"]
            return _read(tree[MARK], untag(value) if type(value) in _CONTAINERS else value)
    except BadValue as refused:
        raise refused if step is None else refused.at(step) from None
    return tree


def _is_tag(tree: dict[str, Any]) -> bool:
    kind = tree.get(MARK)
    return isinstance(kind, str) and kind in _READERS and tree.keys() == _TAG_KEYS


def _read(kind: str, value: Any) -> Any:
    try:
        return _READERS[kind](value)
    except BadValue:
        raise
    except Exception:  # noqa: BLE001  hostile input may raise any exception
        raise BadValue(f"what is stored is not a {kind}") from None


def _read_int(value: str) -> int:
    return int(value, 16 if "x" in value else 10)


def _read_float(value: str) -> float:
    return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[value]


def _read_sequence(value: object) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value  # pyright: ignore[reportUnknownVariableType]


def _read_dict(value: object) -> dict[Any, Any]:
    pairs = _read_sequence(value)
    check_hashes([key for key, _ in pairs])
    return dict(pairs)


def _read_complex(value: list[float]) -> complex:
    real, imag = value
    return complex(float(real), float(imag))


def _read_timedelta(value: list[int]) -> timedelta:
    days, seconds, microseconds = value
    return timedelta(days, seconds, microseconds)


def _read_exception(value: dict[str, Any]) -> BaseException:
    """Make a built-in exception, or a RemoteError for any other class: reading data never imports code."""
    name, message, args = str(value["type"]), str(value["message"]), value["args"]
    cls = getattr(builtins, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        return RemoteError(name, message)
    try:
        return cls(*_read_sequence(args))
    except Exception:  # noqa: BLE001  the constructor may not accept these arguments
        return RemoteError(name, message)


_TINY_OFFSET: Final = re.compile(r"([+-])00:00:00\.(\d{6})\Z")

_Aware = TypeVar("_Aware", datetime, time)


def _with_tiny_offset(value: _Aware, text: str) -> _Aware:
    """Restore a UTC offset of less than a second, which Python reads as none."""
    tiny = _TINY_OFFSET.search(text)
    if tiny is None:
        return value
    offset = timedelta(microseconds=int(tiny[1] + tiny[2]))
    return value.replace(tzinfo=timezone(offset))


_CONTAINERS: Final = frozenset({list, dict})
_TAG_KEYS: Final = {MARK, "value"}

_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _read_int,
    "float": _read_float,
    "dict": _read_dict,
    "tuple": lambda value: tuple(_read_sequence(value)),
    "set": lambda value: set(checked(_read_sequence(value))),
    "frozenset": lambda value: frozenset(checked(_read_sequence(value))),
    "datetime": lambda value: _with_tiny_offset(datetime.fromisoformat(value), value),
    "date": date.fromisoformat,
    "time": lambda value: _with_tiny_offset(time.fromisoformat(value), value),
    "timedelta": _read_timedelta,
    "Decimal": Decimal,
    "UUID": UUID,
    "bytes": lambda value: base64.b64decode(value, validate=True),
    "complex": _read_complex,
    "exception": _read_exception,
}
