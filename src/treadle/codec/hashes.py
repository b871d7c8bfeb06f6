"""Sets and dicts whose elements all have the same hash: each insertion would compare with all before it.

The hashes of texts are random in each process. Those of numbers and of UUIDs are not: 26,000 UUIDs with one
hash, in one payload of 1 MiB, took 199 seconds to read. So the hashes of large sets and dicts are counted
before they are built. treadle itself writes no set with equal elements.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from .refused import Refused

SMALL: Final = 64
"""So few elements are not counted: comparing each with all others is quick."""
MOST: Final = 64
"""More distinct elements than this with one hash are refused. (Up to 35 powers of 2 share a hash.)"""


def check_hashes(values: Collection[Any]) -> None:
    """Raise Refused if a set or dict of these values would take long to build."""
    if len(values) <= SMALL:
        return
    seen: dict[int, int] = {}
    # It stops early: since Python 3.12 a Fraction keeps its hash in a cache, whose keys have one hash too.
    for value in values:
        key = hash(value)
        seen[key] = times = seen.get(key, 0) + 1
        if times > MOST:
            raise Refused(f"more than {MOST} elements of a set or keys of a dict have the same hash")


def checked(values: Collection[Any]) -> Collection[Any]:
    """Return `values`, the elements of a set."""
    check_hashes(values)
    return values
