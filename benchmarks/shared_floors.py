"""The floors of the stores that processes share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from benchmarks import floors, redis_floors


@dataclass(frozen=True)
class SharedFloor:
    """Each function gets the address of a store, and how many items or times."""

    submit: Callable[[str, int], Awaitable[float]]
    submit_singly: Callable[[str, int], Awaitable[float]]
    drain: Callable[[str, int], Awaitable[float]]
    notified: Callable[[str, int], Awaitable[list[float]]]


SHARED: Final = {
    "postgres": SharedFloor(floors.pg_submit, floors.pg_submit_singly, floors.pg_drain, floors.pg_notified),
    "redis": SharedFloor(
        redis_floors.submit, redis_floors.submit_singly, redis_floors.drain, redis_floors.notified
    ),
}
"""By the kind of the store."""
