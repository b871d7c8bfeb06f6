"""Stored data that treadle did not write. Reading 1 MiB of it takes a bounded time, whatever it holds.

Without the bounds these took from 5 to 199 seconds, or did not end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from treadle.codec import Shape, default_codec
from treadle.errors import DecodeError

SIZE = 1_000_000
SAME_HASH = 2**61 - 1
"""Numbers that differ by a multiple of this have the same hash."""
LIMIT = 2.0
"""Seconds. Each takes a tenth of this on a machine that is not busy."""

to_json = msgspec.json.Encoder().encode


def tag(kind: str, value: object) -> dict[str, object]:
    return {"$treadle": kind, "value": value}


def as_many(make: Callable[[int], object]) -> list[object]:
    """As many as fit into a payload."""
    return [make(i) for i in range(SIZE // (len(to_json(make(20_000))) + 1))]


def uuid_text(i: int) -> str:
    return str(UUID(int=i * SAME_HASH))


def number_text(i: int) -> str:
    return str(i * SAME_HASH)


def nested(before: str, after: str, depth: int) -> bytes:
    return (before * depth + "0" + after * depth).encode()


UNTYPED: dict[str, bytes] = {
    "ints": to_json(tag("set", as_many(lambda i: tag("int", number_text(i))))),
    "decimals": to_json(tag("set", as_many(lambda i: tag("Decimal", number_text(i))))),
    "uuids": to_json(tag("frozenset", as_many(lambda i: tag("UUID", uuid_text(i))))),
    "keys": to_json(tag("dict", as_many(lambda i: [tag("UUID", uuid_text(i)), 0]))),
    "numbers": b'{"$treadle":"set","value":[%s]}' % ",".join(map(number_text, range(40_000))).encode(),
    "digits": to_json(tag("int", "9" * SIZE)),
    "hexadecimal digits": to_json(tag("int", "0x" + "f" * SIZE)),
    "decimal digits": to_json(tag("Decimal", "9" * SIZE)),
    "exponents": to_json(tag("set", as_many(lambda i: tag("Decimal", f"1e{999_000_000 + i}")))),
    "complex": to_json(tag("complex", ["9" * SIZE, "1e" + "9" * 100])),
    "datetime": to_json(tag("datetime", "2020-01-01T00:00:00." + "0" * SIZE)),
    "timedelta": to_json(tag("timedelta", [1e300, 0, 0])),
    "bytes": to_json(tag("bytes", "A" * SIZE)),
    "exception": to_json(tag("exception", {"type": "ValueError", "message": "m" * SIZE, "args": []})),
    "lists in a set": to_json(tag("set", [[]] * (SIZE // 3))),
    "long keys": nested('{"' + "k" * 3000 + '":', "}", 300).replace(b"0", to_json(tag("int", "x"))),
    "number": b"9" * SIZE,
    "exponent": b"1e" + b"9" * SIZE,
    "open arrays": b"[" * SIZE,
    "arrays": b"[" * (SIZE // 2) + b"]" * (SIZE // 2),
    "objects": b'{"a":' * (SIZE // 5),
    "deep tags": nested('{"$treadle":"tuple","value":[', "]}", 20_000),
    "deep frozensets": nested('{"$treadle":"frozenset","value":[', "]}", 300),
    "deep exceptions": nested(
        '{"$treadle":"exception","value":{"type":"KeyError","message":"","args":[', "]}}", 300
    ),
}


def read_within_limit(read: Callable[[bytes], object], data: bytes) -> DecodeError | None:
    found: DecodeError | None = None
    began = time.process_time()
    try:
        read(data)
    except DecodeError as error:
        found = error
    assert time.process_time() - began < LIMIT
    assert len(str(found)) < 2000, "the error quotes the data at length"
    return found


@pytest.mark.parametrize("data", UNTYPED.values(), ids=UNTYPED)
def test_hostile_data_without_a_type_is_read_in_bounded_time(data: bytes) -> None:
    read_within_limit(default_codec.decode, data)


@pytest.mark.parametrize("name", ["ints", "decimals", "uuids", "keys", "numbers"])
def test_a_set_of_values_with_one_hash_is_refused(name: str) -> None:
    error = read_within_limit(default_codec.decode, UNTYPED[name])
    assert "have the same hash" in str(error)


class Struct(msgspec.Struct):
    ids: set[UUID]


@dataclass
class Data:
    inside: list[Struct]


class Typed(TypedDict):
    ids: frozenset[UUID]


class Model(BaseModel):
    ids: set[UUID]


UUIDS = as_many(uuid_text)
COLLIDING: list[tuple[Any, Any]] = [
    (set[UUID], UUIDS),
    (frozenset[UUID], UUIDS),
    (dict[UUID, int], dict.fromkeys(UUIDS, 0)),
    (dict[int, int], dict.fromkeys(map(number_text, range(35_000)), 0)),
    (set[Decimal], as_many(number_text)),
    (set[Fraction], as_many(number_text)[:20_000]),
    (set[UUID | int], UUIDS),
    (list[set[UUID]], [[], UUIDS]),
    (Struct, {"ids": UUIDS}),
    (Data, {"inside": [{"ids": []}, {"ids": UUIDS}]}),
    (Typed, {"ids": UUIDS}),
    (Model, {"ids": UUIDS}),
    (Struct | Data, ["Struct", {"ids": UUIDS}]),
]


@pytest.mark.parametrize(("tp", "value"), COLLIDING, ids=[str(tp) for tp, _ in COLLIDING])
def test_a_declared_set_of_values_with_one_hash_is_refused(tp: Any, value: Any) -> None:
    error = read_within_limit(Shape(tp).decode, to_json(value))
    assert "have the same hash" in str(error)


def test_a_tag_does_not_hide_a_declared_set() -> None:
    data = to_json({"ids": UUIDS, "more": tag("int", "1")})
    error = read_within_limit(Shape(Struct).decode, data)
    assert "have the same hash" in str(error)


@dataclass
class Ordinary:
    ids: set[int]
    times: list[int]
    by_id: dict[UUID, str]
    pairs: set[tuple[int, str]]
    spans: frozenset[timedelta]


def test_ordinary_sets_are_read_as_before() -> None:
    """Also large ones, and lists that hold one value many times."""
    shape = Shape(Ordinary)
    value = Ordinary(
        ids=set(range(-2_000, 2_000)),
        times=[0] * 5_000,
        by_id={UUID(int=i**5): "text" for i in range(2_000)},
        pairs={(i, str(-i)) for i in range(2_000)},
        spans=frozenset(timedelta(days=i) for i in range(2_000)),
    )
    assert shape.decode(shape.encode(value)) == value


def test_powers_of_two_can_be_in_one_set() -> None:
    """Up to 35 of them share a hash."""
    powers = {2.0**i for i in range(-1074, 1024)}
    assert default_codec.decode(default_codec.encode(powers)) == powers


DECLARED: list[tuple[Any, bytes]] = [
    (Fraction, b'"1e10000000"'),
    (Fraction, b'"1e-10000000"'),
    (Fraction, b'"%s"' % (b"9" * SIZE)),
    (list[Fraction], to_json(["1e4000"] * 10_000)),
    (int, b"9" * SIZE),
    (int, b"1e400"),
    (float, b"9" * SIZE),
    (Decimal, b'"%s"' % (b"9" * SIZE)),
    (timedelta, b'"P%sD"' % (b"9" * SIZE)),
    (datetime, b'"2020-01-01T00:00:00.%sZ"' % (b"9" * SIZE)),
    (UUID, b'"%s"' % (b"-" * SIZE)),
    (list[Any], b"[" * SIZE),
    (dict[str, Any], b'{"a":' * (SIZE // 5)),
]


@pytest.mark.parametrize(("tp", "data"), DECLARED, ids=[f"{tp} {data[:12]!r}" for tp, data in DECLARED])
def test_hostile_data_of_a_declared_type_is_read_in_bounded_time(tp: Any, data: bytes) -> None:
    read_within_limit(Shape(tp).decode, data)


@pytest.mark.parametrize("text", ["3/4", "-7", "+1/3", "0.25", "9" * 4000 + "/7"], ids=len)
def test_fractions_are_read_as_before(text: str) -> None:
    assert Shape(Fraction).decode(to_json(text)) == Fraction(text)
