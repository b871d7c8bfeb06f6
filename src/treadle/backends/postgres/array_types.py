"""The types of arrays in our statements and their answers, and how a connection of asyncpg learns them.

asyncpg does not know arrays of built-in types. Before their first use it looks them up by a query that costs
the server more than opening the connection, and that calls functions by the search path of the connection and
so could call another role's. But their numbers are the same in every PostgreSQL, so they are registered here.
"""

from __future__ import annotations

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
