"""The types of arrays in our statements and their answers, and how a connection of asyncpg learns them.

Arrays of bytes, with the inputs and results of items, are written and read here. asyncpg looks at every
element to see whether it is an array itself, which takes ten times as long as writing it.

asyncpg does not know arrays of built-in types. Before their first use it looks them up by a query that costs
the server more than opening the connection, and that calls functions by the search path of the connection and
so could call another role's. But their numbers are the same in every PostgreSQL, so they are registered here.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

ARRAYS: Final = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int2": (1005, 21),
    "int4": (1007, 23),
    "text": (1009, 25),
    "int8": (1016, 20),
    "float8": (1022, 701),
}
"""The type of the elements: the numbers of the array and of the elements in `pg_type`."""


def _row(name: str, oid: int, element: int) -> dict[str, Any]:
    """A row as the driver's own query answers it."""
    return {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "basetype_name": None,
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
        "range_subtype": None,
        "range_subtype_name": None,
        "attrtypoids": None,
        "attrnames": None,
    }


ROWS: Final = [_row(name, oid, element) for name, (oid, element) in ARRAYS.items()]


def register_array_types(connection: Any) -> bool:
    """Register the types with a connection of asyncpg. False: this version of asyncpg cannot, and has to look
    them up."""
    try:
        connection.get_settings().register_data_types(ROWS)
    except (AttributeError, LookupError, TypeError):
        return False
    return True


def register_bytes_arrays(connection: Any) -> None:
    """Let a connection of asyncpg write and read arrays of bytes by the functions below. If this version of
    asyncpg cannot, it does so by its own. It forgets the types that it has learned."""
    oid, _ = ARRAYS["bytea"]
    with contextlib.suppress(AttributeError, TypeError):
        connection.get_settings().add_python_codec(
            oid, "_bytea", "pg_catalog", [], "array", write_bytes_array, read_bytes_array, "binary"
        )


class _Lengths(dict[int, bytes]):
    """The length of an element as the server reads it."""

    def __missing__(self, length: int) -> bytes:
        written = length.to_bytes(4, "big")
        if length < MOST_LENGTHS:
            self[length] = written
        return written


MOST_LENGTHS: Final = 4096
_lengths: Final = _Lengths()
_NULL: Final = b"\xff\xff\xff\xff"
_HEAD: Final = struct.Struct("!iiI")
_DIMENSION: Final = struct.Struct("!ii")
_LENGTH: Final = struct.Struct("!i")


def write_bytes_array(values: Iterable[Any]) -> bytes:
    """An array in the binary format of the server. It may have several dimensions, as lists in lists."""
    flat: list[Any] = list(values)
    sizes = [len(flat)]
    while flat and _is_list(flat[0]):
        size = len(flat[0])
        if not all(_is_list(each) and len(each) == size for each in flat):
            raise ValueError("the lists in an array must have the same length")
        sizes.append(size)
        flat = list(chain.from_iterable(flat))
    has_null = None in flat
    head = _HEAD.pack(len(sizes) if flat else 0, has_null, ARRAYS["bytea"][1])
    if not flat:
        return head
    dimensions = [_DIMENSION.pack(size, 1) for size in sizes]
    parts: Iterable[tuple[bytes, bytes]]
    if has_null:
        parts = ((_NULL, b"") if each is None else (_lengths[len(each)], each) for each in flat)
    else:
        parts = zip(map(_lengths.__getitem__, map(len, flat)), flat)  # noqa: B905  equally long
    return b"".join(chain((head,), dimensions, chain.from_iterable(parts)))


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def read_bytes_array(data: bytes) -> list[Any]:
    """The opposite of `write_bytes_array`."""
    dimensions, _, _ = _HEAD.unpack_from(data)
    place = _HEAD.size
    sizes = [_DIMENSION.unpack_from(data, place + n * _DIMENSION.size)[0] for n in range(dimensions)]
    place += dimensions * _DIMENSION.size
    values: list[Any] = []
    while place < len(data):
        (length,) = _LENGTH.unpack_from(data, place)
        place += _LENGTH.size
        values.append(None if length < 0 else data[place : place + length])
        place += max(length, 0)
    for size in sizes[:0:-1]:
        values = [values[n : n + size] for n in range(0, len(values), size)]
    return values
