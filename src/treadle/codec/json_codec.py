"""The codec protocol, and the default codec: JSON by msgspec, with tags for what JSON has no form for.

Most values are plain JSON already, and tagging them would walk through the whole value in Python. So the
default codec first writes the value as it is, reads it back and compares: both run in C. It tags only values
that did not come back equal. For `{"a": 1, "b": 2}` that costs 1.3 us, where writing alone is 0.1 and tagging
2.6. For 1,000 records of four fields it costs 1.4 ms, where writing alone is 0.24 and tagging 6.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from treadle.errors import EncodeError, PayloadTooLarge

from .bad_value import BadValue, unreadable
from .tags import MARK, MAX_DEPTH, tag, untag

MAX_PAYLOAD = 1_048_576

MARK_BYTES: Final = f'"{MARK}"'.encode()
"""Data without these bytes holds no tags. Data with them may: a text that reads "$treadle" has them too.
(`data.find` takes two thirds of the time of `in` on short data.)"""

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode


@runtime_checkable
class Codec(Protocol):
    """Values to bytes and back. A codec of your own may encrypt, compress, or use another format.

    Where a type is declared it receives JSON-native values (a dataclass arrives as a dict). Where none is
    declared it receives the values themselves. `encode` raises `EncodeError`, `decode` raises `DecodeError`.
    Large values are decoded in threads, several at once.
    """

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


def check_size(data: bytes, limit: int | None, what: str, name: str | None = None) -> bytes:
    """Return `data`, or raise PayloadTooLarge if it is over the limit. None is no limit. EncodeError if a
    user's codec gave something else than bytes.

    The error names `what` and, if given, its `name`.
    """
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EncodeError(f"the codec of {name or what} returned a {type(data).__name__}, not bytes")
    if limit is not None and len(data) > limit:
        raise PayloadTooLarge(what if name is None else f"{what} {name!r}", len(data), limit)
    return data


class JsonCodec:
    """JSON that reads back equal. It has no state: all instances behave alike."""

    __slots__ = ()

    def encode(self, value: Any) -> bytes:
        try:
            data = _write(value)
            if _reads_back(value, data):
                return data
        except Exception:  # noqa: BLE001  tagging may write what plain JSON cannot
            pass
        return _write_tagged(value)

    def decode(self, data: bytes) -> Any:
        try:
            tree = _read(data)
            return tree if data.find(MARK_BYTES) < 0 else untag(tree)
        except Exception as error:
            raise unreadable(error) from error


default_codec: Final = JsonCodec()


def _write_tagged(value: object) -> bytes:
    try:
        return _write(tag(value))
    except Exception as error:
        refused = BadValue.because(error)
        raise EncodeError(refused.problem, path=refused.path) from error


def _reads_back(value: object, data: bytes) -> bool:
    """Whether reading `data` gives an equal value, and other JSON readers would round no number."""
    return (
        data.find(MARK_BYTES) < 0
        and not _has_long_number(data)
        and not _is_deep(data)
        and _read(data) == value
    ) is True


_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_SIXTEEN_DIGITS: Final = b"0" * 16


def _has_long_number(data: bytes) -> bool:
    """Whether an integer may be beyond 2**53, which has 16 digits. Fractions do not count."""
    if len(data) < 16:
        return False
    zeros = data.translate(_DIGITS_TO_ZERO)
    if zeros.find(_SIXTEEN_DIGITS) < 0:
        return False
    return zeros.replace(b"." + _SIXTEEN_DIGITS, b"").find(_SIXTEEN_DIGITS) >= 0


_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_FEW_LEVELS: Final = 8


def _is_deep(data: bytes) -> bool:
    """Whether `data` is nested deeper than MAX_DEPTH. Texts are left out only if their brackets may matter:
    most data has few levels."""
    if len(data) <= 2 * MAX_DEPTH or _has_levels(data, _FEW_LEVELS):
        return False
    return not _has_levels(_TEXT.sub(b"", data), MAX_DEPTH)


def _has_levels(data: bytes, most: int) -> bool:
    """Whether `data` is found to have MAX_DEPTH levels or fewer, after `most` rounds.

    Each round removes the innermost brackets. No more levels can be left than there are pairs of brackets.
    """
    brackets = data.translate(None, _NOT_BRACKETS)
    for peeled in range(most + 1):
        if peeled + len(brackets) // 2 <= MAX_DEPTH:
            return True
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return False


T = TypeVar("T")

LARGE: Final = 64 * 1024
"""Bytes from which a value is decoded in a thread, so that other items go on meanwhile. Decoding them takes
about a millisecond where a handler declares classes, and a change of threads a tenth of that. Hostile data
takes longest: see `collisions`."""


def is_large(data: object) -> bool:
    return isinstance(data, bytes) and len(data) >= LARGE


async def read_value(data: object, read: Callable[..., T], *args: Any) -> T:
    """Return `read(*args)`. It decodes `data`, in a thread if that is large."""
    return await asyncio.to_thread(read, *args) if is_large(data) else read(*args)
