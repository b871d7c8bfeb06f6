"""Rounds of a race, and what their effects were."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from treadle.item import Effects

T = TypeVar("T")

ROUNDS = 200
AT_ONCE = 10
"""Rounds that run side by side: more is not more concurrency, only more waiting."""


async def rounds(count: int, play: Callable[[int], Awaitable[T]]) -> list[T]:
    """Play so many rounds, some at a time."""
    played: list[T] = []
    for begin in range(0, count, AT_ONCE):
        played += await asyncio.gather(*(play(n) for n in range(begin, min(begin + AT_ONCE, count))))
    return played


def released(effects: Sequence[Effects]) -> list[str]:
    return [one.id for effect in effects for one in effect.released]


def closed(effects: Sequence[Effects]) -> list[str]:
    return [one.id for effect in effects for one in effect.closed]
