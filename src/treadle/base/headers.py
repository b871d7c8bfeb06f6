"""Headers: a few short texts that an item carries for its users: a request id, the name of a caller.

They are stored inside the item's options, beside the retry policy, and are handed on to the items that it
queues. Beside them is stored where the item came from, for a tracer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from treadle.errors import InputError, shown

from .ids import check_name

MAX_HEADERS: Final = 64
MAX_BYTES: Final = 8192
"""The most bytes, in UTF-8, of all names and values of one item."""


def check_headers(value: Any, name: str) -> dict[str, str]:
    """Return a copy of headers, or raise InputError."""
    if not isinstance(value, Mapping):
        raise InputError.of(name, value, "must map names to texts, as in headers={'request': 'r-1'}")
    given = cast("Mapping[object, object]", value)
    return check_headers_size(
        {check_name(key, name): _text(key, each, name) for key, each in given.items()}, name
    )


def _text(key: object, value: object, name: str) -> str:
    if not isinstance(value, str):
        raise _refused(name, key, value, f"must be a str, not {type(value).__name__}: write str(...)")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refused(name, key, value, "must not hold lone surrogates") from None
    return value


def _refused(name: str, key: object, value: object, problem: str) -> InputError:
    return InputError(f"{name}[{shown(key)}]={shown(value)} {problem}", parameters=(name,))


def check_headers_size(headers: dict[str, str], name: str = "headers") -> dict[str, str]:
    """Return these headers, or raise InputError if they are too many or too large together."""
    if len(headers) > MAX_HEADERS:
        raise InputError(
            f"{name} has {len(headers)} entries, and an item carries at most {MAX_HEADERS}",
            parameters=(name,),
        )
    size = sum([len(key.encode()) + len(value.encode()) for key, value in headers.items()])
    if size > MAX_BYTES:
        raise InputError(
            f"{name} has {size:,} bytes, and an item carries at most {MAX_BYTES:,}: store large values "
            "elsewhere, or make them arguments",
            parameters=(name,),
        )
    return headers


def add_headers(inherited: Mapping[str, str], own: Mapping[str, str] | None) -> Mapping[str, str]:
    """The headers of an item that inherits some. None: it gives none itself. Empty: it wants none. Others
    are added to those that it inherits, and win over them."""
    if own is None:
        return inherited
    return {**inherited, **own} if own and inherited else own


class _StoredTrace(msgspec.Struct):
    """The part of an item's stored options that says where the item came from."""

    trace: dict[str, str] | None = None


_trace_decoder = msgspec.json.Decoder(_StoredTrace)
_TRACE_ID: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


def trace_of(options: bytes) -> dict[str, str] | None:
    """The trace in the stored options of an item: where it came from. None if there is none. Headers do not
    count: their values are the user's."""
    if b'"trace"' not in options:
        return None
    try:
        return _trace_decoder.decode(options).trace
    except (msgspec.MsgspecError, RecursionError):
        return None


def trace_id_of(options: bytes) -> str | None:
    """The id of the trace within which an item was submitted, for the log. None if there is none, or if its
    tracer writes no `traceparent`."""
    found = _TRACE_ID.match((trace_of(options) or {}).get("traceparent", ""))
    return None if found is None else found[1]


class _Stored(msgspec.Struct):
    """The part of an item's stored options that users see."""

    headers: dict[str, str] = {}


_decoder = msgspec.json.Decoder(_Stored)


def headers_of(options: bytes) -> dict[str, str]:
    """The headers in the stored options of an item. Empty if the options cannot be read."""
    if not options:
        return {}
    try:
        return _decoder.decode(options).headers
    except (msgspec.MsgspecError, RecursionError):
        return {}
