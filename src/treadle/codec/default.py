"""The default codec: JSON by msgspec, with tags for what JSON has no word for.

Most values are plain JSON already, and for them tagging would be a walk through the whole value in
Python. So the value is written as it is first, read back, and compared: both run in C. Only when it
did not survive is it tagged. For `{"a": 1, "b": 2}` that costs 1.3 us, where writing alone is 0.1
and tagging 2.6; for 1,000 records of four fields 1.4 ms, where writing alone is 0.24 and tagging 6.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from treadle.errors import DecodeError, EncodeError

from .refused import Refused
from .tags import MARK, MAX_DEPTH, tag, untag

_MARK_BYTES: Final = f'"{MARK}"'.encode()

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode


class JsonCodec:
    """JSON that gives back what it was given. It holds nothing: every instance is alike."""

    __slots__ = ()

    def encode(self, value: Any) -> bytes:
        try:
            data = _write(value)
            if _survives(value, data):
                return data
        except Exception:  # noqa: BLE001  whatever plain JSON cannot do, tagging may
            pass
        return _write_tagged(value)

    def decode(self, data: bytes) -> Any:
        try:
            tree = _read(data)
            return untag(tree) if is_marked(data) else tree
        except Exception as error:
            refused = Refused.because(error)
            raise DecodeError(refused.problem, path=refused.path) from error


default_codec: Final = JsonCodec()


def is_marked(data: bytes) -> bool:
    """Whether `data` may hold tags. A text that reads "$treadle" makes it a false alarm, at worst."""
    return data.find(_MARK_BYTES) >= 0


def _write_tagged(value: object) -> bytes:
    try:
        return _write(tag(value))
    except Exception as error:
        refused = Refused.because(error)
        raise EncodeError(refused.problem, path=refused.path) from error


def _survives(value: object, data: bytes) -> bool:
    """Whether reading `data` gives `value` again: equal, unmarked, no number rounded elsewhere."""
    return (
        not is_marked(data) and not _has_long_number(data) and not _is_deep(data) and _read(data) == value
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


def _is_deep(data: bytes) -> bool:
    """Whether `data` may be nested deeper than MAX_DEPTH.

    Each round peels the innermost brackets off; no more levels can be left than pairs of brackets.
    """
    brackets, peeled = data.translate(None, _NOT_BRACKETS) if len(data) > 2 * MAX_DEPTH else b"", 0
    while peeled + len(brackets) // 2 > MAX_DEPTH:
        if peeled == MAX_DEPTH:
            return True
        brackets, peeled = brackets.replace(b"[]", b"").replace(b"{}", b""), peeled + 1
    return False
