"""Reads for operators: why an item waits, how the store stands, how far limits are used, what has died."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item_facts import DeadMark, Explanation, LimitUse, Overview


class PostgresWatch:
    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        raise NotImplementedError

    async def overview(self, *, tenant: str | None = None, cap: int = 10_000) -> Overview:
        raise NotImplementedError

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        raise NotImplementedError

    async def marks(
        self, *, tenant: str | None = None, count: int = 100, cap: int = 10_000
    ) -> Sequence[DeadMark]:
        raise NotImplementedError
