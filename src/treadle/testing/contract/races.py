"""Run rounds of a race, and collect their effects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from treadle.item import Effects

T = TypeVar("T")

AT_ONCE = 10
"""Rounds that run concurrently. More would add waiting, not concurrency."""
FEWER = 1
"""How many times fewer rounds a case has, where it runs often and another run has all of them."""


def rounds(count: int) -> int:
    """How many rounds of this many a case has."""
    return max(AT_ONCE, count // FEWER)


async def run_rounds(count: int, race: Callable[[int], Awaitable[T]]) -> list[T]:
    """Run that many rounds of a race, `AT_ONCE` at a time."""
    results: list[T] = []
    for begin in range(0, count, AT_ONCE):
        results += await asyncio.gather(*(race(n) for n in range(begin, min(begin + AT_ONCE, count))))
    return results


def released_items(effects: Sequence[Effects]) -> list[str]:
    return [one.id for effect in effects for one in effect.released]


def ended_groups(effects: Sequence[Effects]) -> list[str]:
    return [one.id for effect in effects for one in effect.ended_groups]
